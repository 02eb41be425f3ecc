"""Programs out of JSON."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from fusiond.model.language.extents import Extent
from fusiond.model.program.buffers import Buffer, Compare, Fill, Memory, Role, Source, SourceKind, SourceLanguage
from fusiond.model.program.encoding import PLAN_VERSION
from fusiond.model.program.program import Program, Seam
from fusiond.model.program.steps import ARGUMENTS, STEPS, Argument, Step

_READ = (1, PLAN_VERSION)  #: Versions that can be read: 1 knew no sizes and no seams


def decode(plan: Mapping[str, Any]) -> Program:
    """The Program of a plan's JSON form; ValueError when it is of another version or shape."""
    if not isinstance(plan, Mapping):
        raise ValueError("not a plan")
    if plan.get("plan_version") not in _READ:
        raise ValueError(f"this fusiond reads plans of version {PLAN_VERSION}, not {plan.get('plan_version')!r}")
    try:
        if any("device" in each for each in (*plan["buffers"], *plan["steps"]) if isinstance(each, Mapping)):
            raise ValueError("the plan is for several devices; fusiond 0.2 made such plans, and this one runs none")
        if plan.get("formulas"):
            plan = _with_extents(plan)
        return Program(
            name=plan["name"],
            buffers=tuple(_buffer(each) for each in plan["buffers"]),
            sources=tuple(_source(each) for each in plan["sources"]),
            steps=tuple(_step(each) for each in plan["steps"]),
            issue=plan["issue"],
            sizes=tuple(plan.get("sizes", {}).items()),
            fixed=tuple(plan.get("fixed", ())),
            seams=tuple(Seam(**_tuples(each)) for each in plan.get("seams", ())),
        )
    except (KeyError, TypeError, AttributeError, IndexError) as problem:
        raise ValueError(f"not a plan: {problem}") from problem


def _with_extents(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """A copy of a plan with each formula at its number."""
    copy = json.loads(json.dumps(plan))
    for pointer, text in plan["formulas"].items():
        *path, last = pointer.split("/")[1:]
        place = copy
        for name in path:
            place = place[int(name) if isinstance(place, list) else name]
        at = int(last) if isinstance(place, list) else last
        place[at] = Extent.of(place[at], text)
    return dict(copy)


def _buffer(entry: Mapping[str, Any]) -> Buffer:
    return Buffer(
        **{
            **entry,
            "role": Role(entry["role"]),
            "memory": Memory(entry["memory"]),
            "fill": Fill(**entry["fill"]),
            "compare": Compare(**entry["compare"]),
        }
    )


def _source(entry: Mapping[str, Any]) -> Source:
    language = SourceLanguage(entry.get("language", SourceLanguage.CUDA))
    return Source(**{**_tuples(entry), "kind": SourceKind(entry["kind"]), "language": language})


def _step(entry: Mapping[str, Any]) -> Step:
    values = _tuples(entry)
    kind = STEPS[values.pop("is")]
    if "arguments" in values:
        values["arguments"] = tuple(_argument(each) for each in entry["arguments"])
    step: Step = kind(**values)
    return step


def _argument(entry: Mapping[str, Any]) -> Argument:
    values = _tuples(entry)
    kind: Callable[..., Argument] = ARGUMENTS[values.pop("is")]
    return kind(**values)


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Lists are tuples, and so are those in them."""
    return {name: _frozen(value) for name, value in entry.items()}


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
