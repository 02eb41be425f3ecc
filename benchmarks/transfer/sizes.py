"""Messages fused where data are small, in chunks where they are large: which way wins at which size on a timed link.

For each size the real tuner searches all that the strategy offers, on the cpu device whose copies take what a link of a
given bandwidth and latency would (FUSIOND_CPU_LINK). Emulated: kernels take what they take on the processor, so ratios
say where one way overtakes another on such a link, and nothing of a GPU. The link is as fast as the kernels, where
overlap is worth most: its bandwidth is measured first, so that two machines can have different ones.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.benches import TunedBench, answer
from benchmarks.transfer import link
from fusiond.devices.cpu.link import VARIABLE, Link
from fusiond.errors import RequestError
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.requests.planning import choose_device
from fusiond.store.database import Store
from fusiond.store.trials import TrialLine
from fusiond.tuning import tuner
from fusiond_transfer.python import KernelGraph

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30)
"""Bytes that cross, both ways together."""
CHAINS = 4
"""Vectors up, kernels, vectors down."""
TRIALS = 40
CALIBRATED_ELEMENTS = 1 << 22


def equal_link() -> Link:
    """A link that carries a vector in the time in which the kernel works through it, rounded to 0.01 GB/s."""
    free = Link(bytes_per_us=1e6, latency_us=0.0)
    kernels_us = link._loaded(link.there_and_back(CALIBRATED_ELEMENTS), 1, free).timed().busy_us["kernels"]
    return Link(bytes_per_us=round(4 * CALIBRATED_ELEMENTS / kernels_us, -1), latency_us=link.LATENCY_US)


def graph(size_bytes: int) -> KernelGraph:
    """Chains that do not touch each other, of vectors of one length: all may cross in one message each way."""
    made = KernelGraph(f"chains_{size_bytes}", elements=size_bytes // (2 * CHAINS * 4), dtype="float32")
    for number in range(CHAINS):
        (x,) = made.inputs(f"x{number}")
        made.device(f"work{number}", reads=(x,), writes=(f"y{number}",), body=f"sqrt(abs({x}) + 1) * {x} + 1")
    made.outputs(*(f"y{number}" for number in range(CHAINS)))
    return made


def table(
    say: Callable[[str], None], over: Link, *, sizes: Sequence[int] = SIZES, trials: int = TRIALS
) -> Iterator[dict[str, Any]]:
    """A line for each size. RequestError where another link is asked for already."""
    if os.environ.get(VARIABLE, str(over)) != str(over):
        raise RequestError("is set, and the sweep sets it itself", where=VARIABLE)
    os.environ[VARIABLE] = str(over)
    registry = Registry.load()
    provider, device = choose_device(registry, "cpu")
    with (
        tempfile.TemporaryDirectory(prefix="fusiond-sizes-") as folder,
        Store.open(Path(folder) / "db.sqlite") as store,
    ):
        bench = TunedBench(provider=provider, device=device, registry=registry, store=store, say=lambda line: None)
        for size in sizes:
            row = {"bytes": size, "link": str(over), **_tuned(bench, Path(folder), size, trials)}
            say(f"{size} bytes: {row['answer']['verdict']}, {row['winner']['kind']}: {_short(row)}")
            yield row


def _tuned(bench: TunedBench, folder: Path, size: int, trials: int) -> dict[str, Any]:
    (folder / f"chains_{size}.yaml").write_text(graph(size).yaml())
    text = f"strategy: transfer\ngraph: ./chains_{size}.yaml\ndevice: cpu\nsearch: {{trials: {trials}}}\n"
    (job,) = jobs.read(folder / "job.yaml", text)
    submitted = tuner.submit(bench.store, bench.registry, job)
    done = bench.tune(submitted)
    record = bench.store.record(submitted.workload_key, bench.device.key)
    if record is None:
        raise RequestError(f"there is no answer at {size} bytes: {done.problem}", where="--sizes")
    lines = [each for each in bench.store.trial_lines(submitted.id) if each.time_us is not None]
    ways: dict[str, dict[str, Any]] = {}
    for each in lines:
        kind = _kind(each)
        if kind not in ways or (each.time_us or 0.0) < ways[kind]["time_us"]:
            ways[kind] = {"time_us": each.time_us, "config": dict(each.config)}
    best = min(ways, key=lambda kind: float(ways[kind]["time_us"]))
    found: dict[str, Any] = {"answer": answer(record), "ways": ways, "trials": len(lines)}
    return found | {"winner": {"kind": best, **ways[best]}}


def _kind(line: TrialLine) -> str:
    """separate; or the fewest messages, or more; whole or in chunks."""
    grouping = str(line.config.get("grouping", "separate"))
    if grouping == "separate":
        return "separate"
    return "in chunks" if int(line.config.get("chunks") or 1) > 1 else "fused, whole"


def _short(row: dict[str, Any]) -> str:
    least = float(row["winner"]["time_us"])
    return ", ".join(f"{kind} {float(way['time_us']) / least:.2f}" for kind, way in row["ways"].items())
