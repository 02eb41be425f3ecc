"""fusiond: measures which CUDA kernels, pipelines and graphs are worth fusing, and keeps the answers."""

__version__ = "0.1.0"
