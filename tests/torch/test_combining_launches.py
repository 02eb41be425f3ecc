"""A function as Inductor writes it, over kernels of PTX and a stand-in for Inductor's tuner of them: its launches, in
rounds, are one from the answer on. torch is not needed."""

import dataclasses
import importlib.util
import itertools
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fusiond.cuda.recording import groups
from fusiond.devices.cpu.native import NativeLaunch
from fusiond.model.ptx import triton
from fusiond.service.frameworks.launching import Argument, LaunchPlan, PlanFill, Step, Unusable
from fusiond.service.frameworks.region_answers import Found, FusionOptions
from fusiond.service.frameworks.running import LaidOutPlan, LaunchFailed, StepPlan
from fusiond.torch import combining, rounds
from fusiond.torch.combining import CombinedGraph
from fusiond.torch.explaining import CompiledGraphs
from tests.service.frameworks.answered import answer, measured

from . import interpreting
from .interpreting import STREAM

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
SCALE = """
.visible .entry scale(.param .u64 .ptr .global .align 16 x, .param .u64 .ptr .global .align 16 y, .param .u32 n,
    .param .u64 scratch, .param .u64 profile)
.reqntid 32
{
    .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %rd<6>; .reg .f32 %f<3>;
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.s32 %r1, %r1, 32, %r2;
    ld.param.u32 %r3, [n]; setp.ge.s32 %p, %r1, %r3; @%p bra $done;
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];
    mul.wide.s32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3; add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4]; BODY st.global.f32 [%rd5], %f2;
$done:
    ret;
}
"""
TEXTS = {
    "scale": HEAD + SCALE.replace("BODY", "mul.f32 %f2, %f1, 0f40400000;"),
    "shift": HEAD + SCALE.replace("BODY", "add.f32 %f2, %f1, 0f3F800000;").replace(" scale(", " shift("),
}
WRITTEN = """
def call(args):
    a, b, c = args
    args.clear()
    stream0 = get_raw_stream(0)
    buf0 = empty_strided_cuda((100,), (1,), None)
    scale.run(a, buf0, 100, stream=stream0)
    buf1 = empty_strided_cuda((50,), (1,), None)
    shift.run(b, buf1, 50, stream=stream0)
    del b
    buf2 = empty_strided_cuda((50,), (1,), None)
    scale.run(buf1, buf2, 50, stream=stream0)
    del buf1
    shift.run(c, c, 70, stream=stream0)
    return (buf0, buf2)
"""
"""Two chains, and one that writes to what it is handed: scale and both shifts do not need each other."""
PARTS = """
class Runner:
    def call(self, args):
        handed = [*args]
        args.clear()
        return self.partitions[0](handed)

runner = Runner()
runner.partitions = [lambda args, captured=partition_0: captured(args)]
"""
"""The graph's own function calls a part, which somebody wraps who captures it."""


class Tensor:
    """As much of torch's as is asked for; it begins where a GPU's would."""

    def __init__(self, array: Any) -> None:
        memory = np.empty(4 * len(array) + 256, np.uint8)
        begin = -memory.ctypes.data % 256
        self.array = memory[begin : begin + 4 * len(array)].view(np.float32)
        self.array[:] = array
        self.shape = self.array.shape
        interpreting.allow(self, self.data_ptr(), self.array.nbytes)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def stride(self) -> tuple[int, ...]:
        return (1,)

    def element_size(self) -> int:
        return 4


