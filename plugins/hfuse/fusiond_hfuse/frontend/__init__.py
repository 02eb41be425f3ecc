"""From source files to the kernels of a job."""
