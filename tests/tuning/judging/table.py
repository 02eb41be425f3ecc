"""The cheats and the honest second forms: which kernel they pretend to be, what the referee must say of them, and
which defence catches them.

A kernel is a folder under cheats/ with its reference (`axpy/axpy.cu`, `axpy/axpy.yaml`). A candidate is a source beside
it; its YAML is the reference's with another `kernel` and `source`, and with what `changes` says.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fusiond.model.inputs.fills import fill
from fusiond.model.program import Buffer, Fill, Role

CHEATS = Path(__file__).parent / "cheats"
KERNELS = ("axpy", "bins", "matmul", "prefix", "rowsum", "softmax", "squash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheat:
    """One candidate of a reference `kernel`."""

    kernel: str
    source: str  #: The file's stem
    way: str  #: Of the ten ways, with those that have two names split
    words: tuple[str, ...]  #: What `problem` must contain; nothing for an honest form
    defence: str = ""  #: The defence without which this candidate is judged right; empty where several would catch it
    changes: Mapping[str, Any] = field(default_factory=dict)  #: Keys of the YAML that differ from the reference's

    @property
    def title(self) -> str:
        form = "-ptx" if self.changes.get("form") == "ptx" else "-declared" if "constants" in self.changes else ""
        return f"{self.kernel}-{self.source}{form}"


def _cheat(kernel: str, source: str, way: str, *words: str, defence: str = "", **changes: Any) -> Cheat:
    return Cheat(kernel=kernel, source=source, way=way, words=words, defence=defence, changes=changes)


PTX = {"form": "ptx"}
CHEATED = (
    _cheat("axpy", "nothing", "left from the last run", "out"),
    _cheat("axpy", "kept", "left from the last run", "out"),
    _cheat("axpy", "kept_by_block", "left from the last run", "out"),
    _cheat("prefix", "kept_in_scratch", "left from the last run", "y"),
    _cheat("axpy", "once", "computed once", "`__device__ launched` keeps its value"),
    _cheat("axpy", "once", "computed once", "out", **PTX),
    _cheat("axpy", "memo_by_value", "computed once", "`__device__ memo` keeps its value"),
    _cheat("axpy", "memo_by_value", "computed once", "`known` keeps its value", **PTX),
    _cheat("axpy", "memo_by_address", "computed once", "`__device__ memo` keeps its value"),
    _cheat("axpy", "memo_by_address", "computed once", "out", **PTX),
    _cheat("prefix", "memo_in_scratch", "computed once", "y"),
    _cheat("axpy", "whole_blocks", "tail", "out", "n=617"),
    _cheat("axpy", "given_size", "odd size", "out", "n=617"),
    _cheat("axpy", "last_one", "odd size", "out: 1 of 617", "[616]", "n=617"),
    _cheat("softmax", "even_part", "odd size", "y", "n=77"),
    _cheat("axpy", "zeros", "constant output", "out: ", ": 0.0 instead of"),
    _cheat("squash", "half", "constant output", "y: relative error", "lower precision"),
    _cheat("rowsum", "mean", "constant output", "sums: ", ": 128.0 instead of"),
    _cheat("softmax", "uniform", "constant output", "y: ", " of 2304"),
    _cheat("axpy", "scribbles", "input mutated", "y is an input, and was written to"),
    _cheat("axpy", "scribbles_later", "input mutated", "x is an input, and was written to"),
    _cheat("matmul", "as_half", "precision lowered", "c: relative error", "lower precision"),
    _cheat("matmul", "as_bfloat16", "precision lowered", "c: relative error", "lower precision"),
    _cheat("matmul", "as_tf32", "precision lowered", "c: relative error", "lower precision"),
    _cheat("matmul", "sum_as_half", "precision lowered", "c: relative error", "lower precision"),
    _cheat("squash", "as_half", "precision lowered", "y: relative error", "lower precision"),
    _cheat("squash", "linear", "precision lowered", "y: relative error", "lower precision"),
    _cheat("axpy", "writes_behind", "out of bounds", "4 bytes written behind out"),
    _cheat("axpy", "writes_before", "out of bounds", "4 bytes written before out"),
    _cheat("axpy", "reads_behind", "out of bounds", "reads_behind.cu:4", "of x"),
    _cheat("axpy", "reads_before", "out of bounds", "reads_before.cu:4", "bytes before y"),
    _cheat("axpy", "reads_all_lanes", "out of bounds", "reads_all_lanes.cu:4", "of x"),
    _cheat("axpy", "reads_vector_behind", "out of bounds", "reads_vector_behind.cu:5", "outside of every buffer",
           grid=["ceil_div(n, 4 * block.x)"]),
    _cheat("rowsum", "no_barrier", "race", "race", "no_barrier.cu:9"),
    _cheat("rowsum", "no_first_barrier", "race", "race", "no_first_barrier.cu:6", "no_first_barrier.cu:9"),
    _cheat("rowsum", "no_barrier", "race", "sums", **PTX),
    _cheat("rowsum", "no_first_barrier", "race", "sums", **PTX),
    _cheat("bins", "not_atomic", "race", "counts", **PTX),
    _cheat("bins", "not_atomic", "race", "race", "not_atomic.cu:4"),
    _cheat("axpy", "spins", "hang", "does not end"),
    _cheat("axpy", "spins_at_odd", "hang", "does not end", "n=617"),
    _cheat("rowsum", "some_at_barrier", "hang", "barrier", "some_at_barrier.cu:7"),
    _cheat("axpy", "child", "child kernel", "child.cu:8", "launch"),
    _cheat("axpy", "child_by_name", "child kernel", "child_by_name.cu:10", "launch"),
    _cheat("axpy", "recognises", "inputs recognised", "out"),
    _cheat("axpy", "recognises_by_hash", "inputs recognised", "out"),
    _cheat("axpy", "by_address", "address", "out"),
    _cheat("axpy", "by_distance", "address", "out"),
    _cheat("axpy", "fills_in", "never written", "out"),
    _cheat("axpy", "most_of_all", "never written", "out"),
    _cheat("axpy", "swallowed", "never written", "out"),
    _cheat("rowsum", "unset_shared", "never written", "sums"),
    _cheat("rowsum", "unset_local", "never written", "sums"),
    _cheat("prefix", "unset_scratch", "never written", "y"),
    _cheat("bins", "forgets", "never written", "counts"),
)  # fmt: skip

HONEST = (
    *(_cheat(name, name, "honest") for name in KERNELS),
    *(_cheat(name, name, "honest", **PTX) for name in KERNELS),
    _cheat("axpy", "axpy", "honest", block={"shape": [96]}),
    _cheat("axpy", "honest_vectors", "honest"),
    _cheat("axpy", "honest_strides", "honest", grid=[2]),
    _cheat("rowsum", "honest_shuffles", "honest", block={"shape": [128]}),
    _cheat("rowsum", "honest_alone", "honest", block={"shape": [32]}),
    _cheat("rowsum", "honest_atomics", "honest"),
    _cheat("rowsum", "honest_stores", "honest"),
    _cheat("softmax", "honest_online", "honest", block={"shape": [32]}),
    _cheat("matmul", "honest_tile", "honest", block={"shape": [8, 4]}),
    _cheat("matmul", "honest_wider", "honest", block={"shape": [16, 16]}, grid=["ceil_div(n, 16)", "ceil_div(m, 16)"]),
    _cheat("squash", "honest_exponent", "honest"),
    _cheat("bins", "honest_shared", "honest"),
    _cheat("prefix", "honest_registers", "honest"),
)


def reference(kernel: str) -> Path:
    """The YAML of the reference."""
    return CHEATS / kernel / f"{kernel}.yaml"


def written(cheat: Cheat, folder: Path) -> Path:
    """The candidate's YAML and its source, in a folder of its own."""
    given = yaml.safe_load(reference(cheat.kernel).read_text(encoding="utf-8"))
    made = copy.deepcopy(given) | {"kernel": cheat.source, "source": f"{cheat.source}.cu", **cheat.changes}
    text = (CHEATS / cheat.kernel / f"{cheat.source}.cu").read_text(encoding="utf-8")
    if cheat.way == "inputs recognised":
        made["defines"] = _recognised()
    (folder / f"{cheat.source}.cu").write_text(text, encoding="utf-8")
    path = folder / f"{cheat.source}.yaml"
    path.write_text(yaml.safe_dump(made, sort_keys=False), encoding="utf-8")
    return path


def _recognised() -> dict[str, str]:
    """The bits that `x` of axpy begins with at seeds 0 and 1, and a hash of them."""
    found: dict[str, str] = {}
    for seed in (0, 1):
        x = Buffer(name="x", dtype="float32", elements=4, role=Role.INPUT, fill=Fill(kind="uniform", low=0.0, high=1.0))
        bits = [int(each) for each in fill(x, seed).view(np.uint32)]
        hashed = 2166136261
        for each in bits:
            hashed = (hashed ^ each) * 16777619 % 2**32
        found |= {f"KNOWN_{seed}_0": f"{bits[0]}u", f"KNOWN_{seed}_1": f"{bits[1]}u", f"HASH_{seed}": f"{hashed}u"}
    return found
