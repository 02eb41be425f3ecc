"""A recorded space is tuned on the replay device: every failure, samples in their order, its own records."""

import gzip
import json
import random
from pathlib import Path

import pytest

from fusiond.cli import main
from fusiond.model.errors import RequestError
from fusiond.model.nouns import REPLAYED, Job
from fusiond.model.outcomes import BuildFailed, Outcome
from fusiond.model.program import Source
from fusiond.requests import jobs
from fusiond.requests.planning import choose_device, prepare
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.testing.fakes import FakePlugin, InProcess, fake_program
from fusiond.testing.strategies import StrategyContract
from fusiond_replay import plugin, script, strategy, t4
from fusiond_replay.device import ReplayExecutor, ReplayProvider
from fusiond_replay.pack import FAILURES
from fusiond_replay.script import ReplayScript
from fusiond_replay.strategy import Replay
from tests.conftest import run_job

SIDE = 6
FAILED = {(k, k): failure for k, failure in enumerate(FAILURES)}


def recorded(path: Path) -> Path:
    """A bowl with its lowest point at 4, 2; the diagonal fails in every way there is."""
    header = {"replay": 1, "name": "bowl", "parameters": {"x": list(range(SIDE)), "y": list(range(SIDE))}, "unit": "us"}
    lines = [json.dumps(header)]
    noise = random.Random(1)
    for x in range(SIDE):
        for y in range(SIDE):
            time = 100 + 10 * (x - 4) ** 2 + 10 * (y - 2) ** 2
            samples = [3 * time] * 3 + [time * (1 + noise.gauss(0, 0.001)) for _ in range(10)]
            lines.append(json.dumps([[x, y], FAILED.get((x, y), samples), 0.1]))
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def registry() -> Registry:
    found = Registry()
    found.add(plugin, "replay")
    return found


@pytest.fixture
def bowl(tmp_path: Path) -> Path:
    return recorded(tmp_path / "bowl.jsonl.gz")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_recorded_space_is_tuned(bowl: Path, tmp_path: Path) -> None:
    here = registry()
    (job,) = jobs.read(str(tmp_path / "j.yaml"), "strategy: replay\nspace: ./bowl.jsonl.gz\ndevice: replay\n")
    with Store.open(tmp_path / "store.sqlite") as store:
        row, _ = run_job(store, here, job, runner=InProcess)
        trials = store.trials(row.id)
        (device,) = ReplayProvider().devices()
        (record,) = store.incumbents(row.workload_key, device.key, "warm")
    outcomes = {(each.config["x"], each.config["y"]): each.outcome for each in trials}
    assert len(trials) == SIDE * SIDE
    assert {where: outcomes[where] for where in FAILED} == {
        (0, 0): Outcome.BUILD_FAILED, (1, 1): Outcome.CRASHED, (2, 2): Outcome.TIMED_OUT, (3, 3): Outcome.WRONG_RESULT,
        (4, 4): Outcome.LAUNCH_REFUSED,
    }  # fmt: skip
    assert record.config is not None
    assert (record.config["x"], record.config["y"]) == (4, 2)
    assert record.evidence == REPLAYED
    best = min(each.time_us for each in trials if each.time_us)
    assert best == pytest.approx(100, rel=0.01)


def test_samples_come_in_their_order_and_then_the_steady_ones_again(tmp_path: Path) -> None:
    text = script.write("t", ReplayScript(samples_us=(9.0, 5.0, 6.0), warmups=1))
    provider = ReplayProvider()
    built = provider.build(Source(name="recorded", text=text, entries=("recorded",)), "replay")
    assert not isinstance(built, BuildFailed)
    loaded = ReplayExecutor().load(fake_program("t"), {"t": built.path})
    assert [loaded.sample_us(1) for _ in range(6)] == [9.0, 5.0, 6.0, 5.0, 6.0, 5.0]


def test_other_programs_do_not_build_on_it() -> None:
    found = ReplayProvider().build(Source(name="k", text="__global__ void k() {}", entries=("k",)), "replay")
    assert found == BuildFailed(reason="k: the replay device runs recorded configs only (strategy: replay)")


def test_it_is_used_only_by_those_who_name_it() -> None:
    here = registry()
    here.add(FakePlugin(), "fakes")
    assert choose_device(here, "auto")[1].name == "fake"
    assert choose_device(here, "replay")[1].name == "replay"
    (replay,) = ReplayProvider().devices()
    assert replay.key != choose_device(here, "fake")[1].key


def test_a_job_s_mistakes_are_one_line(bowl: Path, tmp_path: Path) -> None:
    here = registry()
    for text, said in (
        ("space: ./absent.gz", "there is no file"),
        ("space: 3", "'space' must be the path of a recorded space"),
        ("{}", "'space' must be the path of a recorded space"),
    ):
        (job,) = jobs.read(str(tmp_path / "j.yaml"), f"strategy: replay\n{text if text != '{}' else ''}\n")
        with pytest.raises(RequestError, match=said):
            prepare(here, job)


def test_a_file_that_changed_is_said(bowl: Path, tmp_path: Path) -> None:
    here = registry()
    (job,) = jobs.read(str(tmp_path / "j.yaml"), "strategy: replay\nspace: ./bowl.jsonl.gz\n")
    prepared = prepare(here, job)
    bowl.write_bytes(b"another")
    strategy._opened.cache_clear()
    with pytest.raises(RequestError, match="is another file than when the job was submitted"):
        prepare(here, prepared.job)


class TestReplay(StrategyContract):
    random_points = 3

    @pytest.fixture(autouse=True)
    def _space(self, bowl: Path) -> None:
        self.bowl = bowl

    def strategy(self) -> Replay:
        return Replay()

    def registry(self) -> Registry:
        return registry()

    def jobs(self) -> tuple[Job, ...]:
        return jobs.read(str(self.bowl.parent / "j.yaml"), "strategy: replay\nspace: ./bowl.jsonl.gz\n")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_space_that_was_recorded_is_the_space(
    bowl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`fusiond record` of a replayed space gives it back."""
    monkeypatch.setenv("FUSIOND_DB", str(tmp_path / "store.sqlite"))
    monkeypatch.chdir(tmp_path)
    Path("j.yaml").write_text("strategy: replay\nspace: ./bowl.jsonl.gz\ndevice: replay\nsearch: {trials: 3}\n")
    assert main(["record", "j.yaml"]) == 0
    assert "bowl-replay.jsonl.gz: 36 configs, 5 of them failed, of 36 tried" in capsys.readouterr().out
    given, found = t4.read(bowl), t4.read(tmp_path / "bowl-replay.jsonl.gz")
    assert found.parameters == given.parameters
    times = [{each.levels: pack.time_us(each) for each in pack.rows} for pack in (given, found)]
    assert times[0].keys() == times[1].keys()
    for levels, time in times[0].items():
        assert times[1][levels] == (None if time is None else pytest.approx(time, rel=0.01))
    assert main(["record", "j.yaml", "--out", str(tmp_path / "absent" / "x.gz")]) == 2
    assert capsys.readouterr().err.startswith("fusiond: error: --out: there is no folder")
