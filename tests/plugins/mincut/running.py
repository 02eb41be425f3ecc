"""Runs Programs of the emitter on the cpu device's runtime, in this process; shared by the tests of the kernels."""

import dataclasses
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.build import gxx
from fusiond.build.cpu import commands
from fusiond.build.cpu.lowering import lower
from fusiond.devices.cpu import native
from fusiond.model.inputs import documents
from fusiond.model.inputs.fills import initial
from fusiond.model.nouns import Rejection
from fusiond.model.program import Launch, Pointer, Program, Source
from fusiond_mincut.analysis import blocks
from fusiond_mincut.analysis.blocks import Partition
from fusiond_mincut.codegen import emit, stages
from fusiond_mincut.frontend import parser
from fusiond_mincut.frontend.graph import Border, Pipeline
from fusiond_mincut.plugin import PIPELINES

from . import oracle

Arrays = dict[str, NDArray[Any]]
APPLICATIONS = ("sobel", "harris", "shitomasi", "unsharp", "enhance", "night")


def application(name: str, width: int, height: int) -> Pipeline:
    """A pipeline of the catalogue at a size."""
    text = (PIPELINES / f"{name}.yaml").read_text()
    return parser.read(documents.parse(text, f"{name}.yaml"), {"width": width, "height": height})


def pipeline(text: str, width: int = 13, height: int = 9) -> Pipeline:
    return parser.read(documents.parse(text, "test.yaml"), {"width": width, "height": height})


def resized(given: Pipeline, width: int, height: int) -> Pipeline:
    return dataclasses.replace(given, width=width, height=height)


def whole(given: Pipeline) -> Partition:
    """All kernels in one block."""
    return blocks.partition(given, [[each.name for each in given.kernels]])


class Runner:
    """Builds sources with g++ (each once; quickly rather than well: `optimise`) and runs Programs."""

    def __init__(self, folder: Path, library: Path, *, optimise: str = "-O0") -> None:
        self.folder, self.optimise = folder, optimise
        subprocess.run([*commands.header(folder), optimise], check=True, capture_output=True)
        self.runtime = native.Runtime(library)
        self.modules: dict[str, native.NativeModule] = {}

    def module(self, source: Source) -> native.NativeModule:
        if source.text not in self.modules:
            exports = {gxx.exported(source, entry): entry for entry in source.entries}
            path = self.folder / f"{source.name}{len(self.modules)}.cpp"
            path.write_text(commands.translation_unit(lower(source.text), exports))
            out = path.with_suffix(".so")
            command = commands.kernel(path, out, flags=[self.optimise], precompiled=self.folder)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr + source.text
            self.modules[source.text] = self.runtime.load(out)
        return self.modules[source.text]

    def run(
        self,
        program: Program,
        inputs: Mapping[str, NDArray[Any]] | None = None,
        *,
        seed: int = 1,
        order: int = 0,
        checked: bool = True,
    ) -> Arrays | native.Fault:
        """All buffers after one run, or the first fault. `order` is the scheduler's seed, 0 for in order."""
        guarded = {buffer.name: _guarded(initial(buffer, seed)) for buffer in program.buffers}
        arrays = {buffer.name: _inside(guarded[buffer.name], buffer.dtype) for buffer in program.buffers}
        for name, array in (inputs or {}).items():
            arrays[name][:] = array.reshape(-1)
        for step in program.steps:
            assert isinstance(step, Launch)
            source = program.source(step.source)
            entry = self.module(source).entry(gxx.exported(source, step.entry))
            launch = native.NativeLaunch(
                grid=step.grid, block=step.block, shared_bytes=step.shared_bytes, seed=order, checked=checked
            )
            arguments = [
                arrays[each.buffer] if isinstance(each, Pointer) else np.int32(each.value) for each in step.arguments
            ]
            done = self.runtime.launch(entry, launch, arguments)
            if isinstance(done, native.Fault):
                return done
            for name, memory in guarded.items():
                if (memory[:_GUARD] != _MARK).any() or (memory[-_GUARD:] != _MARK).any():
                    kind = native.FaultKind.ILLEGAL_ADDRESS
                    return native.Fault(
                        kind=kind, text=f"{step.name} wrote beside {name}", block=(0, 0, 0), thread=None
                    )
        return arrays


_GUARD = 1 << 16  # bytes round every buffer, as the cpu device has them
_MARK = 0xA5


def _guarded(array: NDArray[Any]) -> NDArray[np.uint8]:
    memory = np.full(array.nbytes + 2 * _GUARD, _MARK, np.uint8)
    memory[_GUARD:-_GUARD] = array.view(np.uint8).reshape(-1)
    return memory


