"""XLA's own kernels for a function on an H100, and the bytes that they must move, without a GPU.

jax compiles ahead of time for a GPU that is described, not there (`topologies.get_topology_desc` with a target
configuration); that needs its CUDA plugin, no driver. What comes out is the optimised module: fusions, copies and
reductions, each a launch, beside library calls.

What these kernels move is counted from their PTX (`xla_kernels`). Where that cannot be, there are bytes by operands:
each kernel reads what it addresses of each distinct operand once, and writes its results once. Of an operand that is
only sliced or gathered from, what is addressed are the slices; an update in place touches what it updates. That is the
least that these kernels can move (a row that is read twice counts once), so XLA is shown at its best.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusiond_stitching.frontend import hlo
from fusiond_stitching.frontend.hlo import ArrayShape, Raw, RawComputation, RawModule, RawShape

WANTED = "pip install --no-deps jax-cuda13-plugin==0.10.2 jax-cuda13-pjrt==0.10.2"
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84978434048 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
_FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "copy-done", "async-done", "async-update", "iota",
})  # fmt: skip
_LIBRARY = frozenset({"dot", "convolution", "custom-call", "triangular-solve", "cholesky", "fft", "sort", "rng"})
_INSIDE = frozenset({"dot", "convolution"})
_CALLS = ("call", "while", "conditional", "async-start")
_PASSED = ("bitcast", "reshape", "transpose", "copy", "convert")
"""What a value is looked through for: who addresses it."""
_TRIPS = re.compile(r'"known_trip_count":\s*\{\s*"n":\s*"(\d+)"')
_BITS = re.compile(r"[a-z]+(\d+)")


class Unavailable(Exception):
    """XLA's GPU compiler is not to be had here; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What XLA makes of a module: `kernels` of its own, `calls` of libraries, `operand_bytes` of the former."""

    kernels: int
    calls: int
    operand_bytes: int


def compiler() -> Callable[[Callable[..., Any], Sequence[Any], Path], str]:
    """A function that compiles a function for given shapes, to the text of the optimised module; what XLA says of its
    kernels goes to a folder. Unavailable without jax's CUDA plugin."""
    try:
        jax = importlib.import_module("jax")
        importlib.import_module("jax_plugins.xla_cuda13")  # jax finds it by itself, too
        topologies = importlib.import_module("jax.experimental.topologies")
        sharding = importlib.import_module("jax.sharding")
        numpy = importlib.import_module("numpy")
    except ImportError as problem:
        raise Unavailable(f"{problem}: {WANTED}") from None
    try:
        topology = topologies.get_topology_desc(platform="cuda", target_config=_H100, topology="1x1x1")
    except (RuntimeError, ValueError, TypeError) as problem:
        raise Unavailable(f"jax compiles for no GPU here: {str(problem).splitlines()[0]}") from None
    mesh = sharding.Mesh(numpy.array(topology.devices), ("x",))
    everywhere = sharding.NamedSharding(mesh, sharding.PartitionSpec())

    def compiled(function: Callable[..., Any], shapes: Sequence[Any], dumps: Path) -> str:
        lowered = jax.jit(function, out_shardings=everywhere).trace(*shapes).lower(lowering_platforms=("cuda",))
        # Without a GPU nothing is tuned, and Triton's products find no tiles for some shapes: these stay a library's.
        options = {"xla_gpu_enable_triton_gemm": False, "xla_dump_to": str(dumps)}
        return str(lowered.compile(compiler_options=options).as_text())

    return compiled


def counted(text: str) -> Compiled:
    """The kernels of an optimised module, and their bytes. RequestError where it is not HLO text."""
    module = hlo.parse(text, "optimised")
    kernels = calls = moved = 0
    for each, within, trips in _launched(module, module.computations[module.entry], 1):
        if _of_library(module, each):
            calls += trips
        else:
            kernels += trips
            moved += trips * operand_bytes(module, within, each)
    return Compiled(kernels=kernels, calls=calls, operand_bytes=moved)


def _launched(module: RawModule, computation: RawComputation, trips: int) -> Iterator[tuple[Raw, RawComputation, int]]:
    """All that is launched, the computation that it stands in, and how often: a loop's body as often as XLA knows it to
    run, once where it does not."""
    for each in computation.instructions:
        if each.opcode in _CALLS:
            known = _TRIPS.search(each.attributes.get("backend_config", ""))
            inner = trips * int(known[1]) if known else trips
            for name in ("to_apply", "body", "calls", "called_computations"):
                if name in each.attributes:
                    called = each.text(name).strip("{} ").lstrip("%")
                    yield from _launched(module, module.computations[called], inner)
            if each.opcode == "conditional":
                for called in each.branches():
                    yield from _launched(module, module.computations[called], trips)
        elif each.opcode not in _FREE:
            yield each, computation, trips


