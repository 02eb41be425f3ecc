"""A jaxpr of JAX as the draft of a graph: `jax.make_jaxpr(function)(*arguments)`. JAX itself is not imported.

Everything runs on the device but `pure_callback`, `io_callback` and those for debugging, whose functions run on the
host; arguments come from there, and results go there. A callback without a result still needs its operands on the host:
it is a kernel with one byte of output, behind all other outputs. `device_put`, reshapes and nested jaxprs are what they
hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fusiond.errors import RequestError
from fusiond_transfer.frontend.graph import DEVICE, HOST
from fusiond_transfer.frontend.importing.draft import DraftGraph
from fusiond_transfer.frontend.importing.operations import Building, Operand, Value, result

_SAME = ("device_put", "copy", "copy_p", "reshape", "squeeze", "expand_dims", "optimization_barrier", "stop_gradient")
_KINDS = {"add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "div": "div", "neg": "neg", "abs": "abs",
          "sqrt": "sqrt", "max": "max", "min": "min", "square": "square", "convert_element_type": "same"}  # fmt: skip
_NESTED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_HOST = ("pure_callback", "io_callback", "debug_callback", "debug_print")


def draft(closed: Any, name: str) -> DraftGraph:
    """The graph of a ClosedJaxpr. RequestError for what is none, and for element types that no vector has."""
    if not hasattr(closed, "jaxpr") or not hasattr(closed.jaxpr, "eqns"):
        raise RequestError(f"is a {type(closed).__name__}; expected what jax.make_jaxpr(...)(...) returns", where=name)
    return _Importer(closed, name).draft()


class _Importer:
    def __init__(self, closed: Any, name: str) -> None:
        self._closed = closed
        self._building = Building(name)
        self._known: dict[Any, Operand] = {}
        self._uses: Counter[Any] = Counter()

    def draft(self) -> DraftGraph:
        jaxpr = self._closed.jaxpr
        for number, each in enumerate(jaxpr.invars):
            self._known[each] = self._building.input(f"x{number}", *_kind(each), DEVICE)
        self._constants(jaxpr, self._closed.consts)
        self._all(jaxpr)
        for each in jaxpr.outvars:
            self._building.output(self._value(each))
        return self._building.draft(["From a jaxpr: on the device, but for callbacks."])

    def _all(self, jaxpr: Any) -> None:
        self._uses.update(each for equation in jaxpr.eqns for each in equation.invars if not hasattr(each, "val"))
        self._uses.update(each for each in (*jaxpr.outvars, *jaxpr.outvars) if not hasattr(each, "val"))
        for equation in jaxpr.eqns:
            self._equation(equation)

    def _equation(self, equation: Any) -> None:
        called, operands = equation.primitive.name, [self._operand(each) for each in equation.invars]
        inner = next((equation.params[key] for key in _NESTED if key in equation.params), None)
        if inner is not None and called not in ("scan", "while", "cond") and called not in _HOST:
            self._known |= zip(equation.outvars, self._inlined(inner, operands), strict=True)
            return
        outs = equation.outvars
        if called in _SAME and len(outs) == len(operands):
            self._known |= zip(outs, map(self._settled, operands), strict=True)
            return
        if called == "broadcast_in_dim" and (not isinstance(operands[0], Value) or operands[0].elements == 1):
            self._known[outs[0]] = self._settled(operands[0])  # a formula takes a vector's only element for all
            return
        if called == "convert_element_type" and not isinstance(operands[0], Value) and outs[0].aval.shape == ():
            self._known[outs[0]] = _converted(operands[0], str(outs[0].aval.dtype))
            return
        if not outs and called in _HOST:
            self._building.effect(operands, called, HOST)
            return
        kind, operands = _translated(equation, called, operands)
        likes = [result(called, *_kind(each), HOST if called in _HOST else DEVICE) for each in outs]
        if kind is not None and len(outs) == 1 and _fits(kind, operands, likes[0]):
            shared = self._uses[outs[0]] > 1
            self._known[outs[0]] = self._building.element_wise(kind, operands, likes[0], shared=shared)
        elif outs:
            self._known |= zip(outs, self._building.unknown(operands, likes), strict=True)

    def _inlined(self, inner: Any, operands: list[Operand]) -> Iterator[Operand]:
        jaxpr = getattr(inner, "jaxpr", inner)
        inside = _Importer.__new__(_Importer)
        inside._building, inside._known, inside._uses = self._building, {}, Counter()
        # What comes in may be used elsewhere, too: it is stored, once.
        inside._known |= zip(jaxpr.invars, map(self._settled, operands), strict=True)
        inside._constants(jaxpr, getattr(inner, "consts", ()))
        inside._all(jaxpr)
        return iter([inside._operand(each) for each in jaxpr.outvars])

    def _settled(self, operand: Operand) -> Operand:
        """The same as a vector, so that two names for it do not compute it twice."""
        return self._building.stored(operand) if isinstance(operand, Value) else operand

    def _constants(self, jaxpr: Any, constants: Any) -> None:
        for each, value in zip(jaxpr.constvars, constants, strict=True):
            small = getattr(value, "size", 1) == 1
            self._known[each] = _number(value) if small else self._building.input("constant", *_kind(each), DEVICE)

    def _operand(self, variable: Any) -> Operand:
        return _number(variable.val) if hasattr(variable, "val") else self._known[variable]

    def _value(self, variable: Any) -> Value:
        found = self._operand(variable)
        if isinstance(found, Value):
            return found
        (like,) = [result("constant", *_kind(variable), DEVICE)]
        return self._building.element_wise("same", [found], like, shared=True)


def _translated(equation: Any, called: str, operands: list[Operand]) -> tuple[str | None, list[Operand]]:
    """The name of the operation's formula, or None."""
    if called == "integer_pow" and equation.params["y"] == 2:
        return "square", operands
    if called == "reduce_sum" and math.prod(equation.outvars[0].aval.shape) == 1:
        return "sum", operands
    return _KINDS.get(called), operands


def _fits(kind: str, operands: list[Operand], like: Value) -> bool:
    """Whether a formula can take these lengths."""
    lengths = {each.elements for each in operands if isinstance(each, Value)} - {1}
    return any(isinstance(each, Value) for each in operands) and (
        len(lengths) <= 1 if kind == "sum" else lengths <= {like.elements}
    )


def _kind(variable: Any) -> tuple[str, int]:
    """Type and elements; a key of jax.random is the words that it is stored in."""
    kind, elements = str(variable.aval.dtype), max(1, math.prod(variable.aval.shape))
    if kind.startswith("key<"):
        implementation = getattr(variable.aval.dtype, "_impl", None)
        return "uint32", elements * math.prod(getattr(implementation, "key_shape", (2,)))
    return kind, elements


def _converted(number: float | int, kind: str) -> float | int:
    """A number in another type; one that does not fit there stays, and its kernel asks."""
    if kind.startswith(("int", "uint")):
        return int(number) if math.isfinite(number) else number
    return int(bool(number)) if kind == "bool" else float(number)


def _number(value: Any) -> float | int:
    found = value.item() if hasattr(value, "item") else value
    return int(found) if isinstance(found, bool | int) else float(found)
