"""A Program in double precision: every float of its CUDA C++ a double, and the same data in them.

    float s = 0.1f; ... expf(x) ... reinterpret_cast<const float4*>(x)
    -->  double s = 0.10000000149011612; ... exp(x) ... reinterpret_cast<const double4*>(x)

Constants and scalars keep the values that they have in float32, as the data does: they are inputs, and no errors of the
computation. What looks at the bits of floats, or computes in half, is `NoTruth`; so is what does not build afterwards.
A text that counts bytes (`smem + 4 * n`) may still build and go wrong: the caller compares with what float32 gives.
"""

import dataclasses
import re
from pathlib import Path

import numpy as np

from fusiond.model.errors import FusiondError
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.program import Buffer, Launch, Program, Scalar, Source, SourceKind, SourceLanguage, Step
from fusiond.model.program.steps import Argument

HALF = "it computes in half: give the reference as a NumPy function"

_TOKEN = re.compile(
    r"""
    (?P<kept>^[ \t]*\#[ \t]*include[^\n]* | //(?:\\\r?\n|[^\n])* | /\*.*?\*/
      | R"(?P<fence>[^()\\\s]*)\(.*?\)(?P=fence)" | "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)+')
  | (?P<number>\.?[0-9](?:[eEpP][+-]|'(?=\w)|[\w.])*)
  | (?P<word>[A-Za-z_$][\w$]*)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)[>\"]", re.MULTILINE)
_FLOAT = re.compile(r"(0[xX][\w.']*[pP][+-]?\d+|(?!0[xX])[\d.'eE+-]+)[fF]")
_FUNCTION = re.compile(
    r"""(?:__)?( a?(cos|sin|tan)h? | (cos|sin|sincos)(pi)? | atan2 | (exp|log)(2|10)? | expm1 | log1p | i?logb
      | pow | r?(sqrt|cbrt|hypot) | r?norm([34]d)? | normcdf(inv)? | erfc?(inv)? | erfcx | [lt]gamma | [jy][01n]
      | cyl_bessel_i[01] | f(abs|dim|ma|max|min|mod) | l?l?r(ound|int) | ceil | floor | trunc | nearbyint | remainder
      | remquo | modf | frexp | ldexp | scalbl?n | copysign | nextafter | fdivide | nan )f""",
    re.VERBOSE,
)
"""Those of single precision; the name of the one for doubles is the group."""
_RENAMED = tuple(
    (re.compile(name), double)
    for name, double in (
        (r"(make_)?float([1-4]?)", r"\1double\2"),
        (r"__f(add|sub|mul|div|rcp|sqrt)_(r[nzud])", r"__d\1_\2"),
        (r"__fmaf_(r[nzud])", r"__fma_\1"),
        (r"__frsqrt_rn", "rsqrt"),
        (r"__float2(u?int|u?ll)_(r[nzud])", r"__double2\1_\2"),
        (r"__(u?int)2float_r[nzud]", r"__\g<1>2double_rn"),
        (r"__(u?ll)2float_(r[nzud])", r"__\g<1>2double_\2"),
        (r"__double2float_r[nzud]", "double"),
    )
)
_PRELUDE = (
    "__host__ __device__ constexpr unsigned fusiond_aligned(unsigned bytes) { return bytes < 16 ? bytes : 16; } "
    "__device__ inline double fdivide(double x, double y) { return x / y; } "
    "__device__ inline double __saturatef(double x) { return fmin(fmax(x, 0.0), 1.0); } "
    "__device__ inline double atomicExch(double* at, double x) { "
    "return __longlong_as_double(atomicExch((unsigned long long*)at, (unsigned long long)__double_as_longlong(x))); }"
    "\n#line 1\n"
)
"""What CUDA has for floats only, and a limit for alignments."""
_ALIGNED = re.compile(r"\b(alignas|__align__)\s*\(((?=[^;{]*\bsizeof\b)(?:[^()]|\([^()]*\))*)\)")
"""An alignment that doubles with the type: no more than 16 bytes of it are kept, which is what local arrays have."""
_BITS = re.compile(r"__(float|u?int)_as_(u?int|float)")
_HALF = re.compile(r"(__)?(nv_)?(half2?|bfloat16\w*|fp8\w*)|__\w+2(half|bfloat)\w*|wmma")
_HALF_HEADER = re.compile(r"cuda_(fp16|bf16|fp8|fp4|fp6)\.h|\bwmma\b|\bmma\.h")


class NoTruth(FusiondError):
    """A reference that is not computed in double precision; the text says why, in one line."""


def in_double(text: str) -> str:
    """CUDA C++ with double for float. NoTruth where that would not be the same computation."""
    words = {each["word"] for each in _TOKEN.finditer(text) if each["word"]}
    if _HALF_HEADER.search(text) and any(_HALF.fullmatch(each) for each in words):
        raise NoTruth(HALF)
    if words & {"asm", "__asm", "__asm__"}:
        raise NoTruth("it has inline assembly: give the reference as a NumPy function")
    for each in sorted(words):
        if _BITS.fullmatch(each):
            raise NoTruth(f"it looks at the bits of floats ({each}): give the reference as a NumPy function")
    return _TOKEN.sub(_double, _ALIGNED.sub(r"\1(fusiond_aligned(\2))", text))


def doubled(program: Program, folder: Path) -> Program:
    """The Program in double precision; headers of the user's are rewritten in `folder`. NoTruth where it cannot be."""
    for each in program.buffers:
        if DTYPES[each.dtype].floating and each.dtype not in ("float32", "float64"):
            raise NoTruth(HALF)
    return dataclasses.replace(
        program,
        buffers=tuple(_buffer(each) for each in program.buffers),
        sources=tuple(_source(each, folder / each.name) for each in program.sources),
        steps=tuple(_step(each) for each in program.steps),
    )


def _double(token: re.Match[str]) -> str:
    if number := token["number"]:
        literal = _FLOAT.fullmatch(number)
        return number if literal is None else _same(literal[1].replace("'", ""))
    return _word(token["word"]) if token["word"] else token[0]


def _same(literal: str) -> str:
    """The value of a float's digits, as a double."""
    value = float.fromhex(literal) if literal[:2] in ("0x", "0X") else float(literal)
    with np.errstate(over="ignore", under="ignore"):
        return repr(float(np.float32(value)))


def _word(word: str) -> str:
    for name, double in _RENAMED:
        if found := name.fullmatch(word):
            return found.expand(double)
    single = _FUNCTION.fullmatch(word)
    return word if single is None else single[1]


def _buffer(buffer: Buffer) -> Buffer:
    """Arenas are stretched as a whole, so that what lay side by side still does."""
    dtype = "float64" if buffer.dtype == "float32" else buffer.dtype
    return dataclasses.replace(buffer, dtype=dtype, offset_bytes=2 * buffer.offset_bytes)


def _source(source: Source, folder: Path) -> Source:
    if source.kind is SourceKind.HOST or source.language is SourceLanguage.PTX:
        what = "code of the host" if source.kind is SourceKind.HOST else "PTX"
        raise NoTruth(f"{source.name} is {what}: give the reference as a NumPy function")
    _headers(source, folder)
    return dataclasses.replace(
        source,
        text=_PRELUDE + in_double(source.text),
        entries=tuple(_TOKEN.sub(_double, each) for each in source.entries),
        defines=tuple((name, _TOKEN.sub(_double, value)) for name, value in source.defines),
        include_dirs=tuple(str(folder / str(number)) for number in range(len(source.include_dirs))),
    )


def _headers(source: Source, folder: Path) -> None:
    """Write what a source includes from its folders, in double precision; what is not there is the system's."""
    places = [Path(each).resolve() for each in source.include_dirs]
    texts = [(source.text, places)]
    for text, search in texts:
        for name in _INCLUDE.findall(text):
            path = next(((each / name).resolve() for each in search if (each / name).is_file()), None)
            number = next((i for i, each in enumerate(places) if path and path.is_relative_to(each)), None)
            if path is None:
                continue
            if number is None:
                raise NoTruth(f"{path} is outside of the folders that {source.name} includes from")
            target = folder / str(number) / path.relative_to(places[number])
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                header = path.read_text(encoding="utf-8")
                target.write_text(in_double(header), encoding="utf-8")
                texts.append((header, [path.parent, *places]))


def _step(step: Step) -> Step:
    if not isinstance(step, Launch):
        return step
    return dataclasses.replace(
        step,
        entry=_TOKEN.sub(_double, step.entry),
        arguments=tuple(_argument(each) for each in step.arguments),
        shared_bytes=2 * step.shared_bytes,
    )


def _argument(argument: Argument) -> Argument:
    if isinstance(argument, Scalar) and argument.dtype == "float32":
        return dataclasses.replace(argument, dtype="float64", value=float(np.float32(argument.value)))
    return argument
