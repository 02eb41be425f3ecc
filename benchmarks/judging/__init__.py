"""Whether the referee lets every right kernel pass."""
