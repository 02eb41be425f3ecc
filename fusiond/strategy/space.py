"""Space: parameters and restrictions (Kernel Tuner's words). It knows nothing of samplers.

A parameter with a `when` exists only where that condition over *earlier* parameters holds; a config leaves inactive
parameters out, so that every point has exactly one form. A restriction is an expression over parameters; one that
mentions an inactive parameter does not apply. Both are texts of `fusiond.model.language.expressions`, so that they can
be printed and stored.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fusiond.model.keys import content_key
from fusiond.model.language import expressions
from fusiond.model.nouns import Config, Value

MERGED = 4096  #: Beginnings of points that `Space.count` holds at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A finite choice. `values` are in the order a person would try them; the first is the plain one."""

    name: str
    values: tuple[Value, ...]
    when: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    parameters: tuple[Parameter, ...]
    restrictions: tuple[str, ...] = ()
    listed: tuple[tuple[int, ...], ...] | None = None
    """Where the points are given one by one: the position of each value among its parameter's, -1 for a parameter that
    does not apply. There are no restrictions then, and conditions are what the rows say."""
    configs: Mapping[Config, None] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Those points, in their order."""

    def __post_init__(self) -> None:
        if self.listed is not None:
            object.__setattr__(self, "configs", dict.fromkeys(self._config(row) for row in self.listed))

    @property
    def hash(self) -> str:
        """`space_hash`: another hash makes a new study."""
        described = {"parameters": self.parameters, "restrictions": self.restrictions}
        return content_key(described if self.listed is None else described | {"listed": self.listed})

    def active(self, chosen: Mapping[str, Value], parameter: Parameter) -> bool:
        """Whether a parameter exists, given the parameters before it."""
        if parameter.when is None:
            return True
        condition = expressions.parse(parameter.when)
        return condition.names <= set(chosen) and condition.holds(_scalars(chosen))

    def problems(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Why this is not a point of the space: unknown or missing names, values not offered, restrictions broken."""
        if self.listed is not None:
            return self.broken(values)
        found = []
        known = {each.name for each in self.parameters}
        found += [f"there is no parameter {name!r}" for name in sorted(set(values) - known)]
        chosen: dict[str, Value] = {}
        for parameter in self.parameters:
            if not self.active(chosen, parameter):
                if parameter.name in values:
                    found.append(f"{parameter.name} does not apply unless {parameter.when}")
            elif parameter.name not in values:
                found.append(f"{parameter.name} is missing")
            elif not _among(values[parameter.name], parameter.values):
                offered = ", ".join(str(each) for each in parameter.values)
                found.append(f"{parameter.name} is {values[parameter.name]!r}; it can be {offered}")
            else:
                chosen[parameter.name] = values[parameter.name]
        found += [f"{text} does not hold" for text in self.broken(chosen)]
        return tuple(found)

    def broken(self, chosen: Mapping[str, Value]) -> tuple[str, ...]:
        """The restrictions that these values break; those that mention an absent parameter do not apply.
        Where the points are listed, that this is none of them."""
        if self.listed is not None:
            return () if Config.of(chosen) in self.configs else ("it is not one of the points that are listed",)
        names = set(chosen)
        scalars = _scalars(chosen)
        found = []
        for text in self.restrictions:
            restriction = expressions.parse(text)
            if restriction.names <= names and not restriction.holds(scalars):
                found.append(text)
        return tuple(found)

    def points(self) -> Iterator[Config]:
        """Every valid config, in a fixed order: the last parameter varies fastest."""
        if self.listed is not None:
            yield from self.configs
            return
        if self.broken({}):  # a restriction of constants only
            return
        mentioning = self._mentioning()
        # Depth first, and no recursion: a pipeline of a thousand kernels has a thousand parameters.
        depths: list[Iterator[Mapping[str, Value]]] = [iter(({},))]
        while depths:
            chosen = next(depths[-1], None)
            if chosen is None:
                depths.pop()
            elif len(depths) > len(self.parameters):
                yield Config.of(chosen)
            else:
                depths.append(self._extended(chosen, self.parameters[len(depths) - 1], mentioning))

    def count(self, limit: int = 100_000) -> int:
        """How many valid points there are; stops counting at `limit`. Beginnings that agree in all that a later
        condition or restriction names are counted as one; where more than MERGED differ, points are walked instead."""
        if self.listed is not None:
            return min(limit, len(self.listed))
        if self.broken({}):
            return 0
        mentioning = self._mentioning()
        place = {each.name: at for at, each in enumerate(self.parameters)}
        last = dict[str, int]()  #: Name -> the place of the last parameter with which it is looked at
        looked = [(at, each.when) for at, each in enumerate(self.parameters) if each.when is not None]
        for at, text in (*looked, *((0, text) for text in self.restrictions)):
            names = expressions.parse(text).names & place.keys()
            latest = max(at, *map(place.__getitem__, names), 0)
            last |= {name: max(latest, last.get(name, 0)) for name in names}
        ways: dict[str, tuple[Mapping[str, Value], int]] = {"": ({}, 1)}
        for at, parameter in enumerate(self.parameters):
            longer: dict[str, tuple[Mapping[str, Value], int]] = {}
            for chosen, many in ways.values():
                for more in self._extended(chosen, parameter, mentioning):
                    kept = {name: value for name, value in more.items() if last.get(name, 0) > at}
                    alike = repr(kept)  # tells True from 1 and 1 from 1.0
                    longer[alike] = kept, many + longer.get(alike, ((), 0))[1]
            if len(longer) > MERGED:
                return sum(1 for _ in itertools.islice(self.points(), limit))
            ways = longer
        return min(limit, sum(many for _, many in ways.values()))

    def _mentioning(self) -> Mapping[str, Sequence[expressions.Expression]]:
        """The restrictions that name each parameter."""
        found = [*map(expressions.parse, self.restrictions)]
        return {each.name: [text for text in found if each.name in text.names] for each in self.parameters}

    def _config(self, row: tuple[int, ...]) -> Config:
        pairs = zip(self.parameters, row, strict=True)
        return Config.of({each.name: each.values[level] for each, level in pairs if level >= 0})

    def _extended(
        self,
        chosen: Mapping[str, Value],
        parameter: Parameter,
        mentioning: Mapping[str, Sequence[expressions.Expression]],
    ) -> Iterator[Mapping[str, Value]]:
        """All valid ways to go on with the next parameter. A restriction is looked at when the last of its names is
        chosen, and not again."""
        if not self.active(chosen, parameter):
            yield chosen
            return
        for value in parameter.values:
            more = {**chosen, parameter.name: value}
            if mine := [each for each in mentioning[parameter.name] if each.names <= more.keys()]:
                scalars = _scalars(more)
                if not all(each.holds(scalars) for each in mine):
                    continue
            yield more


