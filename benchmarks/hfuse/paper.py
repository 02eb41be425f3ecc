"""What Li et al. measured: Ao Li, Bojian Zheng, Gennady Pekhimenko, Fan Long, "Automatic Horizontal Fusion for GPU
Kernels", CGO 2022, section IV, figures 8 and 9, and the averages that the text quotes.

Every entry is (GeForce GTX 1080 Ti, Tesla V100). Figure 7 is a plot without numbers; at a ratio of execution times near
1, its points are the speed-ups of figure 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CITATION = "Li et al., Automatic Horizontal Fusion for GPU Kernels, CGO 2022"
GPUS = ("GTX 1080 Ti", "V100")

Two = tuple[float, float]


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A row of figure 8."""

    time_ms: Two
    issue_slot_pct: Two  #: Issue slots that issued an instruction
    memory_stall_pct: Two  #: Of the stalls, those that wait for memory instructions
    occupancy_pct: Two  #: Achieved, not theoretical


FIGURE_8: Mapping[str, KernelRow] = {
    "im2col": KernelRow((1.92, 1.69), (87.18, 63.81), (27.5, 38.2), (48.0, 48.1)),
    "maxpool": KernelRow((1.93, 1.97), (7.99, 8.55), (95.2, 97.2), (89.5, 92.2)),
    "upsample": KernelRow((1.72, 2.41), (34.32, 23.29), (77.8, 81.3), (48.3, 49.7)),
    "hist": KernelRow((1.70, 1.90), (14.46, 50.70), (1.4, 7.3), (99.0, 74.3)),
    "batchnorm": KernelRow((2.15, 1.90), (61.83, 63.27), (52.2, 60.3), (96.2, 98.1)),
    "blake256": KernelRow((38.43, 37.33), (91.01, 53.22), (1.3, 0.0), (48.9, 48.9)),
    "blake2b": KernelRow((39.20, 39.40), (90.15, 52.44), (1.7, 0.0), (49.1, 48.9)),
    "sha256": KernelRow((42.88, 39.69), (65.62, 49.07), (0.0, 0.0), (30.6, 24.6)),
    "ethash": KernelRow((46.01, 37.23), (10.88, 4.17), (96.1, 96.6), (36.7, 18.2)),
}


@dataclass(frozen=True, slots=True)
class FusedRow:
    """Half a row of figure 9: the fused kernel with or without the register bound. Speed-ups are over two streams."""

    speedup_pct: Two
    issue_slot_pct: Two
    memory_stall_pct: Two
    occupancy_pct: Two


@dataclass(frozen=True, slots=True)
class PairRow:
    """A row of figure 9."""

    native_issue_slot_pct: Two  #: Of the two native kernels, weighted by their cycles
    free: FusedRow  #: N-RegCap
    capped: FusedRow  #: RegCap


