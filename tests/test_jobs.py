"""Job files: what they say, and one line for whatever is wrong with them."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.keys import text_key
from fusiond.model.nouns import Job, Search
from fusiond.requests import jobs
from fusiond.requests.jobs import JobInputs
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry

FULL = """\
strategy: hfuse
pair: [hist, maxpool]
sizes: {hist.n: 5000, hist.bins: 9}
device: cuda:1
search: {trials: 5, timeout: 10m, seed: 3, least_gain: 1.1}
"""


def one(text: str, **options: Any) -> Job:
    (job,) = jobs.read("job.yaml", text, **options)
    return job


def test_a_whole_job() -> None:
    job = one(FULL)
    assert job.strategy == "hfuse"
    assert dict(job.request) == {"pair": ["hist", "maxpool"]}
    assert dict(job.sizes) == {"hist.n": 5000, "hist.bins": 9}
    assert job.device == "cuda:1"
    assert job.search == Search(trials=5, timeout_secs=600.0, seed=3, least_gain=1.1)
    assert Path(job.path).is_absolute()
    assert job.where("pair").endswith("job.yaml:2: pair")
    assert job.where("sizes.hist.n").endswith("job.yaml:3: sizes.hist.n")


def test_options_overrule_the_file() -> None:
    job = one(FULL, device="cpu", trials=9, seed=0)
    assert (job.device, job.search.trials, job.search.seed) == ("cpu", 9, 0)
    for options, where in (({"trials": 0}, "--trials"), ({"seed": -1}, "--seed"), ({"device": "x y"}, "--device")):
        with pytest.raises(RequestError, match=where):
            one(FULL, **options)


def test_the_caches_to_measure_are_jobs_of_their_own() -> None:
    assert one("strategy: toy\nmeasure: {cache: cold}").search.cache == "cold"
    assert one("strategy: toy\nmeasure: {}").search == Search()
    both = jobs.read("j.yaml", "strategy: toy\nmeasure: {cache: both}\nsweep: {n: [2, 3]}\n")
    assert [(each.sizes["n"], each.search.cache) for each in both] == [
        (2, "warm"), (2, "cold"), (3, "warm"), (3, "cold"),
    ]  # fmt: skip
    assert all("measure" not in each.request for each in both)


def test_a_sweep_is_one_job_for_each_combination() -> None:
    found = jobs.read("j.yaml", "strategy: toy\nsizes: {k: 9}\nsweep: {n: [2, 3], m: [5, 7]}\n")
    assert [dict(each.sizes) for each in found] == [
        {"n": n, "k": 9, "m": m} for n in (2, 3) for m in (5, 7)
    ]  # fmt: skip
    said = "j.yaml:3: sweep: sweeps n, which `sizes` sets to 1; name it in one of them"
    with pytest.raises(RequestError, match=re.escape(said)):
        jobs.read("j.yaml", "strategy: toy\nsizes: {n: 1}\nsweep: {n: [2, 3]}\n")
    assert all("sweep" not in each.request for each in found)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("' 5 m '", 300),
                                               ("1.5", 1.5)])  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert one(f"strategy: toy\nsearch: {{timeout: {text}}}").search.timeout_secs == seconds


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pair: [a, b]", "the key 'strategy' is missing"),
        ("[strategy, toy]", "a mapping is wanted"),
        ("strategy: 3", "j.yaml:1: strategy: is 3; a text is wanted"),
        ("strategy:", "is empty; a text is wanted"),
        ("schema: 2\nstrategy: toy", "j.yaml:1: schema: is 2; this fusiond reads job files of schema 1"),
        ("schema: one\nstrategy: toy", "whole number"),
        ("strategy: toy\nstrategy: hfuse", "stands twice"),
        ("strategy: toy\ndevice: 'cuda:'", "is not a device"),
        ("strategy: toy\ndevice: CPU", "is not a device"),
        ("strategy: toy\ndevice: [cpu]", "a text is wanted"),
        ("strategy: toy\nsizes: 5", "a mapping is wanted"),
        ("strategy: toy\nsizes: {n: 0}", "j.yaml:2: sizes.n: is 0; it must be at least 1"),
        ("strategy: toy\nsizes: {n: -5}", "is -5"),
        ("strategy: toy\nsizes: {n: 9223372036854775808}", "must be from 1"),
        ("strategy: toy\nsizes: {n: 1" + "0" * 4000 + "}", "a number of many digits"),
        ("strategy: toy\nsizes: {n: 1.5}", "whole number"),
        ("strategy: toy\nsearch: {trails: 3}", "unknown key 'trails'; did you mean 'trials'"),
        ("strategy: toy\nsearch: {trials: 0}", "from 1 to 1000000"),
        ("strategy: toy\nsearch: {timeout: 0}", "from 1 to"),
        ("strategy: toy\nsearch: {timeout: 0m}", "write 90s, 10m or 2h"),
        ("strategy: toy\nsearch: {timeout: soon}", "write 90s, 10m or 2h"),
        ("strategy: toy\nsearch: {timeout: .nan}", "it must be from"),
        ("strategy: toy\nsearch: {seed: -1}", "must be at least 0"),
        ("strategy: toy\nsearch: {least_gain: 0.5}", "from 1 to 100"),
        ("strategy: toy\nsearch: {least_gain: .inf}", "from 1 to 100"),
        ("strategy: toy\nsearch: {patience: 0}", "j.yaml:2: search.patience: is 0; it must be from 1"),
        ("strategy: toy\nsearch: {patience: soon}", "a whole number is wanted"),
        ("strategy: toy\nsearch: {sampler: tea}", "j.yaml:2: search.sampler: is 'tea'; it can be gp, tpe"),
        ("strategy: toy\nmeasure: {cache: hot}", "j.yaml:2: measure.cache: is 'hot'; it can be warm, cold, both"),
        ("strategy: toy\nmeasure: cold", "measure"),
        ("strategy: toy\nmeasure: {cach: cold}", "unknown key 'cach'; did you mean 'cache'?"),
        ("strategy: toy\nsweep: {}", "is empty; give a list"),
        ("strategy: toy\nsweep: {n: []}", "is empty; give a list"),
        ("strategy: toy\nsweep: {n: 5}", "a list is wanted"),
        ("strategy: toy\nsweep: {n: [0]}", "must be at least 1"),
        ("strategy: toy\nsweep: {n: [" + "1, " * 101 + "]}", "makes more than 100 workloads"),
        ("strategy: toy\nsweep: {" + ", ".join(f"n{i}: [1, 2, 3, 4]" for i in range(200)) + "}", "more than 100"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(RequestError) as caught:
        jobs.read("j.yaml", text)
    message = str(caught.value)
    assert problem in message, message
    assert message.startswith("j.yaml")
    assert len(message.splitlines()) == 1
    assert len(message) < 400


@pytest.mark.parametrize("path", ["none.yaml", ".", "a\0b", "x" * 5000, "none/none.yaml"])
def test_files_that_cannot_be_read(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError) as caught:
        jobs.read(path)
    assert len(str(caught.value).splitlines()) == 1


def test_unknown_keys_name_the_nearest_of_core_and_strategy() -> None:
    with pytest.raises(UnknownName, match=r"job.yaml:2: unknown key 'pairs'; did you mean 'pair'\?"):
        jobs.check_keys(one("strategy: toy\npairs: [a, b]"), ("pair",))
    with pytest.raises(UnknownName, match=r"did you mean 'search'\?"):
        jobs.check_keys(one("strategy: toy\nserch: {}"), ("pair",))
    jobs.check_keys(one("strategy: toy\npair: [a, b]"), ("pair",))


# --- inputs: what a job refers to ---


@pytest.fixture
def inputs(tmp_path: Path, real: Registry) -> Callable[..., JobInputs]:
    def make(**files: str) -> JobInputs:
        return JobInputs(real, Job(strategy="toy", request={}, sizes={}, path=str(tmp_path / "j.yaml"), files=files))

    return make


def test_names_are_catalogue_names_and_the_rest_paths(inputs: Callable[..., JobInputs], tmp_path: Path) -> None:
    (tmp_path / "k.yaml").write_text("a: 1")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "k").write_text("b: 1")
    mine = inputs()
    assert mine.resolve("kernel", "k.yaml", where="w") == str(tmp_path / "k.yaml")
    assert mine.resolve("kernel", "sub/k", where="w") == str(tmp_path / "sub" / "k")
    assert mine.resolve("kernel", str(tmp_path / "k.yaml"), where="w") == str(tmp_path / "k.yaml")
    assert mine.resolve("kernel", "hist", where="w").endswith("hist.yaml")
    assert mine.beside(str(tmp_path / "sub" / "k"), "../k.yaml", where="w") == str(tmp_path / "k.yaml")
    with pytest.raises(UnknownName, match=r"w: unknown kernel 'hits'; did you mean 'hist'\?"):
        mine.resolve("kernel", "hits", where="w")
    for name in ("none.yaml", "./none", "sub/", "a\0/b", "x" * 5000 + ".yaml", "/"):
        with pytest.raises(RequestError) as caught:
            mine.resolve("kernel", name, where="w")
        assert len(str(caught.value).splitlines()) == 1


def test_a_link_that_leads_to_itself(inputs: Callable[..., JobInputs], tmp_path: Path) -> None:
    os.symlink("loop.yaml", tmp_path / "loop.yaml")
    with pytest.raises(RequestError, match="loop"):
        inputs().resolve("kernel", "loop.yaml", where="w")


def test_a_job_goes_on_with_what_it_was_submitted_with(inputs: Callable[..., JobInputs], tmp_path: Path) -> None:
    source, data = tmp_path / "k.yaml", tmp_path / "x.npy"
    source.write_text("a: 1")
    data.write_bytes(b"123")
    first = inputs()
    for mine in (first, first):
        path = mine.resolve("kernel", "./k.yaml", where="w")
        assert mine.document(path, where="w").plain() == {"a": 1}
        assert mine.digest(str(data), where="w") == text_key(b"123")
    snapshot = first.snapshot()
    source.unlink()
    data.unlink()
    later = inputs(**snapshot)
    assert later.text(later.resolve("kernel", "./k.yaml", where="w"), where="w") == "a: 1"
    assert later.digest(later.beside(str(source), "x.npy", where="w"), where="w") == text_key(b"123")
    assert later.snapshot() == snapshot
    with pytest.raises(RequestError, match="there is no file"):
        inputs().resolve("kernel", "./k.yaml", where="w")


# --- whatever the text, a job or one line ---


KERNEL = yaml.safe_load((Path(__file__).parents[1] / "plugins/hfuse/fusiond_hfuse/kernels/hist.yaml").read_text())
CU = (Path(__file__).parents[1] / "plugins/hfuse/fusiond_hfuse/kernels/hist.cu").read_text()
JOB = {
    "schema": 1, "strategy": "hfuse", "pair": ["./hist.yaml", "hist"], "device": "cpu", "granularity": 128,
    "sizes": {"a.n": 50, "b.bins": 3}, "sweep": {"a.n": [20, 30]},
    "search": {"trials": 3, "timeout": "10m", "seed": 1, "least_gain": 1.02},
}  # fmt: skip

ODD = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=12)
    | st.sampled_from(["hist", "./hist.yaml", "n", "n // 0", "block.x", "9" * 30, "uint32", "inout", [], {}, [[]],
                       {"n": 2**62}, ["2 ** 3"], 2**63, -1, 0, "\x00", "a\nb", "cpu", "hfuse", "toy", "auto"])
    | st.lists(st.integers(-2, 5), max_size=4) | st.dictionaries(st.sampled_from("abn"), st.integers(), max_size=2)
)  # fmt: skip


def mutated(data: st.DataObject, value: Any) -> Any:
    """The value with one of its parts replaced, deleted, doubled or given another name."""
    if isinstance(value, dict) and value and data.draw(st.integers(0, 5)):
        key = data.draw(st.sampled_from(sorted(value)))
        how = data.draw(st.integers(0, 5))
        if how == 0:
            return {name: item for name, item in value.items() if name != key}
        if how == 1:
            return {**value, data.draw(st.text(max_size=6)): data.draw(ODD)}
        return {**value, key: mutated(data, value[key])}
    if isinstance(value, list) and value and data.draw(st.integers(0, 5)):
        index = data.draw(st.integers(0, len(value) - 1))
        how = data.draw(st.integers(0, 4))
        if how == 0:
            return value[:index] + value[index + 1 :]
        if how == 1:
            return [*value, value[index]]
        return [*value[:index], mutated(data, value[index]), *value[index + 1 :]]
    return data.draw(ODD)


def read_and_prepare(registry: Registry, text: str, path: Path) -> None:
    """The property: a job, or an error of fusiond's own with one line."""
    try:
        for job in jobs.read(path, text):
            prepared = prepare(registry, job)
            assert prepared.workload.key == prepare(registry, prepared.job).workload.key
    except RequestError as problem:
        message = str(problem)
    else:
        message = "a job"
    assert len(message.splitlines()) == 1


ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@given(text=st.text(max_size=80) | st.text(alphabet="strategy: toyhf[]{}&*!|>\n-'\"#,0123<", max_size=80))
@settings(ANY, max_examples=200)
def test_any_text_is_a_job_or_one_line(text: str, real: Registry, tmp_path: Path) -> None:
    read_and_prepare(real, text, tmp_path / "j.yaml")
    read_and_prepare(real, f"strategy: hfuse\npair: {text}", tmp_path / "j.yaml")


@pytest.mark.slow
@given(data=st.data())
@settings(ANY, max_examples=60)
def test_a_mutated_job_is_a_job_or_one_line(data: st.DataObject, real: Registry, tmp_path: Path) -> None:
    (tmp_path / "hist.yaml").write_text(yaml.safe_dump(KERNEL))
    (tmp_path / "hist.cu").write_text(CU)
    read_and_prepare(real, yaml.safe_dump(mutated(data, JOB)), tmp_path / "j.yaml")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/"])
def test_what_is_no_plain_file_is_never_read(path: str) -> None:
    """A device would never end."""
    with pytest.raises(RequestError, match=r"is not a plain file|cannot read"):
        jobs.read(path)
