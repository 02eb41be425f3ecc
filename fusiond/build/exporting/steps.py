"""The steps of a Program as statements of the C++ implementation.

They stand in one function, in the order of the plan, between what their streams wait for and what waits for them. Names
that they use: `at` (where each buffer is), `sizes`, `streams`, `state`, and the macro TRY.
"""

import itertools
from collections.abc import Sequence

from fusiond.build.exporting import cxx, layout
from fusiond.build.exporting.adapters import getter
from fusiond.build.exporting.header import one_line
from fusiond.model.codegen.code import Code, cpp
from fusiond.model.codegen.statements import Statements, wrapped
from fusiond.model.language.extents import Extent, text_of
from fusiond.model.program import (
    Alloc,
    Argument,
    Bytes,
    Copy,
    CopyBatch,
    FillStep,
    HostCall,
    Launch,
    Memory,
    Pointer,
    Prefetch,
    Program,
    Scalar,
    Seam,
    Step,
    homes,
    host_steps,
    pitches,
)


class StepWriter:
    """Writes the statements of one Program."""

    def __init__(self, program: Program, names: cxx.CxxNames) -> None:
        self._program, self._names = program, names
        self._streams = sorted({step.stream for step in program.steps})
        self.streams = len(self._streams)
        self._of = {step.name: step.stream for step in program.steps}
        across = (name for step in program.steps for name in step.after if self._of[name] != step.stream)
        self._events = {name: index for index, name in enumerate(dict.fromkeys(across))}
        self.events = len(self._events)  #: How many steps another stream waits for
        self._on_host = host_steps(program)
        self.helpers: set[str] = set()  #: The functions beside the runtime's that the statements call

    def write(self, body: Statements) -> None:
        """All steps, and the seams between them."""
        for step in self._program.steps:
            self._step(body, step)
        if self.streams > 1:
            body.line(f"TRY(state.join(streams, {self.streams}));")
        for seam in layout.seams_before(self._program, None):
            self._seam(body, seam, "streams[0]")
        self._left_over(body)

    def _left_over(self, body: Statements) -> None:
        """Frees what the plan has allocated and not freed."""
        held: dict[str, Alloc] = {}
        for step in self._program.steps:
            if isinstance(step, Alloc):
                held[step.arena] = step
            elif step.frees is not None:
                held.pop(step.frees, None)
        for arena, step in held.items():
            if not step.pooled:
                body.line("TRY(cudaStreamSynchronize(streams[0]));")
            self._release(body, arena, "streams[0]", pooled=step.pooled)

    def bytes_of(self, name: str) -> str:
        """The length of a buffer, as std::size_t."""
        return f"static_cast<std::size_t>({self._number(self._program.buffer(name).size_bytes)})"

    def home_bytes(self, home: str) -> str:
        """The length of an allocation, as long long."""
        ends = [self._number(each.offset_bytes + each.size_bytes) for each in homes(self._program)[home]]
        return f"most({{{', '.join(dict.fromkeys(ends))}}})" if len(set(ends)) > 1 else ends[0]

    def _number(self, value: int) -> Code:
        return cxx.number(value, self._names)

    def _step(self, body: Statements, step: Step) -> None:
        stream = f"streams[{self._streams.index(step.stream)}]"
        body.line(f"// {one_line(step.name)}")
        block = body.block("")
        for name in step.after:
            if self._of[name] != step.stream:
                block.line(f"TRY(cudaStreamWaitEvent({stream}, state.event({self._events[name]}), 0));")
        for seam in layout.seams_before(self._program, step):
            self._seam(block, seam, stream)
        if step.name in self._on_host:
            block.line(f"TRY(cudaStreamSynchronize({stream}));")
        self._one(block, step, stream)
        if step.name in self._events:
            block.line(f"TRY(cudaEventRecord(state.event({self._events[step.name]}), {stream}));")

    def _one(self, body: Statements, step: Step, stream: str) -> None:
        if isinstance(step, Launch):
            self._launch(body, step, stream)
        elif isinstance(step, Copy):
            self._copy(body, step, stream)
        elif isinstance(step, CopyBatch):
            self._copy_batch(body, step, stream)
        elif isinstance(step, Prefetch):
            self.helpers.add("prefetch")
            to_device = str(step.to_device).lower()
            run = f"{self._at(step.buffers[0])}, {self._run_bytes(step.buffers)}"
            body.line(f"TRY(prefetch({run}, {to_device}, {stream}));")
        elif isinstance(step, FillStep):
            given = f"{self._at(step.buffer)}, {step.byte}, {self.bytes_of(step.buffer)}"
            on_host = step.name in self._on_host
            body.line(f"std::memset({given});" if on_host else f"TRY(cudaMemsetAsync({given}, {stream}));")
        elif isinstance(step, HostCall):
            self._host_call(body, step)
        elif isinstance(step, Alloc):
            self._allocate(body, step, stream)
        else:
            self._release(body, step.arena, stream, pooled=step.name not in self._on_host)

    # --- kernels and functions ---

    def _launch(self, body: Statements, step: Launch, stream: str) -> None:
        seam = next((each for each in self._program.seams if each.stand_in == step.name), None)
        if seam is not None:
            self._seam(body.block(f"if (seams.{self._names.seams[seam.name]})", end=None), seam, stream)
            body = body.block("} else")
        self.helpers |= {"opt_in"} if _has_dynamic(step) else set()
        for index, argument in enumerate(step.arguments):
            self._argument(body, index, argument)
        given = [f"a{i}" if isinstance(each, Bytes) else f"&a{i}" for i, each in enumerate(step.arguments)]
        body.line(f"void* arguments[] = {{{', '.join(given) or 'nullptr'}}};")
        body.line(f"const dim3 grid = {self._shape(step.grid)};")
        body.line(f"const dim3 block = {self._shape(step.block)};")
        shared = self._cast("std::size_t", step.shared_bytes)
        call = "cudaLaunchCooperativeKernel" if step.cooperative else "cudaLaunchKernel"
        body.line(f"TRY({call}({self.kernel(step)}, grid, block, arguments, {shared}, {stream}));")

    def kernel(self, step: Launch | HostCall) -> str:
        """The address of a launch's kernel, or of a host function."""
        index = self._program.source(step.source).entries.index(step.entry)
        return f"{getter(self._program, step.source, 'entry')}({index})"

    def _shape(self, shape: tuple[int, int, int]) -> str:
        return f"dim3({', '.join(self._cast('unsigned', each) for each in shape)})"

    def _cast(self, kind: str, value: int) -> str:
        """A number as an expression that converts to a type without a warning."""
        return f"static_cast<{kind}>({self._number(value)})" if isinstance(value, Extent) else str(value)

    def _argument(self, body: Statements, index: int, argument: Argument) -> None:
        """A variable with an argument's value."""
        if not isinstance(argument, Bytes):
            kind, own = self._passed(argument)
            if isinstance(argument, Scalar) and argument.pitch_of is not None:
                pitch = f"at.{self._names.pitches[argument.pitch_of]}"
                own = cpp("{} != 0 ? static_cast<{}>({}) : {}", pitch, kind, pitch, own)
            body.line(f"{kind} a{index} = {own};")
        else:
            data = bytes.fromhex(argument.hex)
            head = f"alignas(16) unsigned char a{index}[{len(data)}] = {{"
            body.line(f"{head}{wrapped(map(str, data), len(head))}}};")
            for offset, dtype, value in argument.numbers:
                self._put(body, f"a{index} + {offset}", cxx.typed(dtype, value, self._names))
            for offset, buffer in argument.pointers:
                self._put(body, f"a{index} + {offset}", f"static_cast<void*>({self._at(buffer)})")

    def _passed(self, argument: Pointer | Scalar) -> tuple[str, str]:
        """The type and the value of an argument."""
        if isinstance(argument, Pointer):
            return "void*", self._at(argument.buffer)
        return cxx.element(argument.dtype), cxx.typed(argument.dtype, argument.value, self._names)

    def _put(self, body: Statements, place: str, value: str) -> None:
        self.helpers.add("put")
        body.line(f"put({place}, {value});")

    def _host_call(self, body: Statements, step: HostCall) -> None:
        passed = []
        for each in step.arguments:
            if isinstance(each, Bytes):
                said = "passes a struct to a host function; it takes pointers and numbers"
                raise ValueError(f"step {step.name!r} {said}")
            passed.append(self._passed(each))
        body.line(f"using Function = void (*)({', '.join(kind for kind, _ in passed)});")
        values = ", ".join(value for _, value in passed)
        body.line(f"reinterpret_cast<Function>(const_cast<void*>({self.kernel(step)}))({values});")

    def _seam(self, body: Statements, seam: Seam, stream: str) -> None:
        reads = ", ".join(self._at(each) for each in seam.reads) or "nullptr"
        writes = ", ".join(self._at(each) for each in seam.writes) or "nullptr"
        body.line(f"// seam {one_line(seam.name)}")
        block = body.block("")
        block.line(f"const void* const reads[] = {{{reads}}};")
        block.line(f"void* const writes[] = {{{writes}}};")
        block.line(f"TRY(seams.{self._names.seams[seam.name]}(reads, writes, sizes, {stream}));")

    # --- memory ---

    def _at(self, name: str) -> str:
        return f"at.{self._names.buffers[name]}"

    def _copy(self, body: Statements, step: Copy, stream: str) -> None:
        source, target = self._at(step.source[0]), self._at(step.target[0])
        size = self._run_bytes(step.source)
        if step.name in self._on_host:
            body.line(f"std::memcpy({target}, {source}, {size});")
        else:
            kind = self._kind(step.source[0], step.target[0])
            body.line(f"TRY(cudaMemcpyAsync({target}, {source}, {size}, {kind}, {stream}));")

    def _run_bytes(self, names: Sequence[str]) -> str:
        """The length of a run of neighbours, from the first one's start to the last one's end."""
        first, last = names[0], names[-1]
        if first == last:
            return self.bytes_of(first)
        return f"static_cast<std::size_t>({self._at(last)} - {self._at(first)}) + {self.bytes_of(last)}"

    def _copy_batch(self, body: Statements, step: CopyBatch, stream: str) -> None:
        self.helpers.add("copy_batch")
        kind = self._kind(*step.copies[0])
        body.line(f"void* targets[] = {{{', '.join(self._at(target) for _, target in step.copies)}}};")
        body.line(f"const void* sources[] = {{{', '.join(self._at(source) for source, _ in step.copies)}}};")
        body.line(f"std::size_t lengths[] = {{{', '.join(self.bytes_of(source) for source, _ in step.copies)}}};")
        given = f"targets, sources, lengths, {len(step.copies)}, {kind}, {stream}, capturing"
        body.line(f"TRY(copy_batch({given}));")

    def _kind(self, source: str, target: str) -> str:
        sides = [
            "Device" if self._program.buffer(each).memory is Memory.DEVICE else "Host" for each in (source, target)
        ]
        return f"cudaMemcpy{sides[0]}To{sides[1]}"

    def _allocate(self, body: Statements, step: Alloc, stream: str) -> None:
        members = homes(self._program)[step.arena]
        size = f"static_cast<std::size_t>({self.home_bytes(step.arena)})"
        call = {
            Memory.DEVICE: f"cudaMallocAsync(&base, {size}, {stream})" if step.pooled else f"cudaMalloc(&base, {size})",
            Memory.PINNED: f"cudaMallocHost(&base, {size})",
            Memory.PAGEABLE: f"allocate_host(&base, {size})",
            Memory.MANAGED: f"cudaMallocManaged(&base, {size})",
        }[members[0].memory]
        if members[0].memory is Memory.PAGEABLE:
            self.helpers.add("allocate_host")
        body.lines("void* base = nullptr;", f"TRY({call});")
        for each in members:
            body.line(f"{self._at(each.name)} = static_cast<char*>(base) + {self._number(each.offset_bytes)};")

    def _release(self, body: Statements, arena: str, stream: str, *, pooled: bool) -> None:
        first = homes(self._program)[arena][0]
        base = f"{self._at(first.name)} - {self._number(first.offset_bytes)}"
        free = "cudaFreeHost" if first.memory is Memory.PINNED else "cudaFree"
        if first.memory is Memory.PAGEABLE:
            body.line(f"::operator delete({base});")
        elif first.memory is Memory.DEVICE and pooled:
            body.line(f"TRY(cudaFreeAsync({base}, {stream}));")
        else:
            body.line(f"TRY({free}({base}));")

    # --- what is refused ---

    def opt_in(self, body: Statements) -> None:
        """Statements that allow kernels their dynamic shared memory: with their own it may be more than 48 KiB."""
        wanting = filter(_has_dynamic, self._program.launches)
        calls = (f"TRY(opt_in({self.kernel(each)}, {self._number(each.shared_bytes)}));" for each in wanting)
        body.lines(*dict.fromkeys(calls))

    def carve_outs(self, body: Statements) -> None:
        """Statements that ask for as much shared memory as the program was measured with."""
        attribute = "cudaFuncAttributePreferredSharedMemoryCarveout"
        wanted = (each for each in self._program.launches if each.carveout_pct is not None)
        calls = (
            f"TRY(cudaFuncSetAttribute({self.kernel(each)}, {attribute}, {each.carveout_pct}));" for each in wanted
        )
        body.lines(*dict.fromkeys(calls))

    def checks(self, body: Statements) -> None:
        """Statements that return a line for sizes that lead to no sound plan."""
        for name, _ in self._program.sizes:
            if name not in self._program.fixed:
                wrong = f"sizes.{self._names.sizes[name]} < 1"
                refuse(body, wrong, f"the size {name} must be a whole number from 1")
        for name, row in pitches(self._program.steps).items():
            own = f"buffers.{self._names.pitches[name]}"
            wrong = f"{own} != 0 && !within(static_cast<long long>({own}), {self._number(row)}, {2**31 - 1}LL)"
            refuse(body, wrong, f"the pitch of {name} is in elements, at least those of a row ({text_of(row)})")
        for buffer in self._program.buffers:
            if isinstance(buffer.elements, Extent):
                wrong = f"{self._number(buffer.elements)} < 1"
                refuse(body, wrong, f"{buffer.name} would have no elements ({text_of(buffer.elements)})")
        for launch in self._program.launches:
            self._launch_checks(body, launch)
        for step in self._program.steps:
            for source, target in step.messages:
                one, other = (self._program.buffer(each).size_bytes for each in (source, target))
                if text_of(one) != text_of(other):
                    wrong = f"{self._number(one)} != {self._number(other)}"
                    refuse(body, wrong, f"step {step.name} would copy {source} to {target}, which has another length")
        for home, members in homes(self._program).items():
            for left, right in itertools.pairwise(layout.wholes(members)):
                end = left.offset_bytes + left.size_bytes
                if isinstance(end, Extent) or isinstance(right.offset_bytes, Extent):
                    wrong = f"{self._number(end)} > {self._number(right.offset_bytes)}"
                    refuse(body, wrong, f"{left.name} and {right.name} would overlap in {home}")

    def _launch_checks(self, body: Statements, step: Launch) -> None:
        conditions = []
        for dims, most in ((step.grid, (2**31 - 1, 65535, 65535)), (step.block, (1024, 1024, 64))):
            for each, limit in zip(dims, most, strict=True):
                if isinstance(each, Extent):
                    conditions.append(f"!within({self._number(each)}, 1, {limit}LL)")
        if isinstance(step.shared_bytes, Extent):
            conditions.append(f"!within({self._number(step.shared_bytes)}, 0, {2**31 - 1}LL)")
        if conditions:
            said = f"step {step.name} would have no legal grid, block or shared memory at these sizes"
            refuse(body, " || ".join(conditions), said)
        for argument in step.arguments:
            for dtype, value in _numbers(argument):
                if isinstance(value, Extent) and (bounds := cxx.limits(dtype)) is not None:
                    wrong = f"!within({self._number(value)}, {bounds[0]}LL, {bounds[1]}LL)"
                    refuse(body, wrong, f"step {step.name}: {value.text} does not fit {dtype}")


def _has_dynamic(launch: Launch) -> bool:
    return isinstance(launch.shared_bytes, Extent) or launch.shared_bytes > 0


def refuse(body: Statements, condition: str, said: str) -> None:
    """A statement that returns a line where the condition holds."""
    body.line(cpp("if ({}) return {};", condition, cxx.quoted(said)))


def _numbers(argument: Argument) -> list[tuple[str, int | float]]:
    """The numbers that an argument passes, with their types."""
    if isinstance(argument, Scalar):
        return [(argument.dtype, argument.value)]
    return [(dtype, value) for _, dtype, value in argument.numbers] if isinstance(argument, Bytes) else []
