"""Training steps of whole models, by fusiond.jax and fusiond.torch: see `__main__`."""

import os

# Before jax is imported: its CUDA plugin compiles without a GPU, but looks for one and for cuDNN.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch is in the same process
