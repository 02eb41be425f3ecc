"""Programs of captured kernels in the PTX interpreter, with memory as the kernels' own programs had it.

Allocations keep their places from one run to the next, so that addresses in memory are the same for every form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.foreign import described
from benchmarks.foreign.captures import Capture, CapturedBytes
from fusiond.counting import layout, library
from fusiond.counting.kernels import CountedShape, CountError, CountLimits, LoadedPtx
from fusiond.counting.library import Cache
from fusiond.counting.model import H100
from fusiond.language.narrow import scalar
from fusiond.program import Argument, Bytes, FillStep, Launch, Pointer, Program
from fusiond.ptx.tree import PtxError

_BUFFER = re.compile(r"([a-z])\.(?:p(\d+)(?:\.(\d+))?|(v_\w+))")
Memory = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A program's end: what memory holds, and what was spent."""

    memory: Mapping[str, Memory]
    """`a.7`: allocation 7 of a; `a.NAME`: a variable in global memory."""
    instructions: int
    """Of warps."""


class NotRun(Exception):
    """Why the interpreter did not run a program to its end."""


class Machine:
    """The memory of some captures, by letter, and what runs there."""

    def __init__(self, captures: Mapping[str, Capture]) -> None:
        self._captures = captures
        self._library = library.load()
        self._held = {
            f"{letter}.{number}": layout.aligned(each.size_bytes)
            for letter, capture in captures.items()
            for number, each in capture.allocations.items()
        }

    def run(self, program: Program, limits: CountLimits) -> Ran:
        """NotRun with the reason."""
        for letter, capture in self._captures.items():
            for number, each in capture.allocations.items():
                self._held[f"{letter}.{number}"][:] = self._contents(letter, each)
        others = {
            each.name: layout.aligned(each.size_bytes)
            for each in program.buffers
            if each.symbol is None and _BUFFER.fullmatch(each.name) is None
        }
        try:
            return self._ran(program, others, limits)
        except (PtxError, CountError) as problem:
            raise NotRun(str(problem)) from None

    def _ran(self, program: Program, others: Mapping[str, Memory], limits: CountLimits) -> Ran:
        units = {source.name: LoadedPtx(source.text, self._library) for source in program.sources}
        for each in program.buffers:
            source, _, symbol = (each.symbol or "").partition(":")
            if symbol:
                unit = units[source]
                found = next(one for one in unit.module.variables if one.name == symbol)
                unit.image.view(found)[:] = self._variable(each.name)
        memory = [*self._held.values(), *others.values()]
        cache = Cache(self._library, H100.l2_bytes)
        instructions = 0
        for step in program.steps:
            if isinstance(step, FillStep):
                others[step.buffer][:] = step.byte
                continue
            if not isinstance(step, Launch):
                raise NotRun(f"{step.name}: a step of another kind")
            shape = CountedShape(
                grid=_numbers(step.grid), block=_numbers(step.block), shared_bytes=int(step.shared_bytes),
                cooperative=step.cooperative,
            )  # fmt: skip
            arguments = [self._bytes(each, others) for each in step.arguments]
            done = units[step.source].launch(step.entry, shape, arguments, memory, cache, H100, limits=limits)
            if done.failed:
                raise NotRun(done.failed)
            instructions += int(done.counts["warps"].sum())
        kept = {name: each.copy() for name, each in self._held.items()}
        for source, unit in units.items():
            for name, each in unit.image.globals.items():
                letter, _, own = name.partition("_") if source == "fused" else (source[0], "_", name)
                kept[f"{letter}.{own}"] = each.copy()
        return Ran(memory=kept, instructions=instructions)

    def _bytes(self, argument: Argument, others: Mapping[str, Memory]) -> bytes:
        def address(buffer: str) -> int:
            return int(others[buffer].ctypes.data) if buffer in others else self._address(buffer)

        if isinstance(argument, Pointer):
            return address(argument.buffer).to_bytes(8, "little")
        if isinstance(argument, Bytes):
            return argument.filled(address)
        return scalar(argument.dtype, argument.value).tobytes()

    def _address(self, buffer: str) -> int:
        match = _BUFFER.fullmatch(buffer)
        assert match is not None, buffer
        letter, at = match[1], int(match[3] or 0)
        references = self._captures[letter].parameters[int(match[2])].references
        (found,) = (each for each in references if each.at == at and each.allocation is not None)
        return int(self._held[f"{letter}.{found.allocation}"].ctypes.data) + found.offset

    def _variable(self, buffer: str) -> Memory:
        letter, _, name = buffer.partition(".")
        capture = self._captures[letter]
        variable = described.variable_of(capture, name)
        assert variable is not None, buffer
        return self._contents(letter, variable)

    def _contents(self, letter: str, held: CapturedBytes) -> Memory:
        """With the addresses in it turned into those of this memory."""
        found = held.contents()
        for each in held.references:
            if each.allocation is not None:
                address = int(self._held[f"{letter}.{each.allocation}"].ctypes.data) + each.offset
                found[each.at : each.at + 8] = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
        return found


def _numbers(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, z = shape
    return int(x), int(y), int(z)


def differences(found: Ran, wanted: Ran) -> dict[str, Memory]:
    """Where memory differs after two runs: name -> the places, in bytes."""
    places = {}
    for name, each in wanted.memory.items():
        other = found.memory.get(name)
        if other is not None and other.size == each.size and not np.array_equal(other, each):
            places[name] = np.flatnonzero(other != each)
    return places
