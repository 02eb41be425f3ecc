"""Inline PTX -> C++ over runtime/inline_ptx.h: the instructions that people write by hand, one by one.

    asm volatile("add.cc.u32 %0, %1, %2;" : "=r"(lo) : "r"(a), "r"(b));
        do { uint32_t p0; uint32_t p1 = in<uint32_t>(a); ...; { put(p0, add_cc_(p1, p2)); } out(lo, p0); } while (0);

Registers are variables of their width, and each instruction reads and writes them by the type in its name. What is not
in the tables below is refused by its name: docs/cpu-device.md lists what is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_WORDS = {
    "h": "uint16_t",
    "r": "uint32_t",
    "l": "uint64_t",
    "f": "float",
    "d": "double",
    "n": "int64_t",
    "b": "uint8_t",
}
_TYPES = {
    **{f"{kind}{bits}": f"{'int' if kind == 's' else 'uint'}{bits}_t" for kind in "sub" for bits in (8, 16, 32, 64)},
    "f16": "fusiond_ptx::f16", "bf16": "fusiond_ptx::bf16", "f32": "float", "f64": "double", "pred": "bool",
}  # fmt: skip
_REGISTERS = {**{f"{kind}{bits}": f"uint{bits}_t" for kind in "sub" for bits in (8, 16, 32, 64)},
              "f32": "float", "f64": "double", "f16": "uint16_t", "pred": "bool"}  # fmt: skip

SPECIAL = {
    "%laneid": "fusiond_ptx::lane()",
    "%lanemask_eq": "(1u << fusiond_ptx::lane())",
    "%lanemask_lt": "((1u << fusiond_ptx::lane()) - 1)",
    "%lanemask_le": "(((2u << fusiond_ptx::lane()) - 1))",
    "%lanemask_gt": "(~((2u << fusiond_ptx::lane()) - 1))",
    "%lanemask_ge": "(~((1u << fusiond_ptx::lane()) - 1))",
    "%warpsize": "32", "WARP_SZ": "32", "%smid": "(::blockIdx.x % 4)", "%nsmid": "4",
    "%warpid": "(fusiond_detail::thread_number() / 32)",
    "%clock": "clock64()", "%clock64": "clock64()",
    "%globaltimer": "fusiond_ptx::globaltimer()", "%globaltimer_lo": "fusiond_ptx::globaltimer()",
    **{f"%{name}.{axis}": f"::{variable}.{axis}" for axis in "xyz" for name, variable in
       (("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim"))},
}  # fmt: skip
"""Special registers."""

ARITHMETIC = {
    "add": 2, "sub": 2, "mul": 2, "mul.lo": 2, "mul.hi": 2, "mad": 3, "mad.lo": 3, "mad.hi": 3, "fma": 3,
    "div": 2, "rem": 2,
    "min": 2, "max": 2, "neg": 1, "abs": 1, "and": 2, "or": 2, "xor": 2, "not": 1, "shl": 2, "shr": 2,
    "popc": 1, "clz": 1, "brev": 1, "bfind": 1, "bfe": 3, "bfi": 4, "prmt": 3, "lop3": 4, "sad": 3, "copysign": 2,
    "shf.l.wrap": 3, "shf.r.wrap": 3, "shf.l.clamp": 3, "shf.r.clamp": 3, "selp": 3,
    "rcp": 1, "sqrt": 1, "rsqrt": 1, "ex2": 1, "lg2": 1, "sin": 1, "cos": 1, "tanh": 1,
}  # fmt: skip
"""Instructions of one result, and how many operands they read."""
CARRYING = {"add.cc": 2, "addc": 2, "addc.cc": 2, "sub.cc": 2, "subc": 2, "subc.cc": 2, "mad.lo.cc": 3, "mad.hi.cc": 3,
            "madc.lo": 3, "madc.hi": 3, "madc.lo.cc": 3, "madc.hi.cc": 3}  # fmt: skip
"""Those that read or write the carry."""
WIDE = {"mul.wide": 2, "mad.wide": 3}
COMPARISONS = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
NOTHING = ("prefetch", "prefetchu", "nanosleep", "pmevent", "discard", "applypriority", "setmaxnreg")
"""Hints, which change no result."""
FENCES = ("membar", "fence")
ATOMICS = ("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas")

_IGNORED = {"rn", "ftz", "approx", "full", "volatile", "relaxed", "acquire", "release", "weak", "cta",
            "gpu", "sys", "global", "shared", "local", "const", "param", "nc", "ca", "cg", "cs", "cv", "lu", "wb", "wt",
            "L1", "L2", "evict_last", "evict_first", "no_allocate", "64B", "128B", "256B", "cluster", "noftz",
            "mmio"}  # fmt: skip
_ALL = "FUSIOND_WHOLE_BLOCK"
_BARRIER = re.compile(r"(bar|barrier)(\.cta)?\.sync(\.aligned)?")
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}")


class Unknown(ValueError):
    """Assembly that is not emulated; the text says which."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One of an asm statement: its constraint (`=r`, `+l`, `f`) and its expression."""

    constraint: str
    expression: str


