"""Kernels that are never fused: reductions, histograms, scans and hysteresis, each in launches of its own.

Their pixels are numbered in one row, i = y * width + x, and so are the launches' threads.
"""

from __future__ import annotations

from fusiond_mincut.codegen import histograms, hysteresis, reductions, scans
from fusiond_mincut.codegen.boundary_stages import Written
from fusiond_mincut.frontend.graph import HISTOGRAM, ImageKernel, Pipeline


def written(pipeline: Pipeline, kernel: ImageKernel, threads: int) -> Written:
    """The text and the launches of a boundary, for blocks of `threads`."""
    if kernel.pattern == "hysteresis":
        return hysteresis.hysteresis(pipeline, kernel, threads)
    if kernel.pattern == "scan":
        return scans.scan(pipeline, kernel, threads)
    if kernel.reduction == HISTOGRAM:
        return histograms.histogram(pipeline, kernel, threads)
    return reductions.reduction(pipeline, kernel, threads)


def shared_bytes(kernel: ImageKernel, threads: int) -> int:
    """The dynamic shared memory of a block of threads."""
    if kernel.reduction == HISTOGRAM:
        return histograms.shared_bytes(kernel)
    return reductions.shared_bytes(kernel, threads) if kernel.single else 0
