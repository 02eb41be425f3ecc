"""The protocol between the daemon's process and a device's child: one JSON document a line, on a pipe.

Reference      run a bundle on a seed and keep its outputs: the truth that candidates are compared with
CheckRequest   run a bundle on seeds, compare its outputs with references, check the guard zones
SampleRequest  time a bundle, alone or in pairs with another
Calibrate      what measuring costs on this device, and its ceilings
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fusiond.devices.timing import Sampling
from fusiond.model.errors import MachineFault
from fusiond.model.keys import plain
from fusiond.model.outcomes import DeviceState, Effort, MeasureFailed, Measurement, Outcome, Purpose

READY = "ready"  #: The child's first line


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    bundle: str
    seed: int
    outputs: str  #: Where to write the outputs: an .npz, arrays named like the buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    bundle: str
    references: tuple[tuple[int, str], ...]  #: (seed, .npz) pairs
    suspicious: bool = False  #: Nobody vouches for it: each seed is run twice
    truths: tuple[tuple[int, str], ...] = ()
    """(seed, .npz) of outputs in double precision (`fusiond.tuning.judging.truth`), by which precision is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    candidate: str
    baseline: str | None
    plan: Sampling
    references: tuple[tuple[int, str], ...] = ()
    """(seed, .npz) of what samples are judged by; empty where they need not be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrate:
    """Of the device itself; no bundle."""


Request: TypeAlias = Reference | CheckRequest | SampleRequest | Calibrate


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The outputs are right. `worst` as in `fusiond.devices.compare.Comparison`."""

    worst: float
    unproven: tuple[str, ...] = ()  #: Of a reference: outputs to which anything might be equal, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """Figures by the names of `fusiond.devices.calibration`."""

    figures: dict[str, float]


Reply: TypeAlias = Measurement | Checked | Calibrated | MeasureFailed
_KINDS: dict[str, Any] = {
    each.__name__: each
    for each in (Reference, CheckRequest, SampleRequest, Calibrate, Measurement, Checked, Calibrated, MeasureFailed)
}


def encode_request(request: Request) -> str:
    return json.dumps({"do": type(request).__name__, **plain(request)})


def decode_request(line: str) -> Request:
    values = json.loads(line)
    request: Request = restored(_KINDS[values.pop("do")], values)
    return request


def encode_reply(reply: Reply | MachineFault) -> str:
    if isinstance(reply, MachineFault):
        return json.dumps({"is": MachineFault.__name__, "reason": str(reply)})
    return json.dumps({"is": type(reply).__name__, **plain(reply)})


def decode_reply(line: str) -> Reply:
    """ValueError, TypeError or AttributeError when it is no reply. Raises the MachineFault that kept the child from
    answering."""
    values = json.loads(line)
    kind = values.pop("is", None)
    if kind == MachineFault.__name__:
        raise MachineFault(values["reason"])
    reply = restored(_KINDS[kind], values) if kind in _KINDS else None
    if not isinstance(reply, Reply):
        raise ValueError(f"not a reply: {line[:200]!r}")
    return reply


def restored(kind: Any, values: Mapping[str, Any]) -> Any:
    """One of the classes above, or a Measurement, from its JSON form."""
    return kind(**{name: _part(name, value) for name, value in values.items()})


def _part(name: str, value: Any) -> Any:
    if name in _PARTS:
        return restored(_PARTS[name], value) if isinstance(value, dict) else _PARTS[name](value)
    return tuple(_part("", each) for each in value) if isinstance(value, list) else value


_PARTS: dict[str, Any] = {
    **{"purpose": Purpose, "outcome": Outcome, "plan": Sampling},
    **{"before": DeviceState, "after": DeviceState, "effort": Effort},
}
"""Field -> its type, where JSON has none."""
