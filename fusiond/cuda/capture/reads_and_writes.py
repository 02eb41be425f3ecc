"""Which memory each event of a captured program reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

from fusiond.cuda.capture.code import code_of
from fusiond.cuda.capture.regions import MemoryRegion, Regions
from fusiond.cuda.capture.trace import (
    CapturedCopy,
    CapturedEvent,
    CapturedFill,
    CapturedLaunch,
    CapturedPlace,
    CapturedTrace,
)
from fusiond.model.ptx.uses import ParameterUse


@dataclass(frozen=True, slots=True)
class Touched:
    """Memory, from `low` to `high` in an allocation or a variable."""

    where: object  #: The allocation's number; of a variable whose place is not known, its module and name
    low: int
    high: int
    read: bool
    written: bool

    def conflicts(self, other: Touched) -> bool:
        apart = self.where != other.where or self.high <= other.low or other.high <= self.low
        return not apart and (self.written or other.written)


class CapturedMemory:
    """What the events of a trace touch."""

    def __init__(self, trace: CapturedTrace) -> None:
        self._regions, self._allocations = Regions(trace), trace.allocations
        self._variables: dict[str, list[tuple[object, int]]] = {}
        for each in trace.allocations:
            if each.name:
                self._variables.setdefault(each.name, []).append((each.number, each.size_bytes))

    def touched(self, event: CapturedEvent) -> tuple[Touched, ...] | None:
        """None: everything."""
        if isinstance(event, CapturedLaunch):
            code = code_of(event.kernel)
            return self.by(event) if isinstance(code, str) or not code.uses.anywhere else None
        if isinstance(event, CapturedCopy):
            ends = ((event.source_place, False), (event.destination_place, True))
            return tuple(_range(place, event.size_bytes, written) for place, written in ends if place is not None)
        if isinstance(event, CapturedFill) and event.place is not None:
            return (_range(event.place, event.size_bytes, True),)
        return ()

    def by(self, launch: CapturedLaunch) -> tuple[Touched, ...]:
        """By the addresses that it is handed, and the variables of its module."""
        code = code_of(launch.kernel)
        uses = None if isinstance(code, str) else code.uses
        found = []
        for number, argument in enumerate(launch.arguments):
            use = uses.parameters[number] if uses else ParameterUse(True, True)
            if use.read or use.written:
                for region in (self._regions.of(place) for _, place in argument.places):
                    found.append(Touched(region.allocation, region.low, region.high, use.read, use.written))
        for name, use in uses.variables.items() if uses else ():
            if use.read or use.written:
                for where, size in self._variables.get(name, [((launch.kernel.module, name), 0)]):
                    found.append(Touched(where, 0, max(size, 1), use.read, use.written))
        return tuple(found)

    def region(self, touched: Touched) -> MemoryRegion:
        """Of what is in an allocation."""
        assert isinstance(touched.where, int)
        return self._regions.of(CapturedPlace(self._allocations[touched.where - 1], touched.low))


def _range(place: CapturedPlace, size_bytes: int, written: bool) -> Touched:
    return Touched(place.allocation.number, place.offset, place.offset + size_bytes, not written, written)


def needs(one: tuple[Touched, ...] | None, other: tuple[Touched, ...] | None) -> bool:
    """Whether the order of two events matters."""
    if one is None or other is None:
        return True
    return any(each.conflicts(beside) for each in one for beside in other)
