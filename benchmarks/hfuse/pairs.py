"""The 16 pairs of the paper, and the size that is swept in each, as ordinary job files.

batchnorm+hist    strategy: hfuse
                  pair: [batchnorm, hist]
                  sweep: {batchnorm.length: [8, 16, 32, 64, 128]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusiond.model.nouns import Job
from fusiond.requests import jobs

HERE = Path(__file__).parent

SWEPT: Mapping[str, tuple[str, int, int]] = {
    "batchnorm": ("length", 32, 1600),
    "hist": ("n", 5_000_000, 1_000_000_000),
    "im2col": ("channels", 1, 30),
    "maxpool": ("channels", 40, 800),
    "upsample": ("channels", 8, 400),
    "blake256": ("rounds", 64, 100_000),
    "blake2b": ("rounds", 32, 100_000),
    "ethash": ("rounds", 1, 1_000),
    "sha256": ("rounds", 16, 100_000),
}
"""Kernel -> the size that sets its time, its value in the catalogue, and the most that keeps every count below 2^31."""

TINY: Mapping[str, Mapping[str, int]] = {
    "batchnorm": {"batch": 13, "features": 77, "length": 4},
    "hist": {"n": 60_000},
    "im2col": {"channels": 2, "height": 131, "width": 67},
    "maxpool": {"channels": 8, "height": 422, "width": 194},
    "upsample": {"channels": 4, "height": 37, "width": 53, "out_height": 111, "out_width": 97},
    "blake256": {"blocks": 5, "rounds": 4},
    "blake2b": {"blocks": 5, "rounds": 4},
    "ethash": {"blocks": 5, "rounds": 4, "pages": 1009},
    "sha256": {"blocks": 5, "rounds": 4},
}
"""Sizes for trying the benchmark out on the processor. Nothing that is found with them is a result."""

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
QUICK_FACTORS = (0.5, 1.0)
MOST_SHIFT = 8.0
"""How far the middle of a sweep may go from the catalogue's size, either way, to make the kernels take equally long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two kernels of the catalogue, in the paper's (and the alphabet's) order."""

    first: str
    second: str
    varied: str  #: Whose size is swept
    named: bool  #: The paper's text marks it so; where it does not, the choice is ours: the kernel with the finer steps

    @property
    def name(self) -> str:
        return f"{self.first}+{self.second}"

    @property
    def size(self) -> str:
        """The size that is swept, as a job file names it."""
        return f"{self.varied}.{SWEPT[self.varied][0]}"


def _pair(name: str, varied: str, *, named: bool = False) -> Pair:
    first, second = name.split("+")
    return Pair(first=first, second=second, varied=varied, named=named)


PAIRS: tuple[Pair, ...] = (
    _pair("batchnorm+upsample", "batchnorm", named=True),  # "the four pairs involving Batchnorm appear in clusters"
    _pair("batchnorm+hist", "batchnorm", named=True),
    _pair("batchnorm+im2col", "batchnorm", named=True),
    _pair("batchnorm+maxpool", "batchnorm", named=True),
    _pair("hist+im2col", "hist"),
    _pair("hist+maxpool", "maxpool", named=True),
    _pair("hist+upsample", "upsample", named=True),
    _pair("im2col+maxpool", "maxpool"),
    _pair("im2col+upsample", "upsample"),
    _pair("maxpool+upsample", "upsample", named=True),
    _pair("blake2b+ethash", "blake2b"),
    _pair("blake256+ethash", "blake256"),
    _pair("ethash+sha256", "sha256"),
    _pair("blake256+blake2b", "blake256", named=True),
    _pair("blake256+sha256", "blake256", named=True),
    _pair("blake2b+sha256", "blake2b", named=True),
)


def chosen(names: Sequence[str]) -> tuple[Pair, ...]:
    """The pairs of these names (`hist+maxpool`, or `hist,maxpool`, in either order); all for none. ValueError."""
    if not names:
        return PAIRS
    known = {frozenset((each.first, each.second)): each for each in PAIRS}
    found = []
    for name in names:
        members = frozenset(name.lower().replace(",", "+").split("+"))
        if members not in known:
            raise ValueError(f"unknown pair {name!r}; there are {', '.join(each.name for each in PAIRS)}")
        found.append(known[members])
    return tuple(dict.fromkeys(found))


def base(pair: Pair, *, tiny: bool) -> int:
    """The catalogue's value of the swept size, or the tiny one."""
    size, usual, _ = SWEPT[pair.varied]
    return TINY[pair.varied][size] if tiny else usual


def values(pair: Pair, factors: Sequence[float], *, middle: float) -> tuple[int, ...]:
    """What a sweep round `middle` visits, the middle itself among it where 1 is among the factors."""
    most = SWEPT[pair.varied][2]
    return tuple(dict.fromkeys(min(most, max(1, round(middle * factor))) for factor in factors))


def balanced(pair: Pair, times_us: Mapping[str, float], at: int) -> float:
    """Where the swept kernel would take as long as the other, if its time went with its size; not too far away."""
    other = pair.second if pair.varied == pair.first else pair.first
    shift = times_us[other] / times_us[pair.varied]
    return at * min(MOST_SHIFT, max(1 / MOST_SHIFT, shift))


def job_text(
    pair: Pair, swept: Sequence[int] = (), *, tiny: bool = False, trials: int = 64, search_secs: float = 1800
) -> str:
    """A job file."""
    lines = ["strategy: hfuse", f"pair: [{pair.first}, {pair.second}]"]
    if tiny:
        sizes = {f"{name}.{size}": value for name in (pair.first, pair.second) for size, value in TINY[name].items()}
        if swept:
            del sizes[pair.size]
        lines.append(f"sizes: {json.dumps(sizes)}")
    lines.append(f"search: {{trials: {trials}, timeout: {search_secs:g}s, seed: 0, least_gain: 1.02}}")
    if swept:
        lines.append(f"sweep: {{{pair.size}: [{', '.join(map(str, swept))}]}}")
    return "\n".join(lines) + "\n"


def read(
    pair: Pair,
    swept: Sequence[int] = (),
    *,
    tiny: bool = False,
    trials: int = 64,
    search_secs: float = 1800,
    device: str | None = None,
) -> tuple[Job, ...]:
    """The jobs of a pair, one for each value."""
    text = job_text(pair, swept, tiny=tiny, trials=trials, search_secs=search_secs)
    return jobs.read(HERE / f"{pair.name}.yaml", text, device=device)
