"""Plugins: all or nothing, and one that fails is a state that people can read."""

import importlib.metadata
import logging
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.model.errors import PluginError, UnknownName
from fusiond.model.events import JobEnded, RecordChanged, TrialFinished
from fusiond.model.nouns import Config
from fusiond.model.outcomes import Outcome, Record, Trial, Verdict
from fusiond.requests.registry import Registry
from fusiond.strategy import CatalogueEntry, Strategy
from fusiond.strategy.hookspecs import hookimpl
from tests.fakes import FakePlugin, FakeProvider, ToyStrategy

TRIAL = Trial(sequence=0, config=Config(()), origin="grid", outcome=Outcome.MEASURED, ratio=1.5)
RECORD = Record(
    strategy="toy", workload_name="toy", workload_key="k", sizes={}, device_name="d", device_key="d", env_key="e",
    verdict=Verdict.KEEP, config=None, program_key=None, time_us=None, baseline="b", baseline_us=1.0, speedup=None,
    ci95=None, verified=False, evidence="measured", trials=1, found_at="2026-01-01T00:00:00+00:00",
)  # fmt: skip


def brings(*strategies: object, entries: tuple[CatalogueEntry, ...] = (), providers: tuple[object, ...] = ()) -> object:
    class Plugin:
        @hookimpl
        def register_strategies(self, register: Callable[[Any], None]) -> None:
            for each in strategies:
                register(each)

        @hookimpl
        def register_workloads(self, register: Callable[[CatalogueEntry], None]) -> None:
            for each in entries:
                register(each)

        @hookimpl
        def register_devices(self, register: Callable[[Any], None]) -> None:
            for each in providers:
                register(each)

    return Plugin()


class Named(ToyStrategy):
    def __init__(self, name: str) -> None:
        self.name = name


def entry(tmp_path: Path, name: str = "k", kind: str = "kernel") -> CatalogueEntry:
    path = tmp_path / f"{name}.yaml"
    path.write_text("kernel: k")
    return CatalogueEntry(kind=kind, name=name, path=path)


def test_what_a_plugin_brings_is_registered_and_listed(tmp_path: Path) -> None:
    registry = Registry()
    registry.add(brings(Named("one"), Named("two"), entries=(entry(tmp_path),)), "plugin", "dist")
    registry.add(FakePlugin(), "fakes")
    assert list(registry.strategies) == ["one", "two", "toy"]
    assert list(registry.providers) == ["fake"]
    assert list(registry.names("kernel")) == ["k"]
    assert registry.names("graph") == {}
    first = registry.states[0]
    assert (first.name, first.distribution, first.strategies, first.workloads) == (
        "plugin", "dist", ("one", "two"), ("k",),
    )  # fmt: skip
    assert first.problem is None


def test_unknown_names_offer_the_nearest(fakes: Registry) -> None:
    with pytest.raises(UnknownName, match=r"job.yaml:1: unknown strategy 'tooy'; did you mean 'toy'\?"):
        fakes.strategy("tooy", where="job.yaml:1")
    with pytest.raises(UnknownName, match=r"did you mean 'fake'\?"):
        fakes.provider("fke:1")
    assert fakes.provider("fake:1").kind == "fake"


class Unmarked:
    def register_strategies(self, register: Callable[[Strategy], None]) -> None:
        register(ToyStrategy())


class Misspelt:
    @hookimpl
    def register_strategy(self, register: Callable[[Strategy], None]) -> None:
        register(ToyStrategy())


class MisspeltUnmarked:
    def register_stratgies(self, register: Callable[[Strategy], None]) -> None:
        register(ToyStrategy())


class OtherArgument:
    @hookimpl
    def register_strategies(self, add: Callable[[Strategy], None]) -> None:
        add(ToyStrategy())


class MisspeltNotification:
    @hookimpl
    def trial_ended(self, trial: Trial) -> None: ...


class Raises:
    @hookimpl
    def register_strategies(self, register: Callable[[Strategy], None]) -> None:
        register(ToyStrategy())
        raise RuntimeError("half way")


class Incomplete:
    name = "incomplete"
    version = 1
    job_keys = ()


@pytest.mark.parametrize(
    ("plugin", "problem"),
    [
        (Unmarked(), "lacks its marker"),
        (Misspelt(), "register_strategy"),
        (MisspeltUnmarked(), "there is no hook 'register_stratgies'"),
        (OtherArgument(), "add"),
        (MisspeltNotification(), "trial_ended"),
        (Raises(), "half way"),
        (brings(Incomplete()), "is not a strategy, it lacks analyse, baselines"),
        (brings(Named), "is a class; register an instance"),
        (brings(Named("twice"), Named("twice")), "'twice' is registered already"),
        (brings(providers=(FakeProvider(), FakeProvider())), "a device called 'fake' is registered already"),
        (brings(entries=(CatalogueEntry(kind="kernel", name="k", path=Path("/nowhere.yaml")),)), "has no file"),
    ],
)
def test_a_broken_plugin_leaves_nothing_behind(plugin: object, problem: str) -> None:
    registry = Registry()
    with pytest.raises(Exception, match=problem):
        registry.add(plugin, "broken")
    assert (registry.strategies, registry.providers, registry.catalogue, registry.states) == ({}, {}, {}, [])
    registry.add(FakePlugin(), "broken")  # the name is free again, and the next plugin loads
    assert list(registry.strategies) == ["toy"]
    registry.notify(TrialFinished(job="1", trial=TRIAL, done=1, budget=1, best=None))


class OfKind(FakeProvider):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind


class NoFacts:
    kind = "bare"
    shares_cores = False


