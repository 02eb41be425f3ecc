"""What blocks compute of a tensor, against what must be written of it.

    shape         a chunk fits the dims it is a chunk of
    coverage      the blocks' chunks together are the tensor, and each element is written by one block
    unique        no two blocks compute the same chunk

Nothing takes time per element or per block.
"""

import functools
import itertools
import math

from fusiond_stitching.analysis.plan import Chunk, FlatChunk


@functools.lru_cache(maxsize=4096)
def shape(chunk: Chunk, dims: tuple[int, ...]) -> str:
    """What is wrong with a chunk over dims; empty when nothing is."""
    if isinstance(chunk, FlatChunk):
        return "" if chunk.size >= 1 and chunk.parts >= 1 else "a chunk has no elements"
    if len(chunk.splits) != len(dims):
        return f"a chunk of {len(chunk.splits)} dimensions for {len(dims)}"
    for each, dim in zip(chunk.splits, dims, strict=True):
        if each.parts < 1 or each.stride < 1 or (dim and (each.size < 1 or (each.parts - 1) * each.size >= dim)):
            return f"{each.parts} parts of {each.size} for a dimension of {dim}"
    return ""


@functools.lru_cache(maxsize=4096)
def coverage(chunk: Chunk, dims: tuple[int, ...], blocks: int) -> str:
    """What is not written, or by nobody, when `blocks` blocks write their chunks; empty when all is well.

    The first of a chunk's replicas writes it: block sum(coordinate * stride), if those are its own coordinates. Where
    each stride is a multiple of the end (stride * parts) of the next smaller one, they are, for all coordinates: each
    chunk has one writer, and the last one's number is the largest. Chunks that are numbered otherwise are refused."""
    elements = math.prod(dims)
    if isinstance(chunk, FlatChunk):
        written = min(chunk.size * blocks, elements)
        return "" if written == elements else f"{elements - written} of {elements} elements are not written"
    if shape(chunk, dims):
        return ""  # said elsewhere
    if any(each.size * each.parts < dim for each, dim in zip(chunk.splits, dims, strict=True)):
        return "the chunks are too small for the dims"
    ascending = sorted((each.stride, each.parts) for each in chunk.splits if each.parts > 1)
    for (stride, parts), (above, _) in itertools.pairwise(ascending):
        if above % (stride * parts):
            return f"parts of stride {above} are not numbered in multiples of {stride * parts}"
    last = sum((parts - 1) * stride for stride, parts in ascending)
    return "" if last < blocks else f"{blocks} blocks write {chunk.parts} chunks, the last of them block {last}"


@functools.lru_cache(maxsize=4096)
def unique(chunk: Chunk, blocks: int) -> bool:
    """Whether every block writes its chunk: no two compute the same one. (Blocks behind the end of a FlatChunk have
    none.)"""
    if isinstance(chunk, FlatChunk):
        return True
    end = 1  # so many blocks are told apart by the coordinates so far
    for stride, parts in sorted((each.stride, each.parts) for each in chunk.splits if each.parts > 1):
        if stride != end:
            return min(end, stride) >= blocks
        end *= parts
    return end >= blocks
