"""Reduces of a stage: several threads ("lanes") work on one output element, then put their parts together.

The init value takes part exactly once, in lane 0. Where the computation has an identity (a sum's is -0.0), lanes that
have nothing hold that; elsewhere they are left out, which works because the lanes that have something are the first
ones.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from fusiond.model.codegen.code import Code, cpp
from fusiond_stitching.analysis import online_reductions
from fusiond_stitching.analysis.indexing import delinear
from fusiond_stitching.analysis.plan import LaneExchange, Reduction, Stage
from fusiond_stitching.codegen import semantics
from fusiond_stitching.codegen.elemental import Elemental, Indices, combine, loop, merged, type_of
from fusiond_stitching.codegen.scope import Scope
from fusiond_stitching.codegen.semantics import NoCode, Type, literal
from fusiond_stitching.frontend.graph import Computation, HloInstruction, HloModule, neutral

WARP = 32
_EVERYONE = Code("0xffffffffu")
BARRIER = Code("__syncthreads();")


@dataclass(frozen=True)
class ReduceGroup:
    """The reduces of a stage that share operands and computation: the results of one variadic reduce, or one alone."""

    members: tuple[HloInstruction, ...]
    operands: tuple[HloInstruction, ...]
    inits: tuple[HloInstruction, ...]
    computation: Computation
    kinds: tuple[Type, ...]

    @property
    def identity(self) -> Code | None:
        """Where combining with it changes nothing."""
        value = neutral(self.computation.simple, self.operands[0].dtype)
        return None if value is None else literal(self.kinds[0], value)

    @property
    def neutral(self) -> tuple[Code, ...] | None:
        """What changes nothing, of each value; None where that is not known."""
        if self.identity is not None:
            return (self.identity,)
        if online_reductions.is_pair(self.members[0]):
            return tuple(
                literal(kind, value) for kind, value in zip(self.kinds, online_reductions.NEUTRAL, strict=True)
            )
        return None

    def accumulate(
        self, elemental: Elemental, scope: Scope, totals: Sequence[Code], values: Sequence[Code], first: Sequence[Code]
    ) -> None:
        """Combines values with totals; under the conditions `first` these hold nothing yet, and are the values."""
        with scope.when(first, end=None) if first else nullcontext(scope) as begin:
            for total, value in zip(totals, values, strict=True):
                begin.line(cpp("{} = {};", total, value))
        if first:
            with scope.block(Code("} else")) as go_on:
                self.combine(elemental, go_on, totals, values)

    def combine(self, elemental: Elemental, scope: Scope, totals: Sequence[Code], values: Sequence[Code]) -> None:
        """`totals = computation(totals, values)`."""
        combine(elemental, scope, self.computation, totals, values, self.kinds)


def groups(module: HloModule, stage: Stage) -> tuple[ReduceGroup, ...]:
    """The reduces with which a stage begins, grouped. NoCode when they do not go over the same dims."""
    found: list[list[HloInstruction]] = []
    for result in stage.results:
        each = module[result.instruction]
        if each.opcode != "reduce":
            break
        for group in found:
            same = group[0].operands == each.operands
            if same and group[0].attributes["computation"] == each.attributes["computation"]:
                group.append(each)
                break
        else:
            found.append([each])
    made = tuple(_group(module, members) for members in found)
    over = {(each.operands[0].dims, each.members[0].attributes["dimensions"]) for each in made}
    if len(over) > 1:
        raise NoCode(f"the reduces of a stage go over different dims: {', '.join(map(str, sorted(over)))}")
    return made


def _group(module: HloModule, members: Sequence[HloInstruction]) -> ReduceGroup:
    operands = module.operands(members[0])
    count = len(operands) // 2
    return ReduceGroup(
        members=tuple(members),
        operands=operands[:count],
        inits=operands[count:],
        computation=members[0].attributes["computation"],
        kinds=tuple(type_of(each) for each in operands[:count]),
    )


class ReduceLanes:
    """Writes the reduces of one stage for one output element: `reduce`, then `exchange`; afterwards lane 0 has them."""

    def __init__(self, elemental: Elemental, stage: Stage, threads: int) -> None:
        self._elemental = elemental
        self._threads = threads
        self.groups = groups(elemental.module, stage)
        reduction = stage.reduction or Reduction(lanes=1)
        self.reduction = reduction
        self.lanes = reduction.lanes
        first = self.groups[0]
        self._dimensions: tuple[int, ...] = first.members[0].attributes["dimensions"]
        self._reduced = tuple(first.operands[0].dims[at] for at in self._dimensions)
        self.length = math.prod(self._reduced)
        self._count = max(1, min(self.length, self.lanes))  # of the lanes that have something
        self._totals: list[list[Code]] = []

    def start(self, scope: Scope, lane: Code) -> None:
        """Declares what is accumulated."""
        self._totals = []
        for group in self.groups:
            totals = []
            for kind, init in zip(group.kinds, group.inits, strict=True):
                value = self._elemental.value(scope, init.name, ())
                identity = group.identity
                neutral = value == identity or (group.computation.simple == "add" and value == literal(kind, 0))
                if self.lanes > 1 and identity is not None and not neutral:
                    value = cpp("{} == 0 ? {} : {}", lane, value, identity)
                totals.append(scope.mutable(kind, "total", value))
            self._totals.append(totals)

    def reduce(self, scope: Scope, lane: Code, indices: Indices) -> None:
        """Each lane's part: elements lane, lane + lanes, ... of the reduced dims."""
        first = "0" if self.lanes == 1 else lane
        if self.length == 0:
            return
        with loop(scope, self.length, "r", first=first, step=self.lanes) as (inner, step):
            place = merged(indices, self._dimensions, delinear(step, self._reduced))
            for group, totals in zip(self.groups, self._totals, strict=True):
                values = [self._elemental.value(inner, each.name, place) for each in group.operands]
                if self.lanes == 1 or group.identity is not None:
                    group.combine(self._elemental, inner, totals, values)
                else:
                    begin = [cpp("{} > 0", lane), cpp("{} == {}", inner.index(step), lane)]
                    group.accumulate(self._elemental, inner, totals, values, begin)

    def exchange(self, scope: Scope, lane: Code) -> None:
        """Brings the parts together in lane 0. All threads of the block come here."""
        if self.lanes == 1:
            return
        if self.reduction.exchange is LaneExchange.SHARED:
            self._through_memory(scope, lane)
            return
        if self.reduction.exchange is not LaneExchange.WARP:
            raise NoCode(f"{self.lanes} lanes of a reduce exchange nothing")
        self._through_shuffles(scope, lane, min(self.lanes, WARP), self._count)
        if self.lanes > WARP:
            self._through_warps(scope)

    def remember(self, scope: Scope, indices: Indices) -> None:
        """The totals are what the instructions are at these indices."""
        for group, totals in zip(self.groups, self._totals, strict=True):
            for each in group.members:
                scope.remember(each.name, indices, totals[each.attributes["result"]])

    def _combine_if(
        self, scope: Scope, group: ReduceGroup, totals: list[Code], others: list[Code], conditions: list[Code]
    ) -> None:
        with scope.when(conditions) if conditions else nullcontext(scope) as inner:
            group.combine(self._elemental, inner, totals, others)

    def _through_shuffles(self, scope: Scope, lane: Code, width: int, count: int) -> None:
        name = scope.function.fresh("step")
        with scope.block(cpp("for (int {} = {}; {} > 0; {} /= 2)", name, width // 2, name, name)) as inner:
            for group, totals in zip(self.groups, self._totals, strict=True):
                others = shuffles(inner, group.kinds, totals, name, width)
                whole = group.identity is not None or count >= self.lanes
                inside = [] if whole else [cpp("{} + {} < {}", lane, name, count)]
                self._combine_if(inner, group, totals, others, inside)

    def _through_warps(self, scope: Scope) -> None:
        warps = self._threads // WARP
        busy = min(warps, -(-self._count // WARP))
        spaces = self._spaces(scope, warps)
        store_of_warps(scope, self._each(spaces))
        if busy == 1:
            return
        with scope.block(cpp("if (threadIdx.x < {})", WARP)) as inner:
            for group, totals, own in zip(self.groups, self._totals, spaces, strict=True):
                for kind, total, space in zip(group.kinds, totals, own, strict=True):
                    value = semantics.loaded(kind, cpp("{}[threadIdx.x]", space))
                    spare = group.identity or total
                    inner.line(cpp("{} = threadIdx.x < {} ? {} : {};", total, busy, value, spare))
            width = 1 << (busy - 1).bit_length()
            name = scope.function.fresh("step")
            with inner.block(cpp("for (int {} = {}; {} > 0; {} /= 2)", name, width // 2, name, name)) as tree:
                for group, totals in zip(self.groups, self._totals, strict=True):
                    others = shuffles(tree, group.kinds, totals, name, WARP)
                    inside = [cpp("threadIdx.x + {} < {}", name, busy)] if group.identity is None else []
                    self._combine_if(tree, group, totals, others, inside)

    def _through_memory(self, scope: Scope, lane: Code) -> None:
        """A tree over the lanes: of n parts, the last half is added to the first."""
        distance = 1 if self.reduction.inner else self._threads // self.lanes
        spaces = self._spaces(scope, self._threads)
        for kind, total, space in self._each(spaces):
            scope.line(cpp("{}[threadIdx.x] = {};", space, scope.stored(kind, total)))
        scope.line(BARRIER)
        if self._count == 1:
            return
        name = scope.function.fresh("parts")
        with scope.block(
            cpp("for (int {} = {}; {} > 1; {} = ({} + 1) / 2)", name, self._count, name, name, name)
        ) as tree:
            half = tree.constant("int", "half", cpp("({} + 1) / 2", name))
            with tree.block(cpp("if ({} < {} - {})", lane, name, half)) as inner:
                for group, totals, own in zip(self.groups, self._totals, spaces, strict=True):
                    away = half if distance == 1 else cpp("{} * {}", half, distance)
                    others = loads(inner, group.kinds, [cpp("{}[threadIdx.x + {}]", space, away) for space in own])
                    group.combine(self._elemental, inner, totals, others)
                    for kind, total, space in zip(group.kinds, totals, own, strict=True):
                        inner.line(cpp("{}[threadIdx.x] = {};", space, inner.stored(kind, total)))
            tree.line(BARRIER)

    def _spaces(self, scope: Scope, slots: int) -> list[list[Code]]:
        """Pointers to the workspace, one per total."""
        space = self.reduction.workspace
        if space is None:
            raise NoCode("the reduction has no workspace in shared memory")
        offset = space.offset
        spaces = []
        for group in self.groups:
            own = []
            for kind in group.kinds:
                own.append(scope.shared(kind, "parts_of", offset))
                offset += -(-kind.size_bytes * slots // 16) * 16
            spaces.append(own)
        if offset > space.offset + space.size_bytes:
            raise NoCode(
                f"the workspace of a reduction has {space.size_bytes} bytes; {offset - space.offset} are needed"
            )
        return spaces

    def _each(self, spaces: list[list[Code]]) -> list[tuple[Type, Code, Code]]:
        return [
            (kind, total, space)
            for group, totals, own in zip(self.groups, self._totals, spaces, strict=True)
            for kind, total, space in zip(group.kinds, totals, own, strict=True)
        ]


def store_of_warps(scope: Scope, parts: Iterable[tuple[Type, Code, Code]]) -> None:
    """The first lane of each warp writes its part of (type, total, space) there; all threads may read it then."""
    with scope.block(cpp("if (threadIdx.x % {} == 0)", WARP)) as inner:
        for kind, total, space in parts:
            inner.line(cpp("{}[threadIdx.x / {}] = {};", space, WARP, inner.stored(kind, total)))
    scope.line(BARRIER)


def loads(scope: Scope, kinds: Sequence[Type], places: Sequence[Code]) -> list[Code]:
    """What lies in memory, to be combined with totals."""
    return [
        scope.declare(kind, "other", semantics.loaded(kind, place)) for kind, place in zip(kinds, places, strict=True)
    ]


def shuffles(
    scope: Scope, kinds: Sequence[Type], totals: Sequence[Code], step: Code, width: int, how: str = "down"
) -> list[Code]:
    """What other lanes have: see `shuffled`."""
    return [
        scope.declare(kind, "other", shuffled(kind, total, step, width, how))
        for kind, total in zip(kinds, totals, strict=True)
    ]


def shuffled(kind: Type, value: Code, step: Code, width: int, how: str = "down", lanes: Code = _EVERYONE) -> Code:
    """The value of the lane `step` further on (`how`: down), of the one whose number differs in that bit (xor), or of
    lane `step` (none). Types of other sizes travel as a word."""
    function = f"__shfl_{how}_sync" if how else "__shfl_sync"
    if kind.bits < 32 and kind.kind != "float":
        word = "unsigned int" if kind.kind == "unsigned" else "int"
        return cpp("({}){}({}, ({}){}, {}, {})", kind.value, function, lanes, word, value, step, width)
    return cpp("{}({}, {}, {}, {})", function, lanes, value, step, width)
