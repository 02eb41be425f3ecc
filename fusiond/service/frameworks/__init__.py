"""The common part of `fusiond.jax` and `fusiond.torch`: it asks about regions and launches answers."""

MOST_TAPS = 225
MOST_FILTERS = 16


def is_stencil(outputs: int, inputs: int, groups: int, taps: int) -> bool:
    """Whether a convolution is fused: one filter a channel, or up to MOST_FILTERS of them, or as many channels that one
    filter reads; each of at most MOST_TAPS pixels. With several of both it is worth a library's product of matrices."""
    own = outputs // groups
    return min(inputs, own) == 1 and max(inputs, own) <= MOST_FILTERS and 0 < taps <= MOST_TAPS >= inputs * taps // 2
