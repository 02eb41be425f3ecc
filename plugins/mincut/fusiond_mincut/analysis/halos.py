"""How far round the pixels that a block of threads computes each image of a fused block is needed.

The halos of a chain add up: an image's halo is the largest sum of offsets on any way from it to an output, for each
side by itself.
"""

from fusiond_mincut.analysis.blocks import KernelBlock
from fusiond_mincut.frontend.graph import Halo, Pipeline


def halos(pipeline: Pipeline, block: KernelBlock) -> dict[str, Halo]:
    """Where each image of a block is needed, as the halo round the rectangle of a block of threads; images that are
    read by a step, or at computed coordinates, on the way are not there.

    It is the sum along every path, not the largest radius of one stage (where the paper's width of the fused interior,
    section IV-B, has the larger radius)."""
    found: dict[str, Halo] = {name: Halo() for name in block.outputs}
    for name in reversed(block.kernels):
        kernel = pipeline.kernel(name)
        if name not in found:
            continue
        for image in kernel.aligned:
            if not pipeline.images[image].single:
                found[image] = found.get(image, Halo()).union(found[name] + kernel.window(image))
    return found
