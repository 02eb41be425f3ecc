"""Classes of SASS instructions, as NVIDIA's table of arithmetic throughput distinguishes them; and those of PTX that no
compiler removes, a bound from below where there is no SASS."""

import functools
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fusiond.model.ptx.flat import PtxInstruction

CLASSES = (
    "fp32", "fp64", "half", "integer", "sfu", "conversion", "global", "shared", "local", "shuffle", "mma", "barrier",
    "control", "uniform", "other",
)  # fmt: skip
"""`integer` has moves, selections and comparisons as well; `uniform` is what a warp does once, not for each lane."""

_PATTERNS = (
    ("fp32", r"F(ADD|MUL|FMA|FMA32I|SETP|SET|SEL|MNMX|CHK|SWZADD|CMP|32I)\w*"),
    ("fp64", r"D(ADD|MUL|FMA|SETP|SET|MNMX)"),
    ("half", r"H(ADD2|MUL2|FMA2|SETP2|SET2|MNMX2)\w*"),
    ("mma", r"([HIDQO]?(MMA|GMMA)|BMMA|WARPGROUP\w*|MOVM)"),
    ("sfu", r"MUFU"),
    ("conversion", r"(F2F|F2I|I2F|F2FP|I2FP|F2IP|I2I|I2IP|FRND)"),
    ("global", r"(LD|ST|LDG|STG|LDGSTS|ATOM|ATOMG|RED|REDG|CCTL\w*|UBLK\w*|UTMA\w*)"),
    ("shared", r"(LDS|STS|LDSM|STSM|ATOMS|STAS|REDAS)"),
    ("local", r"(LDL|STL)"),
    ("shuffle", r"(SHFL|VOTE|VOTEU|MATCH|REDUX|CREDUX)"),
    ("barrier", r"(BAR|SYNCS|MEMBAR|ERRBAR|DEPBAR|LDGDEPBAR|ARRIVES|FENCE\w*|UCGABAR\w*|ACQBULK)"),
    ("control", r"(BRA|BRX|JMP|JMX|CALL|RET|EXIT|BSSY|BSYNC|BREAK|WARPSYNC|YIELD|NANOSLEEP|KILL|BPT|RPCMOV|BMOV|NOP)"),
    (
        "integer",
        r"(IADD|IADD3|IMAD|IMUL|IABS|IMNMX|VIADD|VIADDMNMX|VIMNMX3?|VABSDIFF4?|LEA|LOP|LOP3|SHF|SHL|SHR|BFE|BFI|BMSK"
        r"|BREV|FLO|POPC|SGXT|PRMT|SEL|MOV|MOV32I|ISETP|ISET|IDP\w*|I\w*SAD|P2R|R2P|CSET|CSETP|SCADD|ISCADD|PLOP3)",
    ),
    ("uniform", r"(U[A-Z0-9]\w*|R2UR|S2UR|CS2UR)"),
)
_CLASS = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS))


@functools.lru_cache(maxsize=4096)
def class_of(opcode: str) -> str:
    """The class of an opcode, which may have its modifiers: `IMAD.WIDE` is `integer`. A multiplication by HFMA2.MMA
    goes through the pipe for half precision, whatever it computes."""
    match = _CLASS.fullmatch(opcode.partition(".")[0])
    return match.lastgroup if match and match.lastgroup in CLASSES else "other"


# --- of PTX ---------------------------------------------------------------------------------------------

_SPECIAL = ("ex2", "lg2", "sin", "cos", "tanh", "rsqrt", "rcp", "sqrt", "div")
_FLOATS = {"f32": "fp32", "f64": "fp64", "f16": "half", "bf16": "half", "f16x2": "half", "bf16x2": "half"}
_LASTING = {
    **dict.fromkeys(("mma", "movmatrix"), "mma"), **dict.fromkeys(("ldmatrix", "stmatrix"), "shared"),
    **dict.fromkeys(("shfl", "vote", "match", "redux"), "shuffle"), "mbarrier": "barrier",
}  # fmt: skip


def lasting_class(opcode: str) -> str | None:
    """None for what may vanish: moves, conversions of addresses, integer arithmetic and branches may, or be merged; so
    may a sum that becomes part of a multiply-add."""
    base, *rest = opcode.split(".")
    if base in ("ld", "ldu", "st", "atom", "red"):
        spaces = {each.partition("::")[0] for each in rest}
        if spaces & {"param", "const"}:
            return None
        return "shared" if "shared" in spaces else "local" if "local" in spaces else "global"
    if base in _LASTING or (base in ("wmma", "wgmma") and {"mma", "mma_async"} & set(rest)):
        return _LASTING.get(base, "mma")
    if base == "cp":
        return None if {"commit_group", "wait_group", "wait_all", "prefetch"} & set(rest) else "global"
    if base in ("bar", "barrier"):
        return None if "warp" in rest else "barrier"
    kind = _FLOATS.get(rest[-1]) if rest else None
    if base in _SPECIAL and kind == "fp32":
        return "sfu"
    return kind if base in ("mul", "fma") or (base in ("add", "sub") and "rn" in rest) else None


def lasting(sources: Sequence[PtxInstruction], counts: NDArray[np.void]) -> dict[str, int]:
    """Instructions of warps by class, of PTX."""
    found: dict[str, int] = {}
    seen: PtxInstruction | None = None
    for source, often in zip(sources, counts["warps"].tolist(), strict=True):
        kind = lasting_class(source.opcode)
        if kind is not None and source is not seen:
            found[kind] = found.get(kind, 0) + often
        seen = source
    return found
