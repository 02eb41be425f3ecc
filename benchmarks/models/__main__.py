"""A training step of whole models, by fusiond.jax and by fusiond.torch.

    python -m benchmarks.models [--only gpt2/float32/jax ...]                  counted, without a GPU
    python -m benchmarks.models --device cuda:0 [--tune 20] [--minutes 30]     measured

gpt2: GPT-2-small's, 8 sequences of 1024 tokens: loss, gradients, their norm clipped, AdamW. llama: a layer's of
llama-7B, a sequence of 2048: the loss and its gradients. Activations are float32 or bfloat16.

Counted: what `fusiond.jax.fuse` and `torch.compile(..., backend="fusiond")` cut the step into; what the regions'
kernels of the first seed launch and move; what XLA's compiler for an H100 launches, alone and around these kernels.
Nothing is executed, no array is made. Measured: a step by jax.jit and `fuse`, by Inductor, the backend and eager
PyTorch, in turns; which regions are fused is what the store knows, or what --tune finds out before. The run is written
after each step, and goes on where it was (measured: --go-on).
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import commands, runs
from benchmarks.corpus import xla
from benchmarks.models import counted, measured, models, page
from benchmarks.models.models import STEPS
from fusiond.model.errors import RequestError

KEPT = runs.RESULTS / "static" / f"models-{counted.GPU}.json"


def main(argv: Sequence[str]) -> int:
    made = commands.parser("models", __doc__, quick="small sizes, few rounds")
    made.set_defaults(device=None)
    commands.only(made, STEPS)
    made.add_argument("--tune", type=int, default=0, metavar="N", help="tune each region first, with N trials")
    made.add_argument("--minutes", type=float, default=30.0, help="after which nothing more is begun; default: 30")
    return commands.status(functools.partial(_run, made, made.parse_args(argv)))


def _run(made: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    commands.check_only(given, STEPS, "step")
    if given.page:
        kept = list(runs.kept("models"))
        return commands.page(page.PAGE, page.render(kept), kept)
    return (_measured if given.device else _counted)(made, given)


def _counted(made: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if given.quick and not given.out:
        raise RequestError("small sizes are not results: name a folder outside benchmarks/results", where="--out")
    where = (given.out / KEPT.name) if given.out else KEPT
    run = runs.new("models", "", made.prog, "counted", {"name": counted.GPU, "arch": counted.ARCH})
    kept: dict[str, Any] = json.loads(where.read_text(encoding="utf-8")) if where.is_file() else {}
    steps, regions = run["steps"], run["regions"] = kept.get("steps", {}), kept.get("regions", {})
    keep = functools.partial(runs.write, where, run)
    for name in given.only or [each for each in STEPS if each not in steps]:
        model, dtype, framework = name.split("/")
        sizes = (models.TINY if given.quick else models.REAL)[model]
        try:
            steps[name] = counted.step(framework, sizes, dtype, regions, keep)
        except xla.Unavailable as problem:
            raise RequestError(str(problem)) from None
        keep()
        commands.say(f"{name}: {steps[name]}")
    used = {digest for step in steps.values() for digest in step["digests"]}
    run["steps"] = {each: steps[each] for each in STEPS if each in steps}
    run["regions"] = {digest: each for digest, each in regions.items() if digest in used}
    keep()


def _measured(made: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    place = commands.place("models", given, without="python -m benchmarks.models", small="small sizes and ")
    said = commands.said(made, given, ("device", "only", "quick", "tune", "minutes"))
    new = runs.new("models", "", said, place.device.evidence, place.described())
    run, where = commands.begun(place.folder, given, new)
    rows, until = run.setdefault("steps", []), time.monotonic() + 60 * given.minutes
    for name in given.only or STEPS:
        if time.monotonic() < until and not any(each["name"] == name and not each["failed"] for each in rows):
            model, dtype, framework = name.split("/")
            sizes = (models.TINY if given.quick else models.REAL)[model]
            commands.put(rows, {"name": name, **measured.step(framework, sizes, dtype, given, until)}, "name")
            runs.write(where, run)
            commands.say(f"{name}: {[each for each in rows if each['name'] == name]}")
    commands.say(f"written to {where}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
