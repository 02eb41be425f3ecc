"""NVIDIA's GPUs. In the daemon's process: `provider`. In the child: `executor`, the only importer of PyCUDA."""
