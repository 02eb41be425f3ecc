"""Fills, comparisons, sizes, numbers and expressions of files. All strategies read them here, so a text means the same
in every file and a mistake gives the same message::

    fill        :=  zeros | iota | {constant: V} | {integers: [LOW, HIGH]} | {uniform: [LOW, HIGH]}
                 |  {normal: [MEAN, DEVIATION]} | {file: PATH.npy}
    comparison  :=  equal | {rtol: R, atol: A}
    sizes       :=  {NAME: WHOLE NUMBER, ...}
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.inputs.documents import Node
from fusiond.model.language import expressions
from fusiond.model.language.dtypes import is_float, whole_numbers
from fusiond.model.language.expressions import Expression, ExpressionError
from fusiond.model.nouns import Job
from fusiond.model.program import EQUAL, FILL_KINDS, Compare, Fill, default_compare

LARGEST_SIZE = 2**40
_MOST_FLOAT = 1e300
_EXACT = 2**53
_SIZE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TAKEN = ("block", "grid", "min", "max", "ceil_div", "and", "or", "not")

FindFile: TypeAlias = Callable[[Node], tuple[str, str]]
"""An .npy file that a value names -> (its path, the key of its content). RequestError when it is not there."""


def job_key(job: Job, key: str, default: object = None) -> Node:
    """A key of a job file that holds one value, with its line; `default` where the job has no such key."""
    return Node(job.path, key, job.lines.get(key, 1), job.request.get(key, default))


def job_sizes(job: Job, known: Collection[str], most: int = LARGEST_SIZE) -> dict[str, int]:
    """What a job says under `sizes:`, checked. Sweeps and awkward sizes come that way, too.

    UnknownName for a name that is not known, RequestError for what is no whole number from 1 to `most`."""
    for name, value in job.sizes.items():
        where = job.where(f"sizes.{name}")
        if name not in known:
            raise UnknownName("size", name, known, where=where)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise RequestError(f"is {value!r}; expected a whole number from 1 to {most}", where=where)
    return dict(job.sizes)


def fill(node: Node, dtype: str, file: FindFile | None = None) -> Fill:
    """What a buffer of that element type holds at the start. `file` None: files cannot be named here.

    RequestError for what is not a fill, for bounds that the type does not hold, and for random floats in whole numbers.
    """
    if isinstance(node.value, str):
        return Fill(kind=node.choice("zeros", "iota"))
    kinds = [each for each in FILL_KINDS if each not in ("zeros", "iota") and (file or each != "file")]
    keys = node.mapping(known=tuple(kinds))
    if len(keys) != 1:
        raise node.fail("expected one kind of fill, such as {uniform: [0, 1]}")
    ((kind, value),) = keys.items()
    if kind == "file":
        assert file is not None
        path, digest = file(value)
        return Fill(kind=kind, file=path, digest=digest)
    if kind == "constant":
        return Fill(kind=kind, low=element(value, dtype))
    pair = value.sequence()
    if len(pair) != 2:
        raise value.fail("expected two numbers, such as [0, 1]")
    low: float
    high: float
    if kind == "integers":
        low, high = (_whole(each, dtype) for each in pair)
    elif is_float(dtype):
        low, high = (each.number(least=-_MOST_FLOAT, most=_MOST_FLOAT) for each in pair)
    else:
        raise value.fail(f"{kind} fills floats; for {dtype} there is integers: [low, high]")
    if kind == "normal" and high < 0:
        raise pair[1].fail(f"is {high:g}; a standard deviation is not negative")
    if kind != "normal" and low > high:
        raise value.fail(f"the first number is above the second: {low:g} > {high:g}")
    return Fill(kind=kind, low=low, high=high)


def element(node: Node, dtype: str) -> int | float:
    """A number that an element of this type can hold."""
    return node.number(least=-_MOST_FLOAT, most=_MOST_FLOAT) if is_float(dtype) else _whole(node, dtype)


def _whole(node: Node, dtype: str) -> int:
    least, most = (-_EXACT, _EXACT) if is_float(dtype) else whole_numbers(dtype)
    return node.integer(least=least, most=most)


def comparison(node: Node | None, dtype: str) -> Compare:
    """How an output is compared; None: as is usual for its type."""
    if node is None:
        return default_compare(dtype)
    if isinstance(node.value, str):
        node.choice("equal")
        return EQUAL
    keys = node.mapping(known=("rtol", "atol"))
    if not keys:
        raise node.fail("expected rtol, atol or both, or the word equal")
    found = {key: value.number(least=0.0, most=_MOST_FLOAT) for key, value in keys.items()}
    return Compare(kind="close", rtol=found.get("rtol", 0.0), atol=found.get("atol", 0.0))


def sizes(node: Node | None, *, known: Mapping[str, int] | None = None) -> dict[str, int]:
    """Sizes by name; of `known` names only, where that is given. None: none."""
    if node is None:
        return {}
    found = {}
    for name, value in node.mapping(known=None if known is None else tuple(known)).items():
        if not _SIZE.fullmatch(name) or name in _TAKEN:
            raise value.fail(f"{name[:80]!r} cannot be the name of a size")
        found[name] = value.integer(least=1, most=LARGEST_SIZE)
    return found


def expression(node: Node) -> Expression:
    """An expression, or a whole number."""
    text = str(node.integer()) if isinstance(node.value, int) and not isinstance(node.value, bool) else node.text()
    try:
        return expressions.parse(text)
    except ExpressionError as problem:
        raise node.fail(str(problem)) from None


def integer(node: Node, names: Mapping[str, int]) -> int:
    """The value of a whole number, or of an expression over some names: an Extent where they are."""
    try:
        return expression(node).integer(names)
    except ExpressionError as problem:
        raise node.fail(str(problem)) from None
