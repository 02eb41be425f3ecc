"""Moves pure sums out of a loop: its trips store the terms, and one product or sum follows.

    (w, ...) = while(w0, ...), body: w' = w + dot(x[t], d)        contracting the batch: a gradient of weights
      -->  ds = scan of d,   w~ = w0 + dot(x, ds)                 contracting the trips and the batch

    ys = while(...), body: ys' = ys with dot(d, w) at t           a gradient of inputs
      -->  ds = scan of d,   ys = dot(ds, w)                      all trips' rows at once

    ys = while(...), body: ys' = ys with sum of v[c] over c at t  a gradient of what all channels read
      -->  ps = scan of the sums of 32 channels each,  ys = sum of all trips' ps

No row of the batch has such a sum to itself, and everything else in the loop can be divided into rows.
"""

import dataclasses

from fusiond_stitching.frontend.graph import HloInstruction, HloModule, behind, topological
from fusiond_stitching.frontend.loop_maps import Maps

_SUMMED = ("f32", "f64")  #: Narrower sums are rounded in each trip, and would come out otherwise
MOST_LAID = 16
"""Times what a loop begins with and reads, that all trips' parts may be which it stores for a sum behind it."""
GROUPS = (32, 16, 8)  #: How many neighbouring threads, of one warp, sum up what a trip stores


