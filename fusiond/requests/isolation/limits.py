"""Default limits of one child. Standard library only: every command imports `start`."""

SECS = 60.0
MEMORY_BYTES = 4 << 30
STACK_BYTES = 64 << 20
