"""What hfuse makes of captured kernels: which become members, which fuse, with how many registers, to what effect.

Pairs and ways are drawn by a seed. Registers and spills are ptxas's, of the launches as they were captured. Memory is
compared bit for bit after both forms have run in the interpreter, on grids that are halved until a launch is small
enough (`shrunk`), the same for both.
"""

from __future__ import annotations

import dataclasses
import heapq
import multiprocessing
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.foreign import captures, described, interpreted
from benchmarks.foreign.captures import Capture
from benchmarks.foreign.interpreted import Machine, NotRun, Ran
from fusiond.build import nvcc
from fusiond.counting.kernels import CountLimits
from fusiond.errors import FusiondError
from fusiond.model import Analysis, BuildFailed, CompileFacts, Config, Rejection
from fusiond.program import Launch, Program
from fusiond.ptx import parser, rewrite
from fusiond.ptx.tree import Instruction, Label, Module, PtxBlock, PtxError, instructions
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.requests.planning import prepare, reference, target_for_arch
from fusiond.strategy import StrategyBase, Target
from fusiond_hfuse.frontend import ptx_kernel

ARCH = "sm_90"
MORE = 6
"""Registers that a fused kernel may have more than the larger of its kernels: the issue's figure."""
BLOCKS = 16
"""Of a launch, when it is interpreted."""
MOST = 4_000_000
"""Instructions of warps of a launch, when it is interpreted; beyond it the grid is halved once more."""
SHOWN = ("given_blocks", "block_sequential")
"""Ways whose registers are counted, as far as a pair has them."""
RTOL = {"f16": 2e-2, "bf16": 1e-1, "f32": 1e-3, "f64": 1e-6}
"""Where sums by atomic operations are made in another order."""
_SECS = 240.0
REGISTRY = Registry.load()
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some captures as a job of hfuse, analysed; letters as hfuse gives them."""

    captures: Mapping[str, Capture]
    strategy: StrategyBase[Any, Any]
    analysis: Analysis[Any, Any]

    def seeds(self) -> dict[str, Config]:
        space = self.strategy.space(self.analysis, {})
        return dict(self.strategy.seeds(self.analysis, space, {}))

    def program(self, config: Config) -> Program | Rejection:
        return self.strategy.emit(self.analysis, config, {})

    def unfused(self) -> Program:
        return reference(self.strategy, self.analysis)


def group(registry: Registry, chosen: Sequence[Capture], folder: Path, target: Target) -> Group:
    """RequestError, PtxError where a kernel is not taken."""
    for each in chosen:
        described.write(each, folder)
    listed = ", ".join(f"./{each.name}.yaml" for each in chosen)
    (job,) = jobs.read(folder / "job.yaml", f"strategy: hfuse\nkernels: [{listed}]\n")
    prepared = prepare(registry, job)
    named = {each.name: each for each in chosen}
    return Group(
        captures={chr(ord("a") + at): named[name] for at, name in enumerate(prepared.workload.members)},
        strategy=prepared.strategy,
        analysis=prepared.strategy.analyse(prepared.workload, target),
    )


# --- one kernel -----------------------------------------------------------------------------------------


def member(registry: Registry, capture: Capture) -> Row:
    """Whether a kernel becomes a member, and what it is like by itself."""
    row: Row = {"kernel": capture.name, "program": capture.program, "entry": capture.entry}
    target = target_for_arch(ARCH)
    try:
        with tempfile.TemporaryDirectory() as work:
            found = group(registry, [capture, capture], Path(work), target)
            text = capture.ptx.read_text(encoding="utf-8")
            row |= {"lines": text.count("\n")} | nature(text, capture.entry)
            own = [each for each in found.analysis.rejections if capture.name in each.nodes]
            facts = _facts(found.unfused()).get(capture.entry)
    except (FusiondError, PtxError) as problem:
        return row | {"member": False, "rule": type(problem).__name__, "detail": str(problem)}
    if facts is not None:
        row |= {"registers": facts.registers, "spill_bytes": facts.spill_store_bytes + facts.spill_load_bytes}
    row["threads"] = int(np.prod(capture.block))
    row["only_block_by_block"] = bool(found.analysis.report.get("only_block_by_block"))
    if own and not found.seeds():
        return row | {"member": False, "rule": own[0].rule, "detail": own[0].detail}
    return row | {"member": True} | alone(registry, capture)


def nature(text: str, entry: str) -> Row:
    """What may come out otherwise each time: the types of floats that a kernel adds by atomic operations, since their
    order changes the sum; whether it reads a clock."""
    module = parser.parse(text)
    functions, _, _ = rewrite.reached(module, module.entries[entry])
    found: set[str] = set()
    clock = False
    for function in (module.entries[entry], *functions):
        for each in instructions(function.body) if function.body is not None else ():
            words = each.opcode.split(".")
            if words[0] in ("atom", "red") and "add" in words:
                found |= {word.removesuffix("x2") for word in words if word.removesuffix("x2") in RTOL}
            clock |= any(word.startswith(("%clock", "%globaltimer")) for word in each.words)
    return {"float_atomics": sorted(found), "clock": clock}


def _facts(program: Program) -> dict[str, CompileFacts]:
    """Entry -> what ptxas says of it. FusiondError where a source does not build."""
    found: dict[str, CompileFacts] = {}
    for source in program.sources:
        built = nvcc.build(source, ARCH)
        if isinstance(built, BuildFailed):
            raise FusiondError(f"does not build: {built.reason}")
        found |= built.facts
    return found


# --- pairs ----------------------------------------------------------------------------------------------


def pairs(names: Sequence[str], seed: int) -> list[tuple[str, str]]:
    """Every pair of different kernels, in the order in which they are drawn."""
    every = [(a, b) for at, a in enumerate(sorted(names)) for b in sorted(names)[at + 1 :]]
    random.Random(f"{seed} pairs").shuffle(every)
    return every


def fused(registry: Registry, chosen: tuple[Capture, Capture], known: Mapping[str, Row], seed: int) -> Row:
    """One pair: whether it fuses, registers of the `SHOWN` ways, and a way at random in the interpreter."""
    row: Row = {"pair": [each.name for each in chosen]}
    try:
        with tempfile.TemporaryDirectory() as work:
            found = group(registry, chosen, Path(work), target_for_arch(ARCH))
        if found.analysis.rejections or not found.seeds():
            first = next(iter(found.analysis.rejections), None)
            said = (first.rule, first.detail) if first else ("no way", "no seed of the space")
            return row | {"fused": False, "rule": said[0], "detail": said[1]}
        row["ways"] = [_way(found, name, config, known) for name, config in found.seeds().items() if name in SHOWN]
        with tempfile.TemporaryDirectory() as work:
            row["overhead"] = list(_overheads(group(registry, chosen, Path(work), _silent())))
    except (FusiondError, PtxError) as problem:
        return row | {"fused": False, "rule": type(problem).__name__, "detail": str(problem)}
    row["fused"] = any("registers" in each for each in row["ways"])
    if not row["fused"]:
        return row | {"rule": row["ways"][0]["rule"], "detail": row["ways"][0]["detail"]} if row["ways"] else row
    if not all(known[each.name]["runs"] for each in chosen):
        return row
    return row | compared(registry, chosen, known, seed)


def _way(found: Group, name: str, config: Config, known: Mapping[str, Row]) -> Row:
    program = found.program(config)
    if isinstance(program, Rejection):
        return {"way": name, "rule": program.rule, "detail": program.detail}
    try:
        ((_, facts),) = _facts(program).items()
    except FusiondError as problem:
        return {"way": name, "rule": "build", "detail": str(problem)}
    (launch,) = (each for each in program.steps if isinstance(each, Launch))
    threads = int(np.prod([int(each) for each in launch.block]))
    sides = [known[each.name] for each in found.captures.values()]
    return {
        "way": name,
        "cap": str(config.get("cap", "none")),
        "threads": threads,
        "registers": facts.registers,
        "larger_side": max(each.get("registers", 0) for each in sides),
        "spill_bytes": facts.spill_store_bytes + facts.spill_load_bytes,
        "spill_bytes_of_sides": sum(each.get("spill_bytes", 0) for each in sides),
        "fits": max(each.get("registers", 0) for each in sides) + MORE <= 65536 // max(threads, 1),
    }


def _overheads(found: Group) -> Iterator[Row]:
    """Of each way, what fusion adds to each side: PTX instructions that a thread runs once, outside the kernel's own
    body (`once`), and those in the body beyond its own (`inside`), with the number of its barriers."""
    own = {}
    for letter, each in found.captures.items():
        ptx, _ = ptx_kernel.read(each.ptx.read_text(encoding="utf-8"), each.entry, each.name, each.name)
        assert ptx.entry.body is not None
        kept = [one for one in instructions(ptx.entry.body) if one.base != "griddepcontrol"]
        own[letter] = len(kept), sum(map(ptx_kernel.is_block_barrier, kept))
    for name, config in found.seeds().items():
        program = found.program(config)
        if isinstance(program, Rejection):
            continue
        text = program.sources[0].text
        letters = re.findall(r"^ +// --- (\w): ", text, re.MULTILINE)
        for letter, (once, body) in zip(letters, _paths(parser.parse(text)), strict=True):
            count, barriers = own[letter]
            yield {"way": name, "once": once, "inside": len(instructions(body)) - count, "barriers": barriers}


def by_way(rows: Sequence[Row]) -> list[Row]:
    """What `_overheads` found of many pairs, together."""
    found = []
    for way in sorted({each["way"] for each in rows}):
        own = [each for each in rows if each["way"] == way]
        once = [each["once"] for each in own]
        barrier = [each["inside"] / each["barriers"] for each in own if each["barriers"]] or [0]
        found.append({
            "way": way, "sides": len(own), "once_median": round(statistics.median(once)), "once_most": max(once),
            "inside_most": max((each["inside"] for each in own if not each["barriers"]), default=0),
            "barrier_median": round(statistics.median(barrier), 1), "barrier_most": round(max(barrier), 1),
        })  # fmt: skip
    return found


def _paths(module: Module) -> Iterator[tuple[int, PtxBlock]]:
    """The sides' bodies in a fused kernel, each with the fewest instructions on a way through it and around others."""
    (entry,) = module.entries.values()
    assert entry.body is not None
    top = entry.body.statements
    labels = {each.name: at for at, each in enumerate(top) if isinstance(each, Label)}

    def fewest(begin: int, goal: int, through: int) -> int:
        seen: dict[int, int] = {}
        waiting = [(0, begin)]
        while waiting:
            cost, at = heapq.heappop(waiting)
            if at == goal:
                return cost
            if at in seen or at >= len(top):
                continue
            seen[at] = cost
            each = top[at]
            if isinstance(each, PtxBlock) and at != through:
                continue
            cost += isinstance(each, Instruction)
            if isinstance(each, Instruction) and each.base == "bra":
                heapq.heappush(waiting, (cost, labels[each.text]))
                if not each.guard:
                    continue
            heapq.heappush(waiting, (cost, at + 1))
        return 0

    for at, each in enumerate(top):
        if isinstance(each, PtxBlock):
            yield fewest(0, at, at) + fewest(at, labels["$done"], at), each