def _inside(memory: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    return memory[_GUARD:-_GUARD].view(dtype)


def images(given: Pipeline, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Flat buffers as images of shape (height, width, channels)."""
    found = {}
    for name, image in given.images.items():
        if name in arrays:
            width, height = given.sides(name)
            found[name] = arrays[name].reshape(height, width, image.channels)
    return found


def wanted(given: Pipeline, *, seed: int = 1) -> dict[str, NDArray[Any]]:
    """What the oracle makes of the inputs' fills."""
    return wanted_of(given, {each.name: _filled(given, each.name, seed) for each in given.inputs})


def wanted_of(given: Pipeline, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return oracle.run(given, images(given, inputs))


def _filled(given: Pipeline, name: str, seed: int) -> NDArray[Any]:
    buffers = emit.program(given, blocks.unfused(given))
    assert isinstance(buffers, Program)
    return initial(buffers.buffer(name), seed)


def emitted(given: Pipeline, partition: Partition, params: emit.BlockParams = emit.DEFAULT) -> Program:
    """The program with one choice for all blocks."""
    found = emit.program(given, partition, {str(each): params for each in partition.blocks})
    assert not isinstance(found, Rejection), found
    return found


def edited(program: Program, change: Callable[[str], str]) -> Program:
    """The program with every source's text changed; at least one must change."""
    sources = tuple(dataclasses.replace(each, text=change(each.text)) for each in program.sources)
    assert sources != program.sources, "nothing was changed"
    return dataclasses.replace(program, sources=sources)


def compare(given: Pipeline, got: Arrays | native.Fault, expected: Mapping[str, NDArray[Any]], what: str = "") -> None:
    """Every stored image: integers bit for bit, floats nearly (a GPU's and NumPy's functions differ in the last bits).

    Outputs and what blocks leave to each other are compared alike.
    """
    assert isinstance(got, dict), f"{what}: {got}"
    for name, image in images(given, got).items():
        if image.dtype == np.float16:
            np.testing.assert_allclose(image, expected[name], rtol=2e-3, atol=1e-5, err_msg=f"{name} {what}")
        elif image.dtype == np.float32:
            np.testing.assert_allclose(image, expected[name], rtol=2e-5, atol=1e-6, err_msg=f"{name} {what}")
        else:
            np.testing.assert_array_equal(image, expected[name], err_msg=f"{name} {what}")


def batched(programs: Sequence[Program]) -> list[Program]:
    """The same programs over one common source, each text in a namespace of its own: one run of g++ instead of many."""
    places: dict[str, int] = {}
    for program in programs:
        for source in program.sources:
            places.setdefault(source.text, len(places))
    parts = [
        *_ALL_TYPES,
        *(f"namespace n{n} {{\n{_TYPES.sub('', text).replace(_C, '')}}}\n" for text, n in places.items()),
    ]
    entries = [
        f"n{places[source.text]}::{entry}"
        for source in {each.text: each for program in programs for each in program.sources}.values()
        for entry in source.entries
    ]
    common = Source(name="batch", text="\n".join(parts), entries=tuple(entries))
    found = []
    for program in programs:
        steps = []
        for step in program.steps:
            assert isinstance(step, Launch)
            number = places[program.source(step.source).text]
            steps.append(dataclasses.replace(step, source="batch", entry=f"n{number}::{step.entry}"))
        found.append(dataclasses.replace(program, sources=(common,), steps=tuple(steps)))
    return found


_C = 'extern "C" '
_TYPES = re.compile(r"(?:#include <cuda_fp16.h>\n)?typedef unsigned char.*?a NaN would not be 0\n", re.DOTALL)
_EVERY_DTYPE = """\
pipeline: every
image: {width: 8, height: 8, dtype: uint16}
inputs: [a, {name: b, dtype: int16}, {name: c, dtype: float16}]
outputs: [k]
kernels:
  k: {pattern: point, reads: [a, b, c], body: "a + b + int(c)"}
"""
_ALL_TYPES = stages.types(parser.read(documents.parse(_EVERY_DTYPE, "every.yaml")), ["k"])


# --- many cases at once ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A pipeline, how it is cut, and one choice for all blocks."""

    pipeline: Pipeline
    partition: Partition
    params: emit.BlockParams

    def __str__(self) -> str:
        borders = {each.mode for kernel in self.pipeline.kernels for each in kernel.borders.values()}
        return f"{self.pipeline.name} {self.partition} {self.params} {sorted(borders)}"


def check(runner: Runner, cases: Sequence[Case], sizes: Sequence[tuple[int, int]], *, order: int = 5) -> None:
    """Every case at every size is what the oracle says, bit for bit where the images are integers.

    A text does not depend on the size of the image, so each is built once.
    """
    sized = [[resized(case.pipeline, *size) for size in sizes] for case in cases]
    programs = [
        emitted(given, case.partition, case.params)
        for case, all_sizes in zip(cases, sized, strict=True)
        for given in all_sizes
    ]
    together = iter(batched(programs))
    known: dict[tuple[int, int, int], dict[str, NDArray[Any]]] = {}
    for case, all_sizes in zip(cases, sized, strict=True):
        for given in all_sizes:
            key = (id(case.pipeline), given.width, given.height)
            if key not in known:
                known[key] = wanted(given)
            compare(
                given, runner.run(next(together), order=order), known[key], f"{given.width} x {given.height} {case}"
            )


def rebordered(given: Pipeline, mode: str) -> Pipeline:
    """The same pipeline with one border everywhere (the constant is 3)."""
    border = Border(mode=mode, value=3 if mode == "constant" else 0)
    kernels = tuple(
        dataclasses.replace(each, borders={name: border for name in each.reads if each.windowed(name)})
        for each in given.kernels
    )
    return dataclasses.replace(given, kernels=kernels)
