"""The performance library in a whole run, on a device whose times are made up: what is measured, what it decides, what
is kept for the next job, and what an answer says of the whole module."""

import os
import threading
from pathlib import Path

import pytest

import fusiond_stitching.plugin as plugin
from fusiond.cli import main
from fusiond.devices.base import Binary
from fusiond.model import events as say
from fusiond.model.keys import text_key
from fusiond.model.outcomes import Record, Verdict
from fusiond.model.program import Source
from fusiond.requests import jobs
from fusiond.requests.planning import plan, prepare, target_of
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.strategy import Target
from fusiond.strategy.hookspecs import hookimpl
from fusiond_stitching import report
from fusiond_stitching.requests import PROBES
from fusiond_stitching.strategy import Stitching
from tests.conftest import run_job
from tests.fakes import FakeProvider, InProcess

pytestmark = pytest.mark.usefixtures("sorts_are_boundaries")


class Clocked(FakeProvider):
    """A launch takes what `costs` says of its source, else 10 us."""

    def __init__(self) -> None:
        self.costs: dict[str, float] = {}

    def build(self, source: Source, arch: str) -> Binary:
        made = super().build(source, arch)
        text = f"cost_us {self.costs.get(source.text, 10.0)}\n"
        # The cache is every test process's, and a build never changes: each cost has a file of its own.
        path = Path(made.path).with_suffix("") / f"{text_key(text)}.clocked"
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            whole = path.with_suffix(f".{threading.get_ident()}-{os.getpid()}")
            whole.write_text(text)
            whole.replace(path)
        return Binary(source=source.name, path=path)


class Device:
    @hookimpl
    def register_devices(self, register):
        register(Clocked())


@pytest.fixture
def registry():
    found = Registry()
    found.add(plugin, "stitching")
    found.add(Device(), "device")
    return found


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.sqlite") as opened:
        yield opened


def job(more: str = "", module: str = "nmt_fig3", trials: int = 1):
    (found,) = jobs.read("j.yaml", f"strategy: stitching\nmodule: {module}\n{more}\nsearch: {{trials: {trials}}}\n")
    return found


def run(store: Store, registry: Registry, given) -> tuple[list[str], Record, list]:
    """The keys of the probes that were measured, the answer, the trials."""
    seen: list = []
    row, _ = run_job(store, registry, given, seen.append, runner=InProcess)
    measured = [each.detail for each in seen if isinstance(each, say.PhaseStarted) and each.phase == "probe"]
    record = store.record(row.workload_key, registry.providers["fake"].devices()[0].key)
    assert record is not None, [(each.state, each.problem, each.waiting_for) for each in store.jobs()]
    return measured, record, store.trials(row.id)


@pytest.mark.slow
def test_what_is_measured_decides_the_schedules_and_is_there_for_the_next_job(store, registry):
    """On a device on which the schedule that the estimate puts last among those it asks about is the fastest."""
    provider = registry.providers["fake"]
    (info,) = provider.devices()
    given = job("probes: 1000", trials=3)
    before = plan(registry, given, store=store)
    probes = Stitching().probes(before.analysis)
    provider.costs = {each.program.sources[0].text: 1000 / (1 + at) for at, each in enumerate(probes)}
    assert before.probes == before.probes_missing > PROBES
    measured, _, trials = run(store, registry, given)
    strategy = Stitching()
    analysis = strategy.analyse(prepare(registry, given).workload, target_of(provider, info))
    wanted = [each.key for each in strategy.probes(analysis)]
    assert measured == wanted
    after = plan(registry, given, store=store)
    assert (after.probes, after.probes_missing) == (len(wanted), 0)
    known = {key: store.probe(key, info.key, strategy.version) for key in wanted}
    seeds = dict(strategy.seeds(analysis, strategy.space(analysis, known), known))
    (packed,) = [each for each in trials if each.config == seeds["packed_shared"]]
    assert packed.program_key == strategy.emit(analysis, packed.config, known).key
    assert packed.program_key != strategy.emit(analysis, packed.config, {}).key
    # Another workload of the same shapes asks for the same entries.
    again, _, _ = run(store, registry, job("probes: 1000\ninputs: {in_0: {uniform: [0, 2]}}"))
    assert again == []