def alone(registry: Registry, capture: Capture) -> Row:
    """Whether a kernel ends in the interpreter by itself, and with how many blocks: with memory as the host left it,
    and nothing of what kernels before it did, some never do. `by_order`: what holds something else where its blocks
    begin in the reverse order."""
    blocks = BLOCKS
    while True:
        with tempfile.TemporaryDirectory() as work:
            found = group(registry, [captures.shrunk(capture, blocks)] * 2, Path(work), _silent())
        try:
            machine = Machine(found.captures)
            ran = machine.run(found.unfused(), CountLimits(most=MOST))
            again = machine.run(found.unfused(), CountLimits(most=2 * MOST, backwards=True))
        except NotRun as problem:
            if "limit of instructions" not in str(problem) or blocks == 1:
                return {"runs": False, "why": str(problem), "blocks": blocks}
            blocks //= 4
        else:
            by_order = sorted({name[2:] for name in interpreted.differences(again, ran)})
            return {"runs": True, "blocks": blocks, "instructions": ran.instructions // 2, "by_order": by_order}


def compared(registry: Registry, chosen: tuple[Capture, Capture], known: Mapping[str, Row], seed: int) -> Row:
    """A pair in the interpreter, both ways: `equal`; `close`: sums of floats in another order; `varies`: only what a
    clock or the order of blocks decides is different; `differs`; or `not run`."""
    with tempfile.TemporaryDirectory() as work:
        small = [captures.shrunk(each, known[each.name]["blocks"]) for each in chosen]
        found = group(registry, small, Path(work), target_for_arch(ARCH))
    seeds, names = found.seeds(), [each.name for each in chosen]
    name = random.Random(f"{seed} {names}").choice(sorted(seeds))
    program = found.program(seeds[name])
    if isinstance(program, Rejection):
        return {"way_run": name, "result": "not run", "why": f"{program.rule}: {program.detail}"}
    machine = Machine(found.captures)
    try:
        wanted = machine.run(found.unfused(), CountLimits(most=2 * MOST))
        ended = machine.run(program, CountLimits(most=4 * MOST))
    except NotRun as problem:
        return {"way_run": name, "result": "not run", "why": str(problem)}
    said = {"way_run": name, "instructions": wanted.instructions, "instructions_fused": ended.instructions}
    return said | _verdict(ended, wanted, found, known)


def _silent() -> Target:
    """Without a compiler."""
    return dataclasses.replace(target_for_arch(ARCH), facts=lambda source: None)


def _verdict(ended: Ran, wanted: Ran, found: Group, known: Mapping[str, Row]) -> Row:
    result = "equal"
    for name, places in interpreted.differences(ended, wanted).items():
        row = known[found.captures[name[0]].name]
        if row.get("clock") or name[2:] in row.get("by_order", ()):
            result = "varies" if result == "equal" else result
        elif any(_close(ended.memory[name], wanted.memory[name], each) for each in row.get("float_atomics", ())):
            result = "close"
        else:
            why = f"{name}: {len(places)} bytes of {wanted.memory[name].size} differ, the first at {places[0]}"
            return {"result": "differs", "why": why}
    return {"result": result}


def _close(found: interpreted.Memory, wanted: interpreted.Memory, kind: str) -> bool:
    """As floats of this type, but for the order of sums."""
    both: list[NDArray[Any]]
    if kind == "bf16":
        both = [
            (each[: each.size // 2 * 2].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            for each in (found, wanted)
        ]
    else:
        dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]
        size = np.dtype(dtype).itemsize
        both = [each[: each.size // size * size].view(dtype) for each in (found, wanted)]
    with np.errstate(all="ignore"):
        scale = float(np.nanmax(np.abs(np.where(np.isfinite(both[1]), both[1], 0)), initial=0.0))
        return bool(np.allclose(both[0], both[1], rtol=RTOL[kind], atol=RTOL[kind] * scale * 1e-3, equal_nan=True))


# --- how long it takes ----------------------------------------------------------------------------------


def written(registry: Registry, chosen: tuple[Capture, Capture]) -> Row:
    """From two texts of PTX to the fused one, nothing of them known before. Processor time."""
    with tempfile.TemporaryDirectory() as work:
        found = group(registry, chosen, Path(work), _silent())
    config = next((each for name, each in found.seeds().items() if name in SHOWN), None)
    if config is None:
        return {"pair": [each.name for each in chosen], "ms": None}
    texts = [each.ptx.read_text(encoding="utf-8") for each in chosen]
    best: list[float] = []
    for _ in range(3):
        ptx_kernel.read.cache_clear()
        begun = time.process_time()
        for text, each in zip(texts, chosen, strict=True):
            ptx_kernel.read(text, each.entry, each.name, each.name)
        found.program(config)
        best.append(1000 * (time.process_time() - begun))
    lines = sum(text.count("\n") for text in texts)
    ms = min(best)
    return {
        "pair": [each.name for each in chosen], "lines": lines, "ms": round(ms, 1),
        "ms_per_5000_lines": round(ms * 5000 / lines, 1),
    }  # fmt: skip


# --- a process of its own -------------------------------------------------------------------------------


def apart(work: Callable[..., Row], *given: Any) -> Row:
    """What `work`, a function of a module, gives of the registry and `given` in a process of its own, which may die or
    take too long. Not by a fork of this process, which has threads: of one that has loaded this module and no more."""
    here, there = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_send, args=(there, work, given))
    process.start()
    there.close()
    try:
        if not here.poll(_SECS):
            return {"result": "fault", "why": f"over {_SECS:.0f} s"}
        found: Row = here.recv()
        return found
    except EOFError:
        return {"result": "fault", "why": "the process died"}
    finally:
        process.kill()
        process.join()


def _send(there: Connection, work: Callable[..., Row], given: tuple[Any, ...]) -> None:
    try:
        there.send(work(REGISTRY, *given))
    except Exception as problem:  # a fault of any kind is a row
        there.send({"result": "fault", "why": f"{type(problem).__name__}: {problem}"})
