"""The hooks of variants."""

from collections.abc import Callable

from fusiond.strategy import Strategy
from fusiond.strategy.hookspecs import hookimpl
from fusiond_variants.strategy import Variants


@hookimpl
def register_strategies(register: Callable[[Strategy], None]) -> None:
    register(Variants())
