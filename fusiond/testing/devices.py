"""Contract tests that any device must pass. Needs pytest.

    class TestCpu(DeviceContract):
        def provider(self):
            return CpuProvider()

Small CUDA kernels are built and run; a device that runs something else overrides `source`. Where the provider has no
device, the tests that need one are skipped with what is missing.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.base import DeviceProvider, ExecutionError, Executor, Loaded
from fusiond.devices.compare import compare
from fusiond.devices.protocol import Checked, CheckRequest, Reference, SampleRequest
from fusiond.devices.supervisor import Supervisor
from fusiond.devices.timing import Sampling
from fusiond.model.inputs.fills import initial
from fusiond.model.language import dtypes, narrow
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import BuildFailed, DeviceState, MeasureFailed, Measurement, Outcome, Purpose
from fusiond.model.program import (
    Alloc,
    Buffer,
    Compare,
    Copy,
    CopyBatch,
    Fill,
    FillStep,
    Free,
    Memory,
    Prefetch,
    Program,
    Role,
    Scalar,
    Source,
    Step,
    problems,
)
from fusiond.requests.registry import members
from fusiond.testing.kernels import ENTRIES, KERNELS, N, X, Y, floats, launch

Array = NDArray[Any]


class DeviceContract:
    """Subclass it and give `provider`; pytest finds the tests."""

    samples_run = True  #: Whether a sample runs the program. One that is counted does not.

    def provider(self) -> DeviceProvider:
        raise NotImplementedError

    def source(self) -> Source:
        """The kernels of this module's text, for this device."""
        return Source(name="kernels", text=KERNELS, entries=ENTRIES, symbols=("table",))

    def program(self, buffers: tuple[Buffer, ...], *steps: Step) -> Program:
        made = Program(name="contract", buffers=buffers, sources=(self.source(),), steps=tuple(steps))
        assert problems(made) == ()
        return made

    # --- what the tests share ---

    @pytest.fixture
    def device(self) -> DeviceInfo:
        provider = self.provider()
        found = provider.devices()
        if not found:
            pytest.skip("; ".join(provider.missing()))
        return found[0]

    @pytest.fixture
    def executor(self, device: DeviceInfo) -> Iterator[Executor]:
        executor = self.provider().executor(device.name)
        yield executor
        executor.close()

    @pytest.fixture
    def load(self, executor: Executor, device: DeviceInfo) -> Iterator[Callable[..., Loaded]]:
        """Loads a program and fills its buffers: from the arguments, else as the program says."""
        loaded: list[Loaded] = []

        def load(program: Program, **data: Array) -> Loaded:
            made = executor.load(program, self._binaries(program, device))
            loaded.append(made)
            for buffer in program.buffers:
                made.write(buffer.name, data.get(buffer.name, initial(buffer, 0)))
            return made

        yield load
        for each in loaded:
            each.close()

    @pytest.fixture
    def supervisor(self, device: DeviceInfo) -> Iterator[Supervisor]:
        supervisor = Supervisor(self.provider(), device)
        yield supervisor
        supervisor.close()

    def _binaries(self, program: Program, device: DeviceInfo) -> dict[str, Path]:
        binaries = {}
        for source in program.sources:
            built = self.provider().build(source, device.arch)
            assert not isinstance(built, BuildFailed), built.reason
            binaries[source.name] = built.path
        return binaries

    # --- the provider ---

    def test_either_there_are_devices_or_it_is_said_what_is_missing(self) -> None:
        provider = self.provider()
        assert bool(provider.devices()) != bool(provider.missing())
        assert all(len(line.splitlines()) == 1 for line in provider.missing())

    def test_a_device_describes_itself_the_same_way_every_time(self, device: DeviceInfo) -> None:
        again = self.provider().devices()[0]
        assert (again.key, again.env_key) == (device.key, device.env_key)
        assert device.name.partition(":")[0] == self.provider().kind
        assert device.evidence in ("measured", "emulated", "counted")
        assert device.memory_bytes > 0
        assert device.limits.multiprocessors >= 1
        assert {each.name for each in self.provider().devices()} >= {device.name}

    def test_normalising_changes_nothing_the_second_time(self, device: DeviceInfo) -> None:
        program = self.program((X, Y), launch("scale", "scale", "x", "y", 2.0, N))
        capped = dataclasses.replace(program, sources=(dataclasses.replace(self.source(), register_cap=32),))
        for each in (program, capped):
            normal = self.provider().normalise(each)
            assert problems(normal) == ()
            assert self.provider().normalise(normal).key == normal.key
            assert normal.buffers == each.buffers

    def test_it_has_all_that_the_core_calls(self, device: DeviceInfo, executor: Executor) -> None:
        for protocol, given in ((DeviceProvider, self.provider()), (Executor, executor)):
            assert not [name for name in members(protocol) if not hasattr(given, name)]
        assert callable(self.provider().facts(device.arch))
        assert all(isinstance(value, int | float) for value in executor.calibrate().values())

    # --- building ---

    def test_builds_are_kept_and_the_same_for_the_same_source(self, device: DeviceInfo) -> None:
        first, second = (self.provider().build(self.source(), device.arch) for _ in range(2))
        assert not isinstance(first, BuildFailed), first.reason
        assert first == second
        content = first.path.read_bytes()
        other = dataclasses.replace(self.source(), text=self.source().text + "\n// other\n")
        third = self.provider().build(other, device.arch)
        assert not isinstance(third, BuildFailed)
        assert third.path != first.path
        assert first.path.read_bytes() == content

    def test_what_does_not_build_is_a_value_of_one_line(self, device: DeviceInfo) -> None:
        broken = dataclasses.replace(self.source(), text=self.source().text + "\n__global__ void f() { nonsense }\n")
        unknown = dataclasses.replace(self.source(), entries=(*ENTRIES, "no_such_kernel"))
        for source in (broken, broken, unknown):
            failed = self.provider().build(source, device.arch)
            assert isinstance(failed, BuildFailed)
            assert failed.reason
            assert len(failed.reason.splitlines()) == 1

    # --- running ---

    def test_a_program_is_loaded_run_and_read(self, load: Callable[..., Loaded]) -> None:
        data = np.arange(N, dtype=np.float32)
        program = self.program(
            (X, floats("t", Role.SCRATCH), Y),
            launch("twice", "scale", "x", "t", 2.0, N),
            launch("thrice", "scale", "t", "y", 3.0, N, stream=1, after=("twice",)),
        )
        loaded = load(program, x=data)
        for seed in (0, 1):
            loaded.run(seed=seed, checked=True)
            np.testing.assert_array_equal(loaded.read("y"), 6 * data)
            np.testing.assert_array_equal(loaded.read("x"), data)
        assert loaded.broken_guards() == ()

    def test_shared_memory_and_barriers(self, load: Callable[..., Loaded]) -> None:
        data = np.arange(N, dtype=np.float32)
        step = launch("r", "reverse", "x", "y", N, grid=(1, 1, 1), block=(1024, 1, 1), shared_bytes=4 * N)
        loaded = load(self.program((X, Y), step), x=data)
        loaded.run(seed=0, checked=True)
        np.testing.assert_array_equal(loaded.read("y"), data[::-1])

    def test_copies_both_ways_and_fills(self, load: Callable[..., Loaded]) -> None:
        host = {"memory": Memory.PAGEABLE}
        program = self.program(
            (floats("x", Role.INPUT, **host), floats("dx", Role.SCRATCH), floats("dy", Role.SCRATCH),
             floats("y", Role.OUTPUT, memory=Memory.PINNED)),
            Copy(name="up", source=("x",), target=("dx",)),
            FillStep(name="zero", buffer="dy"),
            launch("add", "accumulate", "dx", "dy", N),
            Copy(name="down", source=("dy",), target=("y",)),
        )  # fmt: skip
        data = np.arange(N, dtype=np.float32)
        loaded = load(program, x=data)
        loaded.run(seed=0, checked=True)
        np.testing.assert_array_equal(loaded.read("y"), data)

    def test_managed_memory(self, load: Callable[..., Loaded]) -> None:
        """One memory for both sides, in any order that the plan allows; prefetching it changes no value."""
        managed = {"memory": Memory.MANAGED}
        program = self.program(
            (floats("x", Role.INPUT, **managed), floats("t", Role.SCRATCH, **managed),
             floats("y", Role.OUTPUT, **managed)),
            Prefetch(name="up", buffers=("x",), to_device=True, stream=1),
            launch("twice", "scale", "x", "t", 2.0, N, after=("up",)),
            launch("thrice", "scale", "t", "y", 3.0, N),
            Prefetch(name="down", buffers=("y",), to_device=False, stream=2, after=("thrice",)),
        )  # fmt: skip
        data = np.arange(N, dtype=np.float32)
        try:
            loaded = load(program, x=data)
        except ExecutionError as refused:
            pytest.skip(str(refused))
        for seed in range(3):
            loaded.run(seed=seed, checked=True)
            np.testing.assert_array_equal(loaded.read("y"), 6 * data)
        assert loaded.broken_guards() == ()
        assert loaded.sample_us(1) > 0

    def test_a_batch_of_copies(self, load: Callable[..., Loaded]) -> None:
        host = {"memory": Memory.PINNED}
        program = self.program(
            (floats("a", Role.INPUT, **host), floats("b", Role.INPUT, **host), floats("p", Role.SCRATCH),
             floats("q", Role.SCRATCH), floats("y", Role.OUTPUT, **host), floats("z", Role.OUTPUT, **host)),
            CopyBatch(name="up", copies=(("a", "p"), ("b", "q")), stream=1),
            launch("add", "accumulate", "p", "q", N, after=("up",)),
            CopyBatch(name="down", copies=(("p", "y"), ("q", "z"))),
        )  # fmt: skip
        data = np.arange(N, dtype=np.float32)
        loaded = load(program, a=data, b=2 * data)
        for seed in range(4):
            loaded.run(seed=seed, checked=True)
            np.testing.assert_array_equal(loaded.read("y"), data)
            np.testing.assert_array_equal(loaded.read("z"), 3 * data)
        assert loaded.sample_us(1) > 0

    def test_memory_of_the_pool(self, load: Callable[..., Loaded]) -> None:
        program = self.program(
            (X, floats("t", Role.SCRATCH), Y),
            Alloc(name="alloc", arena="t", pooled=True),
            launch("twice", "scale", "x", "t", 2.0, N),
            launch("thrice", "scale", "t", "y", 3.0, N),
            Free(name="free", arena="t"),
        )
        data = np.arange(N, dtype=np.float32)
        loaded = load(program, x=data)
        loaded.run(seed=0, checked=True)
        np.testing.assert_array_equal(loaded.read("y"), 6 * data)
        loaded.write("y", 0 * data)
        assert loaded.sample_us(2) > 0
        np.testing.assert_array_equal(loaded.read("y"), 6 * data if self.samples_run else 0 * data)
        assert loaded.broken_guards() == ()

    def test_a_cooperative_grid_waits_for_all_its_blocks(self, load: Callable[..., Loaded]) -> None:
        data = np.arange(N, dtype=np.float32)
        step = launch("t", "total", "x", "partial", "y", N, cooperative=True)
        loaded = load(self.program((X, floats("partial", Role.SCRATCH), Y), step), x=data)
        for seed in range(4):
            loaded.run(seed=seed, checked=True)
            np.testing.assert_array_equal(loaded.read("y"), np.full(N, data.sum()))
        assert loaded.sample_us(1) > 0

    def test_a_cooperative_grid_that_does_not_fit_is_refused(self, load: Callable[..., Loaded]) -> None:
        step = launch("t", "total", "x", "partial", "y", N, cooperative=True, grid=(100_000, 1, 1))
        with pytest.raises(ExecutionError) as caught:
            load(self.program((X, floats("partial", Role.SCRATCH, elements=100_000), Y), step)).run(
                seed=0, checked=True
            )
        assert caught.value.outcome is Outcome.LAUNCH_REFUSED
        assert "cooperative" in caught.value.reason
        assert len(caught.value.reason.splitlines()) == 1

    def test_numbers_of_sixteen_bits(self, load: Callable[..., Loaded]) -> None:
        x = floats("x", Role.INPUT, dtype="float16")
        y = floats("y", Role.OUTPUT, dtype="bfloat16", compare=Compare(kind="close", rtol=0.01, atol=0.01))
        step = launch("n", "narrow", "x", "y", N)
        scalars = (Scalar(dtype="float16", value=1.5), Scalar(dtype="bfloat16", value=-2.0))
        step = dataclasses.replace(step, arguments=(*step.arguments[:2], *scalars, step.arguments[2]))
        loaded = load(self.program((x, y), step))
        loaded.run(seed=0, checked=True)
        product = (initial(x, 0).astype(np.float16) * np.float16(1.5)).astype(np.float32)
        expected = narrow.readable(narrow.NARROW["bfloat16"].bits(product), "bfloat16") - 2
        np.testing.assert_array_equal(narrow.readable(loaded.read("y"), "bfloat16"), expected)
        assert loaded.read("y").dtype == np.uint16

    def test_constants_are_buffers_too(self, load: Callable[..., Loaded]) -> None:
        table = Buffer(name="table", dtype="float32", elements=4, role=Role.INPUT, symbol="kernels:table")
        values = np.array([5, 6, 7, 8], np.float32)
        loaded = load(self.program((table, Y), launch("l", "lookup", "y", N)), table=values)
        loaded.run(seed=0, checked=True)
        np.testing.assert_array_equal(loaded.read("y"), np.resize(values, N))
        np.testing.assert_array_equal(loaded.read("table"), values)

    def test_constants_can_be_copied_to(self, load: Callable[..., Loaded]) -> None:
        table = Buffer(name="table", dtype="float32", elements=4, role=Role.SCRATCH, symbol="kernels:table")
        values = Buffer(name="v", dtype="float32", elements=4, role=Role.INPUT)
        data = np.array([1, 2, 3, 4], np.float32)
        up = Copy(name="up", source=("v",), target=("table",))
        loaded = load(self.program((values, table, Y), up, launch("l", "lookup", "y", N)), v=data)
        loaded.run(seed=0, checked=True)
        np.testing.assert_array_equal(loaded.read("y"), np.resize(data, N))

    def test_a_stray_write_is_seen_at_either_end(self, load: Callable[..., Loaded]) -> None:
        for index in (N, -1):
            loaded = load(self.program((Y,), launch("s", "stray", "y", index)))
            loaded.run(seed=0, checked=True)
            broken = loaded.broken_guards()
            assert len(broken) == 1
            assert "y" in broken[0]

    def test_a_block_that_is_too_large_is_refused(self, load: Callable[..., Loaded]) -> None:
        step = launch("scale", "scale", "x", "y", 2.0, N, block=(2048, 1, 1))
        with pytest.raises(ExecutionError) as caught:
            load(self.program((X, Y), step)).run(seed=0, checked=True)
        assert caught.value.outcome is Outcome.LAUNCH_REFUSED
        assert len(caught.value.reason.splitlines()) == 1

    # --- data ---

    @pytest.mark.parametrize("kind", ["uniform", "normal", "integers", "iota", "constant"])
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint32", "int64", "bool"])
    def test_data_are_the_host_s_bit_for_bit(
        self, executor: Executor, load: Callable[..., Loaded], dtype: str, kind: str
    ) -> None:
        low, high = (-1.5, 3.0) if dtypes.is_float(dtype) and kind != "integers" else (0, 1)
        if dtype == "int64" and kind == "integers":
            low, high = -(2**63), 2**63 - 1
        x = floats("x", Role.INOUT, dtype=dtype, elements=100_003, fill=Fill(kind=kind, low=low, high=high))
        loaded = load(self.program((x, Y), FillStep(name="f", buffer="y")))
        for seed in (0, 1, 0):
            executor.data.fill(loaded, x, seed)
            expected = initial(x, seed)
            np.testing.assert_array_equal(loaded.read("x").view(np.uint8), expected.view(np.uint8))
            assert executor.data.intact(loaded, x, seed)
            raw = expected.view(np.uint8).copy()
            raw[-1] ^= 1
            loaded.write("x", raw.view(expected.dtype))
            assert not executor.data.intact(loaded, x, seed)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "uint16", "int64"])
    @pytest.mark.parametrize(
        "how", [Compare(), Compare(kind="close", rtol=1e-2, atol=1e-3)], ids=lambda each: each.kind
    )
    def test_outputs_are_compared_as_on_the_host(
        self, executor: Executor, load: Callable[..., Loaded], dtype: str, how: Compare
    ) -> None:
        spec = Fill(kind="normal" if dtypes.is_float(dtype) else "integers", low=0, high=9)
        x = floats("x", Role.INOUT, dtype=dtype, elements=70_001, fill=spec, compare=how)
        reference = initial(x, 0)
        loaded = load(self.program((x, Y), FillStep(name="f", buffer="y")), x=reference)
        np.testing.assert_array_equal(executor.data.keep(loaded, x, "r"), reference)
        size = reference.dtype.itemsize
        for changed, byte in (((), 0), ((5,), 0), ((70_000, 69_999, 31_000), size - 1)):
            raw = reference.view(np.uint8).reshape(-1, size).copy()
            raw[list(changed), byte] ^= 0x40
            actual = raw.reshape(-1).view(reference.dtype)
            loaded.write("x", actual)
            assert executor.data.compare(loaded, x, "r", reference.copy) == compare(x, reference, actual)
        executor.data.forget("r")
        assert executor.data.compare(loaded, x, "r", actual.copy).equal

    # --- sampling ---

    def test_samples_take_time_and_what_accumulates_is_brought_back(
        self, executor: Executor, load: Callable[..., Loaded]
    ) -> None:
        inout = floats("y", Role.INOUT)
        ones = np.ones(N, np.float32)
        loaded = load(self.program((X, inout), launch("add", "accumulate", "x", "y", N)), x=ones, y=ones)
        loaded.snapshot()
        assert loaded.sample_us(1) > 0
        loaded.restore()
        assert loaded.sample_us(3, cold=True) > 0
        if self.samples_run:  # each of the three began with ones
            np.testing.assert_array_equal(loaded.read("y"), 2 * ones)
        loaded.restore()
        np.testing.assert_array_equal(loaded.read("y"), ones)
        assert loaded.clock in ("device", "wall", "emulated", "counted")
        assert isinstance(executor.state(), DeviceState)
        clock = executor.clock_mhz()
        assert clock is None or clock > 0

    def test_outputs_are_brought_back_between_runs_where_nobody_vouches_for_a_program(
        self, load: Callable[..., Loaded]
    ) -> None:
        """What an earlier run has left is not there for the next run of one sample."""
        ones = np.ones(N, np.float32)
        loaded = load(self.program((X, Y), launch("add", "accumulate", "x", "y", N)), x=ones, y=3 * ones)
        loaded.snapshot(outputs=True)
        assert loaded.sample_us(4) > 0
        if self.samples_run:
            np.testing.assert_array_equal(loaded.read("y"), 4 * ones)
        loaded.restore()
        np.testing.assert_array_equal(loaded.read("y"), 3 * ones)
        loaded.snapshot()
        loaded.write("y", 5 * ones)
        loaded.restore()
        np.testing.assert_array_equal(loaded.read("y"), 5 * ones)

    # --- in a child process ---

    @pytest.fixture
    def bundle(self, device: DeviceInfo, tmp_path: Path) -> Callable[..., str]:
        def bundle(*steps: Step, buffers: tuple[Buffer, ...] = (X, Y)) -> str:
            program = self.program(buffers, *steps)
            folder = tmp_path / "bundles" / program.key
            write_bundle(folder, program, self._binaries(program, device))
            return str(folder)

        return bundle

    def test_wrong_results_and_crashes_are_outcomes_and_the_next_call_works(
        self, supervisor: Supervisor, bundle: Callable[..., str], tmp_path: Path
    ) -> None:
        good = bundle(launch("scale", "scale", "x", "y", 2.0, N))
        references = tuple((seed, str(tmp_path / f"{seed}.npz")) for seed in (0, 1))
        for seed, path in references:
            assert supervisor.call(Reference(bundle=good, seed=seed, outputs=path), 60) == Checked(worst=0.0)
        with np.load(references[0][1]) as found:
            np.testing.assert_array_equal(found["y"], 2 * initial(X, 0))
        zeroed = FillStep(name="zero", buffer="y"), launch("add", "accumulate", "x", "y", N)
        for steps, outcome in (
            ((*zeroed, dataclasses.replace(zeroed[1], name="again")), None),
            ((launch("scale", "scale", "x", "y", 3.0, N),), Outcome.WRONG_RESULT),
            ((launch("short", "scale", "x", "y", 2.0, N - 1),), Outcome.WRONG_RESULT),
            ((launch("s", "scale", "x", "y", 2.0, N), launch("w", "stray", "x", 0)), Outcome.WRONG_RESULT),
            ((launch("s", "scale", "x", "y", 2.0, N), launch("w", "stray", "y", N)), Outcome.CRASHED),
            ((launch("crash", "crash", "y"),), Outcome.CRASHED),
        ):
            reply = supervisor.call(CheckRequest(bundle=bundle(*steps), references=references), 60)
            if outcome is None:
                assert reply == Checked(worst=0.0)
            else:
                assert isinstance(reply, MeasureFailed), steps
                assert reply.outcome is outcome, reply.reason
                assert len(reply.reason.splitlines()) == 1
            assert supervisor.call(CheckRequest(bundle=good, references=references), 60) == Checked(worst=0.0)

    def test_a_pair_is_sampled(self, supervisor: Supervisor, bundle: Callable[..., str]) -> None:
        good = bundle(launch("scale", "scale", "x", "y", 2.0, N))
        plan = Sampling(purpose=Purpose.SEARCH, noise_limit=100.0)
        reply = supervisor.call(SampleRequest(candidate=good, baseline=good, plan=plan), 60)
        assert isinstance(reply, Measurement), reply
        assert len(reply.span_us) == len(reply.baseline_us)
        assert plan.least_pairs <= len(reply.span_us) <= plan.pairs
        assert min(reply.span_us) > 0
