"""Large reductions in two steps, so that more than a few blocks can work on them.

Table 1 keeps all of what is reduced in one block. A column sum of f32[8192,1024], or a sum of everything, then has
too few blocks or reads across columns. Split, `x -> f32[64,128,1024] -> f32[64,1024] -> f32[1024]`: the first step
goes with whatever computes the rows (64 blocks of 128 rows), the second is small. Beyond the paper, and only for one
associative and commutative operation; the order of the sum changes, as it does between any two schedules.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from fusiond.model import frozen
from fusiond_stitching.graph import Instruction, Module, topological
from fusiond_stitching.hlo import Number
from fusiond_stitching.schedule import divisors

LEAST_ELEMENTS = 1 << 16
"""What is smaller is reduced in one step."""
LEAST_RUN = 16
"""Elements that the first step reduces to one, at least."""


def reductions(module: Module, multiprocessors: int) -> Module:
    """The module with every reduce split that leaves most of the device idle otherwise; itself when there is none."""
    found: list[Instruction] = []
    changed = False
    for each in module.instructions:
        steps = _steps(module, each, multiprocessors) if each.opcode == "reduce" else None
        found += steps or [each]
        changed = changed or steps is not None
    if not changed:
        return module
    return dataclasses.replace(module, instructions=topological(found))


def _steps(module: Module, reduce: Instruction, multiprocessors: int) -> list[Instruction] | None:
    """The instructions that stand for a reduce; None where it stays as it is."""
    if reduce.name in module.foreign:
        return None
    computation = reduce.attributes["computation"]
    operation = computation.simple
    if operation not in ("add", "multiply", "maximum", "minimum") or len(reduce.operands) != 2:
        return None
    source = module[reduce.operands[0]]
    if source.elements < LEAST_ELEMENTS or reduce.elements == 0:
        return None
    dims, reduced = source.dims, reduce.attributes["dimensions"]
    inner = max(at for at, dim in enumerate(dims) if dim > 1) in reduced
    parallel = reduce.elements if inner else max(1, reduce.elements // 32)
    if parallel >= 2 * multiprocessors:
        return None
    axis = max(reduced, key=lambda at: (dims[at], -at))
    wanted = 4 * multiprocessors  # as many as the rows are likely to be cut into, so that the first step can join them
    run = math.prod(dims[at] for at in reduced)
    fits = [each for each in divisors(dims[axis]) if each > 1 and run // each >= LEAST_RUN]
    if not fits:
        return None
    parts = min(fits, key=lambda each: (abs(math.log2(each / wanted)), each))
    name = reduce.name
    cut = Instruction(
        name=f"{name}~cut",
        opcode="reshape",
        dtype=source.dtype,
        dims=(*dims[:axis], parts, dims[axis] // parts, *dims[axis + 1 :]),
        operands=(source.name,),
        where=reduce.where,
    )
    rest = tuple(at if at < axis else at + 1 for at in reduced)
    kept = [at for at in range(len(cut.dims)) if at not in rest]
    neutral = Instruction(
        name=f"{name}~neutral",
        opcode="constant",
        dtype=reduce.dtype,
        dims=(),
        attributes=frozen({"values": (_neutral(operation, reduce.dtype),)}),
        where=reduce.where,
    )
    partial = dataclasses.replace(
        reduce,
        name=f"{name}~partial",
        dims=tuple(cut.dims[at] for at in kept),
        operands=(cut.name, neutral.name),
        attributes=frozen({**reduce.attributes, "dimensions": rest}),
    )
    attributes: dict[str, Any] = {**reduce.attributes, "dimensions": (kept.index(axis),)}
    final = dataclasses.replace(reduce, operands=(partial.name, reduce.operands[1]), attributes=frozen(attributes))
    return [cut, neutral, partial, final]


def _neutral(operation: str, dtype: str) -> Number:
    """What changes nothing: -0 for a sum of floats, so that a sum of -0 stays -0."""
    floats = dtype.startswith(("f", "bf"))
    if operation == "add":
        return -0.0 if floats else 0
    if operation == "multiply":
        return 1.0 if floats else 1
    if floats:
        return -math.inf if operation == "maximum" else math.inf
    if dtype == "pred":
        return operation == "minimum"
    bits = int(dtype[1:])
    least, most = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return least if operation == "maximum" else most
