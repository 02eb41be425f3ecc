"""Kernels that are to be fused, with their sizes.

KernelGroup  :=  FusionSlot+, granularity              kernels that share nothing; two of them are a pair
FusionSlot   :=  letter, SourceKernel, sizes           a kernel may stand in several slots
LaunchShape  :=  a slot's launch at one block shape
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from fusiond.model.language import extents
from fusiond.model.language.expressions import Scalar, is_name
from fusiond.model.nouns import Value, frozen
from fusiond.model.program import Bytes, Dim3
from fusiond_hfuse.frontend.source_kernel import SourceKernel, volume

SLOTS = tuple("abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FusionSlot:
    """Equal to itself only, so that what is worked out for a slot can be kept."""

    letter: str
    kernel: SourceKernel
    sizes: Mapping[str, int]
    prefix: str
    """What stands before the dot in the names of this slot's sizes: the kernel's name, or the letter in a self-pair.
    Empty where the kernel is by itself: then its sizes and buffers have their own names."""
    macros: Mapping[str, Scalar] = field(default_factory=dict)
    """Chosen values of the macros that have a list of them; the others have their first."""

    def at(self, config: Mapping[str, Value]) -> FusionSlot:
        """The slot with its kernel compiled as a config says: `threads.a`, `BLOCK.a`. ValueError where it does not
        compile so."""
        kernel, places = self.kernel, {name: name + self.suffix for name in self.kernel.tuned}
        chosen = {
            name: value
            for name, place in places.items()
            if place in config and not isinstance(value := config[place], float)
        }
        if not kernel.forms:
            return dataclasses.replace(self, macros=frozen(chosen)) if chosen else self
        threads = int(str(config.get(f"threads.{self.letter}", config.get("threads"))))
        wanted = {**{name: values[0] for name, values in kernel.tuned.items()}, **chosen}
        found = kernel.forms.get(
            (threads, frozenset(wanted.items())), f"{kernel.name} has no block of {threads} threads"
        )
        if isinstance(found, str):
            raise ValueError(f"{kernel.name} is not compiled so: {found}")
        return dataclasses.replace(self, kernel=found)

    @property
    def suffix(self) -> str:
        """What stands behind the names of its parameters in a config; nothing where the kernel is by itself."""
        return f".{self.letter}" if self.prefix else ""

    def named(self, argument: str) -> str:
        """What a Program calls an argument of this slot."""
        return f"{self.letter}.{argument}" if self.prefix else argument

    @property
    def places(self) -> Mapping[str, str]:
        """Name of a size -> what a job calls it."""
        return {name: f"{self.prefix}.{name}" if self.prefix else name for name in self.sizes}

    @property
    def extents(self) -> Mapping[str, Scalar]:
        """The sizes by their own names, as numbers that know what a job calls them, and the macros that are tuned. (A
        kernel's name may be one that no expression can have: `my-kernel.n` is a difference there.)"""
        places = self.places
        sizes = {
            name: extents.size(places[name], value) if is_name(places[name]) else value
            for name, value in self.sizes.items()
        }
        return {**{name: values[0] for name, values in self.kernel.choices.items()}, **self.macros, **sizes}

    @property
    def fixed_sizes(self) -> set[str]:
        """Those of the sizes, as a job calls them, that stand in the text, or can stand in no expression."""
        written = self.kernel.written_sizes
        return {place for name, place in self.places.items() if name in written or not is_name(place)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelGroup:
    """Kernels that may become one launch. Slots are in the order of their letters, which need not be the first ones: a
    group may be part of a larger one."""

    slots: tuple[FusionSlot, ...]
    granularity: int

    def slot(self, letter: str) -> FusionSlot:
        """The slot of that letter; KeyError when the group has no such letter."""
        return {each.letter: each for each in self.slots}[letter]

    def at(self, config: Mapping[str, Value]) -> KernelGroup:
        """The group with each kernel compiled as a config says. ValueError."""
        return dataclasses.replace(self, slots=tuple(slot.at(config) for slot in self.slots))

    def among(self, letters: str) -> KernelGroup:
        """The group of some of the slots, in the order of their letters."""
        return KernelGroup(
            slots=tuple(each for each in self.slots if each.letter in letters), granularity=self.granularity
        )

    @property
    def letters(self) -> str:
        return "".join(each.letter for each in self.slots)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.kernel.name for each in self.slots)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of all slots, by the names that a job gives them."""
        return {slot.places[name]: value for slot in self.slots for name, value in slot.sizes.items()}

    @property
    def fixed_sizes(self) -> set[str]:
        """Those of them that stand in a text."""
        return set().union(*(slot.fixed_sizes for slot in self.slots))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    """A slot's launch at one block shape, all expressions evaluated."""

    block: Dim3
    grid: Dim3
    shared_bytes: int
    scalars: Mapping[str, int | float]
    records: Mapping[str, Bytes] = field(default_factory=dict)
    """Structs passed by value, without the addresses in them."""

    @property
    def blocks(self) -> int:
        return volume(self.grid)
