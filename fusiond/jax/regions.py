"""A traced function cut into regions of work that can be fused, and the library calls between them.

    f --make_jaxpr--> jaxpr --inlined--> equations --cut--> region 0, rest 0, region 1, rest 1, ...

`service.frameworks.cutting` says which equations a region holds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend import core

from fusiond.jax import loops, lowering
from fusiond.service.frameworks import DTYPES, MOST_TAPS, cutting, is_stencil
from fusiond.service.frameworks.boundaries import boundaries
from fusiond.service.frameworks.cutting import LEAST, Operation

ELEMENTWISE = frozenset({
    "abs", "add", "add_any", "and", "atan2", "cbrt", "ceil", "clamp", "convert_element_type", "cos", "cosh", "acos",
    "acosh", "asin", "asinh", "atan", "atanh", "copy", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2",
    "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max",
    "min", "mul", "ne", "neg", "nextafter", "not", "or", "population_count", "pow", "reduce_precision", "rem", "round",
    "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt",
    "square", "stop_gradient", "sub", "tan", "tanh", "xor", "clz",
})  # fmt: skip
REDUCTIONS = frozenset({
    "argmax", "argmin", "cummax", "cummin", "cumprod", "cumsum", "reduce", "reduce_and", "reduce_max", "reduce_min",
    "reduce_or", "reduce_prod", "reduce_sum", "reduce_window", "reduce_window_max", "reduce_window_min",
    "reduce_window_sum", "reduce_xor",
})  # fmt: skip
MOVEMENT = frozenset({
    "broadcast_in_dim", "bitcast_convert_type", "concatenate", "dynamic_slice", "dynamic_update_slice", "gather",
    "iota", "name", "pad", "reshape", "rev", "scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul",
    "scatter-sub", "slice", "split", "squeeze", "stack", "tile", "transpose", "unstack",
})  # fmt: skip
"""Primitives that stitching reads, by what they do."""
FUSABLE = ELEMENTWISE | REDUCTIONS | MOVEMENT
TRIED = frozenset({
    "complex", "cond", "conj", "cumlogsumexp", "imag", "random_bits", "random_fold_in", "random_seed", "random_split",
    "random_unwrap", "random_wrap", "real", "scan", "sort", "threefry2x32", "top_k", "while",
})  # fmt: skip
"""Primitives that stitching reads in some forms: it is asked, as it is of each with complex numbers. All others are
library calls, and stay XLA's."""
INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
           "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}  # fmt: skip
"""Calls that are looked into -> the parameter that holds what they call."""
STENCIL = "conv_general_dilated"
_SUNK = MOVEMENT | {"convert_element_type"}
LOOPS = frozenset({"scan", "while"})


@dataclass(frozen=True, slots=True)
class JaxprSegment:
    """Equations as a function of their own."""

    jaxpr: core.ClosedJaxpr
    inputs: tuple[core.Var, ...]
    outputs: tuple[core.Var, ...]
    fusable: bool
    primitives: tuple[str, ...]  #: Names, in order
    reason: str = ""  #: Why loops and their like are library calls

    @property
    def loops(self) -> int:
        return sum(each in LOOPS for each in self.primitives)


@dataclass(frozen=True, slots=True)
class CutJaxpr:
    """A function as segments, to be computed in order."""

    inputs: tuple[core.Var, ...]
    outputs: tuple[Any, ...]  #: Vars and Literals
    constants: tuple[tuple[core.Var, Any], ...]
    segments: tuple[JaxprSegment, ...]
    changed: bool  #: Whether there are loops with their products apart, which a library would run otherwise


def cut(closed: core.ClosedJaxpr, *, products_apart: bool = True) -> CutJaxpr:
    """The segments of a function that is traced."""
    inlining = _Inlining(closed, products_apart=products_apart)
    outputs, equations = inlining.outputs, _live(inlining.whole, inlining.outputs)
    problems = _Problems()
    operations = [_operation(each, problems.of(each) is not None) for each in equations]
    segments = _segments(operations, outputs, problems, apart=False)
    if any(each.fusable and each.loops > 1 and boundaries(lowering.hlo("tried", each.jaxpr)) for each in segments):
        # Each of its loops is one launch by itself: what one lays down for another is stored, then.
        segments = _segments(operations, outputs, problems, apart=True)
    return CutJaxpr(tuple(closed.jaxpr.invars), tuple(outputs), tuple(inlining.values), segments, inlining.changed)