EMPTY = Space(parameters=())


def chooser(configs: Iterable[Mapping[str, Value]]) -> str | None:
    """The parameter that says which of several implementations a config is of, where there is one: every other
    parameter of the config begins with its value and a point (`variant=a a.threads=128`)."""
    names: set[str] | None = None
    for config in configs:
        mine = {
            name
            for name, value in config.items()
            if len(config) > 1 and all(other == name or other.startswith(f"{value}.") for other in config)
        }
        names = mine if names is None else names & mine
    return min(names) if names and len(names) == 1 else None


def _among(value: Value, values: Sequence[Value]) -> bool:
    """Membership that tells True from 1 and 1 from 1.0."""
    return any(type(value) is type(each) and value == each for each in values)


def _scalars(values: Mapping[str, Value]) -> dict[str, expressions.Scalar]:
    """Values as the expression language knows them: a float is compared as its text."""
    return {name: str(value) if isinstance(value, float) else value for name, value in values.items()}


def check_seeds(
    space: Space, seeds: Sequence[tuple[str, Config]]
) -> tuple[tuple[tuple[str, Config], ...], Mapping[str, str]]:
    """The seeds that are points of the space, and why the others are not."""
    sound = []
    refused = {}
    for name, config in seeds:
        problems = space.problems(config)
        if problems:
            refused[name] = "; ".join(problems)
        else:
            sound.append((name, config))
    return tuple(sound), refused
