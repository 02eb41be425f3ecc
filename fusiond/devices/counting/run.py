"""Runs a Program's PTX on the processor and counts: one row per launch.

counted = count(program, host=binaries_of_host_sources)
counted.rows[0].read_sectors, counted.outputs["y"], counted.lines["softmax"]
"""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.build import gxx, nvcc
from fusiond.build.cache import BuildCache
from fusiond.devices.counting import bounds, classes, dependence, layout, library, sass
from fusiond.devices.counting.bounds import SECTOR_BYTES, LaunchBound, LaunchWork
from fusiond.devices.counting.certainty import MOST as MOST_ERROR
from fusiond.devices.counting.certainty import Traffic, known, traffic
from fusiond.devices.counting.kernels import CountError, LoadedPtx, beside_buffers
from fusiond.devices.counting.library import COUNTS, Cache
from fusiond.devices.counting.model import H100, Gpu
from fusiond.devices.counting.sampling import LaunchCounts
from fusiond.devices.counting.sass import Executed, SassFunction
from fusiond.devices.host import HostLibrary, value_bytes
from fusiond.model.errors import DeviceError
from fusiond.model.inputs.fills import DRAWN, initial, is_read
from fusiond.model.language.narrow import numpy_dtype
from fusiond.model.nouns import CompileFacts
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import (
    Buffer,
    FillStep,
    HostCall,
    Launch,
    Program,
    SourceKind,
    SourceLanguage,
    Step,
    home_bytes,
    homes,
)
from fusiond.model.ptx.flat import PtxKernel
from fusiond.model.ptx.tree import PtxError

log = logging.getLogger(__name__)

BUDGET = 32_000_000  #: Instructions of warps from which on a launch is sampled: some seconds
MOST = 500_000_000  #: A launch that cannot be sampled is given up here: some minutes
_LARGE_BYTES = 64 << 20
"""Buffers beyond it are left unfilled where nothing goes by what they hold, else their first part is repeated."""
Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRow:
    """One launch, summed over its blocks. What cannot be known is None; where it `failed`, all counts are."""

    program: str = "native"  #: As who shows it calls it
    launch: str
    kernel: str  #: As the source names it
    global_read_bytes: int | None = None  #: What the threads ask for; atomic operations apart
    global_write_bytes: int | None = None
    atomic_bytes: int | None = None
    read_sectors: int | None = None  #: Distinct sectors of 32 bytes of each warp-wide access, summed, before any cache
    write_sectors: int | None = None
    atomic_sectors: int | None = None
    minimal_bytes: int | None = None
    """The distinct sectors of the whole launch: those read before they are written, and those written."""
    dram_bytes: int | None = None
    """To and from DRAM, behind an L2 that keeps what earlier launches of the program left in it."""
    shared_wavefronts: int | None = None
    shared_minimal_wavefronts: int | None = None
    local_bytes: int | None = None
    registers: int | None = None  #: Of a thread, as ptxas says; None where it has not said
    spill_bytes: int | None = None
    """Registers that ptxas spills to local memory and reads back, were each such instruction executed once by every
    thread; the PTX does not show them. None where ptxas has not said."""
    instructions: int | None = None
    """Of SASS, as ptx_instructions: None where there is no nvdisasm, or a jump goes where a register says."""
    instruction_classes: Mapping[str, int] | None = None  #: The same by class, `classes.CLASSES`
    warp_instructions: Mapping[str, int] | None = None  #: The same summed over warps: what takes an issue slot
    ptx_instructions: int | None = None
    """Of the lanes that were active, whether or not the instruction's predicate held."""
    resident: int | None = None  #: Blocks that ran together
    occupancy: float | None = None  #: Resident warps against the most that there could be
    limited_by: str | None = None
    """What keeps more blocks from being resident: see `fusiond.model.gpu.occupancy`. Registers are unknown without
    ptxas."""
    waves: float | None = None  #: All blocks against those that are resident together
    bound_us: float | None = None  #: A lower bound of the time on the GPU (`fusiond.devices.counting.bounds`)
    binding: str | None = None  #: The part of the GPU that the bound is from
    sampled: float | None = None  #: The part of the blocks that was run
    error: float | None = None
    """Relative: how far the counts may be off, where this launch or another one before it is sampled; 0.0 where all
    blocks of all were run. None: unknown; the bound then takes the fewest DRAM bytes that are possible."""
    failed: str | None = None  #: Why it was not counted
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    rows: tuple[CountRow, ...]
    outputs: Mapping[str, Array]
    """What the compared buffers hold at the end; those that sampled launches wrote, or that depend on them, are not
    among them."""
    bound_us: float | None  #: A lower bound of the program's timed span; None where a launch was not counted
    lines: Mapping[str, Mapping[str, NDArray[np.void]]]  #: Launch -> `file:line` -> counts
    broke: str | None = None
    """Why a launch ended that a GPU would not have finished either: a deadlock, an access out of bounds, a trap."""