class Sums:
    """`body` and `operands` are the loop's, with what has to be stored; `laid`: place in the state -> a result that
    the loop did not have; `totals`: the sums, by the names of the results that they are."""

    def __init__(self, body: HloModule, operands: list[HloInstruction], trip: str, maps: Maps) -> None:
        self.body = body
        self.operands = operands
        self.laid: dict[int, HloInstruction] = {}
        self.totals: dict[str, HloInstruction] = {}
        self.groups: dict[str, tuple[str, int, int]] = {}
        """A dynamic-update-slice of sums of neighbours -> (what is summed up, along which dimension, how many)."""
        self._trip = trip
        self._maps = maps
        self._stacks: dict[str, str] = {}

    def take(self, at: int, result: HloInstruction) -> bool:
        """Whether a member of the state is such a sum, and is one no more."""
        body = self.body
        parameter, last = body.parameters[at], body[body.outputs[at]]
        if last.opcode != "add" or last.dtype not in _SUMMED or parameter not in last.operands:
            return False
        if body.users[parameter] != (last.name,) or body.users[last.name] or body.outputs.count(last.name) != 1:
            return False
        summand = body[last.operands[1 - last.operands.index(parameter)]]
        total = self._total(summand) if summand.name != parameter else None
        if total is None:
            return False
        self.totals[result.name] = result.becoming("add", self.operands[at].name, total)
        return True

    def take_product(self, at: int, result: HloInstruction) -> bool:
        """Whether a result is stored product by product, of one matrix and what nobody else reads, and has become
        one product."""
        body = self.body
        last = body[body.outputs[at]]
        if last.opcode != "dynamic-update-slice" or last.operands[0] != body.parameters[at]:
            return False
        name, users = last.operands[1], (last.name,)
        while body[name].opcode == "reshape" and body.users[name] == users:
            name, users = body[name].operands[0], (name,)
        dot = body[name]
        if dot.opcode != "dot" or dot.attributes["lhs_batch"] or body.users[name] != users:
            return False
        left, right = dot.operands
        matrix = self._maps.plain(right) if not self._maps.alike(left) else None
        if matrix is None:
            return False
        numbers = dot.attributes
        moved = {**numbers, "lhs_contracting": tuple(each + 1 for each in numbers["lhs_contracting"])}
        dims = (self._maps.trips, *dot.dims)
        self._maps.become(name, self._maps.add("dot", dot.dtype, dims, self._all_trips(left), matrix, **moved))
        return self._maps.result(last, result)

    def take_groups(self, at: int, result: HloInstruction) -> bool:
        """Whether a result is stored sum by sum, along one dimension and of what nobody else reads, and is the sum of
        all trips' sums of neighbours now."""
        body = self.body
        last = body[body.outputs[at]]
        if last.opcode != "dynamic-update-slice" or last.operands[0] != body.parameters[at]:
            return False
        each, user = body[last.operands[1]], last.name
        while body.users[each.name] == (user,) and (source := self._same(each)) is not None:
            each, user = source, each.name
        summed = _summed(body, each) if body.users[each.name] == (user,) else ()
        if len(summed) != 1 or each.dtype not in _SUMMED or not self._zero(body[each.operands[1]]):
            return False
        (dimension,), value = summed, body[each.operands[0]]
        size = next((size for size in GROUPS if value.dims[dimension] % size == 0), 0)
        if not size:
            return False
        kept = [at for at in range(len(value.dims)) if at == dimension or at not in each.attributes["dimensions"]]
        groups = value.dims[dimension] // size
        split = (*value.dims[:dimension], groups, size, *value.dims[dimension + 1 :])
        gone = tuple(at + (at > dimension) for at in each.attributes["dimensions"] if at != dimension)
        parts = value.becoming("reshape", value.name, name=f"{each.name}~split", dims=split)
        part = each.becoming(
            "reduce", parts.name, each.operands[1], name=f"{each.name}~group",
            dims=tuple(groups if at == dimension else value.dims[at] for at in kept),
            **{**each.attributes, "dimensions": tuple(sorted((*gone, dimension + 1)))},
        )  # fmt: skip
        self.body = dataclasses.replace(body, instructions=topological([*body.instructions, parts, part]))
        whole = self._stacked(part)
        self.groups[f"{part.name}~after"] = value.name, dimension, size
        zero = self._maps.constant(0.0, each.dtype)
        along = {**each.attributes, "dimensions": (1 + kept.index(dimension),)}
        dims = (self._maps.trips, *each.dims)
        self._maps.become(each.name, self._maps.add("reduce", each.dtype, dims, whole, zero, **along))
        return self._maps.result(last, result)

    def _total(self, summand: HloInstruction) -> str | None:
        """The sum over all trips, outside."""
        numbers = summand.attributes
        if summand.opcode == "add":
            return self._total_of_parts(summand)
        room = MOST_LAID * sum(each.size_bytes for each in self.operands)
        if any(self._maps.trips * each.size_bytes > room for each in self.body.operands(summand)):
            return None
        if summand.opcode == "dot" and not numbers["lhs_batch"]:
            operands = [self._all_trips(name) for name in summand.operands]
            moved = {key: (0, *(at + 1 for at in numbers[key])) for key in ("lhs_contracting", "rhs_contracting")}
            return self._maps.add("dot", summand.dtype, summand.dims, *operands, **{**numbers, **moved})
        if summand.opcode == "reduce" and len(summand.operands) == 2 and numbers["computation"].simple == "add":
            value, init = self.body.operands(summand)
            if not self._zero(init):
                return None
            zero = self._maps.constant(0.0, init.dtype)
            along = {**numbers, "dimensions": (0, *(at + 1 for at in numbers["dimensions"]))}
            return self._maps.add("reduce", summand.dtype, summand.dims, self._all_trips(value.name), zero, **along)
        return None

    def _total_of_parts(self, summand: HloInstruction) -> str | None:
        parts = [each for each in self.body.operands(summand) if not self._zero(each)]
        totals = [self._total(each) for each in parts]
        if not totals or None in totals:
            return None
        first, *others = [each for each in totals if each is not None]
        for each in others:
            first = self._maps.add("add", summand.dtype, summand.dims, first, each)
        return first

    def _same(self, each: HloInstruction) -> HloInstruction | None:
        """What a value equals but for its dims: gradients of a broadcast sum up one number, and add it to 0."""
        operands = self.body.operands(each)
        if each.opcode == "reshape":
            return operands[0]
        if each.opcode == "add":
            others = [one for one in operands if not self._zero(one)]
            return others[0] if len(others) == 1 else None
        sums = each.opcode == "reduce" and len(operands) == 2 and each.attributes["computation"].simple == "add"
        return operands[0] if sums and not _summed(self.body, each) else None

    def _zero(self, each: HloInstruction) -> bool:
        each = behind(self.body, each.name, "broadcast")
        return each.opcode == "constant" and not any(each.attributes["values"])

    def _all_trips(self, name: str) -> str:
        """A value of all trips, outside: where it is not a map, the loop stores it."""
        known = self._maps.value(name)
        if known is not None:
            return known
        if name not in self._stacks:
            self._stacks[name] = self._stacked(self.body[name])
        return self._stacks[name]

    def _stacked(self, of: HloInstruction) -> str:
        body, trips = self.body, self._maps.trips
        whole, piece = (trips, *of.dims), (1, *of.dims)
        before = of.becoming("parameter", name=f"{of.name}~laid", dims=whole, number=len(body.parameters))
        zero = body[self._trip].becoming("constant", name=f"{of.name}~first", values=(0,))
        part = of.becoming("reshape", of.name, name=f"{of.name}~part", dims=piece)
        starts = (self._trip, *[zero.name] * len(of.dims))
        after = of.becoming(
            "dynamic-update-slice", before.name, part.name, *starts, name=f"{of.name}~after", dims=whole
        )  # fmt: skip
        self.body = dataclasses.replace(
            body,
            instructions=topological([*body.instructions, before, zero, part, after]),
            parameters=(*body.parameters, before.name),
            outputs=(*body.outputs, after.name),
        )
        begin = self._maps.number(0.0, of.dtype, whole)
        self.operands = [*self.operands, self._maps.made[begin]]
        place = len(body.parameters)
        self.laid[place] = of.becoming("while", name=f"{self._maps.prefix}{of.name}", dims=whole)
        return self.laid[place].name


def _summed(body: HloModule, each: HloInstruction) -> tuple[int, ...]:
    """The dimensions along which a sum goes through more than one number."""
    if each.opcode != "reduce" or len(each.operands) != 2 or each.attributes["computation"].simple != "add":
        return ()
    return tuple(at for at in each.attributes["dimensions"] if body[each.operands[0]].dims[at] > 1)
