"""A corpus of public functions of jax, flax, optax and equinox, at real sizes: see `__main__`."""

import os

# Before jax is imported: its CUDA plugin compiles without a GPU, but looks for one and for cuDNN.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
