"""The steps of a Program as statements of the C++ implementation.

They stand in one function, in the order of the plan, between what their streams wait for and what waits for them. Names
that they use: `at` (where each buffer is), `sizes`, `streams`, `state`, and the macro TRY.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from fusiond.exporting import cxx, layout
from fusiond.exporting.adapters import getter
from fusiond.extents import Extent, text_of
from fusiond.program import (
    Alloc,
    Argument,
    Bytes,
    Copy,
    CopyBatch,
    FillStep,
    Free,
    HostCall,
    Launch,
    Memory,
    Pointer,
    Program,
    Scalar,
    Seam,
    Step,
)


class Writer:
    """Writes the statements of one Program."""

    def __init__(self, program: Program, names: cxx.Names) -> None:
        self._program, self._names = program, names
        self._streams = sorted({step.stream for step in program.steps})
        of = {step.name: step.stream for step in program.steps}
        across = (name for step in program.steps for name in step.after if of[name] != step.stream)
        self._events = {name: index for index, name in enumerate(dict.fromkeys(across))}
        self._of: Mapping[str, int] = of

    @property
    def streams(self) -> int:
        return len(self._streams)

    @property
    def events(self) -> int:
        """How many steps another stream waits for."""
        return len(self._events)

    def lines(self) -> list[str]:
        """All steps, and the seams between them."""
        lines: list[str] = []
        for step in self._program.steps:
            lines += self._step(step)
        lines += [f"    TRY(state.join(streams, {self.streams}));"] if self.streams > 1 else []
        for seam in layout.seams_before(self._program, None):
            lines += self._seam(seam, "streams[0]")
        return lines + self._left_over()

    def _left_over(self) -> list[str]:
        """Frees what the plan has allocated and not freed."""
        held: dict[str, Alloc] = {}
        for step in self._program.steps:
            if isinstance(step, Alloc):
                held[step.arena] = step
            elif isinstance(step, Free):
                held.pop(step.arena, None)
        lines = []
        for arena, step in held.items():
            lines += [] if step.pooled else ["    TRY(cudaStreamSynchronize(streams[0]));"]
            lines += self._released(arena, "streams[0]", pooled=step.pooled)
        return lines

    def bytes_of(self, name: str) -> str:
        """The length of a buffer, as std::size_t."""
        return f"static_cast<std::size_t>({self._number(self._program.buffer(name).size_bytes)})"

    def home_bytes(self, home: str) -> str:
        """The length of an allocation, as long long."""
        ends = [self._number(each.offset_bytes + each.size_bytes) for each in layout.homes(self._program)[home]]
        return f"most({{{', '.join(dict.fromkeys(ends))}}})" if len(set(ends)) > 1 else ends[0]

    def _number(self, value: int) -> str:
        return cxx.number(value, self._names)

    def _step(self, step: Step) -> list[str]:
        stream = f"streams[{self._streams.index(step.stream)}]"
        lines = [f"    {{  // {' '.join(step.name.split())}"]
        lines += [
            f"        TRY(cudaStreamWaitEvent({stream}, state.event({self._events[name]}), 0));"
            for name in step.after
            if self._of[name] != step.stream
        ]
        for seam in layout.seams_before(self._program, step):
            lines += self._indented(self._seam(seam, stream))
        if layout.on_host(self._program, step):
            lines.append(f"        TRY(cudaStreamSynchronize({stream}));")
        lines += self._indented(self._one(step, stream))
        if step.name in self._events:
            lines.append(f"        TRY(cudaEventRecord(state.event({self._events[step.name]}), {stream}));")
        return [*lines, "    }"]

    def _indented(self, lines: list[str]) -> list[str]:
        return [f"    {each}" for each in lines]

    def _one(self, step: Step, stream: str) -> list[str]:
        if isinstance(step, Launch):
            return self._launch(step, stream)
        if isinstance(step, Copy):
            return self._copy(step, stream)
        if isinstance(step, CopyBatch):
            return self._copy_batch(step, stream)
        if isinstance(step, FillStep):
            where, size = self._at(step.buffer), self.bytes_of(step.buffer)
            if layout.on_host(self._program, step):
                return [f"    std::memset({where}, {step.byte}, {size});"]
            return [f"    TRY(cudaMemsetAsync({where}, {step.byte}, {size}, {stream}));"]
        if isinstance(step, HostCall):
            return self._host_call(step)
        if isinstance(step, Alloc):
            return self._allocate(step, stream)
        return self._free(step, stream)

    # --- kernels and functions ---

    def _launch(self, step: Launch, stream: str) -> list[str]:
        seam = layout.stand_in_of(self._program, step)
        lines = []
        if seam is not None:
            lines += [f"    if (seams.{self._names.seams[seam.name]}) {{", *self._indented(self._seam(seam, stream))]
            lines += ["    } else {"]
        inner = []
        for index, argument in enumerate(step.arguments):
            inner += [f"    {each}" for each in self._argument(index, argument)]
        given = [f"a{i}" if isinstance(each, Bytes) else f"&a{i}" for i, each in enumerate(step.arguments)]
        inner.append(f"    void* arguments[] = {{{', '.join(given) or 'nullptr'}}};")
        grid, block = (self._shape(each) for each in (step.grid, step.block))
        shared = self._cast("std::size_t", step.shared_bytes)
        call = "cudaLaunchCooperativeKernel" if step.cooperative else "cudaLaunchKernel"
        inner += [
            f"    const dim3 grid = {grid};",
            f"    const dim3 block = {block};",
            f"    TRY({call}({self.kernel(step)}, grid, block, arguments, {shared}, {stream}));",
        ]
        lines += self._indented(inner) if seam is not None else inner
        return [*lines, "    }"] if seam is not None else lines

    def kernel(self, step: Launch) -> str:
        """The address of a launch's kernel."""
        index = self._program.source(step.source).entries.index(step.entry)
        return f"{getter(self._program, step.source, 'entry')}({index})"

    def _shape(self, shape: tuple[int, int, int]) -> str:
        return f"dim3({', '.join(self._cast('unsigned', each) for each in shape)})"

    def _cast(self, kind: str, value: int) -> str:
        """A number as an expression that converts to a type without a warning."""
        return f"static_cast<{kind}>({self._number(value)})" if isinstance(value, Extent) else str(value)

    def _argument(self, index: int, argument: Argument) -> list[str]:
        """A variable with an argument's value."""
        if isinstance(argument, Pointer):
            return [f"void* a{index} = {self._at(argument.buffer)};"]
        if isinstance(argument, Scalar):
            return [f"{cxx.element(argument.dtype)} a{index} = {cxx.scalar(argument, self._names)};"]
        data = bytes.fromhex(argument.hex)
        rows = [", ".join(map(str, data[start : start + 24])) for start in range(0, len(data), 24)]
        lines = [f"alignas(16) unsigned char a{index}[{len(data)}] = {{{(',' + chr(10) + ' ' * 12).join(rows)}}};"]
        for offset, dtype, value in argument.numbers:
            lines.append(f"put(a{index} + {offset}, {cxx.typed(dtype, value, self._names)});")
        for offset, buffer in argument.pointers:
            lines.append(f"put(a{index} + {offset}, static_cast<void*>({self._at(buffer)}));")
        return lines

    def _host_call(self, step: HostCall) -> list[str]:
        types, values = [], []
        for each in step.arguments:
            if isinstance(each, Bytes):
                raise ValueError(
                    f"step {step.name!r} passes a struct to a host function; it takes pointers and numbers"
                )
            types.append("void*" if isinstance(each, Pointer) else cxx.element(each.dtype))
            values.append(self._at(each.buffer) if isinstance(each, Pointer) else cxx.scalar(each, self._names))
        index = self._program.source(step.source).entries.index(step.entry)
        function = f"{getter(self._program, step.source, 'entry')}({index})"
        return [
            f"    using Function = void (*)({', '.join(types)});",
            f"    reinterpret_cast<Function>(const_cast<void*>({function}))({', '.join(values)});",
        ]

    def _seam(self, seam: Seam, stream: str) -> list[str]:
        reads = ", ".join(self._at(each) for each in seam.reads) or "nullptr"
        writes = ", ".join(self._at(each) for each in seam.writes) or "nullptr"
        return [
            f"    {{  // seam {' '.join(seam.name.split())}",
            f"        const void* const reads[] = {{{reads}}};",
            f"        void* const writes[] = {{{writes}}};",
            f"        TRY(seams.{self._names.seams[seam.name]}(reads, writes, sizes, {stream}));",
            "    }",
        ]

    # --- memory ---

    def _at(self, name: str) -> str:
        return f"at.{self._names.buffers[name]}"

    def _copy(self, step: Copy, stream: str) -> list[str]:
        source, target = self._at(step.source[0]), self._at(step.target[0])
        size = self.bytes_of(step.source[0])
        if len(step.source) > 1:
            last = step.source[-1]
            size = f"static_cast<std::size_t>({self._at(last)} - {source}) + {self.bytes_of(last)}"
        if layout.on_host(self._program, step):
            return [f"    std::memcpy({target}, {source}, {size});"]
        kind = self._kind(step.source[0], step.target[0])
        return [f"    TRY(cudaMemcpyAsync({target}, {source}, {size}, {kind}, {stream}));"]

    def _copy_batch(self, step: CopyBatch, stream: str) -> list[str]:
        targets = ", ".join(self._at(target) for _, target in step.copies)
        sources = ", ".join(self._at(source) for source, _ in step.copies)
        lengths = ", ".join(self.bytes_of(source) for source, _ in step.copies)
        kind = self._kind(*step.copies[0])
        return [
            f"    void* targets[] = {{{targets}}};",
            f"    const void* sources[] = {{{sources}}};",
            f"    std::size_t lengths[] = {{{lengths}}};",
            f"    TRY(copy_batch(targets, sources, lengths, {len(step.copies)}, {kind}, {stream}, capturing));",
        ]

    def _kind(self, source: str, target: str) -> str:
        sides = [
            "Device" if self._program.buffer(each).memory is Memory.DEVICE else "Host" for each in (source, target)
        ]
        return f"cudaMemcpy{sides[0]}To{sides[1]}"

    def _allocate(self, step: Alloc, stream: str) -> list[str]:
        members = layout.homes(self._program)[step.arena]
        size = f"static_cast<std::size_t>({self.home_bytes(step.arena)})"
        call = {
            Memory.DEVICE: f"cudaMallocAsync(&base, {size}, {stream})" if step.pooled else f"cudaMalloc(&base, {size})",
            Memory.PINNED: f"cudaMallocHost(&base, {size})",
            Memory.PAGEABLE: f"allocate_host(&base, {size})",
        }[members[0].memory]
        lines = ["    void* base = nullptr;", f"    TRY({call});"]
        return lines + [
            f"    {self._at(each.name)} = static_cast<char*>(base) + {self._number(each.offset_bytes)};"
            for each in members
        ]

    def _free(self, step: Free, stream: str) -> list[str]:
        return self._released(step.arena, stream, pooled=not layout.on_host(self._program, step))

    def _released(self, arena: str, stream: str, *, pooled: bool) -> list[str]:
        first = layout.homes(self._program)[arena][0]
        base = f"{self._at(first.name)} - {self._number(first.offset_bytes)}"
        if first.memory is Memory.DEVICE:
            return [f"    TRY(cudaFreeAsync({base}, {stream}));" if pooled else f"    TRY(cudaFree({base}));"]
        if first.memory is Memory.PINNED:
            return [f"    TRY(cudaFreeHost({base}));"]
        return [f"    ::operator delete({base});"]

    # --- what is refused ---

    def opt_in(self) -> list[str]:
        """Statements that allow kernels more than 48 KiB of dynamic shared memory."""
        lines = []
        for step in layout.launches(self._program):
            if isinstance(step.shared_bytes, Extent) or step.shared_bytes > 48 << 10:
                lines.append(f"    TRY(opt_in({self.kernel(step)}, {self._number(step.shared_bytes)}));")
        return list(dict.fromkeys(lines))

    def checks(self) -> list[str]:
        """Statements that return a line for sizes that lead to no sound plan."""
        lines = []
        for name, _ in self._program.sizes:
            if name not in self._program.fixed:
                wrong = f"sizes.{self._names.sizes[name]} < 1"
                lines.append(_refusal(wrong, f"the size {name} must be a whole number from 1"))
        for buffer in self._program.buffers:
            if isinstance(buffer.elements, Extent):
                wrong = f"{self._number(buffer.elements)} < 1"
                lines.append(_refusal(wrong, f"{buffer.name} would have no elements ({text_of(buffer.elements)})"))
        for launch in layout.launches(self._program):
            lines += self._launch_checks(launch)
        for step in self._program.steps:
            for source, target in _copied(step):
                one, other = (self._program.buffer(each).size_bytes for each in (source, target))
                if text_of(one) != text_of(other):
                    wrong = f"{self._number(one)} != {self._number(other)}"
                    said = f"step {step.name} would copy {source} to {target}, which has another length"
                    lines.append(_refusal(wrong, said))
        return lines + self._overlaps()

    def _launch_checks(self, step: Launch) -> list[str]:
        conditions = []
        for dims, most in ((step.grid, (2**31 - 1, 65535, 65535)), (step.block, (1024, 1024, 64))):
            for each, limit in zip(dims, most, strict=True):
                if isinstance(each, Extent):
                    conditions.append(f"!within({self._number(each)}, 1, {limit}LL)")
        if isinstance(step.shared_bytes, Extent):
            conditions.append(f"!within({self._number(step.shared_bytes)}, 0, {2**31 - 1}LL)")
        lines = []
        if conditions:
            said = f"step {step.name} would have no legal grid, block or shared memory at these sizes"
            lines.append(_refusal(" || ".join(conditions), said))
        for argument in step.arguments:
            for dtype, value in _numbers(argument):
                if isinstance(value, Extent) and (bounds := cxx.limits(dtype)) is not None:
                    wrong = f"!within({self._number(value)}, {bounds[0]}LL, {bounds[1]}LL)"
                    lines.append(_refusal(wrong, f"step {step.name}: {value.text} does not fit {dtype}"))
        return lines

    def _overlaps(self) -> list[str]:
        lines = []
        for home, members in layout.homes(self._program).items():
            for left, right in itertools.pairwise(members):
                end = left.offset_bytes + left.size_bytes
                if isinstance(end, Extent) or isinstance(right.offset_bytes, Extent):
                    wrong = f"{self._number(end)} > {self._number(right.offset_bytes)}"
                    lines.append(_refusal(wrong, f"{left.name} and {right.name} would overlap in {home}"))
        return lines


def _refusal(condition: str, said: str) -> str:
    return f"    if ({condition}) return {cxx.quoted(said)};"


def _copied(step: Step) -> tuple[tuple[str, str], ...]:
    """The pairs of buffers that a step copies."""
    if isinstance(step, Copy):
        return tuple(zip(step.source, step.target, strict=True))
    return step.copies if isinstance(step, CopyBatch) else ()


def _numbers(argument: Argument) -> list[tuple[str, int | float]]:
    """The numbers that an argument passes, with their types."""
    if isinstance(argument, Scalar):
        return [(argument.dtype, argument.value)]
    return [(dtype, value) for _, dtype, value in argument.numbers] if isinstance(argument, Bytes) else []
