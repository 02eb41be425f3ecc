"""What it costs a program to call functions that fusiond.jax has fused."""
