"""The strategy `stitching`: many small HLO operations in one kernel, through shared memory."""
