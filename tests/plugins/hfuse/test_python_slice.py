"""What is taken out of a Python file with a kernel: as much as it needs, and nothing that runs besides."""

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.nouns import Job
from fusiond.requests.jobs import JobInputs
from fusiond.requests.registry import Registry
from fusiond_hfuse.frontend.python_slice import PythonSlice, sliced

KERNEL = '''\
"""A file as people write them."""
from __future__ import annotations

import missing_framework as framework
import triton
import triton.language as tl

DEVICE = framework.device("cuda")
x = framework.ones(3)
SCALE: tl.constexpr = tl.constexpr(2.0)
HALF = SCALE


@triton.jit
def doubled(x):
    return x * SCALE


@triton.autotune(configs=framework.configs(), key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % framework.size == 0})
@triton.jit(do_not_specialize=["n"], repr=framework.named)
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(x_ptr + at, doubled(x), mask=at < n)


kernel[(1,)](x, 3)
'''


def of(folder: Path, files: dict[str, str], path: str, function: str) -> PythonSlice:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    job = Job(strategy="hfuse", request={}, sizes={}, path=str(folder / "job.yaml"))
    return sliced(JobInputs(Registry(), job), str(folder / path), function, where="k.yaml:3: entry")


def test_of_a_file_what_the_kernel_names(tmp_path: Path) -> None:
    """Neither the framework, nor what allocates, launches and tunes; each line where it was."""
    found = of(tmp_path, {"01-norm.py": KERNEL}, "01-norm.py", "kernel")
    assert found.module == "_01_norm"
    assert list(found.files) == ["_01_norm.py"]
    text = found.files["_01_norm.py"]
    assert "framework" not in text
    assert "HALF" not in text
    lines = text.splitlines()
    whole = KERNEL.splitlines()
    kept = {number: line for number, line in enumerate(lines) if line}
    changed = {line for number, line in kept.items() if line != whole[number]}
    assert changed == {"@triton.jit(do_not_specialize=['n'])"}
    assert lines[whole.index("def kernel(x_ptr, n, BLOCK: tl.constexpr):")] == whole[21]
    assert found.read == {str(tmp_path / "01-norm.py"): KERNEL}


def test_what_the_kernel_does_not_name_changes_nothing(tmp_path: Path) -> None:
    before = of(tmp_path, {"k.py": KERNEL}, "k.py", "kernel").files
    assert of(tmp_path, {"k.py": KERNEL.replace("ones(3)", "ones(4)")}, "k.py", "kernel").files == before
    assert of(tmp_path, {"k.py": KERNEL.replace("constexpr(2.0)", "constexpr(3.0)")}, "k.py", "kernel").files != before


PACKAGE = {
    "src/ops/__init__.py": "raise RuntimeError('not this')\nfrom .norm import kernel\n",
    "src/ops/norm.py": """\
import helper.inner as inner
from . import tools
from .tools import *
from .shapes import width as wide, unused
from .lang import tl, triton
if wide:
    from .tools import chosen
else:
    chosen = None

def kernel():
    return inner.one() + tools.two() + wide() + starred() + chosen()
""",
    "src/ops/tools.py": "import os\nbad = os.nowhere\ndef two(): return 2\ndef starred(): return 30\n"
    "def chosen(): return 400\n",
    "src/ops/shapes.py": "BASE = 1000\ndef width(): return BASE\ndef unused(): return lost\n",
    "src/ops/lang.py": "raise RuntimeError('nor this')\ntl = triton = None\n",
    "src/helper/inner.py": "one = lambda: _one\n_one = 1\nraise RuntimeError('nor this one')\n",
}


def test_modules_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = of(tmp_path, PACKAGE, "src/ops/norm.py", "kernel")
    assert found.module == "ops.norm"
    assert run(tmp_path / "out", found, "kernel", monkeypatch) == 1433
    assert "unused" not in found.files["ops/shapes.py"]


def run(folder: Path, found: PythonSlice, function: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """What the function gives, of the slices alone."""
    for name, text in found.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    names = {each.removesuffix(".py").split("/")[0] for each in found.files}
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setattr(sys, "dont_write_bytecode", True)
        importlib.invalidate_caches()
        try:
            return getattr(importlib.import_module(found.module), function)()
        finally:
            for each in [name for name in sys.modules if name.partition(".")[0] in names]:
                del sys.modules[each]


@st.composite
def modules(draw: st.DrawFn) -> str:
    """Statements that bind `n0`, `n1`, ..., each out of what stands before it."""
    lines: list[str] = []
    for number in range(draw(st.integers(1, 12))):
        before = [f"n{each}" for each in range(number)]
        name = draw(st.sampled_from(before)) if before else ""
        called = f"({name}() if callable({name}) else {name})" if name else "1"
        form = draw(
            st.sampled_from(["constant", "function", "closure", "default", "lambda", "if", "try", "for", "class"])
        )
        local = draw(st.sampled_from([*before, "x"]))
        lines += {
            "constant": [f"n{number} = {called} + {number}"],
            "function": [f"def n{number}():", f"    {local}_ = {called}", f"    return {local}_ + 1"],
            "closure": [
                f"def n{number}():", f"    def of(x={number}):", f"        return {called} + x", "    return of()",
            ],
            "default": [f"def n{number}(x={called}):", "    return x + 2"],
            "lambda": [f"n{number} = lambda: {called} * 2"],
            "if": [f"if {called} > 3:", f"    n{number} = 5", "else:", f"    n{number} = {called}"],
            "try": ["try:", f"    n{number} = {called} // 0", "except ZeroDivisionError:", f"    n{number} = {called}"],
            "for": [f"for n{number} in range({number + 1}):", f"    n{number} += {called}"],
            "class": [f"class C{number}:", f"    value = {called}", f"n{number} = C{number}.value"],
        }[form]  # fmt: skip
    return "\n".join([*lines, "def asked():", f"    return n{number}() if callable(n{number}) else n{number}", ""])


@given(modules())
def test_a_slice_computes_what_the_file_does(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("slice")
    whole: dict[str, object] = {}
    exec(text, whole)
    found = of(folder, {"m.py": text}, "m.py", "asked")
    with pytest.MonkeyPatch.context() as patch:
        assert run(folder / "out", found, "asked", patch) == whole["asked"]()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def kernel(:\n", r"/k\.py:1: not Python: "),
        ("x = 1\n\ndef kernel(a, b):\n  return (\n", r"/k\.py:4: not Python: "),
        ("kernel\0", "not Python"),
    ],
)
def test_what_is_not_python(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        of(tmp_path, {"k.py": text}, "k.py", "kernel")


def test_another_name_is_meant(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"k\.yaml:3: entry: .*'kernl'.*kernel"):
        of(tmp_path, {"k.py": KERNEL}, "k.py", "kernl")
