"""From YAML to the graph of kernels."""
