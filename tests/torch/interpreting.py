"""In the place of a GPU: launches of PTX, interpreted on memory of the host."""

import ctypes
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fusiond.cuda.recording import machines
from fusiond.devices.cpu import interpreted
from fusiond.devices.cpu.interpreted import InterpretedEntry, InterpretedModule
from fusiond.devices.cpu.native import Finished, NativeLaunch
from fusiond.model.program import Program, Source, SourceLanguage
from fusiond.service.frameworks.launching import LaunchPlan, Step

STREAM = 7
launched: list[str] = []  #: The entries of all launches
_memory: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
"""What kernels may touch, as long as it lives: (address, bytes)."""
_modules: dict[str, InterpretedModule] = {}
_one_at_a_time = threading.Lock()


def allow(owner: Any, address: int, size_bytes: int) -> None:
    with _one_at_a_time:
        _memory[owner] = address, size_bytes


def loaded(text: str, entry: str) -> InterpretedEntry:
    module = _modules.get(text)
    if module is None:
        source = Source(name=entry, text=text, entries=(entry,), language=SourceLanguage.PTX)
        path = interpreted.build(source)
        assert isinstance(path, Path), path
        module = _modules[text] = InterpretedModule(path)
    return module.entry(entry)


def run(text: str, entry: str, launch: NativeLaunch, values: Sequence[bytes]) -> None:
    """A launch of PTX, to its end."""
    with _one_at_a_time:
        buffers = {}
        for number, (address, size) in enumerate(list(_memory.values())):
            raw = (ctypes.c_uint8 * max(size, 1)).from_address(address)
            buffers[f"memory{number}"] = np.frombuffer(raw, np.uint8)
        launched.append(entry)
        done = loaded(text, entry).launch(launch, list(values), buffers)
    assert isinstance(done, Finished), done


class InterpretingMachine:
    """Below an answer."""

    def __init__(self, program: Program, plan: LaunchPlan) -> None:
        self._texts = [program.source(each).text for each in plan.images]
        self._entries = plan.entries

    def start(self, step: Step, values: Sequence[bytes], stream: int) -> None:
        assert stream == STREAM
        shape = NativeLaunch(grid=step.grid, block=step.block, shared_bytes=step.shared_bytes)
        run(self._texts[step.image], self._entries[step.entry], shape, values)

    def start_at(self, step: Step, pointers: Any, stream: int) -> None:
        entry = loaded(self._texts[step.image], self._entries[step.entry])
        values = [ctypes.string_at(each, size) for each, size in zip(pointers, entry.argument_bytes, strict=True)]
        self.start(step, values, stream)

    def fill(self, address: int, size_bytes: int, byte: int, stream: int) -> None:
        ctypes.memset(address, byte, size_bytes)


def instead_of_a_driver(patch: pytest.MonkeyPatch) -> None:
    def built(program: Program, plan: LaunchPlan, device: int, arch: str | None) -> Any:
        return SimpleNamespace(plan=plan, machine=lambda: InterpretingMachine(program, plan))

    patch.setattr(machines, "built", built)
    patch.setattr(machines, "context", lambda device: 0)
    patch.setattr(machines, "capturing", lambda stream, device: False)
