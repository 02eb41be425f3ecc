"""What Halide makes of the same pipelines, counted as ours are: no GPU is needed for either.

Halide (`pip install halide`) compiles a pipeline to an object with the PTX of its kernels and the host code that
launches them. The object is linked with a runtime that launches nothing (halide_runtime.cpp) and writes down what it is
asked for: allocations, grids, arguments. That is a Program whose source is PTX, and `fusiond.counting` runs it.

The algorithms are those of the pipelines, kernel by kernel, in the types of their bodies. Only the input is clamped at
its edges, as Halide's users write it; intermediate images have no borders of their own, so pixels of a frame differ.
Schedules are those of its two autoschedulers for GPUs, and one by hand (`tiles`): outputs in tiles of 32 x 8 threads,
local stages computed for each tile in shared memory, point stages where they are used.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.mincut import counted
from benchmarks.mincut.images import Images, Names
from fusiond.counting.model import H100
from fusiond.counting.run import Counted, count
from fusiond.program import Buffer, Launch, Pointer, Program, Role, Scalar, Source, SourceLanguage
from fusiond_mincut.analysis import blocks
from fusiond_mincut.frontend.expr import PixelAccess
from fusiond_mincut.frontend.graph import Border, ImageKernel, Pipeline

TILES = "tiles"
SCHEDULES = ("Li2018", "Anderson2021", TILES)
TARGET = "x86-64-linux-cuda-cuda_capability_80-no_runtime"
TOLERANCE = 1e-4
"""Relative, of floats: powers and exponentials are Halide's own."""
_RUNTIME = Path(__file__).with_name("halide_runtime.cpp")
_TYPES = {"uint8": ("UInt", 8), "int16": ("Int", 16), "uint16": ("UInt", 16), "int32": ("Int", 32),
          "float32": ("Float", 32), "float64": ("Float", 64)}  # fmt: skip


class Unable(Exception):
    """Halide does not take this pipeline, or the counter not what it makes of it; the text is why."""


