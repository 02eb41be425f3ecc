"""Devices for GPUs that are not here: programs are checked on the processor, and scored by a bound that is counted."""
