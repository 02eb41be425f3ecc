"""What the paper reports (section 6): kernel ratios, speed-ups and shared memory of its six workloads."""

from __future__ import annotations

CITATION = "Long, Yang, Zhu and Lin, FusionStitching (2018), section 6"

KERNEL_RATIO_MEAN = 0.45
"""Kernels over those of its XLA baseline, library calls left out: geometric mean (55 % fewer, abstract)."""
KERNEL_RATIO = {"W2V": 0.82, "Speech": 0.25}
"""The two that section 6.3 gives in numbers; most of the others are below 0.5."""
FUSION_SPEEDUP_MEAN, FUSION_SPEEDUP = 1.74, {"W2V": 1.15, "Speech": 3.5}
"""Of the fusable portion over the baseline's (section 6.4)."""
END_TO_END_MEAN = 1.13

SHARED = {  # workload: (average bytes, most bytes, kernels that were shrunk, share of space that is shared)
    "LR": (64, 128, 0, 0.0),
    "W2V": (96, 288, 0, 0.0),
    "RNN": (1344, 3072, 0, 0.0),
    "BiRNN": (1376, 5120, 0, 0.0),
    "Speech": (9504, 16416, 3, 0.01),
    "NMT": (256, 10432, 0, 0.17),
}
"""Table 3."""

BESIDE = {
    "lr_step": "LR", "w2v_step": "W2V", "lstm_step": "RNN", "bilstm_step": "BiRNN", "speech_fwd": "Speech",
    "speech_step": "Speech", "nmt_fig3": "NMT", "nmt_attn": "NMT",
}  # fmt: skip
"""Our module -> the workload of table 2 that it follows, at a small size."""


def predicted_end_to_end(fusable_ratio: float, fusion_speedup: float) -> float:
    """The formula of section 6.4."""
    return 1 + fusable_ratio * (1 - 1 / fusion_speedup)
