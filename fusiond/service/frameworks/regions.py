"""What became of the regions of a program: what `explain` says."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """What became of a part of a program."""

    name: str
    state: str
    """`fused`; `kept` (measured, and the framework's is as fast), `unknown` (asked for), `refused`, or `library`."""
    reason: str
    operators: tuple[str, ...]
    speedup: float | None = None  #: Over the unfused kernels that it was measured against
    evidence: str = ""  #: `measured`, or `emulated`: then `speedup` says nothing of a GPU

    @property
    def primitives(self) -> tuple[str, ...]:
        """The operators, as JAX calls them."""
        return self.operators

    def lines(self) -> list[str]:
        gain = f", {self.speedup:.2f}x its unfused kernels" if self.speedup and self.state == "fused" else ""
        gain += f" ({self.evidence})" if gain and self.evidence != "measured" else ""
        names = [each.removeprefix("aten.").removesuffix(".default") for each in self.operators if each != "getitem"]
        counts = {name: names.count(name) for name in dict.fromkeys(names)}
        counted = ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())
        return [f"{self.name}  {self.state}{gain}{f': {self.reason}' if self.reason else ''}", f"    {counted}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `explain` says."""

    regions: tuple[Region, ...]
    notes: tuple[str, ...] = ()  #: What concerns whole graphs
    empty: str = field(default="nothing is computed", repr=False)  #: What is said where there is nothing

    def __str__(self) -> str:
        return "\n".join([*self.notes, *(line for each in self.regions for line in each.lines())]) or self.empty
