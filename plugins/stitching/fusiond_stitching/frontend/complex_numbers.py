"""Complex numbers as pairs of real ones: RoPE by `lax.complex`, phases, spectra that are made and used here.

    c64[dims]    inside of a module, two values f32[dims]
                 as a parameter or a result, f32[dims, 2], which is how NumPy and CUDA lay out their complex numbers

Either all of a module's complex numbers are pairs, or none is (`supported`): a Fourier transform is a library's, and
what stands between two of them would be taken apart and put together for nothing.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusiond_stitching.frontend.attributes import attributes_of
from fusiond_stitching.frontend.building import Add, Expansion, box
from fusiond_stitching.frontend.graph import Computation, HloInstruction
from fusiond_stitching.frontend.hlo import ArrayShape, Raw, RawModule, arrays

COMPLEX, REAL = "c64", "f32"
_NUMBER = re.compile(r"\(\s*([^\s,()]+)\s*,\s*([^\s,()]+)\s*\)")
_PASSED = frozenset({"parameter", "tuple", "get-tuple-element", "call", "fusion"})
_MOVED = frozenset({"broadcast", "reshape", "transpose", "slice", "reverse", "concatenate", "copy", "dynamic-slice"})
_ALIKE = frozenset({"add", "subtract", "negate", "select", "pad", "dynamic-update-slice", "gather"}) | _MOVED
"""What is done to the real parts and to the imaginary ones by themselves."""
_OTHERS = frozenset({
    "complex", "real", "imag", "constant", "convert", "multiply", "divide", "abs", "exponential", "compare", "reduce",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Complex:
    """The names of two values f32[dims]."""

    real: str
    imag: str


def supported(module: RawModule) -> bool:
    """Whether every complex number of the module can be a pair."""
    for computation in module.computations.values():
        kinds = {each.name: {array.dtype for array in arrays(each.shape)} for each in computation.instructions}
        for each in computation.instructions:
            touched = kinds[each.name].union(*(kinds.get(name, set()) for name in each.operands))
            if "c128" in touched or (COMPLEX in touched and each.opcode not in _PASSED | _ALIKE | _OTHERS):
                return False
            if each.opcode == "reduce" and COMPLEX in touched and not _sums(module, each):
                return False
    return True


def _sums(module: RawModule, reduce: Raw) -> bool:
    called = module.computations.get(reduce.called("to_apply"))
    if called is None or len(reduce.operands) != 2:
        return False
    body = [each for each in called.instructions if each.opcode != "parameter"]
    return [each.opcode for each in body] == ["add"] and len(set(body[0].operands)) == 2


def concerns(raw: Raw, operands: Sequence[object]) -> bool:
    """Whether an instruction makes a complex number, or reads one."""
    made = isinstance(raw.shape, ArrayShape) and raw.shape.dtype == COMPLEX
    return made or any(isinstance(each, Complex) for each in operands)


def taken_apart(name: str, dims: tuple[int, ...], whole: str, add: Add) -> Complex:
    """The two parts of a parameter f32[dims, 2]."""
    parts = []
    for place, word in enumerate(("real", "imag")):
        cut = box((0,) * len(dims) + (place,), (*dims, 1))
        part = add(f"{name}.{word}~cut", "slice", ArrayShape(REAL, (*dims, 1)), (whole,), cut)
        parts.append(add(f"{name}.{word}", "reshape", ArrayShape(REAL, dims), (part,), {}))
    return Complex(*parts)


def put_together(name: str, dims: tuple[int, ...], parts: Complex, add: Add) -> str:
    """A result f32[dims, 2]."""
    single = [
        add(f"{name}~{word}", "reshape", ArrayShape(REAL, (*dims, 1)), (part,), {})
        for word, part in (("real", parts.real), ("imag", parts.imag))
    ]
    return add(f"{name}~pair", "concatenate", ArrayShape(REAL, (*dims, 2)), single, {"dimension": len(dims)})


def computed(raw: Raw, name: str, operands: Sequence[Any], of: Mapping[str, HloInstruction], add: Add) -> Complex | str:
    """The instructions of one that makes complex numbers, or reads them, and its value. `operands`: names, and pairs of
    names; `of`: their instructions. RequestError for malformed numbers."""
    return _Making(raw, name, of, add).value(operands)


_SUM = Computation.of_two("add", REAL)


class _Making(Expansion):
    def __init__(self, raw: Raw, name: str, of: Mapping[str, HloInstruction], put: Add) -> None:
        super().__init__(name, put)
        assert isinstance(raw.shape, ArrayShape)
        self.raw = raw
        self.of = of
        self.dims = raw.shape.dims
        self.dtype = raw.shape.dtype

    def value(self, operands: Sequence[Any]) -> Complex | str:
        opcode = self.raw.opcode
        if opcode in _ALIKE or opcode == "reduce":
            return self._alike(operands)
        steps: dict[str, Callable[..., Complex | str]] = {
            "complex": Complex, "real": self._real, "imag": self._imag, "constant": self._constant,
            "convert": self._convert, "multiply": self._multiply, "divide": self._divide, "abs": self._abs,
            "exponential": self._exponential, "compare": self._compare,
        }  # fmt: skip
        return steps[opcode](*operands)

    def _make(self, opcode: str, *operands: str, dtype: str = REAL, **attributes: object) -> str:
        return self.add(opcode, dtype, self.dims, *operands, **attributes)

    def _number(self, value: float) -> str:
        return self.number(value, REAL, self.dims)

    def _alike(self, operands: Sequence[Any]) -> Complex:
        attributes = attributes_of(self.raw, lambda: _SUM)
        parts = [
            self.put(
                f"{self.name}.{word}", self.raw.opcode, ArrayShape(REAL, self.dims),
                [getattr(each, word) if isinstance(each, Complex) else each for each in operands], attributes,
            )
            for word in ("real", "imag")
        ]  # fmt: skip
        return Complex(*parts)

    def _constant(self) -> Complex:
        pairs = _NUMBER.findall(self.raw.payload)
        try:
            numbers = [(float(real), float(imag)) for real, imag in pairs]
        except ValueError:
            raise self.raw.fail(f"{self.raw.payload.strip()[:40]!r} is not a {COMPLEX}") from None
        if len(numbers) != math.prod(self.dims):
            raise self.raw.fail(f"{len(numbers)} pairs of numbers for {self.raw.shape}")
        return Complex(*(self._make("constant", values=tuple(each)) for each in zip(*numbers, strict=True)))

    def _real(self, of: Complex | str) -> str:
        return of.real if isinstance(of, Complex) else of

    def _imag(self, of: Complex | str) -> str:
        return of.imag if isinstance(of, Complex) else self._number(0.0)

    def _convert(self, of: Complex | str) -> Complex | str:
        if isinstance(of, str):
            same = self.of[of].dtype == REAL
            return Complex(of if same else self._make("convert", of), self._number(0.0))
        if self.dtype == COMPLEX:
            return of
        return of.real if self.dtype == REAL else self._make("convert", of.real, dtype=self.dtype)

    def _multiply(self, a: Complex, b: Complex) -> Complex:
        product = self._make
        return Complex(
            product("subtract", product("multiply", a.real, b.real), product("multiply", a.imag, b.imag)),
            product("add", product("multiply", a.real, b.imag), product("multiply", a.imag, b.real)),
        )

    def _divide(self, a: Complex, b: Complex) -> Complex:
        """By the larger part of the divisor (Smith, 1962), so that its square cannot overflow."""
        make = self._make
        real_is_larger = self.compared(make("abs", b.real), make("abs", b.imag), self.dims, "GE")

        def chosen(then: str, otherwise: str) -> str:
            return make("select", real_is_larger, then, otherwise)

        larger, smaller = chosen(b.real, b.imag), chosen(b.imag, b.real)
        ratio = make("divide", smaller, larger)
        whole = make("add", larger, make("multiply", smaller, ratio))
        first, second = chosen(a.real, a.imag), chosen(a.imag, a.real)
        real = make("add", first, make("multiply", second, ratio))
        imag = make("subtract", second, make("multiply", first, ratio))
        return Complex(make("divide", real, whole), make("divide", chosen(imag, make("negate", imag)), whole))

    def _abs(self, a: Complex) -> str:
        """The larger part times the root of 1 + the square of their ratio; the larger part alone where it is 0 or
        infinite."""
        make = self._make
        parts = [make("abs", part) for part in (a.real, a.imag)]
        most, least = make("maximum", *parts), make("minimum", *parts)
        ratio = make("divide", least, most)
        square = make("add", self._number(1.0), make("multiply", ratio, ratio))
        size = make("multiply", most, make("sqrt", square))
        edges = [self.compared(most, self._number(edge), self.dims, "EQ") for edge in (0.0, math.inf)]
        return make("select", make("or", *edges, dtype="pred"), most, size)

    def _exponential(self, a: Complex) -> Complex:
        make = self._make
        size = make("exponential", a.real)
        return Complex(make("multiply", size, make("cosine", a.imag)), make("multiply", size, make("sine", a.imag)))

    def _compare(self, a: Complex, b: Complex) -> str:
        """EQ or NE."""
        given = attributes_of(self.raw, lambda: _SUM)
        if given["direction"] not in ("EQ", "NE"):
            raise self.raw.fail("complex numbers have no order; direction can be EQ or NE")
        pairs = ((a.real, b.real), (a.imag, b.imag))
        parts = [self._make("compare", *pair, dtype="pred", **given) for pair in pairs]
        return self._make("and" if given["direction"] == "EQ" else "or", *parts, dtype="pred")
