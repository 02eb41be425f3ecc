"""The names of the headlines, apart from what they are: whoever plans the time on a GPU needs no YAML for that."""

from __future__ import annotations

ORDER = (
    "hist+maxpool", "softmax", "harris", "layer_norm", "adamw", "batchnorm+hist", "unsharp", "layer_norm_gradient",
    "llama_rows", "maxpool+upsample", "sobel", "blake2b+ethash",
)  # fmt: skip
"""In the order of their worth, of each strategy one and then the next: a machine may go away at any moment."""
