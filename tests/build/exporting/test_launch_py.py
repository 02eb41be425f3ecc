"""launch.py, as it lies in an export, on the processor: what it computes, and what it refuses."""

import importlib.util
import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build.exporting.files import export
from fusiond.model.program import Launch, Memory, Program, Role
from tests.build.exporting import programs
from tests.build.exporting.driver import ByDlpack, Driver, OnDevice, Op, built
from tests.build.exporting.programs import CASES, Case


class Exported:
    """An export in a folder, its launch.py loaded from there, on the stand-in."""

    def __init__(self, program: Program, folder: Path, driver: Driver) -> None:
        self.program, self.folder, self.driver = program, folder, driver
        folder.mkdir()
        files = export(program, about={}, binaries=built(program, folder.parent), arch="sm_90")
        for name, data in files.items():
            (folder / name).write_bytes(data)
        spec = importlib.util.spec_from_file_location(f"launch_{id(self)}", folder / "launch.py")
        assert spec is not None
        assert spec.loader is not None
        self.module: Any = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:  # its dataclasses look their module up
            patch.setitem(__import__("sys").modules, spec.name, self.module)
            spec.loader.exec_module(self.module)
        self.launcher: Any = self.module.Launcher(driver=driver, cache=folder.parent / "cache")

    @property
    def error(self) -> type[Exception]:
        found: type[Exception] = self.module.LaunchError
        return found


@pytest.fixture
def exported(tmp_path: Path, scheduler_library: Path) -> Callable[..., Exported]:
    number = itertools.count()

    def make(program: Program, **options: Any) -> Exported:
        return Exported(program, tmp_path / f"out{next(number)}", Driver(scheduler_library, **options))

    return make


