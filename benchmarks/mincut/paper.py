"""The paper's numbers: Qiao et al., From Loop Fusion to Kernel Fusion, CGO 2019, tables I and II."""

from __future__ import annotations

from collections.abc import Mapping

CITATION = "Qiao et al., From Loop Fusion to Kernel Fusion, CGO 2019"
GPUS = ("GTX 745", "GTX 680", "K20c")
APPLICATIONS = ("harris", "sobel", "unsharp", "shitomasi", "enhance", "night")

OPTIMIZED_OVER_BASELINE: Mapping[str, tuple[float, float, float]] = {
    "harris": (1.145, 1.344, 1.146),
    "sobel": (1.108, 1.377, 1.048),
    "unsharp": (2.025, 3.438, 2.304),
    "shitomasi": (1.138, 1.357, 1.149),
    "enhance": (1.760, 1.920, 1.809),
    "night": (1.000, 1.020, 1.000),
}
BASIC_OVER_BASELINE: Mapping[str, tuple[float, float, float]] = {
    "harris": (1.044, 1.266, 1.094),
    "sobel": (1.002, 0.987, 1.002),
    "unsharp": (1.007, 1.001, 0.999),
    "shitomasi": (1.046, 1.287, 1.099),
    "enhance": (1.413, 1.785, 1.490),
    "night": (1.001, 1.020, 1.000),
}
GEOMETRIC_MEAN: Mapping[str, tuple[float, float]] = {
    "harris": (1.208, 1.131),
    "sobel": (1.169, 1.000),
    "unsharp": (2.522, 1.002),
    "shitomasi": (1.211, 1.139),
    "enhance": (1.829, 1.555),
    "night": (1.007, 1.007),
}
"""Over the three GPUs: optimized over baseline, basic over baseline."""
