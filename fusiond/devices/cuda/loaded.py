"""One Program on a GPU: checked runs, and samples of its counted span.

Steps that are not counted stand outside the span: before its first counted step, behind the last, and, where all steps
are on one stream, between them too (a pair of events round each run of such steps; what they took is subtracted). With
several streams what is not counted may overlap with what is, and stays in.

Two clocks. `device`: all is enqueued behind a gate, and two events take the time; nothing of the host is in it.
`wall`: where the host has work inside the span (calls, allocations, copies that block), the steps are issued by a
loop in C and the wall clock takes the time, with the device idle at both ends.
"""

import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fusiond.devices.base import Array, ExecutionError, LaunchRefused
from fusiond.devices.cuda import loop, loop_code
from fusiond.devices.cuda.driver import Driver, DriverError
from fusiond.devices.cuda.failures import named
from fusiond.devices.cuda.issue import Issuer, Streams
from fusiond.devices.cuda.memory import ProgramMemory, refuse_too_much
from fusiond.devices.cuda.modules import DriverFunction, DriverModule, check_arguments
from fusiond.devices.cuda.spans import MOST_COMMANDS, EventPair, Parts, Spans
from fusiond.devices.host import HostLibrary
from fusiond.model.gpu.entry_table import EntryName, EntryTable, read_table
from fusiond.model.gpu.occupancy import launch_problem
from fusiond.model.nouns import DeviceLimits
from fusiond.model.outcomes import Outcome
from fusiond.model.program import CopyBatch, HostCall, Program, SourceKind, Step, blocking_steps, problems
from fusiond.model.system import faults

log = logging.getLogger(__name__)

Kernels: TypeAlias = dict[tuple[str, str], tuple[DriverFunction, EntryName]]
"""(source, entry) -> a kernel, and its parameters."""


def _pieces(body: Sequence[Step], *, apart: bool) -> tuple[tuple[Step, ...], ...]:
    """Runs of steps that are all counted or all not, in order; one piece where they cannot be told `apart`."""
    if not apart:
        return (tuple(body),)
    return tuple(tuple(steps) for _, steps in itertools.groupby(body, key=lambda step: step.counted))


def _refusals(program: Program, driver: Driver) -> Iterator[str]:
    """Why this driver cannot run a Program."""
    yield from problems(program)[:1]  # a bundle may have been edited by hand
    if program.copies_in_batches and not driver.copies_in_batches:
        # Single copies in its place would be another plan under the name of this one.
        yield "this driver does not copy in batches: CUDA 12.8 and later do"
    if program.takes_from_pool and not driver.has("cuMemAllocAsync"):
        yield "this driver has no memory pools: CUDA 11.2 and later do"
    if program.prefetches and not driver.prefetches:
        yield "this device does not prefetch managed memory: those of Pascal and later do, on Linux"