def run(pipelines: Mapping[str, Pipeline], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each application and schedule: counts of a pixel, and the share of the pixels inside that are those of
    the unfused pipeline. ImportError without Halide."""
    rows = []
    for name, given in pipelines.items():
        sized = dataclasses.replace(given, width=counted.SIDE, height=counted.SIDE)
        unfused = counted.made(sized, blocks.unfused(sized), counted.TILES[0])
        output = sized.images[sized.outputs[0]]
        wanted = np.asarray(count(unfused).outputs[output.name])
        for schedule in SCHEDULES:
            row: dict[str, Any] = {"application": name, "schedule": schedule}
            try:
                found = compiled(sized, schedule)
                row |= {"launches": len(found.rows), **counted.per_pixel(found, counted.SIDE**2)}
                row["equal"] = round(equal(sized, np.asarray(found.outputs[output.name]), wanted), 6)
            except Unable as problem:
                row["problem"] = str(problem)
            rows.append(row)
            say(f"{name}, {schedule}: {row}")
    return rows


def compiled(pipeline: Pipeline, schedule: str) -> Counted:
    """The counts of what Halide launches for a pipeline. ImportError without Halide; Unable."""
    with TemporaryDirectory(prefix="halide") as folder:
        program = _program(pipeline, schedule, Path(folder))
    found = count(program, label=f"Halide, {schedule}", gpu=H100)
    failed = next((f"{row.launch}: {row.failed}" for row in found.rows if row.failed), None)
    if failed is not None:
        raise Unable(failed)
    return found


def equal(pipeline: Pipeline, found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """The share of the pixels inside the frame that are equal; of floats, nearly."""
    frame = sum(max(each.mask) // 2 for each in pipeline.kernels)
    shape = (pipeline.height, pipeline.width, -1)
    inside = slice(frame, pipeline.height - frame), slice(frame, pipeline.width - frame)
    one, other = found.reshape(shape)[inside], wanted.reshape(shape)[inside]
    if one.dtype.kind == "f":
        return float(np.isclose(one, other, rtol=TOLERANCE).mean())
    return float((one == other).mean())


# --- the algorithm --------------------------------------------------------------------------------------


class HalideNames(Names):
    """Halide as an array module (see `images`): an image is a function of x, y and, where it has several, the
    channel."""

    def __init__(self, hl: Any) -> None:
        super().__init__(hl)
        self.x, self.y, self.c = hl.Var("x"), hl.Var("y"), hl.Var("c")

    def constant(self, value: float, dtype: str) -> Any:
        return self.converted(self.module.Expr(value), dtype)

    def converted(self, array: Any, dtype: str) -> Any:
        kind, bits = _TYPES[dtype]
        return self.module.cast(getattr(self.module, kind)(bits), array)

    def dtype(self, array: Any) -> str:
        of = array.type()
        code = "Float" if of.is_float() else "UInt" if of.is_uint() else "Int"
        return next((name for name, each in _TYPES.items() if each == (code, of.bits())), "bool")

    def stacked(self, planes: list[Any]) -> Any:
        func = self.module.Func()
        chosen = planes[-1]
        for number, plane in reversed(list(enumerate(planes[:-1]))):
            chosen = self.module.select(self.c == number, plane, chosen)
        func[(self.x, self.y) if len(planes) == 1 else (self.x, self.y, self.c)] = chosen
        return _Image(func, len(planes))

    def shifted(self, plane: Any, dx: int, dy: int, border: Border) -> Any:
        raise NotImplementedError  # `_Stages` reads a function at an offset

    def function(self, name: str, arguments: list[Any]) -> Any:
        hl = self.module
        match name:
            case "add":
                return arguments[0] + arguments[1]
            case "subtract":
                return arguments[0] - arguments[1]
            case "multiply":
                return arguments[0] * arguments[1]
            case "divide":
                return arguments[0] / arguments[1]
            case "bitwise_and":
                return arguments[0] & arguments[1]
        renamed = {"where": "select", "fmin": "min", "fmax": "max", "power": "pow"}
        return getattr(hl, renamed.get(name, name))(*arguments)


@dataclasses.dataclass(frozen=True, slots=True)
class _Image:
    """What a kernel makes, or the input."""

    func: Any
    channels: int


class _Stages(Images):
    """A pipeline in Halide; conversions and divisions are its own."""

    def __init__(self, pipeline: Pipeline, names: HalideNames) -> None:
        super().__init__(pipeline, names)
        self.halide = names
        self.made: dict[str, Any] = {}
        """Kernel -> function."""

    def __call__(self, given: Mapping[str, Any]) -> dict[str, Any]:
        images = dict(given)
        for kernel in self.pipeline.kernels:
            if kernel.boundary or kernel.steps or kernel.fetched:
                raise Unable(f"{kernel.name} is not a plain stencil")
            planes = [
                self._converted(self._value(kernel.body(channel), kernel, images, {}), kernel.dtype)
                for channel in range(kernel.channels)
            ]
            images[kernel.name] = self.halide.stacked(planes)
            self.made[kernel.name] = images[kernel.name].func
        return {name: images[name] for name in self.pipeline.outputs}

    def _pixels(self, access: PixelAccess, kernel: ImageKernel, images: Mapping[str, Any]) -> Any:
        names, image = self.halide, images[access.image]
        at = (names.x + access.dx if access.dx else names.x, names.y + access.dy if access.dy else names.y)
        return names.module.Expr(image.func[at if image.channels == 1 else (*at, access.channel)])

    def _converted(self, found: Any, dtype: str) -> Any:
        return found if self.names.dtype(found) == dtype else self.names.converted(found, dtype)

    def _joined(self, op: str, left: Any, right: Any) -> Any:
        hl = self.halide.module
        if op in ("/", "%") and self.names.dtype(left) == "int32":
            return (hl.div_round_to_zero if op == "/" else hl.mod_round_to_zero)(left, right)
        return super()._joined(op, left, right)


# --- compiled and launched ------------------------------------------------------------------------------


def _compile(pipeline: Pipeline, schedule: str, folder: Path) -> Path:
    """Compiles to folder/made.o and .h; the folder of Halide's headers."""
    import halide as hl  # type: ignore[import-not-found, unused-ignore] # an extra

    if len(pipeline.inputs) != 1 or len(pipeline.outputs) != 1:
        raise Unable("expected one input and one output")
    (image,), names = pipeline.inputs, HalideNames(hl)
    kind, bits = _TYPES[image.dtype]
    given = hl.ImageParam(getattr(hl, kind)(bits), 2 if image.channels == 1 else 3, image.name)
    clamped = _Image(hl.BoundaryConditions.repeat_edge(given), image.channels)
    stages = _Stages(pipeline, names)
    output = stages({image.name: clamped})[pipeline.outputs[0]]
    for each, channels in ((given, image.channels), (output.func.output_buffer(), output.channels)):
        if channels > 1:  # interleaved
            each.dim(0).set_stride(channels)
            each.dim(2).set_stride(1)
            each.dim(2).set_bounds(0, channels)
    sides = [hl.Range(0, pipeline.width), hl.Range(0, pipeline.height)]
    given.set_estimates([*sides, *([hl.Range(0, image.channels)] if image.channels > 1 else [])])
    output.func.set_estimates([*sides, *([hl.Range(0, output.channels)] if output.channels > 1 else [])])
    target, whole = hl.Target(TARGET), hl.Pipeline(output.func)
    if schedule == TILES:
        _in_tiles(pipeline, stages, output, names)
    else:
        libraries = next(Path(hl.__file__).parent.glob("lib*"))
        hl.load_plugin(str(libraries / f"libautoschedule_{schedule.lower()}.so"))
        whole.apply_autoscheduler(target, hl.AutoschedulerParams(schedule, {}))
    files = {hl.OutputFileType.object: str(folder / "made.o"), hl.OutputFileType.c_header: str(folder / "made.h")}
    whole.compile_to(files, [given], "made", target)
    return Path(hl.__file__).parent / "include"


def _in_tiles(pipeline: Pipeline, stages: _Stages, output: _Image, names: HalideNames) -> None:
    hl = names.module
    xi, yi = hl.Var("xi"), hl.Var("yi")
    if output.channels > 1:
        output.func.reorder(names.c, names.x, names.y).bound(names.c, 0, output.channels).unroll(names.c)
    output.func.gpu_tile(names.x, names.y, xi, yi, 32, 8)
    for kernel in pipeline.kernels:
        func = stages.made[kernel.name]
        if kernel.pattern == "local" and func is not output.func:
            if kernel.channels > 1:
                func.reorder(names.c, names.x, names.y).bound(names.c, 0, kernel.channels).unroll(names.c)
            func.compute_at(output.func, names.x).gpu_threads(names.x, names.y)


def _program(pipeline: Pipeline, schedule: str, folder: Path) -> Program:
    include = _compile(pipeline, schedule, folder)
    defines = [f"-DWIDTH={pipeline.width}", f"-DHEIGHT={pipeline.height}"]
    for side, each in (("IN", pipeline.inputs[0]), ("OUT", pipeline.images[pipeline.outputs[0]])):
        kind, bits = _TYPES[each.dtype]
        defines += [f"-D{side}_CODE=halide_type_{kind.lower()}", f"-D{side}_BITS={bits}",
                    f"-D{side}_CHANNELS={each.channels}"]  # fmt: skip
    wanted = subprocess.run(["nm", "-u", "made.o"], cwd=folder, capture_output=True, text=True, check=True).stdout
    errors = (name for name in wanted.split() if name.startswith("halide_error_"))
    (folder / "errors.cpp").write_text("\n".join(f'extern "C" int {name}() {{ return -1; }}' for name in errors))
    build = ["g++", "-std=c++17", "-O1", f"-I{include}", "-I.", *defines, str(_RUNTIME.resolve())]
    build += ["errors.cpp", "made.o", "-o", "run", "-lm"]
    for command in (build, ["./run"]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unable((done.stderr.strip().splitlines() or [f"it ends with {done.returncode}"])[-1])
    return _launched(pipeline, folder)


def _launched(pipeline: Pipeline, folder: Path) -> Program:
    """The Program that the runtime wrote down."""
    (image,), output = pipeline.inputs, pipeline.images[pipeline.outputs[0]]
    buffers: list[Buffer] = []
    names: dict[str, str] = {}
    steps: list[Launch] = []
    for line in (folder / "log.txt").read_text().splitlines():
        what, *said = line.split()
        if what == "buffer":
            number, size, role = said
            given = {"in": image, "out": output}.get(role)
            names[number] = f"scratch{number}" if given is None else given.name
            if given is None:
                buffers.append(Buffer(name=names[number], dtype="uint8", elements=int(size), role=Role.SCRATCH))
            else:
                elements = given.elements(pipeline.width, pipeline.height)
                kind = Role.INPUT if role == "in" else Role.OUTPUT
                fill = given.fill
                buffers.append(Buffer(name=given.name, dtype=given.dtype, elements=elements, role=kind, fill=fill))
            continue
        entry, *numbers = said[:8]
        a, b, c, d, e, f, shared = map(int, numbers)
        arguments = [Pointer(buffer=names[each[1:]]) if each[0] == "b" else _scalar(each[1:]) for each in said[8:]]
        steps.append(
            Launch(
                name=f"{len(steps)}.{entry}", source="halide", entry=entry, grid=(a, b, c), block=(d, e, f),
                shared_bytes=shared, arguments=tuple(arguments),
            )
        )  # fmt: skip
    entries = tuple(dict.fromkeys(each.entry for each in steps))
    text = (folder / "kernels.ptx").read_text()
    source = Source(name="halide", text=text, entries=entries, language=SourceLanguage.PTX)
    return Program(name=f"{pipeline.name}, Halide", buffers=tuple(buffers), sources=(source,), steps=tuple(steps))


def _scalar(data: str) -> Scalar:
    """The bytes of a number, as hexadecimal digits: an integer of as many."""
    raw = bytes.fromhex(data)
    return Scalar(dtype=f"int{8 * len(raw)}", value=int.from_bytes(raw, "little", signed=True))