FIGURE_9: Mapping[str, PairRow] = {
    "batchnorm+upsample": PairRow(
        (52.29, 41.69),
        FusedRow((-35.0, -37.4), (32.05, 25.93), (67.2, 76.1), (42.9, 42.9)),
        FusedRow((-23.4, -28.9), (38.35, 29.73), (75.0, 80.7), (87.1, 83.2)),
    ),
    "batchnorm+hist": PairRow(
        (40.55, 57.22),
        FusedRow((51.2, -28.5), (55.89, 33.43), (45.6, 49.7), (90.7, 43.0)),
        FusedRow((53.4, 15.8), (56.74, 53.33), (46.1, 56.3), (91.1, 96.0)),
    ),
    "batchnorm+im2col": PairRow(
        (73.65, 64.81),
        FusedRow((-31.1, -42.8), (44.43, 31.55), (50.8, 67.6), (37.3, 42.0)),
        FusedRow((-12.7, -31.1), (58.13, 41.55), (63.4, 74.5), (92.0, 85.3)),
    ),
    "batchnorm+maxpool": PairRow(
        (35.73, 35.28),
        FusedRow((7.8, 3.4), (32.58, 28.41), (67.3, 78.2), (64.1, 72.7)),
        FusedRow((7.8, 3.4), (32.58, 32.20), (67.5, 78.2), (64.0, 72.7)),
    ),
    "hist+im2col": PairRow(
        (51.90, 58.03),
        FusedRow((12.2, -17.3), (60.34, 40.69), (20.0, 31.6), (38.1, 37.4)),
        FusedRow((11.3, -0.1), (60.09, 51.32), (19.8, 46.1), (38.3, 78.6)),
    ),
    "hist+maxpool": PairRow(
        (11.05, 28.58),
        FusedRow((52.5, 56.6), (19.07, 36.25), (26.7, 43.5), (67.5, 59.0)),
        FusedRow((53.4, 57.1), (19.10, 39.07), (25.0, 43.0), (67.7, 57.5)),
    ),
    "hist+upsample": PairRow(
        (26.87, 35.70),
        FusedRow((4.4, -5.7), (30.17, 35.01), (40.8, 41.2), (38.5, 43.5)),
        FusedRow((51.4, 5.7), (41.20, 36.37), (48.0, 57.0), (77.6, 82.6)),
    ),
    "im2col+maxpool": PairRow(
        (45.95, 34.05),
        FusedRow((7.0, -12.0), (51.52, 30.47), (54.7, 69.3), (32.6, 32.5)),
        FusedRow((25.3, -7.5), (57.87, 33.87), (62.5, 74.4), (63.5, 58.4)),
    ),
    "im2col+upsample": PairRow(
        (64.76, 41.11),
        FusedRow((5.4, -10.8), (71.92, 36.72), (43.0, 72.2), (42.7, 44.9)),
        FusedRow((-24.1, -45.5), (49.50, 24.24), (73.6, 78.9), (73.7, 74.0)),
    ),
    "maxpool+upsample": PairRow(
        (22.47, 17.00),
        FusedRow((-1.6, -3.4), (23.39, 16.18), (79.3, 86.4), (30.0, 33.1)),
        FusedRow((29.4, 1.1), (30.32, 17.97), (81.0, 88.3), (60.9, 62.3)),
    ),
    "blake2b+ethash": PairRow(
        (47.39, 28.29),
        FusedRow((15.9, 30.1), (58.93, 36.73), (22.8, 25.5), (15.8, 8.6)),
        FusedRow((42.9, 65.8), (70.08, 46.85), (19.8, 23.9), (29.0, 29.2)),
    ),
    "blake256+ethash": PairRow(
        (47.49, 28.46),
        FusedRow((17.0, 30.3), (57.89, 37.05), (19.5, 26.5), (16.1, 8.6)),
        FusedRow((47.4, 64.7), (71.41, 46.79), (17.6, 24.7), (29.3, 29.3)),
    ),
    "ethash+sha256": PairRow(
        (36.97, 26.81),
        FusedRow((8.8, 37.0), (39.25, 36.62), (10.3, 26.8), (15.7, 8.8)),
        FusedRow((35.1, 44.1), (50.51, 39.37), (18.4, 16.5), (28.8, 28.8)),
    ),
    "blake256+blake2b": PairRow(
        (90.58, 52.82),
        FusedRow((-26.5, -2.7), (66.08, 51.34), (2.3, 0.0), (37.5, 36.8)),
        FusedRow((-96.5, -96.1), (3.60, 3.31), (72.0, 62.4), (98.4, 96.0)),
    ),
    "blake256+sha256": PairRow(
        (77.81, 51.11),
        FusedRow((-44.3, -1.0), (41.13, 50.22), (0.9, 0.0), (22.7, 24.4)),
        FusedRow((-51.2, -37.4), (42.57, 34.32), (43.0, 7.7), (56.2, 51.6)),
    ),
    "blake2b+sha256": PairRow(
        (77.49, 50.74),
        FusedRow((-42.9, 2.8), (41.40, 50.26), (0.8, 0.0), (22.7, 24.5)),
        FusedRow((-50.9, -31.7), (38.27, 35.30), (48.0, 7.6), (54.9, 50.6)),
    ),
}

ALWAYS_FASTER = (
    "batchnorm+hist",
    "batchnorm+maxpool",
    "hist+maxpool",
    "hist+upsample",
    "maxpool+upsample",
    "blake256+ethash",
    "blake2b+ethash",
    "ethash+sha256",
)
"""The pairs that the text says gain across all ratios on both GPUs (section IV-B; it counts them as 5 and 3 cases)."""

MEAN_GAIN_PCT: tuple[Two, Two] = ((12.4, 55.1), (2.5, 60.8))
"""From the least to the most of the mean gains over all ratios, of those pairs: on the one GPU, on the other."""

WINS: Two = (8, 5)
"""Of the 16 pairs, those whose mean over the ratios beats both the vertical fusion and the native kernels (section
IV-B; the introduction says 7 and 6)."""
