"""Strategies: their protocol, the hooks by which plugins register, spaces, and Programs composed of others."""

from fusiond.strategy.protocol import (
    IMPLEMENTATION,
    NO_ANSWERS,
    Answers,
    Asked,
    Baseline,
    CatalogueEntry,
    Facts,
    Inputs,
    Others,
    Probe,
    ReadsModules,
    Strategy,
    StrategyBase,
    Target,
    description_of,
)

__all__ = [
    "IMPLEMENTATION",
    "NO_ANSWERS",
    "Answers",
    "Asked",
    "Baseline",
    "CatalogueEntry",
    "Facts",
    "Inputs",
    "Others",
    "Probe",
    "ReadsModules",
    "Strategy",
    "StrategyBase",
    "Target",
    "description_of",
]
