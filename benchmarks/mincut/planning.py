"""What planning costs: generated pipelines of 10, 100 and 1,000 kernels, read from YAML, weighed and cut.

Three kinds: a chain, layers of eight kernels, and random graphs whose kernels read one to three of the last six images.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from fusiond.inputs import documents
from fusiond_mincut.analysis import partition, plan
from fusiond_mincut.analysis.benefit import PAPER
from fusiond_mincut.frontend import parser

COUNTS = (10, 100, 1000)
REPEATS = 3
GOAL_SECS = 10.0
"""For 1,000 kernels."""


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
    """Processor seconds of one kind and size, the median of three: reading, and Algorithm 1 with all weights."""
    text = SHAPES[shape](count)
    read, cut = [], []
    for _ in range(REPEATS if count < 1000 else 1):
        begun = time.process_time()
        pipeline = parser.read(documents.parse(text, f"{shape}.yaml"))
        between = time.process_time()
        found = partition.planned(pipeline, PAPER)
        cut.append(time.process_time() - between)
        read.append(between - begun)
    best = plan.optimum(pipeline, PAPER)
    return {
        "shape": shape,
        "kernels": count,
        "edges": len(pipeline.edges),
        "read_secs": round(statistics.median(read), 4),
        "plan_secs": round(statistics.median(cut), 4),
        "cuts": len(found.cuts),
        "blocks": len(found.partition.blocks),
        "benefit": found.benefit,
        "optimum": None if best is None else best.benefit,
    }


def run(say: Callable[[str], None]) -> list[dict[str, Any]]:
    rows = []
    for shape in SHAPES:
        for count in COUNTS:
            rows.append(measured(shape, count))
            say(f"{shape} of {count}: {rows[-1]['plan_secs']} s to plan, {rows[-1]['read_secs']} s to read")
    return rows
