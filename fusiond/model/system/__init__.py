"""Access to the operating system: processes, files, memory, and their faults."""
