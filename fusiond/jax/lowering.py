"""Jaxprs as HLO, with keys of random numbers as the numbers that they are."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

IMPLEMENTATION = "threefry2x32"  #: The one that is arithmetic on whole numbers


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


# --- keys ---


def is_key(aval: Any) -> bool:
    """Whether it is a key (an array of keys) of that kind."""
    return str(aval.dtype) == "key<fry>"


def numbers(value: Any) -> Any:
    """Keys as `uint32[..., 2]`; anything else as it is."""
    return jax.random.key_data(value) if is_key(value) else value


def wrapped(values: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
    """The inverse of `numbers`, where the avals are keys."""
    return [
        jax.random.wrap_key_data(each, impl=IMPLEMENTATION) if is_key(aval) else each
        for each, aval in zip(values, avals, strict=True)
    ]


def plain(jaxpr: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """A jaxpr that takes and gives numbers in the place of keys."""
    if not any(map(is_key, (*jaxpr.in_avals, *jaxpr.out_avals))):
        return jaxpr
    function = core.jaxpr_as_fun(jaxpr)

    def of_numbers(*given: Any) -> list[Any]:
        return [numbers(each) for each in function(*wrapped(given, jaxpr.in_avals))]

    found: core.ClosedJaxpr = jax.make_jaxpr(of_numbers)(*map(_numbers, jaxpr.in_avals))
    return found


def _numbers(aval: Any) -> Any:
    shape = (*aval.shape, 2) if is_key(aval) else aval.shape
    return jax.ShapeDtypeStruct(shape, jnp.uint32 if is_key(aval) else aval.dtype)