def arrays(program: Program, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments: inputs as given, outputs filled with what no result is."""
    found = {}
    for each in program.buffers:
        if each.role is not Role.SCRATCH:
            found[each.name] = (
                given[each.name].copy() if each.name in given else np.full(int(each.elements), 99, each.dtype)
            )
    return found


def wrapped(program: Program, memory: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: OnDevice(array) if program.buffer(name).memory is Memory.DEVICE else array
        for name, array in memory.items()
    }


def functions(case: Case, driver: Driver) -> dict[str, Any]:
    """Seams that enqueue on the stand-in, on the stream that they are given."""

    def seam(name: str) -> Callable[[list[Any], list[Any], int], None]:
        def call(reads: list[Any], writes: list[Any], stream: int) -> None:
            def work() -> None:
                results = case.seams[name](*(view(each) for each in reads))
                for target, result in zip(writes, results.values(), strict=True):
                    view(target)[:] = result

            driver.enqueue(Op(stream, work))

        return call

    return {name: seam(name) for name in case.seams}


def view(array: Any) -> Any:
    """The memory behind `__cuda_array_interface__`."""
    import ctypes

    of = array.__cuda_array_interface__
    dtype = np.dtype(of["typestr"])
    size = int(np.prod(of["shape"])) * dtype.itemsize
    return np.frombuffer((ctypes.c_ubyte * size).from_address(of["data"][0]), dtype)


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", ["late", "eager", "turns"])
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_numpy_does(exported: Callable[..., Exported], name: str, order: str) -> None:
    """At the plan's sizes and at others, on a stream and on the default one, twice with the same pointers; arrays on
    the device are filled, and read, in the order of the caller's stream."""
    case = CASES[name]()
    here = exported(case.program, eager=order == "eager", turns=order == "turns")
    seams = functions(case, here.driver)
    for sizes, stream in ((None, 500), (dict(case.sizes), 0)):
        program = case.program.at(sizes or {})
        given = programs.inputs(program)
        memory = arrays(program, given)
        expected = case.expected(given, dict(program.sizes))
        for _ in range(2):
            for each, values in given.items():
                on_device = program.buffer(each).memory is Memory.DEVICE
                memory[each][:] = 77 if on_device else values
                if on_device:
                    here.driver.enqueue(Op(stream, lambda to=memory[each], of=values: to.__setitem__(slice(None), of)))
            here.launcher.launch(wrapped(program, memory), sizes, stream, seams=seams)
            found: dict[str, Any] = {}
            for each in expected:
                here.driver.enqueue(
                    Op(stream, lambda each=each, of=memory[each], into=found: into.update({each: of.copy()}))
                )
            here.driver.drain()
            for each, values in expected.items():
                np.testing.assert_array_equal(found[each], values, err_msg=f"{each} at {sizes}")
    if name in ("graph", "seams_in_a_graph"):
        assert here.driver.log.count("cuStreamBeginCapture_v2") == 2  # one for each set of pointers
        assert here.driver.log.count("cuGraphLaunch") == 4
    here.launcher.close()
    assert not here.driver.memory
    assert not here.driver.modules
    assert not here.driver.graphs


def test_the_carve_out_is_the_one_that_was_measured(exported: Callable[..., Exported]) -> None:
    """Asked for once; a program that says nothing leaves it to the driver."""
    for make, wanted in ((programs.one, [programs.CARVE_OUT]), (programs.several, [])):
        case = make()
        here = exported(case.program)
        memory = arrays(case.program, programs.inputs(case.program))
        for _ in range(2):
            here.launcher.launch(wrapped(case.program, memory))
        assert list(here.driver.carved.values()) == wanted


def test_launches_on_two_streams_follow_each_other(exported: Callable[..., Exported]) -> None:
    """They share scratch memory."""
    case = programs.several()
    here = exported(case.program, turns=True)
    results = []
    for stream, seed in ((500, 1), (700, 2)):
        given = programs.inputs(case.program, seed)
        memory = arrays(case.program, given)
        here.launcher.launch(wrapped(case.program, memory), stream=stream)
        results.append((memory, case.expected(given, {})["y"]))
    here.driver.drain()
    for found, expected in results:
        np.testing.assert_array_equal(found["y"], expected)


def test_closing_one_context_leaves_the_order_of_another(exported: Callable[..., Exported]) -> None:
    """What the launches of the other one share is still in use."""
    case = programs.several()
    here = exported(case.program)
    memory = arrays(case.program, programs.inputs(case.program))

    def launch(context: int, stream: int) -> None:
        here.driver.context = context
        here.launcher.launch(wrapped(case.program, memory), stream=stream)

    launch(77, 500)
    launch(78, 500)
    here.launcher.close()
    here.driver.log.clear()
    launch(77, 700)
    assert "cuStreamWaitEvent" in here.driver.log


def test_it_waits_for_the_stream_of_an_argument(exported: Callable[..., Exported]) -> None:
    case = programs.one()
    here = exported(case.program)
    given = programs.inputs(case.program)
    memory = arrays(case.program, given)
    memory["a.x"][:] = 0
    here.driver.enqueue(Op(300, lambda: memory["a.x"].__setitem__(slice(None), given["a.x"])))
    here.launcher.launch({"a.x": OnDevice(memory["a.x"], stream=300), "y": OnDevice(memory["y"])}, stream=500)
    here.driver.drain()
    np.testing.assert_array_equal(memory["y"], case.expected(given, {})["y"])


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack(exported: Callable[..., Exported], versioned: bool) -> None:
    case = programs.one()
    here = exported(case.program)
    given = programs.inputs(case.program)
    memory = arrays(case.program, given)
    passed = {name: ByDlpack(array, versioned=versioned) for name, array in memory.items()}
    here.launcher.launch(passed)
    here.driver.drain()
    np.testing.assert_array_equal(memory["y"], case.expected(given, {})["y"])
    assert passed["y"].asked == [{"stream": 1, **({"max_version": (1, 0)} if versioned else {})}]
    here.launcher.launch(passed, stream=500)
    assert passed["y"].asked[-1]["stream"] == 500


def test_dlpack_on_the_host_and_elsewhere(exported: Callable[..., Exported]) -> None:
    case = programs.transfers()
    here = exported(case.program)
    given = programs.inputs(case.program)
    memory = arrays(case.program, given)
    here.launcher.launch({name: ByDlpack(array, device=(1, 0)) for name, array in memory.items()}, stream=500)
    here.driver.drain()
    np.testing.assert_array_equal(memory["sum"], case.expected(given, {})["sum"])
    one = exported(programs.one().program)
    memory = arrays(one.program, programs.inputs(one.program))
    for device, said in (((2, 3), "y lies on device 3; the current context is of device 0"),
                         ((10, 0), "y: this ByDlpack cannot be taken: a ByDlpack lies on a device of DLPack's type 10,"
                                   " which is not CUDA's"),
                         ((1, 0), "y lies in host memory; it must lie on the device")):  # fmt: skip
        with pytest.raises(one.error, match=re.escape(said)):
            one.launcher.launch({"a.x": OnDevice(memory["a.x"]), "y": ByDlpack(memory["y"], device=device)})


class Handle:
    def __init__(self, **given: object) -> None:
        self.__dict__.update(given)


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 500)


