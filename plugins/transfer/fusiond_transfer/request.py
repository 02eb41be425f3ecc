"""The request of a job, and what is known of it without running anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fusiond.model.nouns import Job, Rejection
from fusiond_transfer import delegation, space
from fusiond_transfer.analysis import cost
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.frontend.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequest:
    """A Workload's payload."""

    graph: Graph
    counted: bool  #: Allocations are part of what is measured
    odd: Mapping[str, int]
    together: Job | None = None  #: The job, where it asks other strategies for kernels that can be one


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferAnalysis:
    """An Analysis' payload."""

    asked: TransferRequest
    schedules: Schedules
    other: Schedules | None  #: In another order of the kernels, where that needs fewer messages
    offer: space.Offer
    costs: dict[str, cost.GraphCosts] = field(default_factory=dict)
    other_strategies: delegation.Together | None = None  #: What other strategies are asked for
    composed: dict[tuple[str, str], TransferAnalysis | Rejection] = field(default_factory=dict)
    """What is known of the graph with their answers in it, by label and answers."""