def translated(template: str, operands: Sequence[Operand], numbers: Mapping[str, str]) -> str:
    """The statement for an asm statement of this text, without its semicolon; `numbers` are expressions that stand in
    the text by a name of their own (`@0`: a macro's parameter). Raises `Unknown`."""
    return _Translation(operands, numbers).run(template)


class _Translation:
    def __init__(self, operands: Sequence[Operand], numbers: Mapping[str, str]) -> None:
        self.operands = operands
        self.numbers = numbers
        self.types: dict[str, str] = {}
        """Registers that the text declares."""

    def run(self, template: str) -> str:
        before, after = [], []
        for number, each in enumerate(self.operands):
            word = _WORDS.get(each.constraint.strip("=+&"))
            if word is None:
                raise Unknown(f"an operand with the constraint {each.constraint!r}")
            read = not each.constraint.startswith("=")
            before.append(
                f"{word} fusiond_p{number}" + (f" = fusiond_ptx::in<{word}>({each.expression})" if read else "") + ";"
            )
            if each.constraint[0] in "=+":
                after.append(f"fusiond_ptx::out({each.expression}, fusiond_p{number});")
        statements = _statements(template)
        if len(statements) == 1 and not after and (barrier := self._lone_barrier(statements[0])):
            return barrier
        body = [self._statement(each) for each in statements]
        return f"do {{ {' '.join([*before, *filter(None, body), *after])} }} while (0)"

    def _lone_barrier(self, text: str) -> str:
        """Nothing but `bar.sync`: a call with the operands as they are written."""
        name, _, rest = text.partition(" ")
        given = _operands(rest)
        if not _BARRIER.fullmatch(name) or not 1 <= len(given) <= 2:
            return ""
        named = {f"%{number}": each.expression for number, each in enumerate(self.operands)} | dict(self.numbers)
        if any(not each.isdigit() and each not in named for each in given):
            raise Unknown(f"the operand of `{text}`")
        return (
            f"FUSIOND_BAR_SYNC({named.get(given[0], given[0])}, {named.get(given[1], given[1]) if given[1:] else _ALL})"
        )

    def _statement(self, text: str) -> str:
        if text in ("{", "}"):
            return text
        if text.startswith(".reg"):
            return self._declaration(text)
        guard = ""
        if match := re.match(r"@(!?)\s*([%\w]+)\s+(.*)", text, re.DOTALL):
            guard, text = f"if ({match[1]}{self._register(match[2])}) ", match[3]
        name, _, rest = text.partition(" ")
        given = _operands(rest)
        try:
            return f"{guard}{{ {self._instruction(name, given)}; }}"
        except IndexError:
            raise Unknown(f"`{name}` with {len(given)} operands") from None

    def _declaration(self, text: str) -> str:
        match = re.fullmatch(r"\.reg\s*\.(\w+)\s+([%\w\s,]+)", text)
        if match is None or match[1] not in _REGISTERS:
            raise Unknown(f"`{text}`")
        names = [each.strip().lstrip("%") for each in match[2].split(",")]
        self.types |= dict.fromkeys(names, _REGISTERS[match[1]])
        return f"{_REGISTERS[match[1]]} {', '.join(f'fusiond_r_{each}' for each in names)};"

    # --- operands ---

    def _register(self, text: str) -> str:
        """The variable of a register; an operand of the statement is %N."""
        name = text.lstrip("%")
        if name in self.types:
            return f"fusiond_r_{name}"
        if text.startswith("%") and name.isdigit() and int(name) < len(self.operands):
            return f"fusiond_p{name}"
        raise Unknown(f"the operand `{text}`")

    def _value(self, text: str, kind: str) -> str:
        if text in self.numbers:
            return f"({kind})({self.numbers[text]})"
        if text in SPECIAL:
            return f"({kind})({SPECIAL[text]})"
        if _NUMBER.fullmatch(text):
            if text[:2] in ("0f", "0F"):
                return f"fusiond_ptx::as<{kind}>((uint32_t)0x{text[2:]}u)"
            if text[:2] in ("0d", "0D"):
                return f"fusiond_ptx::as<{kind}>((uint64_t)0x{text[2:]}ull)"
            return f"({kind})({text.rstrip('U')}ll)"
        return f"fusiond_ptx::as<{kind}>({self._register(text)})"

    def _address(self, text: str, parts: Sequence[str] = ()) -> str:
        match = re.fullmatch(r"\[\s*([%\w]+)\s*(?:([+-])\s*(\w+)\s*)?\]", text)
        if match is None:
            raise Unknown(f"the address `{text}`")
        offset = f" {match[2]} {match[3]}" if match[2] else ""
        address = f"fusiond_ptx::as<uint64_t>({self._register(match[1])}){offset}"
        return f"fusiond_ptx::shared({address})" if "shared" in parts else f"({address})"

    # --- instructions ---

    def _instruction(self, name: str, given: list[str]) -> str:
        parts = name.split(".")
        op = parts[0]
        special = {
            **{"mov": self._mov, "ld": self._load, "ldu": self._load, "st": self._store, "setp": self._setp},
            **{"cvt": self._convert, "cvta": self._copy, "cp": self._async, "red": self._atomic, "atom": self._atomic},
            **{"activemask": self._activemask, "vote": self._vote, "bar": self._barrier, "barrier": self._barrier},
        }
        if op in NOTHING:
            return "(void)0"
        if op in FENCES:
            return "::__threadfence()"
        if op == "trap":
            return "::__trap()"
        if op in special:
            return special[op](name, parts, given)
        kind = _TYPES.get(parts[-1])
        rest = [each for each in parts[:-1] if each not in _IGNORED]
        base = ".".join(each for each in rest if each != "sat")
        sources = ARITHMETIC.get(base) or CARRYING.get(base) or WIDE.get(base)
        if kind is None or sources is None or ("sat" in rest and parts[-1] != "f32"):
            raise Unknown(f"`{name}`")
        if len(given) != sources + 1:
            raise Unknown(f"`{name}` with {len(given)} operands")
        kinds = self._kinds(base, kind, sources)
        values = ", ".join(self._value(each, of) for each, of in zip(given[1:], kinds, strict=True))
        called = f"fusiond_ptx::{base.replace('.', '_')}_({values})"
        return self._put(given[0], f"fusiond_ptx::saturated({called})" if "sat" in rest else called)

    def _put(self, to: str, value: str) -> str:
        return f"fusiond_ptx::put({self._register(to)}, {value})"

    def _listed(self, text: str) -> list[str]:
        """The registers of `{a, b}`, or the one that stands there."""
        return [self._register(each.strip()) for each in text.strip("{} ").split(",")]

    def _kinds(self, base: str, kind: str, sources: int) -> list[str]:
        """The types of what an instruction reads."""
        kinds = [kind] * sources
        if base in ("shl", "shr") or base.startswith("shf"):
            kinds[-1] = "uint32_t"
        elif base in ("bfe", "bfi"):
            kinds[-2:] = ["uint32_t", "uint32_t"]
        elif base == "selp":
            kinds[-1] = "bool"
        elif base == "lop3":
            kinds[-1] = "uint32_t"
        elif base == "mad.wide":
            kinds[-1] = f"fusiond_ptx::wider<{kind}>"
        return kinds

    def _mov(self, name: str, parts: list[str], given: list[str]) -> str:
        kind = _TYPES.get(parts[-1])
        if kind is None or len(given) != 2:
            raise Unknown(f"`{name}`")
        to, of = given
        if to.startswith("{"):
            return f"fusiond_ptx::unpack({self._value(of, kind)}, {', '.join(self._listed(to))})"
        if of.startswith("{"):
            return self._put(to, f"fusiond_ptx::pack<{kind}>({', '.join(self._listed(of))})")
        return self._put(to, self._value(of, kind))

    def _copy(self, name: str, parts: list[str], given: list[str]) -> str:
        return (
            f"fusiond_ptx::put({self._register(given[0])}, {self._value(given[1], 'uint64_t')})"  # all spaces are one
        )

    def _element(self, parts: list[str], name: str) -> str:
        """The type of what a load or store moves."""
        rest = [each for each in re.split(r"\.|::", ".".join(parts[1:-1])) if each not in (*_IGNORED, "v2", "v4", "v8")]
        if rest or parts[-1] not in _TYPES:
            raise Unknown(f"`{name}`")
        return _TYPES[parts[-1]]

    def _load(self, name: str, parts: list[str], given: list[str]) -> str:
        kind = self._element(parts, name)
        return f"fusiond_ptx::load<{kind}>({self._address(given[1], parts)}, {', '.join(self._listed(given[0]))})"

    def _store(self, name: str, parts: list[str], given: list[str]) -> str:
        kind = self._element(parts, name)
        values = ", ".join(self._value(each.strip(), kind) for each in given[1].strip("{} ").split(","))
        return f"fusiond_ptx::store<{kind}>({self._address(given[0], parts)}, {values})"

    def _setp(self, name: str, parts: list[str], given: list[str]) -> str:
        kind = _TYPES.get(parts[-1])
        rest = [each for each in parts[1:-1] if each not in _IGNORED]
        if kind is None or len(rest) != 1 or rest[0] not in COMPARISONS or len(given) != 3:
            raise Unknown(f"`{name}`")
        a, b = (self._value(each, kind) for each in given[1:])
        return f"{self._register(given[0])} = {a} {COMPARISONS[rest[0]]} {b}"

    def _convert(self, name: str, parts: list[str], given: list[str]) -> str:
        to, of = (_TYPES.get(each) for each in ("", *parts)[-2:])
        rest = [each for each in parts[1:-2] if each != "ftz"]
        if (
            to is None
            or of is None
            or len(rest) > 1
            or (rest and rest[0] not in ("rn", "rz", "rni", "rzi", "rmi", "rpi"))
        ):
            raise Unknown(f"`{name}`")
        if rest == ["rz"] and "f" in parts[-2]:
            raise Unknown(f"`{name}`")
        how = {"rni": "nearest", "rmi": "down", "rpi": "up"}.get(rest[0] if rest else "", "plain")
        return self._put(given[0], f"fusiond_ptx::convert<{to}, fusiond_ptx::{how}>({self._value(given[1], of)})")

    def _async(self, name: str, parts: list[str], given: list[str]) -> str:
        if name in ("cp.async.commit_group", "cp.async.commit_group.sync.aligned"):
            return "::fusiond_detail::async_commit()"
        if name == "cp.async.wait_all":
            return "::fusiond_detail::async_wait_all()"
        if name == "cp.async.wait_group":
            return f"::fusiond_detail::async_wait({self._value(given[0], 'uint32_t')})"
        head = re.split(r"\.|::", name)
        if head[:2] != ["cp", "async"] or head[2] not in ("ca", "cg") or len(given) not in (3, 4) or "bulk" in head:
            raise Unknown(f"`{name}`")
        to, of, size = self._address(given[0], head), self._address(given[1]), self._value(given[2], "uint32_t")
        filled = f", {size} - {self._value(given[3], 'uint32_t')}" if len(given) == 4 else ""
        return f"::fusiond_detail::async_copy((void*){to}, (const void*){of}, {size}{filled})"

    def _atomic(self, name: str, parts: list[str], given: list[str]) -> str:
        kind = _TYPES.get(parts[-1])
        rest = [each for each in parts[1:-1] if each not in _IGNORED]
        if kind is None or len(rest) != 1 or rest[0] not in ATOMICS:
            raise Unknown(f"`{name}`")
        result = "" if parts[0] == "red" else given[0]
        address, values = (given[0], given[1:]) if parts[0] == "red" else (given[1], given[2:])
        passed = [self._address(address, parts), *(self._value(each, kind) for each in values)]
        called = f"fusiond_ptx::atom_{rest[0]}<{kind}>({', '.join(passed)})"
        return self._put(result, called) if result else called

    def _activemask(self, name: str, parts: list[str], given: list[str]) -> str:
        return self._put(given[0], "::__activemask()")

    def _vote(self, name: str, parts: list[str], given: list[str]) -> str:
        if name != "vote.sync.ballot.b32" or len(given) != 3:
            raise Unknown(f"`{name}`")
        predicate = given[1].removeprefix("!")
        sign = "!" if given[1].startswith("!") else ""
        called = f"::__ballot_sync({self._value(given[2], 'uint32_t')}, {sign}{self._register(predicate)})"
        return self._put(given[0], called)

    def _barrier(self, name: str, parts: list[str], given: list[str]) -> str:
        if name == "bar.warp.sync" and len(given) == 1:
            return f"::__syncwarp({self._value(given[0], 'uint32_t')})"
        if not _BARRIER.fullmatch(name) or not 1 <= len(given) <= 2:
            raise Unknown(f"`{name}`")
        count = self._value(given[1], "uint32_t") if len(given) == 2 else _ALL
        return f"FUSIOND_BAR_SYNC({self._value(given[0], 'uint32_t')}, {count})"


def _statements(template: str) -> list[str]:
    """The instructions, declarations and braces of assembly; `%%` is a percent sign of a special register."""
    text = template.replace("%%", "%")
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    found: list[str] = []
    for each in text.split(";"):
        piece = " ".join(each.split())
        while piece[:1] in ("{", "}"):  # a scope; a list of registers never begins a statement
            found.append(piece[0])
            piece = piece[1:].strip()
        if piece:
            found.append(piece)
    return found


def _operands(text: str) -> list[str]:
    """What stands between commas, those inside `{a, b}` and `[a]` left alone."""
    return [each.strip() for each in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,{\[]*", text)]