class Integer:
    def __int__(self) -> int:
        return 500


@pytest.mark.parametrize(
    "stream",
    [500, Handle(handle=500), Handle(ptr=500), Handle(cuda_stream=500), Protocol(), Integer()],
    ids=["number", "pycuda", "cupy", "torch", "protocol", "integer"],
)
def test_streams_of_other_libraries(exported: Callable[..., Exported], stream: object) -> None:
    case = programs.one()
    here = exported(case.program)
    here.launcher.launch(wrapped(case.program, arrays(case.program, programs.inputs(case.program))), stream=stream)
    assert [op.stream for op in itertools.chain(*here.driver.queues.values()) if op.work] == [500]


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "missing": (lambda a: a.pop("y"), "the output 'y' is missing; pass 1000 elements of float32 on the device"),
    "unknown": (lambda a: a.update(z=a["y"]), "there is no buffer 'z'; the arguments are a.x, y"),
    "dtype": (lambda a: a.update(y=OnDevice(np.zeros(1000))), "y has elements of float64; it must have float32"),
    "length": (lambda a: a.update(y=OnDevice(np.zeros((10, 9), "f4"))),
               "y has 90 elements (shape (10, 9)); it must have 1000"),
    "strided": (lambda a: a.update(y=OnDevice(np.zeros(2000, "f4")[::2])),
                "y is not contiguous (strides (8,)); pass a contiguous copy"),
    "fortran": (lambda a: a.update(y=OnDevice(np.zeros((10, 100), "f4", order="F"))),
                "y is not contiguous (strides (4, 40)); pass a contiguous copy"),
    "host": (lambda a: a.update(y=np.zeros(1000, "f4")), "y lies in host memory; it must lie on the device"),
    "list": (lambda a: a.update(y=[0.0]), "y is a list; pass an array with __cuda_array_interface__ or DLPack"),
    "read only": (lambda a: a.update(y=OnDevice(np.zeros(1000, "f4"), read_only=True)),
                  "y is written to, and this OnDevice is read-only; pass a writable array"),
    "unaligned": (lambda a: a.update(y=OnDevice(np.zeros(4004, "u1")[1:4001].view("f4"))),
                  "y begins at an address that is not a multiple of 4 bytes"),
    "big endian": (lambda a: a.update(y=OnDevice(np.zeros(1000, ">f4"))),
                   "y has elements of big-endian float32; it must have float32"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_argument(exported: Callable[..., Exported], what: str) -> None:
    program = programs.one().program
    here = exported(program)
    given = wrapped(program, arrays(program, programs.inputs(program)))
    change, said = REFUSED[what]
    change(given)
    with pytest.raises(here.error) as raised:
        here.launcher.launch(given)
    assert str(raised.value) == said
    assert "cuLaunchKernel" not in here.driver.log


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"m": 1}, "there is no size 'm'; the sizes are k, n"),
        ({"k": 6}, "the size k is 5 in the source itself; it cannot be 6"),
        ({"n": 0}, "the size n is 0; it must be a whole number from 1"),
        ({"n": 2.5}, "the size n is 2.5; it must be a whole number from 1"),
    ],
)
def test_sizes_that_cannot_be(exported: Callable[..., Exported], sizes: dict[str, Any], said: str) -> None:
    here = exported(programs.several().program)
    with pytest.raises(here.error) as raised:
        here.launcher.launch({}, sizes)
    assert str(raised.value) == said


