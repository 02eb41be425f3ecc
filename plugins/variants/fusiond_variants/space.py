"""One conditional space of all variants.

variant          reference | a | b
a.threads        256 | 128 | 512          when variant == 'a'
a.cap ...        and whatever else a has by itself
"""

import re
from collections.abc import Mapping

from fusiond.model.nouns import Config
from fusiond.strategy.space import Parameter, Space

VARIANT = "variant"
_NAME = re.compile(r"(?<![\w.])([A-Za-z_][\w.]*)")


def union(spaces: Mapping[str, Space]) -> Space:
    """The space of several, by name: in a point is one of them, whole."""
    parameters = [Parameter(name=VARIANT, values=tuple(spaces))]
    restrictions: list[str] = []
    for name, space in spaces.items():
        own = {each.name for each in space.parameters}
        here = f"{VARIANT} == '{name}'"
        for each in space.parameters:
            when = here if each.when is None else f"{here} and ({_prefixed(each.when, name, own)})"
            parameters.append(Parameter(name=f"{name}.{each.name}", values=each.values, when=when))
        restrictions += [_prefixed(each, name, own) for each in space.restrictions]
    return Space(parameters=tuple(parameters), restrictions=tuple(restrictions))


def of_variant(name: str, config: Config) -> Config:
    """A point of the variant's own space as one of the union's."""
    return Config.of({VARIANT: name, **{f"{name}.{key}": value for key, value in config.items()}})


def own_config(config: Config) -> tuple[str, Config]:
    """(variant, its own config) of a point. KeyError where no variant is named."""
    name = config.text(VARIANT)
    own = {key.removeprefix(f"{name}."): value for key, value in config.items() if key != VARIANT}
    return name, Config.of(own)


def _prefixed(text: str, name: str, own: set[str]) -> str:
    """An expression with the parameters' names as the union has them; what stands in quotes is left alone."""
    pieces = re.split(r"('[^']*')", text)
    return "".join(
        piece if at % 2 else _NAME.sub(lambda found: f"{name}.{found[1]}" if found[1] in own else found[1], piece)
        for at, piece in enumerate(pieces)
    )
