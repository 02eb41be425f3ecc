"""Proves from the index expressions of a kernel's own source that it works element by element.

What is accepted, over the entry's pointers p, its whole numbers n, and a type T:

    T i = blockIdx.x * blockDim.x + threadIdx.x;            the number of the thread (factors and casts in any order)
    if (i < n) ...      if (i >= n) return;                  one thread an element, or
    for (T i = <the number>; i < n; i += gridDim.x * blockDim.x) ...          so many elements a thread, or
    for (T i = 0; i < n; ++i) ...                            on the host

and then only p[i] (p[0], of a vector with one element), other local names, literals and functions of arithmetic. i and
n stand nowhere else, so element k of what is written is made of elements k of what is read, wherever a chunk begins.
Whatever else there is (a barrier, shared memory, an atomic, a helper function) is a reason why nothing is proven.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"[A-Za-z_]\w*(?:\.[xyz]\b)?|\d[\w.]*(?:[eE][-+]\d+\w*)?|\+\+|--|<<=|>>=|[-+*/%&|^<>=!]=|&&|\|\||<<|>>|\S"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_INTEGERS = "const int unsigned long size_t auto uint32_t int32_t uint64_t int64_t"
_OTHERS = "short char signed float double bool if else return for while true false static_cast __restrict__"
_WORDS = frozenset([*_INTEGERS.split(), *_OTHERS.split()])
_ARITHMETIC = (
    "sqrt rsqrt exp exp2 log log2 log10 sin cos tan tanh fabs abs pow fma fmin fmax floor ceil round trunc min max erf"
)
_FUNCTIONS = frozenset(name + suffix for name in _ARITHMETIC.split() for suffix in ("", "f"))
_TYPE = rf"(?:(?:{'|'.join(_INTEGERS.split())}) )+"
_CAST = r"(?:\( (?:unsigned |long |int |size_t )+\) )?"
_PLACE = (
    rf"(?:{_CAST}blockIdx\.x \* {_CAST}blockDim\.x \+ {_CAST}threadIdx\.x"
    rf"|{_CAST}threadIdx\.x \+ {_CAST}blockIdx\.x \* {_CAST}blockDim\.x"
    rf"|{_CAST}blockDim\.x \* {_CAST}blockIdx\.x \+ {_CAST}threadIdx\.x)"
)
_STRIDE = rf"{_CAST}(?:gridDim\.x \* {_CAST}blockDim\.x|blockDim\.x \* {_CAST}gridDim\.x)"
_STEP = r"(?:\+\+ \1|\1 \+\+|\1 \+= 1)"
_FORMS = {
    True: (
        re.compile(rf"for \( {_TYPE}(\w+) = {_PLACE} ; \1 < (\w+) ; \1 \+= {_STRIDE} \)"),
        re.compile(rf"{_TYPE}(\w+) = {_PLACE} ; if \( \1 < (\w+) \)"),
        re.compile(rf"{_TYPE}(\w+) = {_PLACE} ; if \( \1 >= (\w+) \) return ;"),
    ),
    False: (re.compile(rf"for \( {_TYPE}(\w+) = 0 ; \1 < (\w+) ; {_STEP} \)"),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementWise:
    """`count`: which of the kernel's values is the number of elements."""

    count: int


def element_wise(
    text: str, entry: str, operands: Sequence[str], values: int, elements: Mapping[str, int], *, device: bool
) -> ElementWise | str:
    """The proof, or why there is none, in a few words. `operands` are the vectors in the order of the entry's pointers,
    `values` is how many whole numbers follow, `elements` their lengths."""
    code = _COMMENT.sub(" ", text)
    found = re.search(rf'extern\s+"C"\s+(?:__global__\s+)?void\s+{re.escape(entry)}\s*\(([^)]*)\)\s*\{{', code)
    if found is None:
        return f"{entry} is not found as a plain function"
    body = _body(code, found.end())
    names = [re.findall(r"\w+", each)[-1] for each in found[1].split(",") if re.search(r"\w", each)]
    if body is None or len(names) != len(operands) + values or "#" in body:
        return f"{entry} is not read: other parameters, or directives in it"
    flat = " ".join(_TOKEN.findall(body))
    form = next((match for form in _FORMS[device] if (match := form.search(flat)) is not None), None)
    if form is None:
        return (
            f"{entry} has no index of the form {'blockIdx.x * blockDim.x + threadIdx.x' if device else 'i = 0 ... n'}"
        )
    index, count = form[1], form[2]
    numbers = names[len(operands) :]
    if count not in numbers:
        return f"{count}, up to which {entry} counts, is none of its values"
    guarded = "return" in form[0] or _is_one_statement(flat[form.end() :].split())
    if not guarded:
        return f"{entry} goes on behind its test of {index} < {count}"
    rest = (flat[: form.start()] + flat[form.end() :]).split()
    vectors = dict(zip(names, operands, strict=False))
    wrong = _wrong(rest, index, {*numbers} - {count}, {name: elements[each] for name, each in vectors.items()})
    return f"{entry} {wrong}" if wrong else ElementWise(count=numbers.index(count))


def _body(code: str, begin: int) -> str | None:
    """What stands between the braces of a function, the first of which is just before `begin`."""
    depth = 1
    for place in range(begin, len(code)):
        depth += {"{": 1, "}": -1}.get(code[place], 0)
        if not depth:
            return code[begin:place]
    return None


def _is_one_statement(tokens: Sequence[str]) -> bool:
    """Whether nothing follows the statement, or the block, that tokens begin with."""
    if tokens[:1] != ["{"]:
        return tokens.index(";") == len(tokens) - 1 if ";" in tokens else False
    depth = 0
    for at, token in enumerate(tokens):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if not depth:
            return at == len(tokens) - 1
    return False


def _wrong(tokens: Sequence[str], index: str, values: set[str], vectors: Mapping[str, int]) -> str:
    """What stands in the way, in a few words; an empty text where nothing does."""
    local: set[str] = set()
    at = 0
    while at < len(tokens):
        token = tokens[at]
        follows = tokens[at + 1 : at + 4]
        if token in vectors:
            if not _is_element(follows, index, vectors[token]):
                return f"uses {token} otherwise than as {token}[{index}]"
            at += 4
            continue
        if re.match(r"[A-Za-z_]", token):
            if _declares(tokens, at):
                local.add(token)
            problem = _wrong_name(token, follows, index, local | values)
            if problem:
                return problem
        elif token in ("[", "&", "#", ".", "\\"):
            return f"has a {token} that is not read"
        at += 1
    return ""


def _is_element(follows: Sequence[str], index: str, length: int) -> bool:
    """Whether what follows a vector's name makes it one element: the thread's own, or the only one."""
    inside = follows[1] if len(follows) == 3 and follows[0] == "[" and follows[2] == "]" else "more"
    return inside == index or (inside == "0" and length == 1)


def _declares(tokens: Sequence[str], at: int) -> bool:
    """Whether a name is that of a new variable."""
    typed = at > 0 and tokens[at - 1] in _WORDS and tokens[at - 1] not in ("return", "else")
    return typed and tokens[at + 1 : at + 2] in (["="], [";"], [","])


def _wrong_name(token: str, follows: Sequence[str], index: str, known: set[str]) -> str:
    if token == index or token not in _WORDS | _FUNCTIONS | known:
        return f"uses {token}, which may depend on where a chunk begins"
    if follows[:1] == ["("] and token not in _FUNCTIONS and token not in _WORDS:
        return f"calls {token}"
    return ""
