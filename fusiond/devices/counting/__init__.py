"""Counts what a GPU would pay for a kernel: its PTX runs on the processor, 32 lanes a warp."""
