"""The eight modules of the catalogue, the large ones of the example jobs, and the plans of each that are compared."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fusiond_stitching
from fusiond.model.gpu.limits import STATIC_SHARED_BYTES
from fusiond.model.nouns import DeviceLimits
from fusiond_stitching import space
from fusiond_stitching.analysis import policy
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

FOLDER = Path(fusiond_stitching.__file__).parent / "modules"

LARGE = Path(__file__).parent.parent.parent / "configs" / "jobs" / "gpu"

PLANS = ("unfused", "xla_rules", "paper", "packed", "barriers")
"""One kernel per instruction; XLA's rules of 2018; the paper's fusion; beyond it with groups side by side in a launch;
and with barriers across the grid."""


def names() -> tuple[str, ...]:
    return tuple(sorted(each.stem for each in FOLDER.glob("*.hlo")))


def large() -> tuple[str, ...]:
    """Modules at sizes that are worth a GPU's while; too large for the processor."""
    return tuple(sorted(each.stem for each in LARGE.glob("*.hlo")))


def text(name: str) -> str:
    """HLO of the catalogue or of the large ones."""
    folder = FOLDER if name in names() else LARGE
    return (folder / f"{name}.hlo").read_text(encoding="utf-8")


@functools.cache
def module(name: str) -> HloModule:
    return importer.read(text(name), f"{name}.hlo")


@functools.cache
def xla() -> Mapping[str, Any]:
    """What XLA's own GPU compiler launches, and how that was found out."""
    found: dict[str, Any] = json.loads((FOLDER / "xla.json").read_text(encoding="utf-8"))
    return found


def policies(limits: DeviceLimits) -> dict[str, FusionPolicy]:
    """Plan -> policy: the strategy's own baselines and seeds on a device."""
    multiprocessors = max(1, limits.multiprocessors)
    shared = min(STATIC_SHARED_BYTES, limits.shared_bytes_per_block)
    plain = {
        "unfused": policy.unfused(multiprocessors=multiprocessors),
        "xla_rules": policy.xla_rules(multiprocessors=multiprocessors),
    }
    found = {name: dataclasses.replace(each, shared_limit=shared) for name, each in plain.items()}
    seeds = dict(space.seeds(limits, space.offered(limits, dots="library"), dots="library"))
    return found | {name: space.policy(seeds[name], limits, dots="library") for name in ("paper", "packed", "barriers")}
