"""Loops with the matrix products apart that need not stand in them, as `cuDNN` has done it for recurrent layers.

    scan(h, ys = f(h, x[i] @ w, h @ u))        -->  p = all x @ w; scan(h, ys = f(h, p[i], h @ u))
    scan(ys = dz @ w.T, dw = dw + x[i].T @ dz) -->  scan(ys = dz); all dz @ w.T, dw + all x.T @ all dz

What does not depend on the loop's state is one product of all trips before it; what is stored or summed up is one
product behind it, which contracts the trips' dimension where it is a sum. They are library calls, which read their
operands once.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
from jax import lax
from jax.extend import core

DOT = "dot_general"
_SUMS = frozenset({"add", "add_any"})
_LINEAR = frozenset({"transpose", "reshape", "squeeze", "broadcast_in_dim", "neg", "convert_element_type"})
"""What may stand between a product and the sum that it goes into: it can as well be done to the sum."""


def apart(equation: core.JaxprEqn, inlined: Callable[[core.ClosedJaxpr], core.ClosedJaxpr]) -> core.ClosedJaxpr | None:
    """A `scan` as a function of its operands, with products before and behind it; None where there are none to take
    out. `inlined`: a jaxpr without calls."""
    if not any(each.primitive.name == DOT for each in _all(equation.params["jaxpr"].jaxpr)):
        return None
    scan = _Scan(equation, inlined(equation.params["jaxpr"]))
    behind = scan.behind()
    before = scan.before({id(chain[0]) for chain in behind.values()})
    if not before and not behind:
        return None
    avals: list[Any] = [each.aval for each in equation.invars]
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in avals]
    found: core.ClosedJaxpr = jax.make_jaxpr(lambda *given: scan.evaluated(given, before, behind))(*shapes)
    return found


def _all(jaxpr: core.Jaxpr) -> Iterable[core.JaxprEqn]:
    for each in jaxpr.eqns:
        yield each
        for inner in each.params.values():
            if isinstance(inner, core.ClosedJaxpr):
                yield from _all(inner.jaxpr)


Chain: TypeAlias = "list[core.JaxprEqn]"  #: A product, and what is done to it, in order


class _Scan:
    """A `scan`, whose body has no calls."""

    def __init__(self, equation: core.JaxprEqn, body: core.ClosedJaxpr) -> None:
        self.body, self.jaxpr, self.params = body, body.jaxpr, equation.params
        self.constants, self.carried = self.params["num_consts"], self.params["num_carry"]
        self.made_by = {var: each for each in self.jaxpr.eqns for var in each.outvars}

    def before(self, others: Container[int]) -> list[core.JaxprEqn]:
        """Products of what no trip has computed, without `others`."""
        state = self.jaxpr.invars[self.constants : self.constants + self.carried]
        depends = set(state)
        found = []
        for each in self.jaxpr.eqns:
            if depends.isdisjoint(_vars(each)):
                if each.primitive.name == DOT and id(each) not in others:
                    found.append(each)
            else:
                depends.update(each.outvars)
        return found

    def behind(self) -> dict[int, Chain]:
        """Place among the body's results -> the product that is stored there, with a matrix that no trip changes, or
        summed up in that part of the state; and that no trip reads."""
        uses = collections.Counter(var for each in self.jaxpr.eqns for var in _vars(each))
        uses.update(each for each in self.jaxpr.outvars if isinstance(each, core.Var))
        constant = set(self.jaxpr.invars[: self.constants])
        found: dict[int, Chain] = {}
        for place, last in enumerate(self.jaxpr.outvars):
            value: Any = last
            if place < self.carried:
                given = self.jaxpr.invars[self.constants + place]
                if not isinstance(last, core.Var) or uses[given] != 1 or uses[last] != 1:
                    continue
                total = self.made_by.get(last)
                if total is None or total.primitive.name not in _SUMS:
                    continue
                value, *others = [each for each in total.invars if each is not given]
                if others:
                    continue
            chain = self._product(value, uses)
            if chain and (place < self.carried) == constant.isdisjoint(chain[0].invars):
                found[place] = chain
        return found

    def _product(self, value: Any, uses: Mapping[Any, int]) -> Chain:
        """What a value comes of; nothing where that is no product."""
        after: Chain = []
        while isinstance(value, core.Var) and uses.get(value) == 1 and value in self.made_by:
            equation = self.made_by[value]
            after.insert(0, equation)
            if equation.primitive.name == DOT:
                return after
            if equation.primitive.name not in _LINEAR or len(_vars(equation)) != 1:
                break
            value = equation.invars[0]
        return []

    # --- the loop anew ---

    def evaluated(self, given: Sequence[Any], before: Chain, behind: Mapping[int, Chain]) -> list[Any]:
        split = self.constants + self.carried
        constants, state, rows = given[: self.constants], given[self.constants : split], list(given[split:])
        inputs, results = self.jaxpr.invars, self.jaxpr.outvars
        always = dict(zip(inputs[: self.constants], constants, strict=True))
        products = self._all_products(always, rows, before)
        kept = [at for at in range(len(results)) if at not in behind]
        states = [at for at in kept if at < self.carried]
        operands = dict.fromkeys(var for chain in behind.values() for var in _vars(chain[0]))
        parts = [each for each in operands if each not in always and each not in inputs[split:]]
        wanted = [*(results[at] for at in kept), *parts]

        def trip(state: Sequence[Any], row: tuple[Sequence[Any], Sequence[Any]]) -> tuple[list[Any], list[Any]]:
            known = always | dict(zip((inputs[self.constants + at] for at in states), state, strict=True))
            known |= zip(inputs[split:], row[0], strict=True)
            known |= zip((each.outvars[0] for each in before), row[1], strict=True)
            found = self._computed(known, wanted)
            return found[: len(states)], found[len(states) :]

        begin = [state[at] for at in states]
        length, reverse = self.params["length"], self.params["reverse"]
        last, stored = lax.scan(trip, begin, (rows, products), length=length, reverse=reverse)
        done = dict(zip(kept, (*last, *stored[: len(kept) - len(states)]), strict=True))
        whole = dict(zip((*inputs[split:], *parts), (*rows, *stored[len(kept) - len(states) :]), strict=True))
        for place, chain in behind.items():
            if place < self.carried:
                done[place] = self._total(chain, state[place], whole)
            else:
                done[place] = self._of_all_trips(chain, whole, always)
        return [done[at] for at in range(len(results))]

    def _all_products(
        self, always: Mapping[Any, Any], rows: Sequence[Any], before: Sequence[core.JaxprEqn]
    ) -> list[Any]:
        """Each product, of all trips."""
        inputs = self.jaxpr.invars[self.constants + self.carried :]

        def of_trip(row: Sequence[Any]) -> list[Any]:
            return self._computed({**always, **dict(zip(inputs, row, strict=True))},
                                  [each.outvars[0] for each in before])  # fmt: skip

        if not before or not rows:
            return [lax.broadcast(each, (self.params["length"],)) for each in (of_trip([]) if before else ())]
        return list(jax.vmap(of_trip)(rows))

    def _of_all_trips(self, chain: Chain, whole: Mapping[Any, Any], always: Mapping[Any, Any]) -> Any:
        operands = {var: whole[var] for var in _vars(chain[0]) if var in whole}

        def of_trip(*row: Any) -> Any:
            return self._computed({**always, **dict(zip(operands, row, strict=True))}, chain[-1].outvars)[0]

        return jax.vmap(of_trip)(*operands.values())

    def _computed(self, known: Mapping[Any, Any], wanted: Sequence[Any]) -> list[Any]:
        """Values of the body, by the equations between them and the known ones."""
        needed = {each for each in wanted if isinstance(each, core.Var)} - known.keys()
        equations: list[core.JaxprEqn] = []
        for each in reversed(self.jaxpr.eqns):
            if not needed.isdisjoint(each.outvars):
                equations.append(each)
                needed |= set(_vars(each)) - known.keys()
        said = core.DebugInfo("fusiond", "trip", ("",) * len(known), ("",) * len(wanted))
        part = core.Jaxpr(self.jaxpr.constvars, list(known), list(wanted), equations[::-1], frozenset(), said)
        found: list[Any] = core.jaxpr_as_fun(core.ClosedJaxpr(part, self.body.consts))(*known.values())
        return found

    def _total(self, chain: Chain, begin: Any, whole: Mapping[Any, Any]) -> Any:
        """`whole`: the operands of the product, of all trips."""
        params = dict(chain[0].params)
        contracting, batch = params["dimension_numbers"]
        deeper = [tuple(at + 1 for at in side) for side in (*contracting, *batch)]
        params["dimension_numbers"] = (((0, *deeper[0]), (0, *deeper[1])), (deeper[2], deeper[3]))
        value = lax.dot_general_p.bind(*(whole[var] for var in chain[0].invars), **params)
        for one in chain[1:]:
            value = one.primitive.bind(value, **one.params)
        return begin + value


def _vars(equation: core.JaxprEqn) -> list[core.Var]:
    return [each for each in equation.invars if isinstance(each, core.Var)]
