"""A reference that is a Python function of arrays: `softmax.py:softmax`, NumPy or JAX.

Its parameters are called like inputs of the kernel, its scalars or its sizes; it gives one array, a tuple in the order
of the outputs, or a dict by their names. Shapes are its own affair, as long as there are as many elements.
"""

import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fusiond.devices.precision import RUNS, Array, narrowed, rounded
from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.inputs.fills import initial, is_read
from fusiond.model.language.dtypes import DTYPES, is_float
from fusiond.model.language.narrow import readable
from fusiond.model.program import Program


def outputs(program: Program, function: str, numbers: Mapping[str, int | float], seed: int) -> dict[str, Array]:
    """NAME -> an output as its buffer is declared, NAME:float64 -> a float one in double precision, and with other
    endings (`RUNS`) of rounded inputs; of shape (elements,). `numbers`: scalars and sizes, beside the Program's sizes.

    RequestError for all that may be wrong with the function, or that it raises."""
    called = _Function(function)
    wide = any(DTYPES[each.dtype].bytes == 8 for each in program.buffers)
    found = {}
    for suffix, bits in (("", 0), *RUNS.items()):
        called.x64(wide or bits > 0)
        arrays = {each.name: _given(initial(each, seed), each.dtype, bits) for each in program.buffers if is_read(each)}
        results = called.results(program, {**dict(program.sizes), **numbers, **arrays})
        for each in program.buffers:
            if each.name in results and bits == 0:
                found[each.name] = rounded(results[each.name], each.dtype)
            elif each.name in results and is_float(each.dtype):
                found[each.name + suffix] = results[each.name].astype(np.float64)
    return found


def _given(data: Array, dtype: str, bits: int) -> Array:
    values = readable(data, dtype)
    return narrowed(values, bits) if bits and is_float(dtype) else values


class _Function:
    def __init__(self, function: str) -> None:
        file, _, self.name = function.rpartition(":")
        if not file or not self.name.isidentifier():
            raise RequestError("expected a function as FILE.py:NAME", where=function)
        self.file = file
        self._path = str(Path(file).resolve())
        self._called: Callable[..., object] = self._loaded()

    def _loaded(self) -> Callable[..., object]:
        if not Path(self._path).is_file():
            raise RequestError("there is no such file", where=self.file)
        sys.path.insert(0, str(Path(self._path).parent))
        spec = importlib.util.spec_from_file_location("fusiond_reference", self._path)
        if spec is None or spec.loader is None:
            raise RequestError("is not a Python file", where=self.file)
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as problem:
            raise self._raised(problem) from None
        found = getattr(module, self.name, None)
        if not callable(found):
            names = [name for name, each in vars(module).items() if callable(each) and not name.startswith("_")]
            raise UnknownName("function", self.name, names, where=self.file)
        result: Callable[..., object] = found
        return result

    def x64(self, on: bool) -> None:
        """Let JAX have types of 64 bits, or not, where the file imports it."""
        os.environ["JAX_ENABLE_X64"] = str(int(on))  # where the function itself imports it
        if (jax := sys.modules.get("jax")) is not None:
            jax.config.update("jax_enable_x64", on)

    def results(self, program: Program, known: Mapping[str, object]) -> dict[str, Array]:
        """Output -> what one call gives for it."""
        arguments = {}
        for parameter in inspect.signature(self._called).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise RequestError(f"{self.name}() must take its arguments by name: {parameter}", where=self.file)
            if parameter.name in known:
                arguments[parameter.name] = known[parameter.name]
            elif parameter.default is parameter.empty:
                raise UnknownName(f"parameter of {self.name}():", parameter.name, known, where=self.file)
        try:
            result = self._called(**arguments)
            return self._named(program, result)
        except RequestError:
            raise
        except (Exception, SystemExit) as problem:
            raise self._raised(problem) from None

    def _named(self, program: Program, result: Any) -> dict[str, Array]:
        expected = {each.name: int(each.elements) for each in program.buffers if each.role.compared}
        if not isinstance(result, Mapping):
            values = result if isinstance(result, tuple) else (result,)
            if len(values) != len(expected):
                self._wrong(f"gives {len(values)} arrays; the outputs are {', '.join(expected)}")
            result = dict(zip(expected, values, strict=True))
        if set(result) != set(expected):
            self._wrong(f"gives {', '.join(map(str, result))}; the outputs are {', '.join(expected)}")
        found = {name: np.asarray(result[name]).reshape(-1) for name in expected}
        for name, array in found.items():
            if array.dtype == object or array.dtype.kind in "cSUmM":
                self._wrong(f"gives {type(result[name]).__name__} of {array.dtype} for {name}, not numbers")
            if array.size != expected[name]:
                self._wrong(f"gives {array.size} elements for {name}, which has {expected[name]}")
        return found

    def _wrong(self, problem: str) -> None:
        raise RequestError(f"{self.name}() {problem}", where=self.file)

    def _raised(self, problem: BaseException) -> RequestError:
        frames = [each for each in traceback.extract_tb(problem.__traceback__) if each.filename == self._path]
        line = problem.lineno if isinstance(problem, SyntaxError) else frames[-1].lineno if frames else None
        said = problem.msg if isinstance(problem, SyntaxError) else str(problem)
        first = (said.strip().splitlines() or ["no message"])[0]
        return RequestError(f"{type(problem).__name__}: {first}", where=f"{self.file}:{line}" if line else self.file)
