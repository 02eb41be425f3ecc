"""GPUs that need not be here: limits by architecture, occupancy, and what compilers report of a kernel."""
