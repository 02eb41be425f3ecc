"""The policies that tests plan with, and the device they plan for."""

from fusiond.model.nouns import DeviceLimits
from fusiond_stitching.analysis.policy import FusionPolicy

LIMITS = DeviceLimits(
    multiprocessors=4, registers_per_sm=0, shared_bytes_per_sm=227 * 1024, shared_bytes_per_block=227 * 1024,
    threads_per_sm=1024, blocks_per_sm=16,
)  # fmt: skip
MORE = {"layers": False, "merge": True, "recompute": True, "middle": True, "spill": True, "warp": True}
POLICIES = {
    "paper": FusionPolicy(),
    "tiny": FusionPolicy(**MORE, packing=True, barriers=True, shared_limit=512, threads=32, grain=64),
    "blocks": FusionPolicy(**MORE, packing=True, registers=True, shared_limit=48 << 10),
    "stages": FusionPolicy(**MORE, packing=True, barriers=True, stitch_dots=True, grain=512, threads=128),
    "grid": FusionPolicy(
        **MORE, packing=True, barriers=True, registers=True, per_thread=4, stitch_dots=True, grain=512, threads=128
    ),
}
