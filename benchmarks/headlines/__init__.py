"""What a reader of the README asks: what fusing gains on this GPU, with its interval, beside what they use today.

catalogue   the headlines: jobs at real sizes
functions   the row operations in JAX, PyTorch and Triton
field       here, without a GPU: the programs of a headline, unfused and fused, as bundles
measure     there: screened in one process, the best in five fresh ones, a verdict; then the rivals
page        docs/results-gpu.md, and the blocks of other pages that depend on it
"""