def _live(equations: Sequence[core.JaxprEqn], outputs: Sequence[Any]) -> list[core.JaxprEqn]:
    needed = {each for each in outputs if isinstance(each, core.Var)}
    found = []
    for each in reversed(equations):
        if each.effects or not needed.isdisjoint(each.outvars):
            found.append(each)
            needed.update(_read(each))
    return found[::-1]


def _operation(equation: core.JaxprEqn, library: bool) -> Operation:
    """It sinks where it only moves or repeats, or reads no more bytes than it makes."""
    name, reads, makes = equation.primitive.name, list(_read(equation)), _made(equation)
    avals: list[list[Any]] = [[each.aval for each in variables] for variables in (set(reads), equation.outvars)]
    read, made = (sum(each.size * each.dtype.itemsize for each in some) for some in avals)
    sinks = name in _SUNK or (read <= made and name not in LOOPS)
    return Operation(node=equation, reads=reads, makes=makes, library=library, loop=name in LOOPS, sinks=sinks)


def _segments(
    operations: Sequence[Operation], outputs: Sequence[Any], problems: _Problems, *, apart: bool
) -> tuple[JaxprSegment, ...]:
    found = []
    leaving = [each for each in outputs if isinstance(each, core.Var)]
    for part in cutting.parts(operations, leaving, apart=apart, by_depth=True):
        reasons = dict.fromkeys(filter(None, map(problems.of, part.nodes))) if part.library else {}
        found.append(_segment(part.nodes, part.after, library=part.library, reason="; ".join(reasons)))
    return tuple(found)


def _segment(
    equations: list[core.JaxprEqn], needed: Collection[core.Var], *, library: bool, reason: str = ""
) -> JaxprSegment:
    """Equations as a jaxpr of their own, whose outputs are what is `needed` behind them."""
    made = [each for equation in equations for each in _made(equation)]
    inside = set(made)
    inputs = tuple(dict.fromkeys(each for one in equations for each in _read(one) if each not in inside))
    leaving = tuple(each for each in made if each in needed)
    effects = frozenset(effect for each in equations for effect in each.effects)
    said = core.DebugInfo("fusiond", "region", ("",) * len(inputs), ("",) * len(leaving))
    jaxpr = core.ClosedJaxpr(core.Jaxpr((), inputs, leaving, equations, effects, said), ())
    names = tuple(each.primitive.name for each in equations)
    computing = sum(LEAST if name == STENCIL or name in LOOPS else name not in MOVEMENT for name in names)
    fusable = not library and computing >= LEAST and bool(leaving)
    return JaxprSegment(lowering.plain(jaxpr) if fusable else jaxpr, inputs, leaving, fusable, names, reason)


def _read(equation: core.JaxprEqn) -> Iterable[core.Var]:
    return (each for each in equation.invars if isinstance(each, core.Var))


def _made(equation: core.JaxprEqn) -> list[core.Var]:
    return [each for each in equation.outvars if not isinstance(each, core.DropVar)]


class _Problems:
    """Why equations are library calls: None for those that are not, an empty text for those that nobody expects here.
    What stitching reads in some forms only is shown to it, with the constants that it is given."""

    def __init__(self) -> None:
        self._constants: list[core.JaxprEqn] = []  #: What is made of nothing
        self._made: set[core.Var] = set()  #: By those
        self._known: dict[int, str | None] = {}

    def of(self, equation: core.JaxprEqn) -> str | None:
        if id(equation) not in self._known:
            self._known[id(equation)] = self._of(equation)
            if not equation.effects and self._made.issuperset(_read(equation)):
                self._constants.append(equation)
                self._made.update(equation.outvars)
        return self._known[id(equation)]

    def _of(self, equation: core.JaxprEqn) -> str | None:
        name = equation.primitive.name
        known = name in FUSABLE or _is_stencil(equation)
        if not (known or name in TRIED) or equation.effects:
            return ""
        avals: list[Any] = [each.aval for each in (*equation.invars, *equation.outvars)]
        if not all((str(each.dtype) in DTYPES or lowering.is_key(each)) and 0 not in each.shape for each in avals):
            return ""
        if known and not any(each.dtype == "complex64" for each in avals):
            return None
        tried = _segment([*_live(self._constants, equation.invars), equation], _made(equation), library=False)
        found = boundaries(lowering.hlo("tried", lowering.plain(tried.jaxpr)))
        return f"{name}: {found[0]}" if found else None