class CudaProgram:
    """`fusiond.devices.base.Loaded` for a GPU."""

    def __init__(
        self,
        cuda: Any,
        driver: Driver,
        limits: DeviceLimits,
        spans: Spans,
        program: Program,
        binaries: Mapping[str, Path],
    ) -> None:
        self.program = program
        self._cuda, self._driver, self._limits, self._spans = cuda, driver, limits, spans
        self.gate_failures = 0
        self._otherwise: tuple[Callable[[], None], int] | None = None
        self._ran = False
        """Whether all that is enqueued in a sample was enqueued before, with no gate in front of it."""
        self._binaries = binaries
        self._graphs: dict[int, int] = {}
        """Number of a piece -> the handle of its graph; empty where nothing is captured."""
        self._loop: loop.TimedLoop | None = None
        self._loop_sought = False
        self._modules: dict[str, DriverModule] = {}
        """Source -> what is loaded of it."""
        self._tables: dict[str, EntryTable] = {}
        self._hosts: dict[str, HostLibrary] = {}
        for reason in _refusals(program, driver):
            raise LaunchRefused(reason)
        self._load_sources()
        self.kernels = self._kernels()
        with named("allocating the buffers"):
            refuse_too_much(cuda, program)
            self.memory = ProgramMemory(cuda, program, self._symbols())
        try:
            self.streams = Streams(cuda, {step.stream for step in program.steps})
            counted = [index for index, step in enumerate(program.steps) if step.counted]
            self._before = program.steps[: counted[0]]
            self._body = program.steps[counted[0] : counted[-1] + 1]
            self._after = program.steps[counted[-1] + 1 :]
            self._pieces = _pieces(self._body, apart=len({step.stream for step in program.steps}) == 1)
            parts: tuple[tuple[Step, ...], ...] = (program.steps,)
            if program.issue == "graph":
                parts = (self._before, *self._pieces, self._after)
            self._issuer = Issuer(cuda, driver, program, self.memory, self.streams, self.kernels, self._hosts, parts)
            blocking = blocking_steps(program)
            held_up = any(step.name in blocking for step in self._body)
            if program.issue == "graph":
                self._capture(held_up)
            too_long = self._commands() > MOST_COMMANDS
            self.clock = "wall" if held_up or too_long or program.host_sensitive else "device"
            """Which clock `sample_us` reads. It may be set to `wall`, to compare with a Program that needs it."""
        except BaseException:
            self.close()
            raise

    # --- buffers ----------------------------------------------------------------------------------------

    def write(self, buffer: str, data: Array) -> None:
        with named(f"writing {buffer!r}"):
            self.memory.write(buffer, data)

    def read(self, buffer: str) -> Array:
        with named(f"reading {buffer!r}"):
            return self.memory.read(buffer)

    def snapshot(self, *, outputs: bool = False) -> None:
        with named("keeping a copy of the buffers that are written"):
            self.memory.snapshot(outputs=outputs)

    def restore(self) -> None:
        with named("restoring the inout buffers"):
            self.memory.restore()

    def broken_guards(self) -> tuple[str, ...]:
        with named("reading the guard zones"):
            return self.memory.broken_guards()

    # --- issued by others -------------------------------------------------------------------------------

    def issue_by(self, enqueue: Callable[[], None], commands: int) -> None:
        """From now on all steps are enqueued by this, `commands` of them at most, from a fork of the lead to a join
        with it."""
        self._otherwise = enqueue, commands
        self._ran = False

    # --- running ----------------------------------------------------------------------------------------

    def run(self, *, seed: int, checked: bool) -> None:
        """All steps once. A GPU has no adversarial schedule to draw from `seed`; `checked` keeps the plan's own
        allocations between guard zones and poisons them when they are freed."""
        if checked:
            self._issuer.poison_unallocated()
        try:
            self._issuer.issue(self._before, checked=checked)
            self._enqueue_body(checked=checked)
            self._issuer.issue(self._after, checked=checked)
            self._wait()
            self._ran = True
        finally:
            self._issuer.release()

    def sample_us(self, repeats: int, *, cold: bool = False) -> float:
        if self.clock == "wall":
            total = 0.0
            for run in range(repeats):
                if run:
                    self.restore()
                if cold:
                    with named("flushing the cache"):
                        self._spans.flush(self.streams.lead)
                total += self._wall_us()
            return total / repeats
        if not self._ran:
            # A kernel is loaded when it is first launched, a graph uploaded, local memory grown. All of this may wait
            # until the device is idle: behind a gate until the gate gives up.
            self.run(seed=0, checked=False)
            self.restore()
        span, failed = self._spans.sample_us(self._parts(), self.streams.lead, repeats, cold=cold)
        self.gate_failures += failed
        return span

    def close(self) -> None:
        """Frees everything; driver errors are not raised (after a crash nothing can be freed, and the child goes)."""
        with contextlib.suppress(ExecutionError), named("closing"):
            for graph in self._graphs.values():
                self._driver.destroy_graph(graph)
            if self._loop is not None:
                self._loop.close()
            for each in self._modules.values():
                each.unload()
            self.memory.free()
        self._graphs.clear()
        self._loop = None
        self._modules.clear()

    # --- timing -----------------------------------------------------------------------------------------

    def _parts(self) -> Parts:
        copies = self.memory.restored_on_device
        on_stream = copies is not None and not self._before and not self._after

        def body(uncounted: list[EventPair]) -> None:
            self.streams.fork()
            self._enqueue_body(checked=False, uncounted=uncounted)
            self.streams.join()

        return Parts(
            commands=self._commands(),
            before=lambda: self._issuer.issue(self._before),
            body=body,
            after=lambda: self._issuer.issue(self._after),
            restore=self.restore,
            restore_on=self.memory.restore_on if on_stream else None,
            restored=copies or 0,
            wait=self._wait,
        )

    def _commands(self) -> int:
        """What one run of the counted part enqueues, counted from above: each step with what it waits for, a graph as
        one."""
        if self._otherwise is not None:
            return self._otherwise[1]
        several = bool(self.streams.others)
        found = 4 * len(self.streams.others)
        for number, piece in enumerate(self._pieces):
            if number in self._graphs:
                found += 1 + 4 * len(self.streams.others)
            else:
                found += sum(2 + len(step.after) if several else 1 for step in piece)
        return found

    def _wall_us(self) -> float:
        if not self._graphs and not self._loop_sought and self._otherwise is None:
            self._loop_sought = True
            self._loop = self._timed_loop()
        with named("timing"):
            self._cuda.Context.synchronize()  # copies that restored the buffers may still be under way
        if self._loop is not None:
            with named("timing"):
                return self._loop.span_us()
        try:
            self._issuer.issue(self._before)
            self._wait()
            begun = time.perf_counter_ns()
            self._enqueue_body(checked=False)
            self._wait()
            span = (time.perf_counter_ns() - begun) / 1000
            self._issuer.issue(self._after)
            self._wait()
        finally:
            self._issuer.release()
        return span

    def _enqueue_body(self, *, checked: bool, uncounted: list[EventPair] | None = None) -> None:
        """The steps from the first counted one to the last. `uncounted` takes the events round what is not counted."""
        if self._otherwise is not None:
            with named("issuing the kernels"):
                self._otherwise[0]()
            return
        lead = self.streams.lead
        for number, piece in enumerate(self._pieces):
            if uncounted is not None and not piece[0].counted:
                first, last = self._cuda.Event(), self._cuda.Event()
                first.record(lead)
                self._issuer.issue(piece, checked=checked)
                last.record(lead)
                uncounted.append((first, last))
            elif number in self._graphs:
                with named("launching the graph"):
                    self.streams.join()
                    self._driver.launch_graph(self._graphs[number], lead.handle)
                    self.streams.fork()
            else:
                self._issuer.issue(piece, checked=checked)

    def _wait(self) -> None:
        with named("running"):
            self.streams.synchronize()

    # --- loading ----------------------------------------------------------------------------------------

    def _load_sources(self) -> None:
        for source in self.program.sources:
            path = self._binaries.get(source.name)
            if path is None:
                raise ExecutionError(Outcome.BUILD_FAILED, f"there is no binary of source {source.name!r}")
            try:
                if source.kind is SourceKind.HOST:
                    self._hosts[source.name] = HostLibrary(path)
                    continue
                self._tables[source.name] = read_table(path)
                image = path.read_bytes()
            except (OSError, ValueError) as problem:
                if isinstance(problem, OSError) and (fault := faults.of_text(str(problem), str(path))) is not None:
                    raise fault from None
                raise ExecutionError(Outcome.BUILD_FAILED, f"source {source.name!r}: {problem}") from None
            with named(f"loading source {source.name!r}"):
                self._modules[source.name] = DriverModule(self._driver, image)

    def _kernels(self) -> Kernels:
        """Every kernel that is launched, allowed the shared memory that its launches ask for."""
        found: Kernels = {}
        attribute = self._cuda.function_attribute
        for step in self.program.launches:
            name = step.source, step.entry
            if name not in found:
                entry = self._tables[step.source].entries.get(step.entry)
                if entry is None:
                    raise ExecutionError(Outcome.BUILD_FAILED, f"the binary of {step.source!r} has no {step.entry}")
                with named(f"loading {step.entry}"):
                    found[name] = self._modules[step.source].get_function(entry.mangled), entry
            function, entry = found[name]
            check_arguments(step, tuple(each.size_bytes for each in entry.parameters))
            with named(f"step {step.name!r}"):
                static = function.get_attribute(attribute.SHARED_SIZE_BYTES)
                registers = function.get_attribute(attribute.NUM_REGS)
                most = function.get_attribute(attribute.MAX_THREADS_PER_BLOCK)
            threads = math.prod(step.block)
            problem = launch_problem(self._limits, registers, static + step.shared_bytes, threads)
            if problem is None and threads > most:
                problem = f"{threads} threads per block, {step.entry} allows {most} (its registers or launch bounds)"
            if problem is not None:
                raise LaunchRefused(f"step {step.name!r}: {problem}")
        for (source, text), (function, _) in found.items():
            launches = [step for step in self.program.launches if (step.source, step.entry) == (source, text)]
            if most_shared := max(step.shared_bytes for step in launches):
                with named(f"giving {text} {most_shared} bytes of shared memory"):
                    function.set_attribute(attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, most_shared)
            for step in launches:
                with named(f"step {step.name!r}"):
                    if step.carveout_pct is not None:
                        function.set_attribute(attribute.PREFERRED_SHARED_MEMORY_CARVEOUT, step.carveout_pct)
                    if step.cooperative:
                        function.check_residency(step, self._limits.multiprocessors)
        return found

    def _symbols(self) -> dict[str, tuple[int, int]]:
        """Buffer -> address and size of the module's variable that it is."""
        found = {}
        for buffer in self.program.buffers:
            if buffer.symbol is None:
                continue
            source, _, symbol = buffer.symbol.partition(":")
            table = self._tables.get(source)
            mangled = table.symbols.get(symbol) if table else None
            if mangled is None:
                raise ExecutionError(Outcome.BUILD_FAILED, f"source {source!r} does not list the symbol {symbol!r}")
            with named(f"looking for {buffer.symbol}"):
                address, size = self._modules[source].get_global(mangled)
            found[buffer.name] = address, size
        return found

    def _capture(self, held_up: bool) -> None:
        """The counted part as a CUDA graph; as several where something between them is not counted."""
        if held_up:
            raise LaunchRefused(
                "a CUDA graph holds no host calls, allocations, prefetches or copies of pageable memory"
            )
        if any(isinstance(step, CopyBatch) for piece in self._pieces for step in piece):
            # The capture would fail with error 900.
            raise LaunchRefused("a CUDA graph has no node for copies in a batch: issue them on streams")
        lead = self.streams.lead
        for number, piece in enumerate(self._pieces):
            if not any(step.counted for step in piece):
                continue
            with named("capturing the graph"):
                self._driver.begin_capture(lead.handle)
                try:
                    self.streams.fork()
                    self._issuer.issue(piece)
                    self.streams.join()
                except BaseException:
                    with contextlib.suppress(DriverError):
                        self._driver.end_capture(lead.handle)
                    raise
                self._graphs[number] = self._driver.end_capture(lead.handle)

    def _timed_loop(self) -> loop.TimedLoop | None:
        """The loop in C; None where Python has to do."""
        try:
            library = loop_code.loop_library()
            hosts = {
                source.name: loop_code.HostFunctions(source, self._binaries[source.name])
                for source in self.program.sources
                if source.kind is SourceKind.HOST
            }
        except LookupError as problem:
            log.warning("%s: %s, so Python's own time is in the samples", self.program.name, problem)
            return None
        for step in self.program.steps:
            if isinstance(step, HostCall):
                check_arguments(step, hosts[step.source].sizes(step.entry))
        with named("preparing the loop"):
            kernels = {step.name: self.kernels[step.source, step.entry][0].handle for step in self.program.launches}
            streams = {number: int(stream.handle) for number, stream in self.streams.by_number.items()}
            return loop.TimedLoop(library, self._driver, self.program, self.memory, kernels, hosts, streams)
