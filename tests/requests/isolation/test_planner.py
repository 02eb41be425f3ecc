"""What a plugin, or a library below it, does to its process stays there: the answer is a line, or the next child's."""

import concurrent.futures
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import psutil
import pytest

from fusiond.build import cache
from fusiond.model.errors import MachineFault, PluginError, RequestError, UnknownName
from fusiond.model.nouns import Config, Job, Rejection, frozen
from fusiond.model.program import Program
from fusiond.requests import jobs
from fusiond.requests.isolation import planner as planners
from fusiond.requests.isolation import processes, registration_cache
from fusiond.requests.isolation.messages import ChildLimits, Description
from fusiond.requests.isolation.planner import Planner
from fusiond.requests.isolation.registry import IsolatedRegistry
from fusiond.requests.planning import Prepared, plan, prepare, target_for_arch
from fusiond.requests.registry import PluginState, Registry
from fusiond.strategy import Strategy, Target
from fusiond.testing.cases import PROCESSOR

HERE = Path(__file__).parent
TARGET = Target(arch="cpu", limits=PROCESSOR, facts=lambda source: None)
Plan = Callable[..., Prepared]


def planner_of(function: str, marker: Path, **more: Any) -> Planner:
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "MISCHIEF": str(marker)}
    return Planner(source=f"mischief:{function}", environment=environment, **more)


class Late(queue.SimpleQueue[Any]):
    """A queue whose first wait takes for ever, as when this process is stopped, and whose second one has an answer."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self.empty():
            return super().get()
        self.put("the answer")
        clock.now += 1000.0
        raise queue.Empty


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


clock = Clock()


def test_who_was_stopped_itself_waits_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "time", clock)
    assert processes._next(Late(), clock.monotonic() + 2.0, 2.0) == "the answer"


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


@pytest.fixture
def planner(marker: Path) -> Iterator[Planner]:
    limits = ChildLimits(secs=2.0, memory_bytes=2 << 30, stack_bytes=16 << 20)
    with planner_of("registry", marker, limits=limits) as found:
        yield found


@pytest.fixture
def prepared(planner: Planner, tmp_path: Path) -> Plan:
    registry = IsolatedRegistry(planner)

    def make(*texts: str, **request: object) -> Prepared:
        paths = []
        for number, text in enumerate(texts):
            path = tmp_path / f"file{number}.txt"
            path.write_text(text)
            paths.append(str(path))
        path = tmp_path / "job.yaml"
        return prepare(
            registry,
            Job(strategy="mischief", request=frozen({"files": paths, "side": 2, **request}), sizes=frozen(),
                path=str(path)),
        )  # fmt: skip

    return make


def emitted(found: Prepared, x: int = 0, y: int = 0) -> Program | Rejection:
    analysis = found.strategy.analyse(found.workload, TARGET)
    return found.strategy.emit(analysis, Config.of({"x": x, "y": y}), {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "said"), [("segfault", "SIGSEGV"), ("abort", "SIGABRT"), ("exit", "status 0"), ("overflow", "SIGSEGV")]
)
def test_a_parser_that_ends_its_process_is_a_line_that_names_the_line(prepared: Plan, deed: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as problem:
        prepared("fine\n" * 10, "fine\n" * 700 + f"{deed}\n" + "fine\n" * 300)
    assert problem.value.where.endswith("file1.txt:701")
    assert isinstance(emitted(prepared("fine")), Program)


@pytest.mark.slow
def test_a_parser_that_takes_too_long_is_stopped_and_the_file_is_named(prepared: Plan) -> None:
    with pytest.raises(RequestError, match="more than 2 s") as problem:
        prepared("fine", "forever\n")
    assert problem.value.where.endswith("file1.txt")


def test_a_parser_that_wants_all_memory_is_refused(prepared: Plan) -> None:
    with pytest.raises(RequestError, match="memory"):
        prepared("eat\n")


def test_a_bug_in_a_plugin_is_what_it_is(prepared: Plan) -> None:
    with pytest.raises(PluginError, match=r"^the plugin failed in \w+ \(mischief\.py:\d+\): IndexError: ") as problem:
        prepared("raise\n")
    assert "mischief.py" in "".join(problem.value.__notes__), "the traceback of the other side"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["analyse", "space"])
@pytest.mark.parametrize("deed", ["segfault", "forever"])
def test_a_crash_in_planning_is_a_line_about_the_job(prepared: Plan, step: str, deed: str) -> None:
    found = prepared("fine", **{step: deed})
    with pytest.raises(RequestError, match=r"died of SIGSEGV|more than 2 s") as problem:
        found.strategy.space(found.strategy.analyse(found.workload, TARGET), {})
    assert problem.value.where.endswith("job.yaml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "rule"), [("segfault", "crashed"), ("exit", "crashed"), ("forever", "too_slow"), ("eat", "too_large")]
)
def test_a_config_that_cannot_be_emitted_is_refused_and_the_others_are_not(
    prepared: Plan, deed: str, rule: str
) -> None:
    found = prepared("fine", emit={"1,0": deed})
    refused = emitted(found, 1, 0)
    assert isinstance(refused, Rejection)
    assert refused.rule == rule
    assert isinstance(emitted(found, 0, 1), Program)


def test_a_crash_takes_nobody_else_along(prepared: Plan) -> None:
    """Many requests at once, in the same children as one that kills them again and again."""
    good = [prepared("fine", label=f"good{index}") for index in range(4)]
    bad = prepared("fine", emit={"0,0": "segfault"})
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        crashes = [threads.submit(emitted, bad) for _ in range(3)]
        others = [threads.submit(emitted, each) for each in good * 5]
        assert all(isinstance(each.result(), Rejection) for each in crashes)
        programs = [each.result() for each in others]
    assert all(isinstance(each, Program) for each in programs)
    assert len({each.key for each in programs if isinstance(each, Program)}) == 1


def test_a_child_that_is_killed_from_outside_is_replaced(prepared: Plan) -> None:
    assert isinstance(emitted(prepared("fine", emit={"0,0": "kill-once"})), Program)


def test_a_zygote_that_is_killed_is_replaced_and_what_was_parsed_is_parsed_again(prepared: Plan) -> None:
    assert isinstance(emitted(prepared("fine", emit={"0,0": "kill-parent-once"})), Program)


def test_one_fault_alone_condemns_nobody(prepared: Plan) -> None:
    """The first may have been somebody else's, in the same process."""
    assert isinstance(emitted(prepared("fine", emit={"0,0": "segfault-once"})), Program)


