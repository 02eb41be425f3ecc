"""Reads files and runs compilers on behalf of a child."""

from collections.abc import Sequence
from typing import Any

from fusiond.strategy import Inputs, Target


class Files:
    """Reads files for a child, through the inputs of a job."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs

    def __call__(self, name: str, arguments: Sequence[Any]) -> object:
        inputs = self._inputs
        match name, arguments:
            case "text", (path, where):
                return inputs.text(path, where=where)
            case "beside", (path, relative, where):
                return inputs.beside(path, relative, where=where)
            case "resolve", (kind, wanted, where):
                return inputs.resolve(kind, wanted, where=where)
            case "digest", (path, where):
                return inputs.digest(path, where=where)
            case "compiled", (source,):
                return inputs.compiled(source)
            case "triton", (source,):
                return inputs.triton(source)
        raise LookupError(f"{name} is not done here")


class Compiler:
    """Compiles for a child."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __call__(self, name: str, arguments: Sequence[Any]) -> object:
        if name != "facts":
            raise LookupError(f"{name} is not done here")
        return self._target.facts(arguments[0])
