"""Jobs for the strategy as tests ask them, and the GPU that they plan for."""

import fusiond_stitching.plugin as plugin
from fusiond.model.nouns import DeviceLimits, Job
from fusiond.requests import jobs
from fusiond.requests.registry import Registry

H100 = DeviceLimits(
    multiprocessors=132, shared_bytes_per_sm=228 * 1024, shared_bytes_per_block=227 * 1024, threads_per_sm=2048,
    blocks_per_sm=32,
)  # fmt: skip
ODD = """HloModule odd

add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[7,33] parameter(0)
  zero = f32[] constant(0)
  sum = f32[7] reduce(x, zero), dimensions={1}, to_apply=add
  wide = f32[7,33] broadcast(sum), dimensions={0}
  ROOT y = f32[7,33] divide(x, wide)
}
"""


def registry() -> Registry:
    found = Registry()
    found.add(plugin, "stitching")
    return found


def job(text: str, path: str = "job.yaml") -> Job:
    (found,) = jobs.read(path, f"strategy: stitching\n{text}")
    return found