@pytest.mark.parametrize(
    ("provider", "problem"),
    [
        (FakeProvider, "is a class; register an instance of it"),
        (NoFacts(), "is not a device provider, it lacks build, devices, executor, facts, "),
        (OfKind("slow:x"), "'slow:x' is not a kind of device"),
        (OfKind("auto"), "'auto' is not a kind of device"),
    ],
)
def test_a_provider_that_nobody_could_use_is_refused(provider: object, problem: str) -> None:
    registry = Registry()
    with pytest.raises(PluginError, match=re.escape(problem)):
        registry.add(brings(providers=(provider,)), "mine")
    assert registry.providers == {}


def test_names_that_are_taken(fakes: Registry, tmp_path: Path) -> None:
    fakes.add(brings(entries=(entry(tmp_path),)), "kernels")
    for plugin, problem in (
        (brings(ToyStrategy()), "a strategy called 'toy'"),
        (brings(Named("new"), providers=(FakeProvider(),)), "a device called 'fake'"),
        (brings(Named("new"), entries=(entry(tmp_path),)), "a kernel called 'k'"),
    ):
        with pytest.raises(PluginError, match=problem):
            fakes.add(plugin, "late")
    assert "new" not in fakes.strategies
    fakes.add(brings(entries=(entry(tmp_path, kind="graph"),)), "graphs")  # another kind is another name
    with pytest.raises(PluginError, match="'kernels' is registered already"):
        fakes.add(brings(Named("other")), "kernels")


def test_notifications_reach_every_plugin_and_one_that_raises_costs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[object] = []

    class Sour:
        @hookimpl
        def trial_finished(self, trial: Trial) -> None:
            raise OSError("disk full")

        @hookimpl
        def record_changed(self, record: Record) -> None:
            raise OSError("disk full")

    class Good:
        @hookimpl
        def trial_finished(self, trial: Trial) -> None:
            heard.append(trial)

        @hookimpl
        def record_changed(self, record: Record) -> None:
            heard.append(record)

    registry = Registry()
    registry.add(Sour(), "sour")
    registry.add(Good(), "good")
    registry.add(Sour(), "later")
    with caplog.at_level(logging.ERROR, "fusiond.requests.registry"):
        registry.notify(TrialFinished(job="1", trial=TRIAL, done=1, budget=2, best=None))
        registry.notify(RecordChanged(job="1", record=RECORD))
        registry.notify(JobEnded(job="1", state="done"))
    assert heard == [TRIAL, RECORD]
    assert caplog.text.count("plugin sour failed") == 2


def points(*modules: tuple[str, str]) -> list[importlib.metadata.EntryPoint]:
    return [importlib.metadata.EntryPoint(name=name, value=value, group="fusiond") for name, value in modules]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[..., types.ModuleType]:
    def make(name: str, **contents: object) -> types.ModuleType:
        made = types.ModuleType(name)
        vars(made).update(contents)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return make


def test_loading_goes_on_past_a_plugin_that_fails(module: Callable[..., types.ModuleType], tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "leaves.py").write_text("raise SystemExit('needs a licence')")
    (tmp_path / "breaks.py").write_text("raise ValueError('one line\\nand another')")
    (tmp_path / "syntax.py").write_text("def f(:")
    module("good_plugin", plugin=FakePlugin())
    module("sour_plugin", plugin=Raises())
    registry = Registry.load(
        points(("b-good", "good_plugin:plugin"), ("a-sour", "sour_plugin:plugin"), ("c-none", "no_such_module"),
               ("d-leaves", "leaves"), ("e-breaks", "breaks"), ("f-syntax", "syntax"),
               ("g-attribute", "good_plugin:nil"), ("b-good", "good_plugin:plugin"))
    )  # fmt: skip
    problems = {}
    for state in registry.states:
        problems.setdefault(state.name, []).append(state.problem)
    assert list(registry.strategies) == ["toy"]
    some = Registry.load(points(("b-good", "good_plugin:plugin"), ("e-breaks", "breaks")), only=("e-breaks",))
    assert ([state.name for state in some.states], list(some.strategies)) == (["e-breaks"], [])
    some.complete()
    assert list(some.strategies) == ["toy"]
    assert problems["a-sour"] == ["RuntimeError: half way"]
    assert problems["b-good"] == [None, "a plugin called 'b-good' is registered already"]
    assert problems["c-none"] == ["ModuleNotFoundError: No module named 'no_such_module'"]
    assert problems["d-leaves"] == ["SystemExit: needs a licence"]
    assert problems["e-breaks"] == ["ValueError: one line and another"]
    assert problems["f-syntax"][0].startswith("SyntaxError")
    assert problems["g-attribute"][0].startswith("AttributeError")


@pytest.mark.slow
def test_what_a_plugin_lacks_is_said_with_the_remedy(tmp_path: Path) -> None:
    """Whoever names its strategy is told, and the others work."""
    code = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'clang' else found(name, *more)\n"
        "from fusiond.requests.registry import Registry\n"
        "from fusiond.model.errors import FusiondError\n"
        "registry = Registry.load()\n"
        "print(*registry.strategies)\n"
        "print(*[each.problem for each in registry.states if each.problem])\n"
        "try: registry.strategy('hfuse', where='job.yaml:1')\n"
        "except FusiondError as problem: print(problem)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    strategies, problem, said = ran.stdout.splitlines()
    assert strategies == "mincut replay stitching transfer variants"
    assert problem == "libclang is not installed: pip install libclang==18.1.1"
    assert said == f"job.yaml:1: the plugin hfuse did not load: {problem}"