@pytest.mark.slow
def test_a_job_measures_as_many_as_it_may_and_plan_says_what_is_missing(store, registry, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fusiond.requests.isolation.registry.load", lambda **_: registry)
    (tmp_path / "j.yaml").write_text("strategy: stitching\nmodule: nmt_fig3\nprobes: 4\ndevice: fake\n")

    def said() -> str:
        assert main(["plan", str(tmp_path / "j.yaml"), "--db", str(store.path)]) == 0
        (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("parts:")]
        return line

    assert "probes: 13 wanted, 0 known, 13 missing (a run measures 4 of them)" in said()
    first, _, _ = run(store, registry, job("probes: 4"))
    assert len(first) == 4
    assert "probes: 13 wanted, 4 known, 9 missing (a run measures 4 of them)" in said()
    second, _, _ = run(store, registry, job("inputs: {in_0: {uniform: [0, 2]}}"))
    assert len(second) == 9 <= PROBES
    assert not set(first) & set(second)
    assert "probes: 13 wanted, 13 known, 0 missing, points" in said()


@pytest.mark.slow
def test_an_answer_says_what_it_is_worth_for_the_whole_module(store, registry, capsys):
    """Section 6.4: FusableRatio and the predicted end-to-end gain, from times of this device alone."""
    given = job("probes: 1")
    assert plan(registry, given, store=store).figures == {}
    (measured,), record, _ = run(store, registry, given)
    (info,) = registry.providers["fake"].devices()
    library_us = store.probe(measured, info.key, Stitching.version)
    ratio = record.baseline_us / (record.baseline_us + library_us)
    assert dict(record.figures) == pytest.approx(
        {
            "library_us": library_us,
            "fusable_ratio": ratio,
            "predicted_end_to_end": 1 + ratio * (1 - 1 / record.speedup),
            "end_to_end": 1 / (1 - ratio + ratio / record.speedup),
        }
    )
    assert plan(registry, given, store=store).figures == record.figures
    assert main(["best", "--workload", "nmt_fig3", "--device", "fake", "--db", str(store.path)]) == 0
    assert f"fusable_ratio={ratio:.4g}" in capsys.readouterr().out
    (row,) = store.jobs()
    assert main(["explain", row.id, "--db", str(store.path)]) == 0
    assert "predicted_end_to_end=" in capsys.readouterr().out


def test_no_figure_is_made_up():
    assert report.figures(None, None) == {}
    assert report.figures(None, 3.0) == {"library_us": 3.0}
    record = Record(
        strategy="stitching", workload_name="n", workload_key="k", sizes={}, device_name="d", device_key="d",
        env_key="e", verdict=Verdict.KEEP, config=None, program_key=None, time_us=None, baseline="unfused",
        baseline_us=30.0, speedup=None, ci95=None, verified=False, evidence="measured", trials=1, found_at="",
    )  # fmt: skip
    assert report.figures(record, None) == {}
    assert report.figures(record, 10.0) == {"library_us": 10.0, "fusable_ratio": 0.75}


@pytest.mark.parametrize(("module", "dots", "has"), [("lr_step", "library", True), ("nmt_fig3", "any", False)])
def test_library_calls_are_timed_where_no_plan_times_them(registry, module, dots, has):
    (info,) = registry.providers["fake"].devices()
    target = Target(arch="sm_90", limits=info.limits, facts=lambda source: None)
    strategy = Stitching()
    analysis = strategy.analyse(prepare(registry, job(f"dots: {dots}", module)).workload, target)
    first = strategy.probes(analysis)[0]
    assert first.key.startswith("stitching-library:") == has
    if has:
        assert [each.counted for each in first.program.steps] == [True, True]
