"""Jaxprs as HLO."""

from typing import Any

import jax
from jax.extend import core


def hlo(name: str, jaxpr: core.ClosedJaxpr) -> str:
    """The text of a module, its parameters the jaxpr's: as a processor's, whatever JAX runs on, so that random bits are
    arithmetic and no custom call, and a question is the same on every box."""
    function = core.jaxpr_as_fun(jaxpr)

    def region(*arguments: Any) -> Any:
        return function(*arguments)

    region.__name__ = name
    avals = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in jaxpr.in_avals]
    lowered = jax.jit(region, keep_unused=True).trace(*avals).lower(lowering_platforms=("cpu",))
    text: str = lowered.as_text(dialect="hlo")
    return text