def test_what_is_killed_again_and_again_is_the_machines_fault(prepared: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planners, "PAUSE_SECS", 0.0)
    with pytest.raises(MachineFault, match="SIGKILL"):
        emitted(prepared("fine", emit={"0,0": "kill"}))


def test_what_a_file_said_when_it_was_read_is_what_counts(prepared: Plan, tmp_path: Path) -> None:
    """A child that takes over parses the same text, whatever has become of the file."""
    found = prepared("fine", emit={"0,0": "kill-once"})
    (tmp_path / "file0.txt").write_text("segfault\n")
    assert isinstance(emitted(found), Program)


def test_nothing_is_kept_of_what_is_forgotten(planner: Planner, prepared: Plan) -> None:
    for _ in range(20):
        emitted(prepared("fine"))
    emitted(prepared("fine"))
    assert sum(len(child.keeps) for child in planner.children) <= 4


@pytest.mark.slow
def test_a_plugin_whose_import_kills_is_named(marker: Path) -> None:
    with planner_of("deadly", marker) as planner, pytest.raises(PluginError, match="too many plugins"):
        assert planner.description


_ASKS = """
import sys, threading
from fusiond.requests.isolation.planner import Planner
planner = Planner(source="mischief:registry")
planner.description
planner.ask("read", "/j.yaml", "strategy: toy", {})
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nobody_outlives_the_program_that_asked(number: int) -> None:
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-c", _ASKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "MISCHIEF": "/nowhere"},
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        family = psutil.Process(program.pid).children(recursive=True)
        assert len(family) == 2, "the zygote and a child"
        program.send_signal(number)
        program.wait(10)
        until = time.monotonic() + 20
        while any(each.is_running() and each.status() != "zombie" for each in family):
            assert time.monotonic() < until, family
            time.sleep(0.01)


# --- what children say is what the strategies say -------------------------------------------------------


SAMPLE = ("hist-maxpool", "mincut-harris", "stitching-lr", "transfer-fig2", "four-kernels")
JOBS = [
    pytest.param(path, id=path.stem, marks=() if path.stem in SAMPLE else pytest.mark.campaign)
    for path in sorted((Path(__file__).parents[3] / "configs" / "jobs").glob("*.yaml"))
]


@pytest.fixture(scope="module")
def isolated(real: Registry) -> Iterator[Registry]:
    with Planner() as planner:
        registry = IsolatedRegistry(planner)
        registry.providers = real.providers
        yield registry


def said(found: Program | Rejection | None) -> object:
    return found.key if isinstance(found, Program) else found


def everything(prepared: Prepared, registry: Registry) -> list[object]:
    """What a tuner would ask of a strategy."""
    strategy, target = prepared.strategy, target_for_arch("sm_90", registry)
    analysis = strategy.analyse(prepared.workload, target)
    space = strategy.space(analysis, {})
    seeds = strategy.seeds(analysis, space, {})
    found: list[object] = [prepared.workload.key, prepared.workload.content_key, dict(prepared.job.files)]
    found += [analysis.report, analysis.rejections, analysis.alone, space.hash, seeds, strategy.describe(analysis)]
    found += [strategy.parts(analysis), strategy.probe_limit(analysis), strategy.odd_sizes(prepared.workload)]
    found += [[(each.key, each.program.key) for each in strategy.probes(analysis)]]
    found += [dict(strategy.figures(analysis, None, {}))]
    for baseline in strategy.baselines(analysis):
        config = next(baseline.space.points())
        found += [baseline.name, baseline.detail, baseline.like, baseline.space.hash, baseline.emit(config).key]
    for _, config in (*seeds[:3], *seeds[-1:]):
        found += [said(strategy.emit(analysis, config, {})), strategy.resolved(analysis, config, {})]
        found += [said(strategy.unfused(analysis, config))]
    return found


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("path", JOBS)
def test_a_job_is_the_same_to_both(real: Registry, isolated: Registry, path: Path) -> None:
    (job, *_) = jobs.read(path, device="cpu")
    here, there = (everything(prepare(registry, job), registry) for registry in (real, isolated))
    assert here == there
    assert plan(real, job).as_json() == plan(isolated, job).as_json()


def test_a_mistake_is_the_same_to_both(real: Registry, isolated: Registry) -> None:
    (job,) = jobs.read("/job.yaml", "strategy: hfuse\npair: [hits, maxpool]\n")
    problems = []
    for registry in (real, isolated):
        with pytest.raises(UnknownName) as problem:
            prepare(registry, job)
        problems.append((str(problem.value), problem.value.where, problem.value.problem, problem.value.exit_status))
    assert problems[0] == problems[1]


def test_strategies_look_the_same(real: Registry, isolated: Registry) -> None:
    for name, strategy in real.strategies.items():
        other = isolated.strategies[name]
        assert isinstance(other, Strategy)
        for each in ("name", "version", "job_keys", "wrong_versions"):
            assert getattr(other, each) == getattr(strategy, each)
        assert dict(other.names) == dict(strategy.names)
    assert isolated.catalogue == real.catalogue
    assert [each.name for each in isolated.states] == [each.name for each in real.states]


# --- what plugins registered is recalled as long as nothing of them has changed -------------------------


POINTS = (EntryPoint("odd", "odd_plugin.hooks", "fusiond"),)


def described(*states: PluginState) -> Description:
    return Description(strategies=(), states=states, catalogue={}, listens=False)


FINE = described(PluginState(name="odd", distribution="odd", workloads=("one",)))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plugin that could be imported, and a cache of its own."""
    folder = tmp_path / "site" / "odd_plugin"
    (folder / "kernels").mkdir(parents=True)
    for name in ("__init__.py", "hooks.py", "kernels/one.yaml"):
        (folder / name).write_text("# first\n")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    monkeypatch.setenv("FUSIOND_CACHE", str(tmp_path / "cache"))
    importlib.invalidate_caches()
    return folder


