"""Writes a fused kernel of PTX: the same ways as `fuse.py`, over bodies that compilers wrote.

    .visible .entry fused_softmax_stencil(a's parameters, b's, grid lengths, places)
    .maxntid 640, 1, 1
    {
        setp.ge.u32 %who, %warp, 4;   @%who bra $b;            whose thread is this
        ...  %a_tid_x = ..., %a_ctaid_x = ...                  a's thread and block, only what it reads of them
        { a's body }                                           see ptx_side.py for what is changed in it
    $a_end:
        bra $done;
    $b:
        ...
    $done:
        ret;
    }

At block level, who has a block is worked out as `fuse.py` does it. What all threads of a warp agree on comes out of a
shuffle: ptxas knows of no other way that they do (docs/hfuse.md).
"""

import itertools
import math
import re
from collections.abc import Iterator

from fusiond.model.ptx import printer
from fusiond_hfuse.analysis.fusion_schedule import FusionSchedule
from fusiond_hfuse.analysis.registers import RegisterCap
from fusiond_hfuse.codegen import fuse
from fusiond_hfuse.codegen.hidden_arguments import MULTIPROCESSORS, alignment, counters
from fusiond_hfuse.codegen.ptx_side import ARENA, INDENT, SideWriter
from fusiond_hfuse.codegen.sides import grid_axes, hidden_words, trade
from fusiond_hfuse.frontend.source_kernel import WARP, PtxText

_ARCH = re.compile(r"sm_(\d+)([af]?)")


def target(texts: list[PtxText]) -> str:
    """The `.target` of a module that holds all of these. ValueError where there is none."""
    found = {each.module.target[0] for each in texts}
    parts = {name: match for name in found if (match := _ARCH.fullmatch(name))}
    own = {name for name, match in parts.items() if match.group(2)}
    newest = max(found, key=lambda name: (int(parts[name].group(1)), name in own))
    if len(parts) < len(found) or len(own) > 1 or (own and newest not in own):
        raise ValueError(f"kernels for {' and '.join(sorted(found))} fit no module together")
    return newest


def version(texts: list[PtxText]) -> str:
    """The newest of their `.version`s."""
    return max((each.module.version for each in texts), key=lambda text: [int(part) for part in text.split(".")])


def write(schedule: FusionSchedule, cap: RegisterCap) -> str:
    """The text of the fused kernel, the same for the same schedule and cap. ValueError for shared memory that is named
    in a way that cannot be moved."""
    return _Writer(schedule, cap).text()


def _leave(comparison: str, label: str) -> Iterator[str]:
    """The threads for which it holds go on at a label: `ge %block, 4`."""
    how, _, operands = comparison.partition(" ")
    yield f"{INDENT}setp.{how}.u32 %who, {operands};"
    yield f"{INDENT}@%who bra {label};"


