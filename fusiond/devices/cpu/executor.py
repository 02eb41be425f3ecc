"""Runs Programs on the processor, in this (child) process.

Checked runs are adversarial: steps in any order that the plan allows (copies as late, or as early, as is legal, the
copies of a batch each by itself), blocks and threads in random order, shared memory poisoned. Timed runs take the
listed order and sum up the counted steps: on the processor nothing overlaps, so a sum is what a span would be. With a
link of a given bandwidth, copies take what it would need, and the span is that of engines which overlap. Those times
are emulated, and never an answer about a GPU.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from fusiond.build import gxx
from fusiond.devices.base import Array, Clockless, DataPlane, ExecutionError, LaunchRefused
from fusiond.devices.cpu import interpreted, native
from fusiond.devices.cpu.interpreted import InterpretedModule
from fusiond.devices.cpu.link import Link
from fusiond.devices.cpu.memory import HostAllocation
from fusiond.devices.data import HostData
from fusiond.devices.host import HostLibrary
from fusiond.model.language.narrow import numpy_dtype, scalar
from fusiond.model.outcomes import Outcome
from fusiond.model.program import (
    Argument,
    Bytes,
    Copy,
    CopyBatch,
    FillStep,
    Free,
    HostCall,
    Launch,
    Pointer,
    Prefetch,
    Program,
    Role,
    SourceKind,
    Step,
    homes,
    timeline,
)
from fusiond.model.system import faults

_CACHE_BYTES = 64 << 20


class CpuExecutor(Clockless):
    """`fusiond.devices.base.Executor` for the processor."""

    def __init__(self, link: Link | None = None) -> None:
        self.runtime = native.Runtime(gxx.scheduler())
        self.data: DataPlane = HostData()
        self._link = link

    def load(self, program: Program, binaries: Mapping[str, Path]) -> CpuProgram:
        return CpuProgram(self.runtime, program, binaries, self._link)


class CpuProgram:
    """`fusiond.devices.base.Loaded` for the processor."""

    def __init__(
        self, runtime: native.Runtime, program: Program, binaries: Mapping[str, Path], link: Link | None = None
    ) -> None:
        self.program = program
        self._link = link
        self._engine = timeline.engines(program)
        self._size_bytes = {each.name: int(each.size_bytes) for each in program.buffers}
        self.clock = "emulated"
        self.gate_failures = 0
        self._runtime = runtime
        self._modules: dict[str, native.NativeModule | InterpretedModule] = {}
        self._hosts: dict[str, HostLibrary] = {}
        try:
            for source in program.sources:
                path = binaries[source.name]
                if source.kind is SourceKind.HOST:
                    self._hosts[source.name] = HostLibrary(path)
                else:
                    interprets = path.suffix == interpreted.SUFFIX
                    self._modules[source.name] = InterpretedModule(path) if interprets else runtime.load(path)
            self._entries = {
                step.name: self._modules[step.source].entry(gxx.exported(program.source(step.source), step.entry))
                for step in program.launches
            }
        except (native.NativeError, OSError, KeyError) as problem:
            if (fault := faults.of_text(str(problem), program.name)) is not None:  # dlopen has no number for it
                raise fault from None
            raise ExecutionError(Outcome.BUILD_FAILED, f"cannot load: {problem}") from None
        self._blocks = {name: HostAllocation(name, members) for name, members in homes(program).items()}
        self._of = {name: block for block in self._blocks.values() for name in block.views}
        self._symbols = self._found_symbols()
        views = {name: view for block in self._blocks.values() for name, view in block.views.items()}
        self._raw: dict[str, np.ndarray] = {name: view.view(np.uint8) for name, view in views.items()}
        self._raw |= self._symbols
        self._pristine: dict[str, Array] = {}

    # --- buffers ---

    def write(self, buffer: str, data: Array) -> None:
        if buffer in self._symbols:
            self._symbols[buffer][:] = np.ascontiguousarray(data).view(np.uint8)
        else:
            self._of[buffer].views[buffer][:] = data

    def read(self, buffer: str) -> Array:
        return self._raw[buffer].copy().view(numpy_dtype(self.program.buffer(buffer).dtype))

    def snapshot(self, *, outputs: bool = False) -> None:
        self._pristine = {
            each.name: self.read(each.name)
            for each in self.program.buffers
            if (each.role is Role.INOUT and each.reset == "each_run") or (outputs and each.role is Role.OUTPUT)
        }

    def restore(self) -> None:
        for name, data in self._pristine.items():
            self.write(name, data)

    def broken_guards(self) -> tuple[str, ...]:
        return tuple(line for block in self._blocks.values() for line in block.broken())

    def close(self) -> None:
        for module in self._modules.values():
            module.close()

    def _found_symbols(self) -> dict[str, np.ndarray]:
        found = {}
        for buffer in self.program.buffers:
            if buffer.symbol is not None:
                source, _, symbol = buffer.symbol.partition(":")
                memory = self._modules[source].symbol(gxx.exported_symbol(self.program.source(source), symbol))
                if memory.nbytes < buffer.size_bytes:
                    raise LaunchRefused(
                        f"{buffer.name} has {buffer.size_bytes} bytes, the variable {symbol} {memory.nbytes}"
                    )
                found[buffer.name] = memory[: buffer.size_bytes]
        return found

    # --- steps ---

    def run(self, *, seed: int, checked: bool) -> None:
        self._release()
        order = _adversarial(self.program.steps, seed) if checked else self.program.steps
        for step in order:
            self._step(step, seed=seed + 1 if checked else 0, checked=checked)

    def walk(self) -> Iterator[Step]:
        """Does the steps in their listed order; each is handed out before it is done."""
        self._release()
        for step in self.program.steps:
            yield step
            self._step(step, seed=0, checked=False)

    def sample_us(self, repeats: int, *, cold: bool = False) -> float:
        total_us = 0.0
        for run in range(repeats):
            if run:
                self.restore()
            if cold:
                np.zeros(_CACHE_BYTES, np.uint8)[::64].sum()
            total_us += self._span_us()
        return max(total_us, 0.001) / repeats

    def _span_us(self) -> float:
        """One run in the listed order: its counted steps one after the other, or as the link has them."""
        took = {step.name: self._step(step, seed=0, checked=False) / 1000 for step in self.program.steps}
        if self._link is None:
            return sum(took[step.name] for step in self.program.steps if step.counted)
        for step in self.program.steps:
            if timeline.on_link(self._engine(step)):
                carried = sum(self._size_bytes[name] for name in step.carried)
                took[step.name] = self._link.message_us(carried)
        return timeline.timeline(self.program, took, late=self._link.late).span_us

    def _release(self) -> None:
        for each in self.program.steps:
            if each.allocates is not None:  # what the plan allocates itself is not there before
                self._blocks[each.allocates].release()

    def _step(self, step: Step, *, seed: int, checked: bool) -> int:
        """Do one step; how long it took, in nanoseconds."""
        if isinstance(step, Launch):
            return self._launch(step, seed, checked)
        begun = time.thread_time_ns()
        if isinstance(step, Copy | CopyBatch):
            for source, target in step.messages:
                self._bytes(target, step)[:] = self._bytes(source, step)
        elif isinstance(step, FillStep):
            self._bytes(step.buffer, step)[:] = step.byte
        elif isinstance(step, Prefetch):  # one memory: there is nowhere to move to
            for name in step.buffers:
                self._live(name, step)
        elif isinstance(step, HostCall):
            self._hosts[step.source].call(step.entry, step.arguments, lambda name: self._address(name, step))
        elif isinstance(step, Free):
            self._blocks[step.arena].release()
        else:
            self._blocks[step.arena].live = True
        return time.thread_time_ns() - begun

    def prepared(
        self, step: Launch, *, seed: int = 0, checked: bool = False
    ) -> tuple[native.NativeLaunch, list[native.Argument]]:
        """What the runtime is asked for in a step."""
        launch = native.NativeLaunch(
            grid=step.grid,
            block=step.block,
            shared_bytes=step.shared_bytes,
            cooperative=step.cooperative,
            seed=seed,
            checked=checked,
        )
        return launch, [self._argument(each, step) for each in step.arguments]

    def symbols(self, source: str) -> dict[str, np.ndarray]:
        """Exported name -> the bytes of each variable of a device source."""
        text = self.program.source(source)
        names = [gxx.exported_symbol(text, each) for each in text.symbols]
        return {name: self._modules[source].symbol(name) for name in names}

    def _launch(self, step: Launch, seed: int, checked: bool) -> int:
        launch, arguments = self.prepared(step, seed=seed, checked=checked)
        entry = self._entries[step.name]
        try:
            if isinstance(entry, native.NativeEntry):
                done: native.Finished | native.Fault | str = self._runtime.launch(entry, launch, arguments)
            else:
                # It may touch what is allocated now, and variables of other sources.
                live = {name: block.inside for name, block in self._blocks.items() if block.live}
                done = entry.launch(launch, arguments, live | self._symbols)
        except native.NativeError as problem:
            raise LaunchRefused(f"{step.name}: {problem}") from None
        if isinstance(done, str):
            raise ExecutionError(Outcome.CRASHED, f"{step.name}: {done}")
        if isinstance(done, native.Fault):
            refused = done.kind is native.FaultKind.BAD_LAUNCH
            outcome = Outcome.LAUNCH_REFUSED if refused else Outcome.CRASHED
            raise ExecutionError(outcome, f"{step.name}: {done.text}")
        return done.elapsed_ns

    def _argument(self, argument: Argument, step: Step) -> native.Argument:
        if isinstance(argument, Pointer):
            self._live(argument.buffer, step)
            if argument.buffer in self._symbols:
                raise LaunchRefused(f"{argument.buffer} is a variable and no argument")
            return self._of[argument.buffer].views[argument.buffer]
        if isinstance(argument, Bytes):
            return argument.filled(lambda name: self._address(name, step))
        return scalar(argument.dtype, argument.value)

    def _bytes(self, buffer: str, step: Step) -> np.ndarray:
        self._live(buffer, step)
        return self._raw[buffer]

    def _address(self, buffer: str, step: Step) -> int:
        return self._bytes(buffer, step).ctypes.data

    def _live(self, buffer: str, step: Step) -> None:
        block = self._of.get(buffer)
        if block is not None and not block.live:
            raise ExecutionError(Outcome.CRASHED, f"{step.name} uses {buffer}, which is not allocated then")


def _adversarial(steps: tuple[Step, ...], seed: int) -> list[Step]:
    """An order that the plan allows: listed order within a stream, `after` across them, and nothing else. The copies of
    a batch are steps of their own: no order holds among them.

    Of every three seeds the first does each step as late as is legal (what others should have waited for comes behind
    them), the second as early as is legal, copies first (what should have waited comes too early), the third any step
    that is ready. Every second time the first does a copy only when nothing else can be done, and the second each copy
    as soon as it can be, however long others wait for that."""
    generator = random.Random(seed)
    steps, before = _moves(steps, generator)
    place = {step.name: index for index, step in enumerate(steps)}
    level = dict.fromkeys(place, 0)
    if seed % 6 in (3, 4):
        return _by_priority(steps, before, late=seed % 6 == 3)
    if seed % 3 == 0:
        for step in reversed(steps):
            for name in before[step.name]:
                level[name] = min(level[name], level[step.name] - 1)
        return sorted(steps, key=lambda step: (level[step.name], -place[step.name]))
    if seed % 3 == 1:
        for step in steps:
            level[step.name] = 1 + max((level[name] for name in before[step.name]), default=0)
        return sorted(steps, key=lambda step: (level[step.name], not isinstance(step, Copy), place[step.name]))
    order: dict[str, Step] = {}
    while len(order) < len(steps):
        ready = [each for each in steps if each.name not in order and all(name in order for name in before[each.name])]
        step = generator.choice(ready)
        order[step.name] = step
    return list(order.values())


def _by_priority(steps: tuple[Step, ...], before: Mapping[str, tuple[str, ...]], *, late: bool) -> list[Step]:
    """Copies as soon as they can be done, and the others as they are listed; `late`: copies only when nothing else can
    be done, and of what can be the last that is listed."""

    def rank(number: int) -> tuple[bool, int]:
        return isinstance(steps[number], Copy) is late, -number if late else number

    missing = {step.name: len(set(before[step.name])) for step in steps}
    behind: dict[str, list[int]] = {}
    for number, step in enumerate(steps):
        for name in set(before[step.name]):
            behind.setdefault(name, []).append(number)
    ready = [rank(number) for number, step in enumerate(steps) if not missing[step.name]]
    heapq.heapify(ready)
    order = []
    while ready:
        step = steps[abs(heapq.heappop(ready)[1])]
        order.append(step)
        for number in behind.get(step.name, ()):
            missing[steps[number].name] -= 1
            if not missing[steps[number].name]:
                heapq.heappush(ready, rank(number))
    return order


def _moves(steps: tuple[Step, ...], generator: random.Random) -> tuple[tuple[Step, ...], dict[str, tuple[str, ...]]]:
    """The steps, each batch as its copies in a random order; and for each what must have ended before it begins."""
    last: dict[int, tuple[str, ...]] = {}
    parts: dict[str, tuple[str, ...]] = {}
    moves: list[Step] = []
    before = {}
    for step in steps:
        own = _messages(step, generator) if isinstance(step, CopyBatch) else [step]
        earlier = (*(part for name in step.after for part in parts[name]), *last.get(step.stream, ()))
        before.update({each.name: earlier for each in own})
        parts[step.name] = last[step.stream] = tuple(each.name for each in own)
        moves += own
    return tuple(moves), before


def _messages(batch: CopyBatch, generator: random.Random) -> list[Step]:
    messages: list[Step] = [
        Copy(name=f"{batch.name}: {a} to {b}", source=(a,), target=(b,), stream=batch.stream, counted=batch.counted)
        for a, b in batch.copies
    ]
    generator.shuffle(messages)
    return messages