def test_it_is_recalled(package: Path) -> None:
    assert registration_cache.recall(POINTS) is None
    registration_cache.remember(POINTS, FINE)
    assert registration_cache.recall(POINTS) == FINE
    assert registration_cache.recall(()) is None


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file is written": lambda folder: (folder / "hooks.py").write_text("# second\n"),
    "a file is only newer": lambda folder: os.utime(folder / "hooks.py", ns=(1, 1)),
    "a file comes": lambda folder: (folder / "kernels" / "two.yaml").write_text(""),
    "a file goes": lambda folder: (folder / "kernels" / "one.yaml").unlink(),
    "the plugin goes": lambda folder: folder.rename(folder.parent / "elsewhere"),
    "another distribution comes": lambda folder: (folder.parent / "libfoo-1.0.dist-info").mkdir(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_not_recalled(package: Path, change: str) -> None:
    registration_cache.remember(POINTS, FINE)
    CHANGES[change](package)
    importlib.invalidate_caches()
    assert registration_cache.recall(POINTS) is None


def test_a_plugin_that_did_not_load_is_asked_again(package: Path) -> None:
    registration_cache.remember(POINTS, described(PluginState(name="odd", distribution="odd", problem="no libclang")))
    assert registration_cache.recall(POINTS) is None


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x04N."])
def test_what_is_damaged_is_not_recalled(package: Path, content: bytes) -> None:
    registration_cache.remember(POINTS, FINE)
    folder = cache.of_folder(cache.default_folder())
    folder.put(registration_cache._key(POINTS, None), registration_cache.SUFFIX, content)
    assert registration_cache.recall(POINTS) is None


QUIET = """
import subprocess, sys
from fusiond.cli import main

def refused(*args, **more):
    raise AssertionError("a child was started")

subprocess.Popen.__init__ = refused
status = main(["plugins", "--json"])
assert not {"numpy", "pynvml", "clang", "optuna"} & set(sys.modules), sorted(sys.modules)
sys.exit(status)
"""


@pytest.mark.slow
def test_the_second_command_starts_no_child(tmp_path: Path) -> None:
    """And says what the first one said. It needs neither NumPy nor a device's library."""
    environment = {**os.environ, "FUSIOND_CACHE": str(tmp_path / "cache")}

    def said(*command: str) -> Any:
        ran = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    assert said("-m", "fusiond", "plugins", "--json") == said("-c", QUIET)
