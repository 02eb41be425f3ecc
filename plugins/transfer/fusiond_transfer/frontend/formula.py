"""A kernel's computation as an element-wise expression over the vectors that it reads.

    formula  :=  "sum" "(" sum ")" | sum             sum(...) adds over all elements into an output of one element
    sum      :=  product (("+" | "-") product)*
    product  :=  unary (("*" | "/") unary)*
    unary    :=  "-" unary | atom
    atom     :=  NUMBER | NAME | FUNCTION "(" sum ("," sum)* ")" | "(" sum ")"
    FUNCTION :=  min | max (two arguments) | abs | sqrt

A NAME is a vector that the kernel reads: its element i, or its only one. C's arithmetic in the output's type. A sum is
added up in one fixed order: by 256 threads, each a stride apart, then pairwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusiond.model.language.grammar import Call, Grammar, GrammarError, Name, Node, walk

LANES = 256  #: Threads of a sum, and of a block
FUNCTIONS = {"min": 2, "max": 2, "abs": 1, "sqrt": 1}
_LANGUAGE = Grammar(
    binary={"+": 1, "-": 1, "*": 2, "/": 2},
    prefix={"-": 3},
    functions={**FUNCTIONS, "sum": 1},
    literals=("integer", "float"),
)


class FormulaError(ValueError):
    """The text is not a formula; the message is one line."""


@dataclass(frozen=True, slots=True)
class ParsedFormula:
    root: Node
    summed: bool  #: `sum(...)`: one value from all elements
    names: tuple[str, ...]


def parse(text: str) -> ParsedFormula:
    """FormulaError says what is wrong."""
    try:
        root = _LANGUAGE.parse(text)
    except GrammarError as problem:
        raise FormulaError(f"{text[:100]!r}, column {problem.column}: {problem}") from None
    summed = isinstance(root, Call) and root.operator == "sum"
    if isinstance(root, Call) and summed:
        (root,) = root.operands
    nodes = tuple(walk(root))
    if any(isinstance(each, Call) and each.operator == "sum" for each in nodes):
        raise FormulaError(f"{text!r}: sum(...) stands round the whole formula or not at all")
    return ParsedFormula(root, summed, tuple(dict.fromkeys(each.name for each in nodes if isinstance(each, Name))))


def mismatch(
    texts: Sequence[str], reads: Sequence[str], writes: Sequence[str], elements: Mapping[str, int]
) -> str | None:
    """Why formulas do not fit their kernel, in one line; None when they do."""
    if len(texts) != len(writes):
        return f"there are {len(texts)} formulas for {len(writes)} outputs"
    for text, output in zip(texts, writes, strict=True):
        try:
            found = parse(text)
        except FormulaError as problem:
            return str(problem)
        strange = [name for name in found.names if name not in reads]
        if strange:
            return f"{text!r} mentions {strange[0]}, which the kernel does not read"
        lengths = {elements[name] for name in found.names} - {1}
        if found.summed:
            if elements[output] != 1 or len(lengths) > 1:
                return f"{text!r}: a sum is over vectors of one length, into an output of one element"
        elif lengths - {elements[output]}:
            return f"{text!r}: {output} has {elements[output]} elements, and a vector it is made of {min(lengths)}"
    return None
