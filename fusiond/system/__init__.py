"""What fusiond asks of the operating system: processes, files, memory, and their faults."""
