"""The fake device with a real compiler before it: what a source says is told by a shared object that g++ has built,
so that the build cache and the working folders of compilers are in use, and a binary that is not whole shows."""

import ctypes
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from fusiond.build import gxx
from fusiond.devices.base import Binary, Executor
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, Source, SourceKind
from fusiond.strategy.hookspecs import hookimpl
from tests.fakes import FakeExecutor, FakeLoaded, FakeProvider, ToyStrategy

UNIT = 'extern "C" const char directives[] = R"({text})";\n'


class BuiltProvider(FakeProvider):
    def build(self, source: Source, arch: str) -> Binary | BuildFailed:
        text = UNIT.format(text=source.text)
        built = gxx.build(dataclasses.replace(source, text=text, kind=SourceKind.HOST))
        return built if isinstance(built, BuildFailed) else Binary(source=source.name, path=built)

    def executor(self, name: str) -> Executor:
        return BuiltExecutor()


class BuiltExecutor(FakeExecutor):
    def load(self, program: Program, binaries: Mapping[str, Path]) -> FakeLoaded:
        return FakeLoaded(program, {name: _directives(path) for name, path in binaries.items()})


def _directives(path: Path) -> str:
    return ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(str(path)), "directives"))).decode()


class BuiltPlugin:
    @hookimpl
    def register_strategies(self, register: Callable[[ToyStrategy], None]) -> None:
        register(ToyStrategy())

    @hookimpl
    def register_devices(self, register: Callable[[BuiltProvider], None]) -> None:
        register(BuiltProvider())