def test_no_context_is_made(exported: Callable[..., Exported]) -> None:
    here = exported(programs.one().program)
    here.driver.context = None
    with pytest.raises(here.error, match="no CUDA context is current in this thread; make one first"):
        here.launcher.launch({})
    assert set(here.driver.log) == {"cuCtxGetCurrent"}


@pytest.mark.parametrize("name", ["seams", "seams_in_a_graph"])
def test_plain_kernels_only_when_asked(exported: Callable[..., Exported], name: str) -> None:
    case = CASES[name]()
    here = exported(case.program)
    given = programs.inputs(case.program)
    memory = arrays(case.program, given)
    left_out = {each: array for each, array in wrapped(case.program, memory).items() if each in ("x", "y")}
    called: list[str] = []
    seams = {
        each: lambda *passed, each=each, function=function: (called.append(each), function(*passed))
        for each, function in functions(case, here.driver).items()
    }
    here.launcher.launch(left_out, seams=seams)
    assert called == ["sort.1", "flip"]
    here.driver.drain()
    np.testing.assert_array_equal(memory["y"], case.expected(given, {})["y"])
    memory["y"][:] = 0
    here.launcher.launch(left_out, seams={"sort.1": seams["sort.1"]}, naive=True)
    here.driver.drain()
    np.testing.assert_array_equal(memory["y"], case.expected(given, {})["y"])
    assert called == ["sort.1", "flip", "sort.1"]


def test_allocated_arrays_are_used_in_place(exported: Callable[..., Exported]) -> None:
    case = programs.transfers()
    here = exported(case.program)
    memory = here.launcher.allocate(case.sizes)
    assert {name: array.size for name, array in memory.items()} == dict.fromkeys(("a", "b", "sum", "diff"), 17)
    assert memory["b"].ctypes.data - memory["a"].ctypes.data == 256
    program = case.program.at(case.sizes)
    given = programs.inputs(program)
    for name, values in given.items():
        memory[name][:] = values
    before = len(here.driver.memory)
    here.launcher.launch(memory, case.sizes, 500)
    here.driver.drain()
    for name, values in case.expected(given, {}).items():
        np.testing.assert_array_equal(memory[name], values)
    scratch = len(here.driver.memory) - before
    foreign = arrays(program, given)
    here.launcher.launch(foreign, case.sizes, 500)  # a and b apart: copied into memory of the launcher's
    assert len(here.driver.memory) - before == scratch + 1
    np.testing.assert_array_equal(foreign["sum"], case.expected(given, {})["sum"])


def test_managed_memory_is_prefetched_where_it_is_managed(exported: Callable[..., Exported]) -> None:
    """Arrays that are not managed are copied into memory that is: the driver would refuse to move them."""
    case = programs.managed()
    here = exported(case.program)
    given = programs.inputs(case.program)
    allocated = here.launcher.allocate()
    for memory in (arrays(case.program, given), allocated):
        for name, values in given.items():
            memory[name][:] = values
        here.launcher.launch(memory)
        here.driver.drain()
        np.testing.assert_array_equal(memory["sum"], case.expected(given, {})["sum"])
    assert here.driver.log.count("cuMemPrefetchAsync") == 4
    here.launcher.close()
    assert not here.driver.managed


def test_older_drivers_copy_one_by_one(exported: Callable[..., Exported]) -> None:
    case = programs.transfers()
    here = exported(case.program)
    given = programs.inputs(case.program)
    memory = arrays(case.program, given)
    has = here.launcher._driver.has
    here.launcher._driver.has = lambda name: "Batch" not in name and has(name)
    here.launcher.launch(memory)
    np.testing.assert_array_equal(memory["sum"], case.expected(given, {})["sum"])
    assert "cuMemcpyBatchAsync_v2" not in here.driver.log


