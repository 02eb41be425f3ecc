"""What a GPU would pay for a kernel, counted without one: its PTX is run on the processor, 32 lanes a warp."""
