"""CUDA C++ device source -> text that g++ compiles behind runtime/fusiond_cuda.h.

Nearly everything is left to the header; only what no header can express is edited, and lines keep their numbers:

    extern __shared__ float s[];               float* const s = reinterpret_cast<float*>(::fusiond_dynamic_shared);
    extern __shared__ float t[][33];           float (* const t)[33] = reinterpret_cast<float (*)[33]>(...);
    static __shared__ int n;                   __shared__ int n;
    __noinline__                               FUSIOND_NOINLINE
    #include <cuda_runtime.h>                  (dropped: the header stands in for it)
    #include <cooperative_groups.h>            #include "cooperative_groups.h"  (so cuda_fp16.h, _bf16.h and _fp8.h)
    __shared__ alignas(16) int t[4];           alignas(16) __shared__ int t[4];
    asm volatile("setmaxnreg...");             (void)0;  (`_GENERATED`: what strategies write)

What cannot be mapped is a `LoweringError`; within `#if` groups, which only g++ can decide, it becomes an error that is
raised if g++ keeps the group. What is `NOT_EMULATED`, inline assembly and CUDA's other headers, runs as nvcc's PTX
(interpreted.py). g++ sees __CUDACC__, __NVCC__ and __CUDA_ARCH__ as nvcc's device pass does. Comments and
string literals are left alone. `sizeof` and `decltype` of a dynamic shared array see a pointer, where CUDA sees an
array of unknown length.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

NOT_EMULATED = "is not emulated"  #: Ends the reason of what only C++ is refused: as PTX it can be run


class LoweringError(ValueError):
    """Device source that the processor cannot run as it stands; `line` counts from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


def lower(text: str) -> str:
    """The C++ text of CUDA device source. Raises `LoweringError`."""
    return _Lowering(text).run()


class _Token(NamedTuple):  # made by the ten thousand
    kind: str  # blank, string, number, word, directive or mark
    text: str
    start: int


