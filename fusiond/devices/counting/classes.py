"""Classes of SASS instructions, as NVIDIA's table of arithmetic throughput distinguishes them."""

from __future__ import annotations

import functools
import re

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
