"""A device with known times and a strategy with a known best config: tests of the search assert on these, never on
times of the cpu device.

A source of the fake device is a text of directives, one a line:

    cost_us 12.5        what one launch takes
    fault wrong         wrong | crash | die | segv | abort | refuse | nobuild | leaks | late (wrong on the second
                        seed only)
    fault hang          for an hour, or while the file FUSIOND_FAKE_HANG is there
    fault sicken        it crashes, and so does every program after it, while the file FUSIOND_FAKE_SICK is there

Its outputs depend on nothing but buffer and seed, so every program is right unless its fault says otherwise.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import fusiond
from fusiond.devices import protocol
from fusiond.devices.base import Array, Binary, DataPlane, DeviceProvider, ExecutionError, Executor
from fusiond.devices.data import HostData
from fusiond.devices.worker import ExecutorWorker
from fusiond.model.gpu.limits import MOST_SHARED_BYTES
from fusiond.model.inputs import values
from fusiond.model.inputs.fills import fill
from fusiond.model.language.extents import size
from fusiond.model.nouns import Analysis, Config, DeviceInfo, DeviceLimits, Job, Rejection, Workload, frozen
from fusiond.model.outcomes import BuildFailed, DeviceState, Outcome
from fusiond.model.program import Buffer, Copy, Fill, FillStep, Launch, Program, Role, Source, sized
from fusiond.strategy import Answers, Baseline, Facts, Inputs, StrategyBase, Target
from fusiond.strategy.hookspecs import hookimpl
from fusiond.strategy.space import Parameter, Space

_ANSWER = Fill(kind="integers", low=0, high=1000)
NOISE = 0.002  #: Relative standard deviation of a sample


class FakeProvider:
    """A `DeviceProvider` that needs no compiler and no device. `FUSIOND_FAKE_MODEL` gives the device another model
    name."""

    kind = "fake"
    shares_cores = False

    def devices(self) -> tuple[DeviceInfo, ...]:
        limits = DeviceLimits(
            multiprocessors=8,
            shared_bytes_per_sm=MOST_SHARED_BYTES + 1024,
            shared_bytes_per_block=MOST_SHARED_BYTES,
            threads_per_sm=2048,
            blocks_per_sm=32,
        )
        info = DeviceInfo(
            name="fake",
            model=os.environ.get("FUSIOND_FAKE_MODEL", "Fake 1"),
            arch="fake",
            memory_bytes=1 << 30,
            uuid="FAKE-0",
            env=frozen({"fusiond": fusiond.__version__}),
            limits=limits,
        )
        return (info,)

    def missing(self) -> tuple[str, ...]:
        return ()

    def normalise(self, program: Program) -> Program:
        return program

    def build(self, source: Source, arch: str) -> Binary | BuildFailed:
        if _directives(source.text).get("fault") == "nobuild":
            return BuildFailed(reason=f"{source.name}:1: expected a kernel")
        folder = Path(os.environ.get("FUSIOND_CACHE") or tempfile.gettempdir()) / "fake"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{Program(name='', buffers=(), sources=(source,), steps=()).key}.fake"
        if not path.exists():
            whole = path.with_suffix(f".{threading.get_ident()}-{os.getpid()}")  # others read the cache meanwhile
            try:
                whole.write_text(source.text)
                whole.replace(path)
            finally:
                whole.unlink(missing_ok=True)
        return Binary(source=source.name, path=path)

    def ptx(self, source: Source, arch: str) -> str | None:
        return source.text

    def sanitize(self, bundle: Path, device: str) -> tuple[str, ...]:
        """A source says what is found in it: `sanitizer WORD`."""
        texts = [path.read_text() for path in sorted((bundle / "sources").iterdir())]
        found = [_directives(text)["sanitizer"] for text in texts if "sanitizer" in _directives(text)]
        if "absent" in found:
            raise LookupError("no sanitizer is installed")
        return tuple(found)

    def facts(self, arch: str) -> Facts:
        return lambda source: None

    def executor(self, name: str) -> Executor:
        return FakeExecutor()


class FakeExecutor:
    def __init__(self) -> None:
        self.data: DataPlane = HostData()

    def load(self, program: Program, binaries: Mapping[str, Path]) -> FakeLoaded:
        texts = {name: path.read_text() for name, path in binaries.items()}
        if any(_directives(text).get("fault") == "refuse" for text in texts.values()):
            raise ExecutionError(Outcome.LAUNCH_REFUSED, "too many resources requested for launch")
        return FakeLoaded(program, texts)

    def state(self) -> DeviceState:
        return DeviceState(clock_mhz=1000.0, temperature_c=40.0)

    def clock_mhz(self) -> float | None:
        return 1000.0

    def calibrate(self) -> dict[str, float]:
        return {"event_us": 1.5, "steady_mhz": 1000.0}

    def close(self) -> None:
        pass


class FakeLoaded:
    def __init__(self, program: Program, texts: Mapping[str, str]) -> None:
        self.program = program
        self.clock = "device"
        self.gate_failures = 0
        self._directives = [_directives(texts[each.source]) for each in program.launches]
        self._data: dict[str, Array] = {}
        self._random = random.Random(program.key)

    def write(self, buffer: str, data: Array) -> None:
        self._data[buffer] = data.copy()

    def read(self, buffer: str) -> Array:
        return self._data[buffer].copy()

    def snapshot(self, *, outputs: bool = False) -> None:
        pass

    def restore(self) -> None:
        pass

    def run(self, *, seed: int, checked: bool) -> None:
        for step in self.program.steps:
            if isinstance(step, Copy):
                self._data[step.target[0]] = self._data[step.source[0]].copy()
            elif isinstance(step, FillStep):
                self._data[step.buffer].view("uint8")[:] = step.byte
        if not self._directives:
            return self._ail()
        for buffer in self.program.buffers:
            if buffer.role.compared:
                self._data[buffer.name] = fill(dataclasses.replace(buffer, fill=_ANSWER), seed)
        for each in self._directives:
            self._misbehave(each.get("fault", ""), seed)
        self._ail()

    def sample_us(self, repeats: int, *, cold: bool = False) -> float:
        cost = sum(float(each.get("cost_us", 10.0)) for each in self._directives) or 1.0
        return cost * (1 + self._random.gauss(0, NOISE))

    def broken_guards(self) -> tuple[str, ...]:
        faults = [each.get("fault") for each in self._directives]
        return ("4 bytes written behind y",) if "outside" in faults else ()

    def close(self) -> None:
        pass

    @staticmethod
    def _ail() -> None:
        sick = os.environ.get("FUSIOND_FAKE_SICK")
        if sick and Path(sick).exists():
            raise ExecutionError(Outcome.CRASHED, "uncorrectable ECC error")

    def _misbehave(self, fault: str, seed: int) -> None:
        if fault == "crash":
            raise ExecutionError(Outcome.CRASHED, "illegal address")
        if fault == "sicken":
            Path(os.environ["FUSIOND_FAKE_SICK"]).touch()
        if fault == "hang":
            _hang()
        if fault == "die":
            os.kill(os.getpid(), 9)
        if fault == "segv":
            os.write(2, b"said before\n")
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "abort":
            os.abort()
        if fault == "wrong" or (fault == "late" and seed == 1):
            for buffer in self.program.buffers:
                if buffer.role.compared:
                    self._data[buffer.name][-1] += 1


class InProcess:
    """A `Runner` without a child process, for tests of everything round the device."""

    def __init__(self, provider: DeviceProvider, device: DeviceInfo) -> None:
        self.device = device
        self._worker = ExecutorWorker(provider.executor(device.name))

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        return self._worker.answer(request)

    def fresh(self) -> None:
        pass

    def close(self) -> None:
        self._worker.close()


def _hang() -> None:
    named = os.environ.get("FUSIOND_FAKE_HANG")
    until = time.monotonic() + 3600
    while time.monotonic() < until and (named is None or Path(named).exists()):
        time.sleep(0.05)


def _directives(text: str) -> dict[str, str]:
    return dict(line.split(None, 1) for line in text.splitlines() if len(line.split()) == 2)


# --- a strategy whose answer is known ---


class ToyStrategy(StrategyBase):
    """Two knobs, x and y, from 0 to `side` - 1; the fused cost is 10 + (x - 3)^2 + (y - 5)^2 / 4 microseconds, the
    unfused one 20 (or `unfused` microseconds). `faults: {"3,5": wrong}` in a job makes a config misbehave."""

    name = "toy"
    version = 1
    job_keys = ("side", "unfused", "faults", "label")

    def parse(self, job: Job, inputs: Inputs) -> Workload:
        members = (each for each in job.sizes if "." in each)  # of a pair, whatever its members are called
        sizes = {"n": 64, **values.job_sizes(job, ("n", *members))}
        label = job.request.get("label", "toy")
        payload = {
            "side": job.request.get("side", 8),
            "unfused": job.request.get("unfused", 20.0),
            "faults": job.request.get("faults", {}),
        }
        return Workload(
            strategy=self.name,
            strategy_version=self.version,
            name=label,
            members=(label,),
            sizes=sizes,
            content=payload,
            payload=payload,
        )

    def analyse(self, workload: Workload, target: Target) -> Analysis:
        return Analysis(workload=workload, report=frozen({"side": workload.payload["side"]}), payload=None)

    def space(self, analysis: Analysis, answers: Answers) -> Space:
        values = tuple(range(analysis.workload.payload["side"]))
        return Space(parameters=(Parameter(name="x", values=values), Parameter(name="y", values=values)))

    def seeds(self, analysis: Analysis, space: Space, answers: Answers) -> tuple[tuple[str, Config], ...]:
        return (("plain", Config.of({"x": 0, "y": 0})),)

    def baselines(self, analysis: Analysis) -> tuple[Baseline, ...]:
        cost = analysis.workload.payload["unfused"]
        knob = Space(parameters=(Parameter(name="block", values=(128, 256)),))

        def given(config: Config) -> Program:
            # The other block size is 5 % faster: baselines are tuned too.
            return self._program(analysis, cost * (1.0 if config["block"] == 128 else 0.95), "")

        def graph(config: Config) -> Program:
            return self._program(analysis, cost * 1.1, "")

        return (
            Baseline(name="sequential", detail="as given", space=knob, emit=given),
            Baseline(name="graph", detail="as a graph", emit=graph),
        )

    def emit(self, analysis: Analysis, config: Config, answers: Answers) -> Program | Rejection:
        x, y = config.integer("x"), config.integer("y")
        fault = analysis.workload.payload["faults"].get(f"{x},{y}", "")
        if fault == "rejected":
            return Rejection(rule="toy", nodes=("x", "y"), detail=f"{x},{y} is not allowed")
        return self._program(analysis, 10 + (x - 3) ** 2 + (y - 5) ** 2 / 4, fault)

    def inspect(self, program: Program, ptx: Mapping[str, str]) -> Rejection | None:
        if any(_directives(text).get("fault") == "leaks" for text in ptx.values()):
            return Rejection(rule="leak", nodes=("toy",), detail="the compiled program is not what was meant")
        return None

    def odd_sizes(self, workload: Workload) -> Mapping[str, int] | None:
        return {"n": 61}

    def _program(self, analysis: Analysis, cost_us: float, fault: str) -> Program:
        n = analysis.workload.sizes["n"]
        return sized(fake_program("toy", cost_us, fault, elements=size("n", n)), analysis.workload.sizes)


def fake_program(name: str, cost_us: float = 10.0, fault: str = "", *, elements: int = 16) -> Program:
    """What the fake device runs: one launch that takes so long, and does what `fault` says."""
    word = "sanitizer" if fault in ("racy", "absent") else "fault"
    text = f"cost_us {cost_us}\n" + (f"{word} {fault}\n" if fault else "")
    return Program(
        name=name,
        buffers=(Buffer(name="y", dtype="int32", elements=elements, role=Role.OUTPUT),),
        sources=(Source(name=name, text=text, entries=(name,)),),
        steps=(Launch(name=name, source=name, entry=name, grid=(1, 1, 1), block=(32, 1, 1), arguments=()),),
    )


class FakePlugin:
    """Registers both; give it to `Registry.add`."""

    @hookimpl
    def register_strategies(self, register: Callable[[ToyStrategy], None]) -> None:
        register(ToyStrategy())

    @hookimpl
    def register_devices(self, register: Callable[[FakeProvider], None]) -> None:
        register(FakeProvider())