class _Writer:
    def __init__(self, schedule: FusionSchedule, cap: RegisterCap) -> None:
        self.schedule, self.cap = schedule, cap
        self.sides = [SideWriter(schedule, side) for side in schedule.sides]

    def text(self) -> str:
        schedule = self.schedule
        writers = sorted(self.sides, key=lambda each: each.letter)
        texts = [each.ptx for each in writers]
        lines = list(fuse.heading(schedule))
        lines += [f".version {version(texts)}", f".target {self._target(texts)}", ".address_size 64", ""]
        shared: dict[str, None] = {}
        for each in writers:
            for function in each.externals():
                shared.setdefault("\n".join(printer.function_lines(function)))
        lines += shared
        if any(side.slot.kernel.parsed.uses_dynamic_shared for side in schedule.sides):
            lines.append(f".extern .shared .align {alignment(schedule)} .b8 {ARENA}[];")
        for each in writers:
            own = list(each.module_lines())
            if own:
                lines += ["", f"// --- of {each.letter}: {each.side.slot.kernel.name}", *own]
        lines += ["", *self._head(writers), "{", *self._registers(writers)]
        lines += list(self._by_block() if schedule.level == "block" else self._by_threads())
        return "\n".join([*lines, "$done:", f"{INDENT}ret;", "}", ""])

    def _target(self, texts: list[PtxText]) -> str:
        """sm_90 has no `setmaxnreg`, sm_90a does (PTX ISA, setmaxnreg)."""
        found = target(texts)
        trades = any(side.registers for side in self.schedule.sides)
        return f"{found}a" if trades and found[-1].isdigit() else found

    def _head(self, writers: list[SideWriter]) -> Iterator[str]:
        schedule = self.schedule
        parameters = [each for writer in writers for each in writer.parameters()]
        names = {"blocks": "fused_blocks"}
        parameters += [f".param .u32 {names.get(name, name)}" for name in hidden_words(schedule)]
        parameters += [".param .u64 fused_tickets"] if counters(schedule) else []
        yield f".visible .entry {fuse.entry_name(schedule)}("
        yield ",\n".join(f"{INDENT}{each}" for each in parameters)
        yield ")"
        yield f".maxntid {schedule.threads}, 1, 1"
        cluster = schedule.sides[0].slot.kernel.parsed.cluster
        if cluster > 1:
            yield f".reqnctapercluster {cluster}, 1, 1"
        if self.cap.registers is None and self.cap.blocks:
            yield f".minnctapersm {self.cap.blocks}"

    def _registers(self, writers: list[SideWriter]) -> Iterator[str]:
        yield f"{INDENT}.reg .pred %who, %gone;"
        names = ["%thread", "%warp", "%block", "%at", "%before", "%ratio", "%ticket", "%side", "%count"]
        yield f"{INDENT}.reg .b32 {', '.join(names)};"
        yield f"{INDENT}.reg .b64 %tickets, %place;"
        for each in writers:
            yield f"{INDENT}.reg .b32 {', '.join(each.register_names())};"
        yield f"{INDENT}mov.u32 %thread, %tid.x;"

    # --- warp level, and vertical ---

    def _by_threads(self) -> Iterator[str]:
        schedule = self.schedule
        yield f"{INDENT}mov.u32 %block, %ctaid.x;"
        if schedule.map == "stride":
            yield f"{INDENT}ld.param.u32 %count, [fused_blocks];"
        beside = schedule.kind == "horizontal"
        if beside:
            yield from self._warp()
        for number, writer in enumerate(self.sides):
            side, letter, last = writer.side, writer.letter, number == len(self.sides) - 1
            after = f"${self.sides[number + 1].letter}" if not last else "$done"
            yield f"${letter}:"
            yield self._about(writer)
            if beside and not last:
                yield from _leave(f"ge %warp, {(side.first + side.threads) // WARP}", after)
            thread = "%thread"
            if side.first and beside:
                thread = f"%{letter}_thread"
                yield f"{INDENT}sub.u32 {thread}, %thread, {side.first};"
            yield from (f"{INDENT}{each}" for each in trade(schedule, side))
            yield from self._grid(writer)
            if schedule.map == "stride":
                yield from self._loop(writer, thread)
            else:
                yield from self._once(writer, thread, "$done" if beside else after)
            if beside and not last and writer.goes_on:
                yield f"{INDENT}bra $done;"

    def _agreed(self, register: str) -> Iterator[str]:
        """Tells ptxas that a register is the same in all threads of a warp."""
        if self.schedule.threads % WARP == 0:
            yield f"{INDENT}shfl.sync.idx.b32 {register}, {register}, 0, 31, -1;"

    def _warp(self) -> Iterator[str]:
        yield f"{INDENT}shr.u32 %warp, %thread, 5;"
        yield from self._agreed("%warp")

    def _about(self, writer: SideWriter) -> str:
        ptx, side, last = writer.ptx, writer.side, writer.side.first + writer.side.threads - 1
        where = f"threads {side.first} to {last}" if self.schedule.level == "warp" else "blocks of its own"
        own = f"barriers {', '.join(map(str, ptx.barriers))} from {side.barrier} on" if ptx.barriers else "no barrier"
        return f"{INDENT}// --- {side.slot.letter}: {side.slot.kernel.name} ({ptx.entry.name}): {where}, {own}"

    def _grid(self, writer: SideWriter) -> Iterator[str]:
        """The lengths of a side's grid that are arguments, and the number of its blocks."""
        letter, axes = writer.letter, grid_axes(writer.side.slot)
        for axis in axes:
            yield f"{INDENT}ld.param.u32 %{letter}_grid_{axis}, [{letter}_grid_{axis}];"
        known = math.prod(each for each in writer.grid if each is not None)
        unknown = [f"%{letter}_grid_{axis}" for axis in axes]
        if not unknown:
            yield f"{INDENT}mov.u32 %{letter}_blocks, {known};"
            return
        yield f"{INDENT}mov.u32 %{letter}_blocks, {unknown[0]};"
        for each in (*unknown[1:], *([str(known)] if known != 1 else [])):
            yield f"{INDENT}mul.lo.u32 %{letter}_blocks, %{letter}_blocks, {each};"

    def _once(self, writer: SideWriter, thread: str, otherwise: str) -> Iterator[str]:
        """One block of a side, if it has one of this number: all threads of the side agree on that."""
        lengths = [[length for length in each.grid if length is not None] for each in self.sides]
        counts = list(map(math.prod, lengths))
        if min(map(len, lengths)) < 3 or counts[self.sides.index(writer)] < max(counts):  # as numbers in the text say
            yield from _leave(f"ge %block, %{writer.letter}_blocks", otherwise)
        yield from self._work(writer, thread, "%block")

    def _work(self, writer: SideWriter, thread: str, block: str) -> Iterator[str]:
        yield from writer.setup_lines(thread, block)
        yield from writer.body_lines()
        if writer.goes_on:
            yield f"${writer.letter}_end:"
            yield from writer.drain_lines()

    def _loop(self, writer: SideWriter, thread: str) -> Iterator[str]:
        """One side's work on every one of its blocks that fall to this one. A block may write to shared memory that a
        slower thread of the block before still reads, hence the barrier."""
        letter, side = writer.letter, writer.side
        parsed = side.slot.kernel.parsed
        yield f"{INDENT}mov.u32 %{letter}_block, %block;"
        yield from _leave(f"ge %{letter}_block, %{letter}_blocks", f"${letter}_over")
        yield f"${letter}_next:"
        yield from self._work(writer, thread, f"%{letter}_block")
        yield f"{INDENT}add.u32 %{letter}_block, %{letter}_block, %count;"
        yield from _leave(f"ge %{letter}_block, %{letter}_blocks", f"${letter}_over")
        if parsed.uses_dynamic_shared or parsed.static_shared_bytes != 0:
            yield f"{INDENT}barrier.sync {side.barrier}, {side.threads};"
        yield f"{INDENT}bra ${letter}_next;"
        yield f"${letter}_over:"

    # --- block level ---

    def _by_block(self) -> Iterator[str]:
        """Which side this block belongs to, and that side's work."""
        for writer in self.sides:
            yield from self._grid(writer)
            if (side := writer.side).virtual > 1:
                letter = writer.letter
                yield f"{INDENT}add.u32 %{letter}_part, %{letter}_blocks, {side.virtual - 1};"
                yield f"{INDENT}shr.u32 %{letter}_part, %{letter}_part, {side.virtual.bit_length() - 1};"
        if self.schedule.assign == "multiprocessor":
            yield from self._by_multiprocessor()
            return
        if self.schedule.assign == "ticket":
            yield f"{INDENT}.shared .align 4 .u32 fused_ticket;"
            yield from _leave("ne %thread, 0", "$shared")
            yield f"{INDENT}ld.param.u64 %tickets, [fused_tickets];"
            yield f"{INDENT}cvta.to.global.u64 %tickets, %tickets;"
            yield f"{INDENT}atom.global.add.u32 %ticket, [%tickets], 1;"
            yield f"{INDENT}st.shared.u32 [fused_ticket], %ticket;"
            yield "$shared:"
            yield f"{INDENT}bar.sync 0;"
            yield f"{INDENT}ld.shared.u32 %block, [fused_ticket];"
            yield from self._agreed("%block")
        else:
            yield f"{INDENT}mov.u32 %block, %ctaid.x;"
        for writer, following in itertools.pairwise(self.sides):
            letter, units = writer.letter, self._units(writer)
            mine, before = "%block", units
            if self.schedule.assign == "sequential":
                yield from _leave(f"ge %block, {units}", f"$not_{letter}")
            else:
                mine = before = "%before"
                yield f"{INDENT}ld.param.u32 %ratio, [{letter}_ratio];"
                yield from self._share("%block")
                yield f"{INDENT}@%who bra $not_{letter};"
            yield from self._if_own(writer, mine)
            yield f"$not_{letter}:  // then of {following.letter}"
            yield f"{INDENT}sub.u32 %block, %block, {before};"
        yield from self._if_own(self.sides[-1], "%block")

    def _share(self, number: str) -> Iterator[str]:
        """%before: how many of the numbers below are the side's, by its ratio; %who: this one is not."""
        yield f"{INDENT}mul.hi.u32 %before, {number}, %ratio;"
        yield f"{INDENT}add.u32 %at, {number}, 1;"
        yield f"{INDENT}mul.hi.u32 %at, %at, %ratio;"
        yield f"{INDENT}setp.le.u32 %who, %at, %before;"

    def _units(self, writer: SideWriter) -> str:
        """The register with the number of fused blocks that a side's own come to."""
        return f"%{writer.letter}_{'part' if writer.side.virtual > 1 else 'blocks'}"

    def _by_multiprocessor(self) -> Iterator[str]:
        """A ticket of the multiprocessor says which side it would have next; the side's own counter, which of its
        blocks. Where that side has none left, the next one that has (POD-Attention, section 4)."""
        count = len(self.sides)
        yield f"{INDENT}.shared .align 8 .u32 fused_whose[2];"
        yield from _leave("ne %thread, 0", "$shared")
        yield f"{INDENT}ld.param.u64 %tickets, [fused_tickets];"
        yield f"{INDENT}cvta.to.global.u64 %tickets, %tickets;"
        yield f"{INDENT}mov.u32 %at, %smid;"
        yield f"{INDENT}and.b32 %at, %at, {MULTIPROCESSORS - 1};"
        yield f"{INDENT}mad.wide.u32 %place, %at, 4, %tickets;"
        yield f"{INDENT}atom.global.add.u32 %ticket, [%place+{4 * count}], 1;"
        for number, writer in enumerate(self.sides[:-1]):
            yield f"{INDENT}ld.param.u32 %ratio, [{writer.letter}_ratio];"
            yield from self._share("%ticket")
            yield f"{INDENT}mov.u32 %side, {number};"
            yield f"{INDENT}@!%who bra $whose;"
            yield f"{INDENT}sub.u32 %ticket, %ticket, %before;"
        yield f"{INDENT}mov.u32 %side, {count - 1};"
        yield "$whose:"
        yield f"{INDENT}mad.wide.u32 %place, %side, 4, %tickets;"
        yield f"{INDENT}atom.global.add.u32 %block, [%place], 1;"
        for number, writer in enumerate(self.sides):
            yield f"{INDENT}setp.eq.u32 %who, %side, {number};"
            yield f"{INDENT}@%who mov.u32 %count, {self._units(writer)};"
        yield from _leave("lt %block, %count", "$which")
        yield f"{INDENT}add.u32 %side, %side, 1;"
        yield f"{INDENT}setp.eq.u32 %who, %side, {count};"
        yield f"{INDENT}@%who mov.u32 %side, 0;"
        yield f"{INDENT}bra $whose;"
        yield "$which:"
        yield f"{INDENT}st.shared.u32 [fused_whose], %side;"
        yield f"{INDENT}st.shared.u32 [fused_whose+4], %block;"
        yield "$shared:"
        yield f"{INDENT}bar.sync 0;"
        yield f"{INDENT}ld.shared.u32 %side, [fused_whose];"
        yield f"{INDENT}ld.shared.u32 %block, [fused_whose+4];"
        yield from self._agreed("%side")
        yield from self._agreed("%block")
        for number, writer in enumerate(self.sides):
            if number < count - 1:
                yield from _leave(f"ne %side, {number}", f"$not_{writer.letter}")
            yield from self._if_own(writer, "%block")
            if number < count - 1:
                yield f"$not_{writer.letter}:"

    def _if_own(self, writer: SideWriter, block: str) -> Iterator[str]:
        """A side's work in a block that is its own, by as many threads as it has there; the others leave at once."""
        letter, side = writer.letter, writer.side
        yield self._about(writer)
        lanes = side.threads * side.virtual
        if lanes < self.schedule.threads:
            whole = lanes % WARP == 0
            yield from self._warp() if whole else ()
            yield from _leave(f"ge %warp, {lanes // WARP}" if whole else f"ge %thread, {lanes}", "$done")
        if side.virtual == 1:
            yield from self._work(writer, "%thread", block)
            return
        yield f"{INDENT}div.u32 %{letter}_virtual, %thread, {side.threads};"
        yield from self._agreed(f"%{letter}_virtual")
        yield f"{INDENT}rem.u32 %{letter}_thread, %thread, {side.threads};"
        yield f"{INDENT}mad.lo.u32 %{letter}_block, {block}, {side.virtual}, %{letter}_virtual;"
        yield from _leave(f"ge %{letter}_block, %{letter}_blocks", "$done")
        yield from self._work(writer, f"%{letter}_thread", f"%{letter}_block")
        if writer.goes_on:
            yield f"{INDENT}bra $done;"
