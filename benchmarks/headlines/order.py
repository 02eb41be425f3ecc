"""The names of the headlines, and which share a slice: apart from what they are, since whoever plans the time on a GPU
needs no YAML for that."""

from __future__ import annotations

ORDER = (
    "hist+maxpool", "softmax", "harris", "layer_norm", "adamw", "batchnorm+hist", "unsharp", "layer_norm_gradient",
    "llama_rows", "maxpool+upsample", "sobel", "blake2b+ethash",
)  # fmt: skip
"""In the order of their worth, of each strategy one and then the next: a machine may go away at any moment."""
GROUPS = (ORDER[:4], ORDER[4:8], ORDER[8:])
"""Those of a group share their processes: to start one takes longer than to measure in it."""