# A directive is one token; those that hold code (#define) are left to the other rules.
_TOKEN = re.compile(
    r"""
    (?P<directive>(?:(?<=\n)|\A)[ \t]*\#[ \t]*(?:include|if|ifdef|ifndef|elif|else|endif|error|warning|pragma)\b
                  (?:\\\r?\n|/\*.*?\*/|//[^\n]*|[^\n/]|/)*)
  | (?P<blank>\n+|[^\S\n]+|//(?:\\\r?\n|[^\n])*|/\*.*?\*/|\\\r?\n)
  | (?P<string>(?:u8|[uUL])?R"(?P<fence>[^()\\\s]*)\(.*?\)(?P=fence)"
              |(?:u8|[uUL])?"(?:[^"\\]|\\.)*"|(?:u8|[uUL])?'(?:[^'\\]|\\.)+')
  | (?P<number>\.?[0-9](?:[eEpP][+-]|'(?=\w)|[\w.])*)
  | (?P<word>[A-Za-z_$][\w$]*)
  | (?P<mark><<<|::|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b")
_OPENS = {"if": 1, "ifdef": 1, "ifndef": 1, "endif": -1}
_INCLUDE = re.compile(r"\s*#\s*include\s*[<\"]([^>\"]+)[>\"]")

_OUR_OWN = re.compile(r"(cooperative_groups|cuda_fp16|cuda_bf16|cuda_fp8)\.h(?:pp)?")
_STANDS_IN = re.compile(
    r"cuda|cuda_runtime|cuda_runtime_api|device_launch_parameters|device_functions|device_atomic_functions"
    r"|math_constants|math_functions|vector_types|vector_functions|sm_\d+_\w+"
)
_BEYOND = re.compile(
    r"cooperative_groups/.*|(cub|thrust|nv|cuda|cute|cutlass)/.*|cuComplex\.h"
    r"|(cuda_(fp4|fp6|awbarrier|pipeline)\w*|curand\w*|cublas\w*|texture_\w+|surface_\w+|mma)\.h(pp)?"
)
_GENERATED = {
    'asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor))': "multiprocessor = ::blockIdx.x % 4",
    'asm volatile("setmaxnreg.': "(void)0",
}
"""How assembly begins that strategies write -> what it is here, where there are no registers to trade."""

_ALIGNERS = frozenset({"__align__", "alignas", "__attribute__"})
_SPECIFIERS = frozenset({"static", "__shared__", "__device__", "volatile", "const", "inline"})


class _Lowering:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._groups = 0  # #if groups that are open

    def run(self) -> str:
        output: list[str] = []
        at = 0
        while at < len(self._tokens):
            try:
                replacement, end = self._replace(at)
            except LoweringError as problem:
                if not self._groups:
                    raise
                replacement, end = _refusal(problem, self._tokens[at]), at + 1
            output.append(replacement)
            if end > at + 1 or replacement is not self._tokens[at].text:
                old_lines = sum(token.text.count("\n") for token in self._tokens[at:end])
                output.append("\n" * (old_lines - replacement.count("\n")))
            at = end
        return "".join(output)

    def _replace(self, at: int) -> tuple[str, int]:
        """The text that stands for the tokens from `at` up to the returned position."""
        token = self._tokens[at]
        if token.kind == "directive":
            return self._directive(token), at + 1
        if token.text in ("extern", "__shared__") and (array := self._dynamic_array(at)):
            return array
        if token.text == "static" and self._specifies_shared(at):
            return "", at + 1
        if token.text == "__shared__" and self._text_at(self._next(at + 1)) == "alignas":  # before all attributes
            behind = self._behind_parentheses(self._next(at + 1))
            return "".join(each.text for each in self._tokens[at + 1 : behind]) + " __shared__", behind
        if token.text == "__noinline__":
            before = next((each.text for each in reversed(self._tokens[:at]) if each.kind != "blank"), "")
            return token.text if before in ("(", ",") else "FUSIOND_NOINLINE", at + 1
        if token.text in ("asm", "__asm__", "__asm"):
            return self._assembly(at)
        if token.text == "<<<":
            raise self._error(token, "a kernel launch <<<...>>> is host code, only device code can be compiled")
        return token.text, at + 1

    def _directive(self, token: _Token) -> str:
        if condition := _CONDITION.match(token.text):
            self._groups = max(0, self._groups + _OPENS.get(condition[1], 0))
        include = _INCLUDE.match(token.text)
        if not include:
            return token.text
        file = include[1]
        if own := _OUR_OWN.fullmatch(file):
            return f'#include "{own[1]}.h"'
        if file.endswith(".h") and _STANDS_IN.fullmatch(file.removesuffix(".h")):
            return f"// {file}: fusiond_cuda.h stands in for it"
        if _BEYOND.fullmatch(file):
            raise self._error(token, f"<{file}> {NOT_EMULATED}")
        return token.text

    def _dynamic_array(self, begin: int) -> tuple[str, int] | None:
        """`extern __shared__ T name[]`, in any order, as a pointer; None when it declares something else."""
        declaration: list[_Token] = []  # the type's tokens, and last the name
        specifiers: set[str] = set()
        depth = 0
        at = begin
        while at < len(self._tokens):
            token = self._tokens[at]
            if token.text in _ALIGNERS or token.text == "decltype":
                end = self._behind_parentheses(at)
                if token.text == "decltype":  # not alignment: the arena is aligned to a page
                    declaration += self._tokens[at:end]
                at = end
                continue
            if token.kind == "string" or token.text in (";", "[", "(", "{", "=") or (token.text == "," and not depth):
                break
            depth += {"<": 1, ">": -1}.get(token.text, 0)
            if token.text in ("extern", "__shared__", "__device__"):
                specifiers.add(token.text)
            else:
                declaration.append(token)
            at += 1
        if not specifiers >= {"extern", "__shared__"}:
            return None
        return self._pointer(begin, declaration, at)

    def _pointer(self, begin: int, declaration: list[_Token], stop: int) -> tuple[str, int]:
        first = self._tokens[begin]
        name = next((i for i in reversed(range(len(declaration))) if declaration[i].kind != "blank"), -1)
        opening = self._next(stop)
        closing = self._next(opening + 1)
        brackets = self._text_at(opening), self._text_at(closing)
        typed = any(each.kind != "blank" for each in declaration[: max(name, 0)])
        if not typed or declaration[name].kind != "word" or brackets != ("[", "]"):
            raise self._error(first, "an extern __shared__ variable must be an array of unknown length: T name[]")
        end = closing + 1
        while self._text_at(self._next(end)) == "[":
            end = self._behind(end, "[", "]")
        if self._text_at(self._next(end)) == ",":
            raise self._error(first, "declare one extern __shared__ array a statement")
        kind = _in_one_line(declaration[:name])
        extents = _in_one_line(self._tokens[closing + 1 : end])  # of all dimensions but the first
        pointer, declared = f"{kind}*", f"{kind}* const {declaration[name].text}"
        if extents:
            pointer, declared = f"{kind} (*)", f"{kind} (* const {declaration[name].text})"
        return f"{declared}{extents} = reinterpret_cast<{pointer}{extents}>(::fusiond_dynamic_shared)", end

    def _next(self, at: int) -> int:
        """The position of the first token from `at` on that is not blank."""
        return next((i for i in range(at, len(self._tokens)) if self._tokens[i].kind != "blank"), len(self._tokens))

    def _text_at(self, at: int) -> str:
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _assembly(self, at: int) -> tuple[str, int]:
        for text, instead in _GENERATED.items():
            if self._text.startswith(text, self._tokens[at].start):
                end = self._behind_parentheses(at + 2)
                if sum(each.text.count(";") for each in self._tokens[at:end]) == 1:  # and no statement behind it
                    return instead, end
        raise self._error(self._tokens[at], f"inline assembly {NOT_EMULATED}")

    def _behind_parentheses(self, at: int) -> int:
        """The position behind the balanced parentheses that open after `at`."""
        return self._behind(at + 1, "(", ")")

    def _behind(self, at: int, opening: str, closing: str) -> int:
        depth = 0
        for end in range(at, len(self._tokens)):
            depth += {opening: 1, closing: -1}.get(self._tokens[end].text, 0)
            if depth == 0 and self._tokens[end].kind != "blank":
                return end + 1
        return len(self._tokens)

    def _specifies_shared(self, at: int) -> bool:
        for beside in (reversed(self._tokens[:at]), self._tokens[at:]):
            near = itertools.takewhile(lambda each: each.kind == "blank" or each.text in _SPECIFIERS, beside)
            if any(each.text == "__shared__" for each in near):
                return True
        return False

    def _error(self, token: _Token, reason: str) -> LoweringError:
        return LoweringError(self._text.count("\n", 0, token.start) + 1, reason)


def _refusal(problem: LoweringError, token: _Token) -> str:
    """The same as an error of g++, if it comes to see it."""
    reason = str(problem).replace("\\", "/").replace('"', "'")
    if token.kind == "directive":
        return f"#error {reason}"
    return f'_Pragma("GCC error \\"{reason}\\"") {token.text}'


def _in_one_line(tokens: Iterable[_Token]) -> str:
    return " ".join("".join(" " if each.kind == "blank" else each.text for each in tokens).split())


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        yield _Token(match.lastgroup or "mark", match[0], match.start())
