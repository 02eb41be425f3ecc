"""The link of the cpu device: copies take what it says, and what can overlap does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusiond.build import gxx
from fusiond.build.cache import BuildCache
from fusiond.devices.cpu.executor import CpuExecutor, CpuProgram
from fusiond.devices.cpu.link import Link, parse
from fusiond.model.errors import RequestError
from fusiond.model.program import Buffer, Copy, CopyBatch, Launch, Memory, Pointer, Prefetch, Program, Role, Source

N = 3000
KERNEL = Source(
    name="d", text='extern "C" __global__ void k(float* x) { x[threadIdx.x] += 1; }', entries=("k",)
)  # fmt: skip


def both(name: str, **more: Any) -> tuple[Buffer, Buffer]:
    return (
        Buffer(name=name, dtype="float32", elements=N, role=Role.INPUT, memory=Memory.PINNED, **more),
        Buffer(name=f"{name}@", dtype="float32", elements=N, role=Role.OUTPUT),
    )


def loaded(link: Link, cache: Path, *steps: Any) -> CpuProgram:
    pages = Buffer(name="m", dtype="float32", elements=N, role=Role.INPUT, memory=Memory.MANAGED)
    program = Program(name="p", buffers=(*both("a"), *both("b"), pages), sources=(KERNEL,), steps=steps)
    binary = gxx.build(KERNEL, cache=BuildCache(cache))
    assert isinstance(binary, Path)
    return CpuExecutor(link).load(program, {"d": binary})


def test_a_message_takes_its_latency_and_its_bytes(scheduler_library: Path, shared_cache: Path) -> None:
    link = Link(bytes_per_us=1000, latency_us=8)
    one = Copy(name="one", source=("a",), target=("a@",))
    assert loaded(link, shared_cache, one).sample_us(1) == pytest.approx(20)
    two = (one, Copy(name="two", source=("b",), target=("b@",), stream=1))
    assert loaded(link, shared_cache, *two).sample_us(3) == pytest.approx(40), "one engine carries one at a time"
    batch = CopyBatch(name="both", copies=(("a", "a@"), ("b", "b@")))
    assert loaded(link, shared_cache, batch).sample_us(1) == pytest.approx(32)
    back = Copy(name="back", source=("b@",), target=("b",), stream=1)
    assert loaded(link, shared_cache, one, back).sample_us(1) == pytest.approx(20), "each way at once"
    fetch = Prefetch(name="fetch", buffers=("m",), to_device=True, stream=1)
    assert loaded(link, shared_cache, one, fetch).sample_us(1) == pytest.approx(40), "pages go over the same link"


def test_kernels_take_what_they_took_beside_the_copies(scheduler_library: Path, shared_cache: Path) -> None:
    launch = Launch(name="k", source="d", entry="k", grid=(1, 1, 1), block=(64, 1, 1),
                    arguments=(Pointer(buffer="b@"),), stream=1)  # fmt: skip
    up = Copy(name="up", source=("a",), target=("a@",))
    found = loaded(Link(bytes_per_us=0.1, latency_us=0), shared_cache, up, launch).timed()
    assert found.busy_us["up"] == pytest.approx(120_000)
    assert 0 < found.busy_us["kernels"] < found.busy_us["up"]
    assert found.span_us == pytest.approx(120_000), "the kernel is hidden behind the copy"


@pytest.mark.parametrize("text", ["12", "12GB/s", "0GB/s,8us", "12GB/s,8ms", "GB/s,us", "12GB/s,8us,early"])
def test_a_link_that_is_none(text: str) -> None:
    with pytest.raises(RequestError, match="expected a bandwidth and a latency, such as 12GB/s,8us"):
        parse(text)
