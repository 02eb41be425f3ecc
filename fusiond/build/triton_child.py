"""Compiles one Triton kernel in a process of its own, because it runs the file's Python.

    python -m fusiond.build.triton_child ASKED.json FOLDER ANSWERED.json

No GPU and no driver is there: something stands in for Triton's driver that knows the architecture and nothing else,
and `kernel.warmup` does the rest, so that arguments are specialised as a launch would specialise them. ptxas is left
out; fusiond runs its own.
"""

import functools
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PTX_VERSION = 87
"""Of what is written, up to sm_100: the toolkit of CUDA 12.9 and later assembles it. Left alone, Triton writes what its
own ptxas takes at most."""


class PointedTo:
    """An address that is a multiple of 16, in the place of a tensor."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def data_ptr(self) -> int:
        return 0


def main(asked: str, folder: str, answered: str) -> None:
    """Write `[{entry, text, ...} | {problem}, ...]`, or `{problem}` where there is no such kernel."""
    given = json.loads(Path(asked).read_text())
    cache = os.path.join(folder, "cache")
    for name in ("TRITON_INTERPRET", "TRITON_ALWAYS_COMPILE", "TRITON_KERNEL_OVERRIDE", "TRITON_KERNEL_DUMP"):
        os.environ.pop(name, None)
    # What is written must not name a folder of this run.
    os.environ.update(TRITON_CACHE_DIR=cache, TRITON_DISABLE_LINE_INFO="1")
    root = os.path.join(folder, "modules")
    for name, text in given["files"].items():
        path = Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sys.path.insert(0, root)
    Path(answered).write_text(json.dumps(_compiled(given)))


def _compiled(given: dict[str, Any]) -> Any:
    capability = int("".join(filter(str.isdigit, given["arch"])))
    _stand_in(capability)
    try:
        kernel = getattr(importlib.import_module(given["module"]), given["entry"])
    except ModuleNotFoundError as problem:
        return {"problem": f"{_place(problem)}it needs the module {problem.name}, which is not installed here"}
    except Exception as problem:
        return {"problem": f"{_place(problem)}{type(problem).__name__}: {_line(problem)}"}
    import triton

    if not isinstance(kernel, triton.JITFunction):
        return {"problem": f"{given['entry']} is no function with @triton.jit"}
    options = {"ptx_version": PTX_VERSION} if capability <= 100 else {}
    return [_of(kernel, config, options) for config in given["configs"]]


def _stand_in(capability: int) -> None:
    """In the place of a driver."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime.driver import driver

    def zero(device: int = 0) -> int:
        return 0

    target = functools.partial(GPUTarget, "cuda", capability, 32)
    driver.set_active(SimpleNamespace(get_current_target=target, get_current_device=zero, get_current_stream=zero))
    CUDABackend.make_cubin = lambda *_: b"none"


def _of(kernel: Any, config: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """One way to compile it."""
    arguments = config["arguments"]
    constants = {name: _constant(value) for name, value in config["constants"]}
    options = {**options, "num_warps": config["warps"]}
    if config["stages"] is not None:
        options["num_stages"] = config["stages"]
    given = {**constants, **options}  # a kernel may have a parameter of the name, too
    open_ = [each for each in kernel.params if each.name not in given]
    names = [each.name for each in open_ if not (each.is_constexpr and each.has_default)]
    unknown = sorted(constants.keys() - set(kernel.arg_names))
    missing = [each.name for each in open_ if each.is_constexpr and not each.has_default]
    if unknown or missing:
        said = f"has no parameter {unknown[0]}" if unknown else f"needs {missing[0]} (tl.constexpr)"
        return {"problem": f"{kernel.__name__} {said}; its parameters are {', '.join(kernel.arg_names)}"}
    if len(names) != len(arguments):
        said = f"{len(arguments)} arguments for {len(names)} parameters ({', '.join(names) or 'none'})"
        return {"problem": f"{said}; what has no argument is a constant"}
    return _warmed_up(kernel, names, arguments, given)


def _warmed_up(kernel: Any, names: list[str], arguments: list[Any], given: dict[str, Any]) -> dict[str, Any]:
    from fusiond.model.ptx import triton as described

    values = {
        name: PointedTo(kind.removeprefix("*")) if kind.startswith("*") else value
        for name, (kind, value) in zip(names, arguments, strict=True)
    }
    try:
        found = described.of(kernel.warmup(grid=(1,), **values, **given))
    except described.NotTaken as why:
        return {"problem": str(why)}
    except Exception as problem:
        return {"problem": _said(problem)}
    return {
        "entry": found.entry, "text": found.text, "threads": found.threads, "shared_bytes": found.shared_bytes,
        "scratch_bytes": found.scratch_bytes,
        "parameters": [[names.index(each.name), each.name, each.type] for each in found.parameters],
    }  # fmt: skip


def _constant(value: Any) -> Any:
    """`tl.float16` as that type."""
    import triton.language as tl

    if isinstance(value, str) and value.startswith("tl."):
        return getattr(tl, value.removeprefix("tl."), value)
    return value


def _said(problem: BaseException) -> str:
    """An error of Triton's in one line: of one inside a helper, and of that alone."""
    while problem.__cause__ is not None and type(problem.__cause__).__module__.startswith("triton"):
        problem = problem.__cause__
    text, source = getattr(problem, "error_message", None), getattr(problem, "src", None)
    if not text:
        return f"{type(problem).__name__}: {_line(problem)}"
    line = getattr(getattr(problem, "node", None), "lineno", 0)
    at = f" at `{source.splitlines()[line - 1].strip()[:80]}`" if source and line else ""
    return f"{' '.join(str(text).split())[:300]}{at}"


def _place(problem: BaseException) -> str:
    """`norm.py:12: `, of the last line in a file of the kernel's."""
    root = sys.path[0] + os.sep
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        if frame.filename.startswith(root):
            return f"{frame.filename.removeprefix(root)}:{frame.lineno}: "
    return ""


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).replace(sys.path[0] + os.sep, "").split())[:300]


if __name__ == "__main__":
    main(*sys.argv[1:])