def test_another_architecture_is_exported_again(exported: Callable[..., Exported]) -> None:
    here = exported(programs.one().program)
    (here.folder / "basic.sm_90.cubin").unlink()
    with pytest.raises(here.error, match=r"there is no basic\.sm_90\.cubin in .*; export again with `--arch sm_90`"):
        here.launcher.launch({})


def test_a_cubin_of_another_compiler_is_refused(exported: Callable[..., Exported]) -> None:
    here = exported(programs.one().program)
    (here.folder / "basic.sm_90.cubin").write_bytes(b"\x7fELF")
    with pytest.raises(here.error, match="has no entry table, so fusiond did not build it"):
        here.launcher.launch({})


@pytest.mark.slow
def test_every_launch_has_its_shape(exported: Callable[..., Exported]) -> None:
    """The plan at other sizes is `Program.at`."""
    for make in CASES.values():
        case = make()
        here = exported(case.program)
        plan = here.module._plan_at(here.launcher._document, {**dict(case.program.sizes), **case.sizes})
        wanted = case.program.at(case.sizes)
        assert {name: each["elements"] for name, each in plan.buffers.items()} == {
            each.name: int(each.elements) for each in wanted.buffers
        }
        for found, step in zip(plan.steps, wanted.steps, strict=True):
            if isinstance(step, Launch):
                assert (tuple(found["grid"]), found["shared_bytes"]) == (step.grid, step.shared_bytes)


# --- rows that lie apart --------------------------------------------------------------------------------


class GpuMat:
    """As much of OpenCV's cuda.GpuMat as a launch asks for: rows of uint8 or int16, 32 bytes and more apart."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.step = array.strides[0]

    def size(self) -> tuple[int, int]:
        return self.array.shape[1], self.array.shape[0]

    def type(self) -> int:
        return {"uint8": 0, "int16": 3}[self.array.dtype.name]

    def cudaPtr(self) -> int:  # noqa: N802 - OpenCV's name
        return int(self.array.__array_interface__["data"][0])


@pytest.mark.parametrize("of", [OnDevice, ByDlpack, GpuMat])
def test_rows_may_lie_apart(exported: Callable[..., Exported], of: Callable[[Any], Any]) -> None:
    """Parts of larger images, of several pitches, through one graph each; what lies between the rows stays."""
    here = exported(programs.rows().program)
    for gap, width in ((11, 21), (43, 21), (0, 50)):
        whole = np.arange(9 * (width + gap), dtype=np.uint8).reshape(9, width + gap)
        made = np.full((9, width + 2 * gap), 99, np.int16)
        for _ in range(2):
            arguments = {"x": of(whole[:, :width]), "y": of(made[:, :width])}
            here.launcher.launch(arguments, {"w": width}, 500)
            here.driver.drain()
            np.testing.assert_array_equal(made[:, :width], whole[:, :width].astype(np.int16) * 2)
            assert (made[:, width:] == 99).all()
    assert here.driver.log.count("cuStreamBeginCapture_v2") == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x: x[::-1], r"x has strides \(-42, 1\); rows of 21 elements may lie apart, no others"),
        (np.asfortranarray, r"x has strides"),
        (lambda x: np.repeat(x, 2, axis=1)[:, ::2], r"x has strides \(42, 2\); rows of 21"),
        (lambda x: x[:, :20], "x has 180 elements"),
    ],
)
def test_other_strides_are_refused(exported: Callable[..., Exported], wrong: Callable[[Any], Any], said: str) -> None:
    here = exported(programs.rows().program)
    x, y = np.zeros((9, 42), np.uint8)[:, :21], np.zeros((9, 21), np.int16)
    with pytest.raises(here.error, match=said):
        here.launcher.launch({"x": OnDevice(wrong(x)), "y": OnDevice(y)})
