"""Answers as typed values: the content of `fusiond best --json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadName:
    strategy: str
    name: str
    key: str
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceName:
    name: str  #: cuda:0, cpu, counted:h100
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfused:
    """The fastest unfused way, with which the answer was compared."""

    name: str
    config: Mapping[str, Any] | None
    time_us: float | None
    program_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether a candidate computes what its reference does, and how fast: `fusiond judge --json` with types."""

    right: bool
    problem: str | None  #: Why it is wrong; None where it is right
    speedup: float | None  #: Over the reference
    ci95: tuple[float, float] | None
    evidence: str | None  #: measured, emulated, counted; None where there was no verdict, for want of time or memory
    hints: tuple[str, ...]
    document: Mapping[str, Any] = field(repr=False, compare=False)
    """All of it as it came: registers, spill_bytes, occupancy, counted, reference, candidate, seeds."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Judgement:
        """The ruling in a document of `judge --json`; KeyError where it is none."""
        ci95 = document["ci95"]
        return cls(
            **{name: document[name] for name in ("right", "problem", "speedup", "evidence")},
            ci95=None if ci95 is None else (ci95[0], ci95[1]),
            hints=tuple(document["hints"]),
            document=document,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known to be best. Times are microseconds; None where nothing was measured (`evidence` counted)."""

    workload: WorkloadName
    device: DeviceName
    verdict: str  #: fuse, keep, undecided, tuned; promising, unpromising (counted only)
    evidence: str  #: measured, emulated, counted
    match: str  #: exact; stale: found with another driver, compiler, fusiond or source; nearest: at other sizes
    config: Mapping[str, Any] | None
    time_us: float | None
    baseline: str  #: The name of the fastest unfused way
    baseline_us: float | None
    speedup: float | None
    ci95: tuple[float, float] | None  #: Of the speed-up, over processes
    verified: bool
    unfused: Unfused
    program_key: str | None
    content_key: str | None
    source: Path | None  #: The generated source, where there is one
    trials: int
    processes: int  #: In which the finals were measured
    replaced: str | None  #: Why the answer before this one was replaced
    found_at: str  #: UTC, ISO 8601
    cache: str  #: warm, cold
    ended: str  #: Why the search ended
    changed: tuple[str, ...]  #: What is another one today than when it was found
    sizes_asked: Mapping[str, int]
    counted: tuple[Mapping[str, Any], ...]  #: What both sides would pay on the GPU, a row a launch (docs/counting.md)
    checks: Mapping[str, Any] | tuple[Any, ...]
    figures: Mapping[str, float]
    notes: tuple[str, ...]
    bound_us: float | None = None
    unfused_bound_us: float | None = None
    bound_ratio: float | None = None
    document: Mapping[str, Any] = field(repr=False, compare=False)
    """All of it as it came, for what is newer than this class."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Answer:
        """The answer in a document of `best --json`; KeyError where it is none."""
        ci95 = document["ci95"]
        given: dict[str, Any] = {
            **document,
            "workload": WorkloadName(**document["workload"]),
            "device": DeviceName(**document["device"]),
            "unfused": Unfused(**document["unfused"]),
            "source": None if document["source"] is None else Path(document["source"]),
            "ci95": None if ci95 is None else (ci95[0], ci95[1]),
            **{name: tuple(document[name]) for name in ("changed", "counted", "notes")},
            "document": document,
        }
        names = {each.name for each in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in given.items() if name in names})

    def _repr_html_(self) -> str:
        """What Jupyter shows: verdict, gain with its interval, times, roofline."""
        from fusiond.service.web import notebook  # a template engine, which a look-up does not need

        return notebook.answer(self.document)