def _of_library(module: RawModule, instruction: Raw) -> bool:
    if instruction.opcode == "fusion":
        inside = module.computations[instruction.called("calls")].instructions
        return any(
            each.opcode in _INSIDE or _of_library(module, each) for each in inside if each.opcode != "custom-call"
        )
    return instruction.opcode in _LIBRARY


# --- bytes ----------------------------------------------------------------------------------------------


def operand_bytes(module: RawModule, within: RawComputation, kernel: Raw) -> int:
    """What a kernel reads and writes, each distinct operand and result once."""
    named = {each.name: each for each in within.instructions}
    operands = [named[name] for name in kernel.operands]
    if kernel.opcode == "fusion":
        inside = module.computations[kernel.called("calls")]
    else:
        parameters = tuple(
            Raw(name=f"p{at}", opcode="parameter", shape=each.shape, operands=(), payload=str(at))
            for at, each in enumerate(operands)
        )
        own = Raw(
            name=kernel.name, opcode=kernel.opcode, shape=kernel.shape, attributes=kernel.attributes,
            operands=tuple(each.name for each in parameters),
        )  # fmt: skip
        inside = RawComputation(name="", instructions=(*parameters, own), root=own.name, where="")
    return _read(inside, [_source(named, name) for name in kernel.operands]) + _written(inside)


def _source(named: dict[str, Raw], name: str) -> str:
    """What an operand is, behind bitcasts: the same value under two names is read once."""
    while named[name].opcode == "bitcast":
        name = named[name].operands[0]
    return name


def _read(inside: RawComputation, sources: Sequence[str]) -> int:
    users: dict[str, list[Raw]] = {}
    for each in inside.instructions:
        for operand in each.operands:
            users.setdefault(operand, []).append(each)
    most: dict[str, int] = {}
    for each in inside.instructions:
        if each.opcode == "parameter":
            source = sources[int(each.payload)]
            whole = size(each.shape)
            most[source] = min(whole, most.get(source, 0) + _addressed(each, users, whole, inside))
    return sum(most.values())


def _addressed(value: Raw, users: dict[str, list[Raw]], whole: int, inside: RawComputation) -> int:
    """Bytes of a value that its users address."""
    found = 0
    for each in users.get(value.name, ()):
        first = each.operands[0] == value.name
        if each.opcode in ("slice", "dynamic-slice", "gather") and first:
            found += size(each.shape)
        elif each.opcode in ("dynamic-update-slice", "scatter") and first and _in_place(each, inside):
            found += _updated(each, inside) if each.opcode == "scatter" else 0
        elif each.opcode in _PASSED:
            found += _addressed(each, users, whole, inside)
        else:
            return whole
    return min(whole, found)


def _in_place(update: Raw, inside: RawComputation) -> bool:
    """The root, or part of it, behind bitcasts."""
    named = {each.name: each for each in inside.instructions}
    root = named[inside.root]
    roots = [named[name] for name in root.operands] if root.opcode == "tuple" else [root]
    for each in roots:
        while each.opcode == "bitcast":
            each = named[each.operands[0]]
        if each.name == update.name:
            return True
    return False


def _updated(update: Raw, inside: RawComputation) -> int:
    named = {each.name: each for each in inside.instructions}
    return size(named[update.operands[2 if update.opcode == "scatter" else 1]].shape)


def _written(inside: RawComputation) -> int:
    named = {each.name: each for each in inside.instructions}
    root = named[inside.root]
    total = 0
    for each in [named[name] for name in root.operands] if root.opcode == "tuple" else [root]:
        while each.opcode == "bitcast":
            each = named[each.operands[0]]
        if each.opcode == "parameter":
            continue
        update = each.opcode in ("dynamic-update-slice", "scatter")
        total += _updated(each, inside) if update else size(each.shape)
    return total


def size(shape: RawShape) -> int:
    """Bytes of a value; a type of less than a byte takes its part of one."""
    if not isinstance(shape, ArrayShape):
        return sum(size(each) for each in shape.members)
    bits = 8 if shape.dtype == "pred" else 0
    found = _BITS.match(shape.dtype)
    bits = bits or (int(found[1]) if found else 0)
    return -(-shape.elements * bits // 8)
