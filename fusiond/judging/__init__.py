"""Whether a kernel is a right and faster replacement of another one, whoever wrote it."""