def count(
    program: Program,
    *,
    gpu: Gpu = H100,
    seed: int = 0,
    host: Mapping[str, Path] | None = None,
    cache: BuildCache | None = None,
    budget: int | None = BUDGET,
    assembled: bool = True,
) -> Counted:
    """Run a Program's steps in their listed order. `host` has built host sources; others are built. A launch that fails
    ends the run: its row says why, and the rows behind it that they were not run. Launches of more instructions of
    warps than `budget` are sampled, where nothing goes by their results; None: everything is run whole. Of PTX that no
    ptxas here assembles for that GPU, or that is not to be `assembled`, registers and SASS are unknown.

    CountError where a source does not build or is not understood, DeviceError where nvcc or g++ is missing."""
    line = nvcc.missing_for(each for each in program.sources if each.language is SourceLanguage.CUDA)
    if line is not None:
        raise DeviceError(line)
    return _Run(program, gpu, seed, host or {}, cache, budget, assembled).counted()


class _Run:
    def __init__(
        self,
        program: Program,
        gpu: Gpu,
        seed: int,
        host: Mapping[str, Path],
        cache: BuildCache | None,
        budget: int | None,
        assembled: bool,
    ) -> None:
        self._program, self._gpu, self._budget = program, gpu, budget
        self._library = library.load(cache=cache)
        self._units: dict[str, LoadedPtx] = {}
        self._names: dict[str, Mapping[str, str]] = {}
        self._sass: dict[str, Mapping[str, SassFunction]] = {}
        self._facts: dict[str, Mapping[str, CompileFacts]] = {}

        self._solved: dict[tuple[str, str, bytes, bytes], Executed | None] = {}
        self._hosts: dict[str, HostLibrary] = {}
        self._symbols: dict[str, Mapping[str, str]] = {}
        for source in program.sources:
            if source.kind is SourceKind.HOST:
                path = host.get(source.name) or gxx.build(source, cache=cache)
                if isinstance(path, BuildFailed):
                    raise CountError(f"{source.name} does not build: {path.reason}")
                self._hosts[source.name] = HostLibrary(path)
                continue
            with_lines = dataclasses.replace(source, flags=(*source.flags, "-lineinfo"))
            built = nvcc.named_ptx(with_lines, gpu.arch, cache=cache)
            if isinstance(built, BuildFailed):
                raise CountError(f"{source.name} does not build: {built.reason}")
            try:
                self._units[source.name] = LoadedPtx(built.text, self._library)
            except PtxError as problem:
                raise CountError(f"{source.name}: {problem}") from None
            self._names[source.name], self._symbols[source.name] = built.names, built.symbols
            if not assembled:
                self._facts[source.name] = {}
                continue
            cubin = nvcc.build(with_lines, gpu.arch, cache=cache)
            self._facts[source.name] = {} if isinstance(cubin, BuildFailed) else cubin.facts
            try:
                self._sass[source.name] = sass.of_source(with_lines, gpu.arch, cache=cache)
            except sass.SassError as problem:
                log.info("%s: instructions of SASS are not counted: %s", source.name, problem)
        self._bounds: dict[str, LaunchBound] = {}
        self._views: dict[str, NDArray[np.uint8]] = {}
        self._memory = self._allocated()
        self._needs = dependence.needs(program, self._kernel)
        self._arenas = {each.name: each.arena or each.name for each in program.buffers}
        self._wrong: set[str] = set()  # arenas that do not hold right values
        for buffer in program.buffers:
            if buffer.part_of is None:
                self._fill(buffer, seed)

    def counted(self) -> Counted:
        cache = Cache(self._library, self._gpu.l2_bytes)
        done: list[tuple[Launch, LaunchCounts | str]] = []
        failed = ""
        broke: str | None = None
        for step in self._program.steps:
            if isinstance(step, Launch):
                result = f"not run: {failed}" if failed else self._launched(step, cache)
                done.append((step, result))
                error = _failure(result)
                if error and not failed:
                    failed = f"{step.name} failed"
                    if isinstance(result, LaunchCounts):
                        broke = beside_buffers(f"{step.name}: {error}", self._views)
            elif not failed:
                self._step(step)
        cache.flush()
        ran = [result for _, result in done if isinstance(result, LaunchCounts)]
        as_it_would_be = known(ran)
        rows, launches = [], 0
        for step, result in done:
            found = Traffic(bytes=0, least=0, error=0.0)
            if isinstance(result, LaunchCounts):
                dram = sum(cache.dram_bytes(launches)) + sum(result.dram_correction)
                ends = {"first": launches == 0, "last": launches == len(ran) - 1}
                found = traffic(result, dram, self._gpu.l2_bytes, known=as_it_would_be[launches], **ends)
                launches += 1
            rows.append(self._row(step, result, found))
        cache.close()
        outputs = {
            each.name: self._views[each.name].view(numpy_dtype(each.dtype)).copy()
            for each in self._program.buffers
            if each.role.compared and self._arenas[each.name] not in self._wrong
        }
        lines = {step.name: self._lines(step, result) for step, result in done if isinstance(result, LaunchCounts)}
        bound_us = None if failed else bounds.program_bound_us(self._program, self._bounds, self._gpu)
        return Counted(rows=tuple(rows), outputs=outputs, bound_us=bound_us, lines=lines, broke=broke)

    def _allocated(self) -> list[NDArray[np.uint8]]:
        blocks = {name: layout.aligned(home_bytes(members)) for name, members in homes(self._program).items()}
        for each in self._program.buffers:
            if each.symbol is None:
                whole = blocks[each.arena or each.name]
                self._views[each.name] = whole[each.offset_bytes : each.offset_bytes + each.size_bytes]
            else:
                source, _, symbol = each.symbol.partition(":")
                self._views[each.name] = self._units[source].variable(self._symbols[source][symbol])[: each.size_bytes]
        return list(blocks.values())

    def _fill(self, buffer: Buffer, seed: int) -> None:
        view, parts = self._views[buffer.name], 1
        if self._budget is not None and buffer.size_bytes > _LARGE_BYTES:
            if buffer.name not in self._needs.buffers:
                self._wrong.add(self._arenas[buffer.name])
                return
            if buffer.fill.kind in DRAWN and is_read(buffer):  # as likely as if all of it were drawn
                self._wrong.add(self._arenas[buffer.name])
                parts = -(-buffer.size_bytes // _LARGE_BYTES)
        drawn = dataclasses.replace(buffer, elements=-(-buffer.elements // parts))
        data = np.ascontiguousarray(initial(drawn, seed)).view(np.uint8)
        for begin in range(0, view.size, data.size):
            view[begin : begin + data.size] = data[: view.size - begin]

    def _launched(self, step: Launch, cache: Cache) -> LaunchCounts | str:
        """What a launch did, or why it cannot be counted."""
        try:
            result: LaunchCounts | str = self._launch(step, cache)
        except (PtxError, CountError) as problem:
            result = str(problem)
        reads, writes = self._needs.touched[step.name]
        if isinstance(result, str) or result.sampled < 1.0 or reads & self._wrong:
            self._wrong |= writes
        return result

    def _launch(self, step: Launch, cache: Cache) -> LaunchCounts:
        kernel = self._names[step.source][step.entry]
        arguments = [value_bytes(each, self._address) for each in step.arguments]
        facts = self._facts[step.source].get(step.entry)
        must = self._needs.whole.get(step.name)
        result = self._units[step.source].launch(
            kernel,
            step,
            arguments,
            self._memory,
            cache,
            self._gpu,
            registers=facts.registers if facts else 0,
            barriers=facts.barriers if facts else 0,
            budget=None if must else self._budget,
            most=MOST if self._budget is not None else 0,
        )
        if result.failed and "the limit of instructions" in result.failed:
            why = must or ("it is cooperative" if step.cooperative else "it has few waves of blocks")
            raise CountError(f"too large to be run whole ({MOST:,} instructions of warps), and {why}")
        return dataclasses.replace(result, steered=step.name in self._needs.steered)

    def _kernel(self, step: Launch) -> tuple[PtxKernel, dict[str, str]]:
        """A launch's kernel, and the buffers that its module's variables are."""
        found = {}
        for each in self._program.buffers:
            source, _, symbol = (each.symbol or "").partition(":")
            if source == step.source:
                found[self._symbols[source][symbol]] = each.name
        return self._units[step.source].module.kernels[self._names[step.source][step.entry]], found

    def _address(self, buffer: str) -> int:
        return int(self._views[buffer].ctypes.data)

    def _step(self, step: Step) -> None:
        for source, target in step.messages:
            self._views[target][:] = self._views[source]
            if self._arenas[source] in self._wrong:
                self._wrong.add(self._arenas[target])
        if isinstance(step, FillStep):
            self._views[step.buffer][:] = step.byte
        elif isinstance(step, HostCall):
            self._hosts[step.source].call(step.entry, step.arguments, self._address)

    def _row(self, step: Launch, result: LaunchCounts | str, dram: Traffic) -> CountRow:
        begin = CountRow(launch=step.name, kernel=step.entry, model=self._gpu.name)
        if isinstance(result, str) or result.failed is not None:
            return dataclasses.replace(begin, failed=_failure(result))
        total = {name: int(result.counts[name].sum()) for name in COUNTS.names or ()}
        compulsory = result.compulsory_read_sectors + result.compulsory_write_sectors
        executed = self._executed(step, result)
        facts = self._facts[step.source].get(step.entry)
        threads, blocks = int(np.prod(step.block)), int(np.prod(step.grid, dtype=np.int64))
        least = total if dram.error is not None else _least(result, total)
        share = least["warps"] / max(total["warps"], 1)
        read = result.compulsory_read_sectors if dram.error is not None else result.seen_read_sectors
        issued = executed.warps if executed else classes.lasting(result.code.sources, result.counts)
        registers, barriers = (facts.registers, facts.barriers) if facts else (0, 0)
        shared_bytes = result.code.layout.shared_bytes + step.shared_bytes
        occupancy = self._gpu.occupancy(threads, shared_bytes, registers, barriers)
        work = LaunchWork(
            blocks=blocks,
            warps_per_block=-(-threads // 32),
            resident_per_sm=max(occupancy.blocks_per_sm, 1),
            dram_bytes=dram.least,
            compulsory_read_sectors=read,
            shared_wavefronts=least["wavefronts"],
            warps={name: int(share * each) for name, each in issued.items()},
            shortest_share=min(1.0, result.shortest_block * blocks / max(total["warps"], 1)),
            **{name: least[name] for name in ("read_sectors", "write_sectors", "atomic_sectors")},
        )
        bound = self._bounds[step.name] = bounds.bound(work, self._gpu)
        names = ("atomic_bytes", "read_sectors", "write_sectors", "atomic_sectors", "local_bytes")
        same: dict[str, Any] = {name: total[name] for name in names}
        return dataclasses.replace(
            begin,
            **same,
            global_read_bytes=total["read_bytes"],
            global_write_bytes=total["write_bytes"],
            minimal_bytes=SECTOR_BYTES * compulsory,
            dram_bytes=dram.bytes,
            shared_wavefronts=total["wavefronts"],
            shared_minimal_wavefronts=total["minimal_wavefronts"],
            registers=facts.registers if facts else None,
            spill_bytes=(facts.spill_store_bytes + facts.spill_load_bytes) * threads * blocks if facts else None,
            instructions=sum(executed.threads.values()) if executed else None,
            instruction_classes=executed.threads if executed else None,
            warp_instructions=executed.warps if executed else None,
            ptx_instructions=total["lanes"],
            resident=result.resident,
            occupancy=round(occupancy.ratio, 4),
            limited_by=occupancy.limited_by,
            waves=round(blocks / (self._gpu.multiprocessors * max(occupancy.blocks_per_sm, 1)), 3),
            bound_us=bound.us,
            binding=bound.binding,
            sampled=result.sampled,
            error=dram.error,
        )

    def _executed(self, step: Launch, result: LaunchCounts) -> Executed | None:
        """Instructions of SASS; None where they are not known. Launches that do the same, as those of a loop,
        are solved for once."""
        name = self._names[step.source][step.entry]
        function = self._sass.get(step.source, {}).get(name)
        if function is None:
            return None
        key = (step.source, name, result.counts["lanes"].tobytes(), result.counts["warps"].tobytes())
        if key not in self._solved:
            try:
                self._solved[key] = sass.executed(function, sass.lines_of(result))
            except sass.SassError as problem:
                log.info("%s: instructions of SASS are not counted: %s", step.name, problem)
                self._solved[key] = None
        return self._solved[key]

    def _lines(self, step: Launch, result: LaunchCounts) -> dict[str, NDArray[np.void]]:
        unit = self._units[step.source]
        found: dict[str, NDArray[np.void]] = {}
        for source, counts in zip(result.code.sources, result.counts, strict=True):
            place = unit.place(source)
            total = found.setdefault(place, np.zeros((), COUNTS))
            for name in COUNTS.names or ():
                total[name] += counts[name]
        return found


def _failure(result: LaunchCounts | str) -> str | None:
    return result if isinstance(result, str) else result.failed


def _least(result: LaunchCounts, total: Mapping[str, int]) -> dict[str, int]:
    """The counts as a bound may take them where an unknown error all of them are: less what sampling says of
    itself, and where that is too much, what is certain."""
    if result.error > MOST_ERROR:
        return {name: int(min(result.least[name], value)) for name, value in total.items()}
    return {name: int(value / (1 + result.error)) for name, value in total.items()}
