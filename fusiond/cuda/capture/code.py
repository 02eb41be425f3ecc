"""The PTX of a captured kernel, and the memory that this PTX can reach."""

import functools
from dataclasses import dataclass, field

from fusiond.cuda.capture import origins
from fusiond.cuda.capture.trace import CapturedKernel
from fusiond.model.errors import RequestError
from fusiond.model.ptx import parser, uses
from fusiond.model.ptx.tree import Module, PtxError, instructions
from fusiond.model.ptx.uses import MemoryUse, ParameterUse

NO_PTX = "there is no PTX of it: build with -gencode arch=compute_90,code=compute_90 (nvcc -arch=sm_90 embeds it too)"


@dataclass(frozen=True, slots=True, eq=False)
class KernelCode:
    """Of one kernel."""

    text: str = field(repr=False)
    module: Module = field(repr=False)
    uses: MemoryUse


@functools.lru_cache(maxsize=4096)
def code_of(kernel: CapturedKernel) -> KernelCode | str:
    """Why there is none, in one line, is a text."""
    try:
        text = origins.ptx_of(kernel)
        if text is None:
            return NO_PTX
        module = _parsed(text)
        return KernelCode(text, module, uses.of_memory(module, kernel.name))
    except OSError as problem:
        return f"its module cannot be read: {problem.strerror}"
    except (PtxError, RequestError) as problem:
        return str(problem)


def textures(code: KernelCode, entry: str) -> bool:
    """Whether a kernel reads or writes what is no buffer."""
    body = code.module.function(entry).body
    return body is not None and any(each.base in _TEXTURES for each in instructions(body))


_TEXTURES = {"tex", "tld4", "txq", "suld", "sust", "sured", "suq"}


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Module:
    return parser.parse(text)


_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
_UNSIGNED = {"8": "uint8", "16": "uint16", "32": "uint32", "64": "uint64"}


def dtype(use: ParameterUse) -> str:
    """What to fill with: floats where nothing else is read and written, else whole numbers, which may be places."""
    kinds = {_DTYPES.get(each) or _UNSIGNED.get(each.lstrip("bsu"), "uint32") for each in use.types}
    if len(kinds) == 1:
        return kinds.pop()
    return min((each for each in kinds if each in _UNSIGNED.values()), key=lambda each: int(each[4:]), default="uint32")