class CachingAutotuner:
    """A kernel that is tuned: blocks of 32 threads."""

    custom_kernel, mutated_arg_names = False, ()

    def __init__(self, name: str, folder: Path, *, kept: bool) -> None:
        """`kept`: whether what Triton compiled is at hand; else its files are."""
        config = SimpleNamespace(kwargs={"XBLOCK": 32})
        signature = {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "xnumel": "i32", "XBLOCK": "constexpr"}
        metadata = {"name": name, "num_warps": 1, "shared": 0, "num_ctas": 1}
        made = SimpleNamespace(name=name)
        if kept:
            made = _Kept(SimpleNamespace(signature=signature), SimpleNamespace(**metadata), {"ptx": TEXTS[name]})
        (folder / "hash").mkdir(exist_ok=True)
        (folder / "hash" / f"{name}.ptx").write_text(TEXTS[name])
        (folder / "hash" / f"{name}.json").write_text(json.dumps(metadata))
        self.launchers = [SimpleNamespace(config=config, cache_hash="hash")]
        self.compile_results = [SimpleNamespace(config=config, kernel=made, compile_meta={"signature": signature})]
        self.fn = SimpleNamespace(arg_names=list(signature), constexprs=[3])
        self.triton_meta, self.inductor_meta = {"device": 0}, {"kernel_name": name}
        self.name = name

    def _interpret_args_grid(self, arguments: tuple[Any, ...], config: Any) -> Any:
        return arguments, (-(-arguments[2] // 32), 1, 1)

    def run(self, *handed: Any, stream: int) -> None:
        assert stream == STREAM
        values = [each.data_ptr().to_bytes(8, "little") for each in handed[:2]]
        values += [handed[2].to_bytes(4, "little"), bytes(8), bytes(8)]
        shape = NativeLaunch(grid=(-(-handed[2] // 32), 1, 1), block=(32, 1, 1), shared_bytes=0)
        interpreting.run(TEXTS[self.name], self.name, shape, values)


@dataclasses.dataclass(eq=False)
class _Kept:
    """A CompiledKernel."""

    src: Any
    metadata: Any
    asm: dict[str, str]


_numbers = itertools.count()


def graph_of(folder: Path, *, kept: bool = True, parts: bool = False) -> Any:
    path = folder / f"wrapper_{next(_numbers)}.py"
    path.write_text(WRITTEN.replace("def call(", "def partition_0(") + PARTS if parts else WRITTEN)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    module.get_raw_stream = lambda device: STREAM
    module.empty_strided_cuda = lambda shape, strides, dtype: Tensor(np.full(shape, np.nan))
    for name in TEXTS:
        setattr(module, name, CachingAutotuner(name, folder, kept=kept))

    class Graph:
        compiled_fn_runner = getattr(module, "runner", None)
        current_callable = module.runner.call if parts else staticmethod(module.call)

        def __call__(self, inputs: list[Any]) -> Any:
            return self.current_callable(inputs)

    return Graph()


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(combining, "_cache", lambda device: tmp_path)
    interpreting.instead_of_a_driver(monkeypatch)
    groups.forget()
    yield
    groups.forget()


def launches_of(graph: CombinedGraph, seed: int) -> list[str]:
    """The entries of the launches of a call, whose results are right."""
    draw = np.random.default_rng(seed)
    a, b, c = (draw.random(each, np.float32) for each in (100, 50, 70))
    last = Tensor(c.copy())
    interpreting.launched.clear()
    found = graph([Tensor(a), Tensor(b), last])
    np.testing.assert_array_equal(found[0].array, a * np.float32(3))
    np.testing.assert_array_equal(found[1].array, (b + np.float32(1)) * np.float32(3))
    np.testing.assert_array_equal(last.array, c + np.float32(1))
    return list(interpreting.launched)


@pytest.mark.parametrize(("kept", "parts"), [(True, False), (False, False), (True, True)])
def test_launches_are_one_from_the_answer_on(
    kept: bool, parts: bool, monkeypatch: pytest.MonkeyPatch, options: FusionOptions, tmp_path: Path
) -> None:
    """Whether Triton's own object is at hand, or only what it wrote beside the cubin."""
    asked = answer(monkeypatch, measured)
    graph = CombinedGraph("forward", graph_of(tmp_path, kept=kept, parts=parts), options, CompiledGraphs(None))
    assert launches_of(graph, 0) == ["scale", "shift", "scale", "shift"]
    for seed in range(1, 4):
        first, second = launches_of(graph, seed)
        assert first.startswith("fused_")
        assert second == "scale"
    assert len(asked) == 1
    (region,) = graph.regions()
    assert (region.name, region.state, region.operators) == ("forward_round_0", "fused", ("scale", "shift", "shift"))


def test_what_fails_to_start_is_launched_as_it_was(
    monkeypatch: pytest.MonkeyPatch, options: FusionOptions, tmp_path: Path
) -> None:
    """Also once its arguments are laid out."""
    answer(monkeypatch, measured)
    graph = CombinedGraph("forward", graph_of(tmp_path), options, CompiledGraphs(None))
    for seed in range(3):
        launches_of(graph, seed)

    def fails(*given: Any) -> None:
        raise LaunchFailed("refused by the stand-in")

    monkeypatch.setattr(interpreting.InterpretingMachine, "start_at", fails)
    for seed in range(3, 5):
        assert sorted(launches_of(graph, seed)) == ["scale", "scale", "shift", "shift"]
    (region,) = graph.regions()
    assert (region.state, region.reason) == ("refused", "refused by the stand-in")


def test_several_threads(monkeypatch: pytest.MonkeyPatch, options: FusionOptions, tmp_path: Path) -> None:
    """From the first call on; each has its own results."""
    answer(monkeypatch, measured)
    graph = CombinedGraph("forward", graph_of(tmp_path), options, CompiledGraphs(None))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda seed: launches_of(graph, seed), range(24)))
    (region,) = graph.regions()
    assert region.state == "fused"


@pytest.mark.parametrize("state", ["keep", "unknown"])
def test_without_an_answer_to_fuse_they_stay_apart(
    state: str, monkeypatch: pytest.MonkeyPatch, options: FusionOptions, tmp_path: Path
) -> None:
    answer(monkeypatch, lambda question: Found(state=state, evidence="measured"))
    options = dataclasses.replace(options, always=False)
    graph = CombinedGraph("forward", graph_of(tmp_path), options, CompiledGraphs(None))
    own = graph_of(tmp_path).current_callable.__code__
    for seed in range(4):
        assert sorted(launches_of(graph, seed)) == ["scale", "scale", "shift", "shift"]
    settled = graph._compiled.current_callable.__code__
    assert settled.co_code == own.co_code  # Inductor's own, but while it was asked
    assert launches_of(graph, 5) == ["scale", "shift", "scale", "shift"]


def test_what_cannot_be_one_after_all_is_captured_again_once(
    monkeypatch: pytest.MonkeyPatch, options: FusionOptions, tmp_path: Path
) -> None:
    answer(monkeypatch, measured)
    monkeypatch.setattr(groups.LaunchGroup, "_conflict", lambda self, launches: "they share memory")
    graph = CombinedGraph("forward", graph_of(tmp_path), options, CompiledGraphs(None))
    again: list[Any] = []

    def compiled() -> Any:
        again.append(graph_of(tmp_path))
        return again[-1]

    graph.again = compiled
    for seed in range(12):
        assert sorted(launches_of(graph, seed)) == ["scale", "scale", "shift", "shift"]
    assert len(again) == 1
    (region,) = graph.regions()
    assert (region.state, region.reason) == ("refused", "they share memory")


def test_what_a_kernel_of_the_user_is_handed_may_be_written(tmp_path: Path) -> None:
    tuner: Any = CachingAutotuner("scale", tmp_path, kept=True)
    made = combining.kernel(tuner)
    assert made is not None
    assert made.uses == (False, True, None)
    assert triton.of(made.compiled).entry == "scale"
    for name, value in (("custom_kernel", True), ("mutated_arg_names", ("in_ptr0",))):
        setattr(tuner, name, value)
        made = combining.kernel(tuner)
        assert made is not None
        assert made.uses == (True, True, None)
        tuner.custom_kernel = False


# --- a plan whose arguments lie ready -------------------------------------------------------------------


class Remembering:
    def __init__(self) -> None:
        self.started: list[tuple[bytes, ...]] = []

    def start(self, step: Any, values: Any, stream: int) -> None:
        raise NotImplementedError

    def start_at(self, step: Any, pointers: Any, stream: int) -> None:
        import ctypes

        self.started.append(tuple(ctypes.string_at(each, 8) for each in pointers))

    def fill(self, address: int, size_bytes: int, byte: int, stream: int) -> None:
        self.started.append((address.to_bytes(8, "little"),))


def plan(*arguments: int, offset: int = 0) -> StepPlan:
    """A launch with the address of a buffer, 8 bytes, and the address of scratch memory; a fill of that at 16."""
    given = [
        Argument(bytes(8), ((0, 1, offset),)),
        Argument((5).to_bytes(8, "little")),
        Argument(bytes(8), ((0, 2, 0),)),
    ]
    steps = (Step(block=(32, 1, 1), arguments=tuple(given)), PlanFill(2, 16, 8, 0))
    return StepPlan(LaunchPlan(steps, (64,), ("source",), ("kernel",), (2, 0)), Remembering())


def test_only_addresses_change() -> None:
    made = plan()
    laid_out = LaidOutPlan(made, 2, {(0, 1): (77).to_bytes(8, "little")})
    for first, second, scratch in ((10, 20, 30), (40, 50, 60)):
        laid_out.run([first, second, scratch], 7)
    wanted = [(20, 77, 30), (46,), (50, 77, 60), (76,)]
    machine: Any = made.machine
    assert machine.started == [tuple(each.to_bytes(8, "little") for each in row) for row in wanted]
    of_launch = LaidOutPlan(made, 2, {(0, 0): 0})
    of_launch.run([10, 20, 30], 7)
    assert machine.started[4] == tuple(each.to_bytes(8, "little") for each in (10, 5, 30))


def test_an_address_within_a_buffer_is_not_laid_out() -> None:
    with pytest.raises(Unusable):
        LaidOutPlan(plan(offset=24), 2, {})


def test_the_rounds_of_a_function_are_found_once(options: FusionOptions, tmp_path: Path) -> None:
    """Whoever compiles the same text gets the same rounds."""
    graph = graph_of(tmp_path)
    first = combining.combined(graph, options)
    assert len(first) == 1
    assert combining.combined(graph, options) == first
    assert graph.current_callable.__globals__[rounds.ROUNDS] == first
