"""What `fusiond.jax` and `fusiond.torch` have in common: asking for regions of a program, and launching answers."""
