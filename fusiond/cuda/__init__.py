"""What is known about CUDA without a GPU: limits per architecture, occupancy, ptxas' report, entry tables."""
