"""Recorded spaces: what is read is what was written, and what is wrong in a file is one line."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.cli import main
from fusiond.model.errors import RequestError
from fusiond.model.nouns import REPLAYED, Config, Job
from fusiond.model.outcomes import BuildFailed, Outcome
from fusiond.model.program import Source
from fusiond.requests import jobs
from fusiond.requests.planning import choose_device, prepare
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.strategy import recorded_space as writer
from fusiond.testing.strategies import StrategyContract
from fusiond_replay import pack, plugin, script, strategy, t4
from fusiond_replay.device import ReplayExecutor, ReplayProvider
from fusiond_replay.pack import FAILURES, Row
from fusiond_replay.script import ReplayScript
from fusiond_replay.strategy import Replay
from tests.conftest import run_job
from tests.fakes import FakePlugin, InProcess, fake_program

HEADER: dict[str, Any] = {"replay": 1, "name": "small", "parameters": {"x": [1, 2, 4], "y": ["a", None]}, "unit": "ms"}
ROWS = [[[0, 0], [9.0, 9.0, 9.0, 2.0, 3.0], 1.5], [[1, 1], "compile", 0.5], [[2, None], [4.0], 0.1]]


def written(path: Path, header: dict[str, Any] = HEADER, rows: list[Any] = ROWS, *, plain: bool = False) -> Path:
    data = "\n".join(json.dumps(each) for each in (header, *rows)).encode()
    path.write_bytes(data if plain else gzip.compress(data))
    return path


@pytest.mark.parametrize("plain", [False, True])
def test_a_pack_is_read(tmp_path: Path, plain: bool) -> None:
    found = t4.read(written(tmp_path / "small.jsonl.gz", plain=plain))
    assert (found.name, found.device, found.warmups) == ("small", "", 3)
    assert [found.values(each) for each in found.rows] == [{"x": 1, "y": "a"}, {"x": 2, "y": None}, {"x": 4}]
    assert [found.time_us(each) for each in found.rows] == [2500.0, None, 4000.0]
    assert found.time_us(found.rows[0], most=1) == 2000.0
    assert found.rows[1].failure == "compile"
    assert list(found.space.points()) == [Config.of(found.values(each)) for each in found.rows]


@given(
    st.dictionaries(
        st.tuples(st.integers(-1, 2), st.integers(-1, 1)),
        st.one_of(st.sampled_from(pack.FAILURES), st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=5)),
        min_size=1,
    ).filter(lambda each: any(isinstance(became, list) for became in each.values()))
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, became: dict[tuple[int, int], Any]) -> None:
    rows = tuple(
        Row(levels=levels, failure=each)
        if isinstance(each, str)
        else Row(levels=levels, samples_us=tuple(each), secs=1.0)
        for levels, each in became.items()
    )
    path = tmp_path_factory.mktemp("packs") / "one.jsonl.gz"
    writer.write(path, "one", HEADER["parameters"], rows, warmups=0)
    found = pack.read(path)
    assert [(each.levels, each.failure) for each in found.rows] == [(each.levels, each.failure) for each in rows]
    for mine, other in zip(found.rows, rows, strict=True):
        assert mine.samples_us == pytest.approx(other.samples_us, rel=1e-5)
    before = path.read_bytes()
    writer.write(path, "one", HEADER["parameters"], rows, warmups=0)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("header", "rows", "said"),
    [
        ({"name": "no"}, ROWS, ":1: expected the header of a recorded space"),
        ({**HEADER, "replay": 2}, ROWS, ":1: is of version 2; this fusiond reads version 1"),
        ({**HEADER, "unit": "h"}, ROWS, ":1: unit is 'h'; it can be us, ms, s"),
        ({**HEADER, "warmups": -1}, ROWS, "warmups is -1"),
        ({**HEADER, "problem": "big"}, ROWS, "problem must be a list of whole numbers"),
        ({**HEADER, "parameters": []}, ROWS, "'parameters' must be an object"),
        ({**HEADER, "parameters": {"x": [], "y": [1]}}, ROWS, "parameters.x: expected a list"),
        ({**HEADER, "parameters": {"x": [[1]], "y": [1]}}, ROWS, "parameters.x: expected a list"),
        (HEADER, [[[0], [1.0], 0]], ":2: has 1 positions; there are 2 parameters"),
        (HEADER, [[[3, 0], [1.0], 0]], ":2: position 3 of x: expected 0 to 2, or null"),
        (HEADER, [[[True, 0], [1.0], 0]], ":2: position True of x"),
        (HEADER, [[[0, 0], "exploded", 0]], "failed by 'exploded'; it can be compile, runtime"),
        (HEADER, [[[0, 0], [], 0]], "expected samples: a list of positive numbers"),
        (HEADER, [[[0, 0], [0.0], 0]], "expected samples: a list of positive numbers"),
        (HEADER, [[[0, 0], [1.0], -1]], "seconds are -1"),
        (HEADER, [{"x": 1}], "expected [positions, samples or failure, seconds]"),
        (HEADER, [ROWS[0], ROWS[0]], ":3: the same config stands in an earlier line"),
        (HEADER, [ROWS[1]], "no config of it was measured"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, header: dict[str, Any], rows: list[Any], said: str) -> None:
    with pytest.raises(RequestError) as problem:
        t4.read(written(tmp_path / "p.jsonl.gz", header, rows))
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "data", [b"", b"\x1f\x8bzzzz", gzip.compress(b"{}", mtime=0)[:-4], b"\xff\xfe", b"{} {}\n{", b"[1]"]
)
def test_a_damaged_file_is_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(RequestError, match=r"^\S*bad"):
        t4.read(tmp_path / "bad")
    with pytest.raises(RequestError, match="cannot be read"):
        t4.read(tmp_path / "absent")


T4 = {
    "metadata": {"timeunit": "milliseconds"},
    "results": [
        {
            "configuration": {"x": 32, "y": "b"},
            "times": {"compilation": 500, "runtimes": [9, 9, 9, 2, 4]},
            "invalidity": "correct",
            "measurements": [{"name": "time", "value": 3.0, "unit": "ms"}],
        },
        {"configuration": {"x": 16, "y": "a"}, "times": {"compilation_time": 100}, "invalidity": "compile"},
        {
            "configuration": {"x": 16, "y": "b"}, "times": {}, "invalidity": "correct",
            "measurements": [{"name": "time", "value": 5.0, "unit": ""}],
        },
    ],
}  # fmt: skip
CACHE = {
    "device_name": "Fast 9", "kernel_name": "k", "tune_params_keys": ["x", "y"],
    "tune_params": {"x": [64, 16, 32], "y": ["b", "a"]},
    "cache": {
        "32,b": {"x": 32, "y": "b", "time": 3.0, "times": [9, 9, 9, 2, 4], "compile_time": 500},
        "16,a": {"x": 16, "y": "a", "time": "CompilationFailedConfig", "compile_time": 100},
        "16,b": {"x": 16, "y": "b", "time": 5.0},
    },
}  # fmt: skip


@pytest.mark.parametrize(("document", "values"), [(T4, (16, 32)), (CACHE, (16, 32))])
def test_the_field_s_formats_give_the_same(tmp_path: Path, document: Any, values: tuple[int, ...]) -> None:
    path = tmp_path / "space.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    found = t4.read(path)
    assert found.name == "space"
    assert found.parameters[0].values == values
    assert [found.values(each) for each in found.rows] == [
        {"x": 32, "y": "b"}, {"x": 16, "y": "a"}, {"x": 16, "y": "b"},
    ]  # fmt: skip
    assert [found.time_us(each) for each in found.rows] == [3000.0, None, 5000.0]
    assert [each.failure for each in found.rows] == ["", "compile", ""]
    assert [each.secs for each in found.rows] == [0.5, 0.1, 0.0]


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([], "holds no results"),
        ([{"x": 1}], "results[0]: expected an object with 'configuration'"),
        ([{"configuration": {"x": 1}, "invalidity": "odd"}], "invalidity is 'odd'; it can be correct, compile"),
        ([{"configuration": {"x": 1}}], "has neither runtimes nor a measurement called 'time'"),
        ([{"configuration": {"x": [1]}, "times": {"runtimes": [1]}}], "x: values must be numbers"),
        ([{"configuration": {"x": 1}, "times": {"runtimes": [-1]}}], "times must be positive"),
        ([{"configuration": {"x": 1}, "invalidity": "runtime"}], "no config of it was measured"),
    ],
)
def test_what_is_wrong_in_t4_is_one_line(tmp_path: Path, results: list[Any], said: str) -> None:
    path = tmp_path / "t4.json"
    path.write_text(json.dumps({"results": results}))
    with pytest.raises(RequestError) as problem:
        t4.read(path)
    assert said in str(problem.value)


@pytest.mark.parametrize("name", ["metadata", "results", *T4["results"][0]])
@pytest.mark.parametrize(
    "value",
    [None, True, 0, 1.5, "x", [], [1], {}, {"compilation": "1"}, {"runtimes": 3}, {"runtimes": ["1"]}, [{"name": 3}],
     {"device": [1]}, {"environment": 3}, {"x": {}}, {"x": float("nan")}, [{"name": "time", "value": []}],
     [{"name": "time", "value": 1, "unit": []}]],
)  # fmt: skip
def test_a_stranger_s_t4_is_read_or_refused_in_one_line(tmp_path: Path, name: str, value: object) -> None:
    document = {**T4, name: value} if name in T4 else {"results": [{**T4["results"][0], name: value}]}
    path = tmp_path / "t4.json"
    path.write_text(json.dumps(document))
    try:
        assert t4.read(path).rows
    except RequestError as problem:
        assert len(str(problem).splitlines()) == 1


# --- a recorded space is tuned on the replay device -----------------------------------------------------


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
