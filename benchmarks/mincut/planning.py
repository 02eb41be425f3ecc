"""What planning costs: generated pipelines of 10, 100 and 1,000 kernels; `fusiond plan` as typed, and Algorithm 1.

Three kinds: a chain, layers of eight kernels, and random graphs whose kernels read one to three of the last six images.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fusiond.inputs import documents
from fusiond_mincut.analysis import partition, partitions_to_measure
from fusiond_mincut.analysis.benefit import PAPER
from fusiond_mincut.frontend import parser

COUNTS = (10, 100, 1000)
REPEATS = 3
LINGER_SECS = 2.0
"""How long orphans of the command are waited for."""
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: orphans of the command become children of this process, so that their time is counted."""
GOAL_SECS = 5.0
"""Of the whole command, for 1,000 kernels."""


def chain(count: int) -> str:
    """Every third kernel is local."""
    return _text({f"k{i:04}": ([f"k{i - 1:04}" if i else "src"], i % 3 == 0) for i in range(count)})


def layers(count: int) -> str:
    """Layers of eight: each kernel reads its neighbour of the layer before, every second one two of them."""
    kernels = {}
    for i in range(count):
        images = [f"k{i - 8:04}", f"k{i - 8 - i % 8 + (i + 1) % 8:04}"][: 1 + i % 2] if i >= 8 else ["src"]
        kernels[f"k{i:04}"] = (sorted(set(images)), i % 3 == 0)
    return _text(kernels)


def graph(count: int) -> str:
    draw = random.Random(count)
    names = ["src"]
    kernels = {}
    for i in range(count):
        last = names[-6:]
        kernels[f"k{i:04}"] = (
            sorted(draw.sample(last, min(draw.choice((1, 1, 2, 3)), len(last)))),
            draw.random() < 0.4,
        )
        names.append(f"k{i:04}")
    return _text(kernels)


SHAPES: Mapping[str, Callable[[int], str]] = {"chain": chain, "layers": layers, "graph": graph}


def _text(kernels: Mapping[str, tuple[list[str], bool]]) -> str:
    read = {image for images, _ in kernels.values() for image in images}
    lines = [
        "pipeline: generated",
        "image: {width: 2048, height: 2048, dtype: int32}",
        "inputs: [src]",
        f"outputs: [{', '.join(name for name in kernels if name not in read)}]",
        "kernels:",
    ]
    for name, (images, local) in kernels.items():
        if local:
            body = " + ".join(f"{image}[1, 0] - {image}[-1, 0]" for image in images)
            lines.append(f"  {name}: {{pattern: local, mask: [3, 3], border: clamp, reads: {images}, body: '{body}'}}")
        else:
            body = " + ".join(f"{image} * 3" for image in images)
            lines.append(f"  {name}: {{pattern: point, reads: {images}, body: '{body}'}}")
    return "\n".join(lines) + "\n"


def measured(shape: str, count: int) -> dict[str, Any]:
    """Processor seconds of one kind and size: of the whole command, all of its processes together, and of reading and
    of Algorithm 1 with all weights, the median of three."""
    text = SHAPES[shape](count)
    command_secs, json_bytes = command(text)
    read, cut = [], []
    for _ in range(REPEATS if count < 1000 else 1):
        begun = time.process_time()
        pipeline = parser.read(documents.parse(text, f"{shape}.yaml"))
        between = time.process_time()
        found = partition.planned(pipeline, PAPER)
        cut.append(time.process_time() - between)
        read.append(between - begun)
    best = partitions_to_measure.optimum(pipeline, PAPER)
    return {
        "shape": shape,
        "kernels": count,
        "edges": len(pipeline.edges),
        "command_secs": round(command_secs, 2),
        "json_bytes": json_bytes,
        "read_secs": round(statistics.median(read), 4),
        "plan_secs": round(statistics.median(cut), 4),
        "cuts": len(found.cuts),
        "blocks": len(found.partition.blocks),
        "benefit": found.benefit,
        "optimum": None if best is None else best.benefit,
    }


def command(text: str) -> tuple[float, int]:
    """(processor seconds of `fusiond plan JOB --json` for a pipeline, bytes of what it prints), with a store and a
    cache of its own."""
    with tempfile.TemporaryDirectory(prefix="planning") as folder:
        Path(folder, "generated.yaml").write_text(text)
        Path(folder, "job.yaml").write_text("strategy: mincut\npipeline: ./generated.yaml\ndevice: cpu\n")
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "fusiond", "plan", "job.yaml", "--json"],
            cwd=folder, capture_output=True, check=True,
            env={**os.environ, "HOME": folder, "XDG_DATA_HOME": folder, "XDG_CACHE_HOME": folder},
        )  # fmt: skip
        late = time.monotonic() + LINGER_SECS
        with contextlib.suppress(ChildProcessError):  # what its children leave behind is ours by now
            while time.monotonic() < late:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.05)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, len(done.stdout)


def run(say: Callable[[str], None]) -> list[dict[str, Any]]:
    rows = []
    for shape in SHAPES:
        for count in COUNTS:
            rows.append(measured(shape, count))
            said = rows[-1]
            say(f"{shape} of {count}: {said['command_secs']} s, {said['plan_secs']} s of it Algorithm 1")
    return rows
