"""The valid points of a space as arrays: counted exactly, drawn uniformly, with their neighbours.

A point is a row of levels: for each parameter the position of its value, or INACTIVE. Parameters that no condition and
no restriction ties together are enumerated apart (a TiedParameters each), so that the product of all of them is never
walked.
Within a block one parameter is added after another, all rows at once, and each restriction is applied as soon as the
last of its names is there. A block of more than HELD rows is not held: it is drawn from by rejection.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fusiond.model.language import expressions
from fusiond.model.language.expressions import Expression
from fusiond.model.nouns import Config, Value
from fusiond.strategy.space import Space
from fusiond.tuning.search.columns import Column, column, holds

Levels: TypeAlias = "NDArray[np.int16]"
"""(points, parameters): the position of each value among its parameter's, or INACTIVE."""

INACTIVE = -1
HELD = 2_000_000  #: Rows of a block that are kept in memory
PREFIXES = 200_000  #: Rows over the first parameters of a block that is not held, from which draws begin
SCANNED = 200_000  #: Rows up to which a block with conditions is looked through
_CHUNK = 1 << 17
_BATCHES = 200


class Points:
    """The valid set of a space. Building it costs time in proportion to the rows of its largest block."""

    def __init__(self, space: Space, *, held: int = HELD) -> None:
        """ExpressionError where a condition or a restriction is one for some point."""
        self.parameters = space.parameters
        self._rules = _Rules(space)
        self._levels = [{(type(value), value): k for k, value in enumerate(each.values)} for each in space.parameters]
        self._listed = space.listed is not None
        if space.listed is not None:
            rows = np.array(space.listed, np.int16).reshape(len(space.listed), len(space.parameters))
            places = tuple(range(len(space.parameters)))
            self._blocks: tuple[TiedParameters, ...] = (TiedParameters(places, np.unique(rows, axis=0), None),)
        elif space.broken({}):  # a restriction of constants only
            self._blocks = (TiedParameters((), np.zeros((0, 0), np.int16), None),)
        else:
            self._blocks = tuple(self._block(places, held) for places in _components(space))

    @property
    def held(self) -> bool:
        """Whether every block is in memory."""
        return all(each.rest is None for each in self._blocks)

    @property
    def count(self) -> int | None:
        """How many points there are, exactly; None where a block is not held."""
        return math.prod(len(each.rows) for each in self._blocks) if self.held else None

    def more_than(self, limit: int) -> bool:
        """Whether there are more points than this."""
        if self.count is not None:
            return self.count > limit
        return all(len(each.rows) or each.rest is not None for each in self._blocks) and limit < HELD

    def all(self) -> Levels:
        """Every point, in the order of their numbers. MemoryError where they are not held."""
        if self.count is None:
            raise MemoryError("the points of this space are too many to be held")
        return self.at(np.arange(self.count))

    def at(self, numbers: NDArray[np.int64]) -> Levels:
        """The points of these numbers (0 to count - 1), in an order of their own: the last block varies fastest."""
        found = np.empty((len(numbers), len(self.parameters)), np.int16)
        rest = numbers
        for block in reversed(self._blocks):
            found[:, block.places] = block.rows[rest % len(block.rows)]
            rest = rest // len(block.rows)
        return found

    def draw(self, many: int, generator: np.random.Generator) -> Levels:
        """So many points, each drawn uniformly and independently of the others. A block that is not held is drawn by
        rejection (uniform over prefixes and the levels behind them, until it is a point), which is uniform over the
        points; ValueError where next to nothing that is drawn is one."""
        found = np.empty((many, len(self.parameters)), np.int16)
        for block in self._blocks:
            if block.rest is None:
                found[:, block.places] = block.rows[generator.integers(len(block.rows), size=many)]
            else:
                found[:, block.places] = self._rejected(block, many, generator)
        return found

    def neighbours(self, point: Levels, generator: np.random.Generator, most: int) -> Levels:
        """Points that differ from this one in a single parameter that both have (what that switches on or off may
        differ, too): all of them, or `most` drawn from them."""
        found = []
        for block in self._blocks:
            mine = point[list(block.places)]
            rows = block.rows if self._scanned(block) else self._changed(block, mine, generator)
            near = rows[one_apart(rows, mine)]
            if len(near):
                many = np.repeat(point[None, :], len(near), axis=0)
                many[:, block.places] = near
                found.append(many)
        if not found:
            return np.empty((0, len(self.parameters)), np.int16)
        rows = np.concatenate(found)
        return rows if len(rows) <= most else rows[np.sort(generator.choice(len(rows), most, replace=False))]

    def config(self, point: Levels) -> Config:
        """The config of one point."""
        values: dict[str, Value] = {}
        for parameter, level in zip(self.parameters, point.tolist(), strict=True):
            if level != INACTIVE:
                values[parameter.name] = parameter.values[level]
        return Config.of(values)

    def levels(self, config: Mapping[str, Value]) -> Levels:
        """The row of a config that is a point."""
        levels = [
            where[type(config[each.name]), config[each.name]] if each.name in config else INACTIVE
            for each, where in zip(self.parameters, self._levels, strict=True)
        ]
        return np.array(levels, np.int16)

    # --- building ---

    def _block(self, places: tuple[int, ...], held: int) -> TiedParameters:
        order = self._rules.order(places)
        found: list[Levels] = []
        total = 0
        for rows in self._rules.rows(order):
            found.append(rows)
            total += len(rows)
            if total > held:
                return self._too_large(places, order)
        rows = np.concatenate(found) if found else np.empty((0, len(places)), np.int16)
        rows = rows[:, [order.index(each) for each in places]]
        return TiedParameters(places, rows[np.lexsort(rows.T[::-1])] if len(places) else rows, None)

    def _too_large(self, places: tuple[int, ...], order: tuple[int, ...]) -> TiedParameters:
        prefix = np.empty((1, 0), np.int16)
        depth = 0
        while depth < len(order):
            longer = self._rules.extended(prefix, order)
            if len(longer) > PREFIXES:
                break
            prefix, depth = longer, depth + 1
        columns = [places.index(each) for each in order]
        rows = np.zeros((len(prefix), len(places)), np.int16)
        rows[:, columns[:depth]] = prefix
        return TiedParameters(places, rows, order[depth:])

    def _rejected(self, block: TiedParameters, many: int, generator: np.random.Generator) -> Levels:
        assert block.rest is not None
        found: list[Levels] = []
        total = 0
        for _ in range(_BATCHES):
            rows = block.rows[generator.integers(len(block.rows), size=_CHUNK // 4)]
            for place in block.rest:
                several = len(self.parameters[place].values)
                rows[:, block.places.index(place)] = generator.integers(several, size=len(rows))
            rows = rows[self._points_among(block, rows)]
            found.append(self._switched_off(block, rows))
            total += len(rows)
            if total >= many:
                return np.concatenate(found)[:many]
        raise ValueError(f"fewer than {many} of {_BATCHES * _CHUNK // 4} combinations drawn are points of the space")

    def _scanned(self, block: TiedParameters) -> bool:
        """Whether all rows of a block are looked at for neighbours: what is listed has no rules, and where a change
        switches others on, there are many. Else each change is tried, which is quicker from some thousand rows on."""
        conditional = any(self.parameters[place].when is not None for place in block.places)
        return block.rest is None and (self._listed or (conditional and len(block.rows) <= SCANNED))

    def _changed(self, block: TiedParameters, mine: Levels, generator: np.random.Generator) -> Levels:
        """Points one change away; of what a change switches on, one way is drawn."""
        found = []
        for k, place in enumerate(block.places):
            several = len(self.parameters[place].values)
            rows = np.repeat(np.maximum(mine, 0)[None, :], several, axis=0)
            rows[:, k] = np.arange(several)
            for other, own in enumerate(block.places):
                if mine[other] == INACTIVE and other != k:
                    rows[:, other] = generator.integers(len(self.parameters[own].values), size=several)
            found.append(rows)
        rows = np.concatenate(found)
        off = self._switched_off(block, rows)
        return np.unique(off[self._rules.sound(off, block.places)], axis=0)

    def _points_among(self, block: TiedParameters, rows: Levels) -> NDArray[np.bool_]:
        """Of full rows, those that are the one form of a point: what does not exist there has level 0."""
        off = self._switched_off(block, rows)
        one_form: NDArray[np.bool_] = ((off != INACTIVE) | (rows <= 0)).all(axis=1)
        return one_form & self._rules.sound(off, block.places)

    def _switched_off(self, block: TiedParameters, rows: Levels) -> Levels:
        """The rows with INACTIVE where a parameter does not exist."""
        found = rows.copy()
        for k, place in enumerate(block.places):
            found[~self._rules.exists(place, found[:, :k], block.places[:k]), k] = INACTIVE
        return found


def one_apart(rows: Levels, row: Levels) -> NDArray[np.bool_]:
    """Where points differ from this one in a single parameter that both have."""
    found: NDArray[np.bool_] = ((rows != row) & (rows >= 0) & (row >= 0)).sum(axis=1) == 1
    return found


@dataclass(frozen=True, slots=True, eq=False)
class TiedParameters:
    """Parameters that restrictions and conditions tie together."""

    places: tuple[int, ...]  #: Their positions in the space, ascending
    rows: Levels
    """All their valid combinations, in order; or, where `rest` is not None, all those of the other parameters."""
    rest: tuple[int, ...] | None  #: Where it is not held: the parameters that are drawn behind the rows


class _Rules:
    """The conditions and restrictions of a space, over rows of levels."""

    def __init__(self, space: Space) -> None:
        self._parameters = space.parameters
        self._position = {each.name: k for k, each in enumerate(space.parameters)}
        self._values = [column(each.values) for each in space.parameters]
        self._when = [None if each.when is None else expressions.parse(each.when) for each in space.parameters]
        known = set(self._position)
        parsed = [expressions.parse(text) for text in space.restrictions]
        self._restrictions = [each for each in parsed if each.names and each.names <= known]

    def order(self, places: Sequence[int]) -> tuple[int, ...]:
        """In which order parameters of a block are added: next the one that decides most restrictions, then the one
        that comes nearest to deciding one, then the one with the fewest values."""
        left, order = list(places), list[int]()
        names: set[str] = set()

        def rank(place: int) -> tuple[int, int, int, int]:
            more = names | {self._parameters[place].name}
            mine = [each for each in self._restrictions if self._parameters[place].name in each.names]
            decided = sum(each.names <= more for each in mine)
            missing = min((len(each.names - more) for each in mine), default=len(places))
            return -decided, missing, len(self._parameters[place].values), place

        while left:
            ready = [each for each in left if self._known(each, places) <= names]
            place = min(ready, key=rank)
            left.remove(place)
            order.append(place)
            names.add(self._parameters[place].name)
        return tuple(order)

    def rows(self, order: Sequence[int]) -> Iterator[Levels]:
        """All valid rows over these parameters, columns in this order, some thousand at a time: depth first, so that
        no more than a chunk of each depth is in memory."""
        yield from self._below(np.empty((1, 0), np.int16), order)

    def _below(self, rows: Levels, order: Sequence[int]) -> Iterator[Levels]:
        depth = rows.shape[1]
        if depth == len(order):
            yield rows
            return
        step = max(1, _CHUNK // len(self._parameters[order[depth]].values))
        for begin in range(0, len(rows), step):
            longer = self.extended(rows[begin : begin + step], order)
            if len(longer):
                yield from self._below(longer, order)

    def extended(self, rows: Levels, order: Sequence[int]) -> Levels:
        """Rows over the first parameters with all levels of the next that no restriction forbids."""
        depth = rows.shape[1]
        place, before = order[depth], order[:depth]
        several = len(self._parameters[place].values)
        exists = self.exists(place, rows, before)
        repeats = np.where(exists, several, 1)
        longer = np.empty((int(repeats.sum()), depth + 1), np.int16)
        longer[:, :depth] = np.repeat(rows, repeats, axis=0)
        if exists.all():
            longer[:, depth] = np.tile(np.arange(several, dtype=np.int16), len(rows))
        else:
            first = np.repeat(np.cumsum(repeats) - repeats, repeats)
            longer[:, depth] = np.arange(len(longer)) - first
            longer[~np.repeat(exists, repeats), depth] = INACTIVE
        name = self._parameters[place].name
        names = {self._parameters[each].name for each in (*before, place)}
        for each in self._restrictions:
            if name in each.names and each.names <= names:
                longer = longer[self._true(each, longer, order[: depth + 1], absent=True)]
        return longer

    def exists(self, place: int, rows: Levels, places: Sequence[int]) -> NDArray[np.bool_]:
        """In which rows over these parameters the parameter at `place` exists."""
        condition = self._when[place]
        if condition is None:
            return np.ones(len(rows), np.bool_)
        if not condition.names <= {self._parameters[each].name for each in places if each < place}:
            return np.zeros(len(rows), np.bool_)
        return self._true(condition, rows, places, absent=False)

    def sound(self, rows: Levels, places: Sequence[int]) -> NDArray[np.bool_]:
        """Which rows break no restriction."""
        names = {self._parameters[each].name for each in places}
        found = np.ones(len(rows), np.bool_)
        for each in self._restrictions:
            if each.names <= names:
                left = np.flatnonzero(found)
                found[left] = self._true(each, rows[left], places, absent=True)
        return found

    def _true(self, text: Expression, rows: Levels, places: Sequence[int], *, absent: bool) -> NDArray[np.bool_]:
        """In which rows it holds; `absent` where one of its names is."""
        where = {self._parameters[each].name: k for k, each in enumerate(places)}
        mine = {name: rows[:, where[name]] for name in text.names}
        found = np.full(len(rows), absent)
        there = np.ones(len(rows), np.bool_)
        for each in mine.values():
            there &= each != INACTIVE
        chosen = slice(None) if there.all() else there
        columns: dict[str, Column] = {name: self._values[self._position[name]][k[chosen]] for name, k in mine.items()}
        found[chosen] = holds(text, columns, int(there.sum()))
        return found

    def _known(self, place: int, places: Sequence[int]) -> set[str]:
        """Names of a condition that earlier parameters of the block have: where it has others, it never holds."""
        condition = self._when[place]
        earlier = {self._parameters[each].name for each in places if each < place}
        return earlier & condition.names if condition is not None else set()


def _components(space: Space) -> list[tuple[int, ...]]:
    """The positions of the parameters, by what ties them together; in the order of their first."""
    position = {each.name: k for k, each in enumerate(space.parameters)}
    root = list(range(len(space.parameters)))

    def find(k: int) -> int:
        while root[k] != k:
            k = root[k]
        return k

    ties = [{each.name, *expressions.parse(each.when).names} for each in space.parameters if each.when is not None]
    ties += [set(expressions.parse(text).names) for text in space.restrictions]
    for names in ties:
        places = sorted(position[name] for name in names if name in position)
        for each in places[1:]:
            left, right = sorted((find(places[0]), find(each)))
            root[right] = left
    groups: dict[int, list[int]] = {}
    for k in range(len(space.parameters)):
        groups.setdefault(find(k), []).append(k)
    return [tuple(each) for each in groups.values()]
