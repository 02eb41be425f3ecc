"""Converts StableHLO text (from jax or exporters of PyTorch) to HLO text, by jaxlib.

jaxlib is not a dependency: where it is missing, the text is refused and the message says what to install.
"""

import importlib
import re
from collections.abc import Callable
from typing import Any

from fusiond.model.errors import RequestError

_BEGINS = re.compile(r"\s*(?:(?://|#)[^\n]*\n\s*)*(?:module\b|func\.func\b|\"builtin\.module\")")
_PRINT_HLO = "print HLO text instead (jax: lowered.as_text(dialect='hlo'))"


def is_text(text: str) -> bool:
    """Whether a text is an MLIR module: StableHLO, or MHLO."""
    return _BEGINS.match(text) is not None


def to_hlo(text: str, path: str) -> str:
    """The HLO text of a module, with its large constants. RequestError where jaxlib is missing or refuses it."""
    convert = _converter()
    if convert is None:
        raise RequestError(
            f"is StableHLO, which jaxlib reads, and that is not installed: pip install jaxlib, or {_PRINT_HLO}",
            where=path,
        )
    if "__elided__" in text:
        raise RequestError("its large constants are not printed (__elided__): print them, too", where=path)
    try:
        computation = convert(text, use_tuple_args=False, return_tuple=False)
        found: str = computation.as_hlo_text(print_large_constants=True)
    except Exception as problem:  # jaxlib raises what XLA says, in many lines
        said = next((line.strip() for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
        raise RequestError(f"jaxlib cannot read this module: {said[:300]}", where=path) from None
    return found


def _converter() -> Callable[..., Any] | None:
    """jaxlib's conversion, which has moved between its versions; None where there is no jaxlib."""
    for name in ("jaxlib._jax", "jaxlib.xla_extension"):
        try:
            found: Callable[..., Any] = importlib.import_module(name).mlir.mlir_module_to_xla_computation
        except (ImportError, AttributeError):
            continue
        return found
    return None
