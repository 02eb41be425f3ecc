"""What one child may use, unless it is told otherwise. Standard library only: `start` is imported by every command."""

SECS = 60.0
MEMORY_BYTES = 4 << 30
STACK_BYTES = 64 << 20