def _is_stencil(equation: core.JaxprEqn) -> bool:
    """Whether it is a convolution that reads few channels, as stitching reads them (`frontend/windows.py`)."""
    if equation.primitive.name != STENCIL or equation.params["batch_group_count"] != 1:
        return False
    aval: Any = equation.invars[1].aval
    outputs, inputs, *sides = (aval.shape[at] for at in equation.params["dimension_numbers"].rhs_spec)
    return is_stencil(outputs, inputs, equation.params["feature_group_count"], math.prod(sides))


def _flat(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """A jaxpr without calls of INLINED."""
    inlining, inner = _Inlining(closed, products_apart=True), closed.jaxpr
    variables, values = zip(*inlining.values, strict=True) if inlining.values else ((), ())
    jaxpr = core.Jaxpr(variables, inner.invars, inlining.outputs, inlining.whole, inner.effects, inner.debug_info)
    return core.ClosedJaxpr(jaxpr, values)


def _apart(equation: core.JaxprEqn) -> core.ClosedJaxpr | None:
    """A loop with its products apart, where that leaves one that can be computed here."""
    if equation.primitive.name != "scan" or equation.effects:
        return None
    found = loops.apart(equation, _flat)
    if found is None:
        return None
    problems = _Problems()
    loop = [problems.of(each) for each in found.jaxpr.eqns if each.primitive.name == "scan"]
    return found if loop == [None] else None


class _Inlining:
    """A jaxpr with the calls of INLINED replaced by what they call."""

    def __init__(self, closed: core.ClosedJaxpr, *, products_apart: bool) -> None:
        self._products_apart = products_apart
        self.values: list[tuple[core.Var, Any]] = []  #: Its constants, and those of what it calls
        self.changed = False  #: Whether a loop's products have been taken out of it
        self._fresh = core.gensym()
        names = self._constants(closed)
        self.whole = self._equations(closed.jaxpr, names)
        self.outputs = [_named(each, names) for each in closed.jaxpr.outvars]

    def _constants(self, closed: core.ClosedJaxpr) -> dict[core.Var, Any]:
        """What its constants are called outside: small ones (the taps of a filter) are part of the regions' text."""
        names: dict[core.Var, Any] = {}
        for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            known = isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer)
            if known and 1 < value.size <= MOST_TAPS and str(value.dtype) in DTYPES:
                names[var] = core.Literal(np.asarray(value), var.aval)
            else:
                names[var] = self._fresh(var.aval)
                self.values.append((names[var], value))
        return names

    def _equations(self, jaxpr: core.Jaxpr, names: dict[core.Var, Any]) -> list[core.JaxprEqn]:
        """`names`: what the vars of an inlined jaxpr are called outside; all that it makes gets new names, since one
        jaxpr may be called twice."""
        found: list[core.JaxprEqn] = []
        for equation in jaxpr.eqns:
            given = [_named(each, names) for each in equation.invars]
            if equation.primitive.name == "concatenate":  # as `associative_scan` has it, of slices without elements
                given = [each for each in given if 0 not in each.aval.shape] or given
            inner = equation.params.get(INLINED.get(equation.primitive.name, ""))
            if inner is None and self._products_apart and (inner := _apart(equation)) is not None:
                self.changed = True
            if isinstance(inner, core.ClosedJaxpr):
                own = dict(zip(inner.jaxpr.invars, given, strict=True)) | self._constants(inner)
                found += self._equations(inner.jaxpr, own)
                made = [_named(each, own) for each in inner.jaxpr.outvars]
            else:
                made = [each if isinstance(each, core.DropVar) else self._fresh(each.aval) for each in equation.outvars]
                found.append(equation.replace(invars=given, outvars=made))
            names |= zip(equation.outvars, made, strict=True)
        return found


def _named(atom: Any, names: dict[core.Var, Any]) -> Any:
    return atom if isinstance(atom, core.Literal) else names.get(atom, atom)
