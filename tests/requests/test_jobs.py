"""Job files: what they say, and one line for whatever is wrong with them."""

import copy
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from fusiond.model.errors import FusiondError, RequestError, UnknownName
from fusiond.model.keys import text_key
from fusiond.model.nouns import Job, Search
from fusiond.requests import jobs, schema
from fusiond.requests.jobs import JobInputs
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond.service.daemon import config

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


KERNEL = yaml.safe_load((Path(__file__).parents[2] / "plugins/hfuse/fusiond_hfuse/kernels/hist.yaml").read_text())
CU = (Path(__file__).parents[2] / "plugins/hfuse/fusiond_hfuse/kernels/hist.cu").read_text()
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


# --- their schema, by a validator that others wrote -----------------------------------------------------


JOBS = [
    path
    for path in sorted((Path(__file__).parents[2] / "configs" / "jobs").rglob("*.yaml"))
    if "strategy" in yaml.safe_load(path.read_text())  # the others are graphs and pipelines
]


@pytest.fixture(scope="module")
def validator(real: Any) -> Draft202012Validator:
    found = schema.job(real.strategies.values())
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_what_is_shipped_fits(validator: Draft202012Validator, path: Path) -> None:
    assert not list(validator.iter_errors(yaml.safe_load(path.read_text())))


@pytest.mark.parametrize(
    "text",
    [
        "pair: [a, b]", "strategy: hfus\npair: [a, b]", "strategy: hfuse\npair: [a, b]\nserch: {}",
        "strategy: hfuse\nmodule: lr_step", "strategy: hfuse\npair: [a, b]\nsearch: {trails: 3}",
        "strategy: hfuse\npair: [a, b]\nsearch: {trials: 0}",
        "strategy: hfuse\npair: [a, b]\nsearch: {least_gain: 0.5}",
        "strategy: hfuse\npair: [a, b]\nmeasure: {cache: hot}", "strategy: hfuse\npair: [a, b]\nsizes: {a.n: many}",
        "strategy: hfuse\npair: [a, b]\nsweep: {a.n: []}", "strategy: hfuse\npair: [a, b]\nschema: 2",
        "strategy: hfuse\npair: [a, b]\ndevice: GPU",
    ],
)  # fmt: skip
def test_what_a_job_may_not_be_does_not_fit(validator: Draft202012Validator, text: str) -> None:
    assert list(validator.iter_errors(yaml.safe_load(text)))


def test_every_key_is_in_it(real: Any) -> None:
    found = schema.job(real.strategies.values())["properties"]
    assert set(jobs.CORE_KEYS) <= set(found)
    assert set(found["search"]["properties"]) == set(jobs.SEARCH_KEYS)
    assert set(found["measure"]["properties"]) == set(jobs.MEASURE_KEYS)
    for strategy in real.strategies.values():
        assert set(strategy.job_keys) <= set(found)


@pytest.mark.slow
def test_the_command_prints_it(capsys: pytest.CaptureFixture[str], validator: Draft202012Validator) -> None:
    from fusiond.cli import main

    assert main(["schema", "job"]) == 0
    assert json.loads(capsys.readouterr().out) == validator.schema


# --- the daemon's configuration -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_config() -> Draft202012Validator:
    found = config.schema()
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


def test_the_configuration_that_is_shipped_fits_and_has_every_key(of_config: Draft202012Validator) -> None:
    path = Path(__file__).parents[2] / "configs" / "fusiond.yaml"
    shipped = yaml.safe_load(path.read_text())
    assert not list(of_config.iter_errors(shipped))
    names = {each.name for each in dataclasses.fields(config.DaemonConfig)}
    assert names == set(config.schema()["properties"]) == set(shipped)


@pytest.mark.parametrize(
    "text",
    [
        "", "web: 127.0.0.1:80", "web: '[::1]:0'", "web: 80", "web: host:123456", "devices: gpu",
        "devices: [cpu, 'cuda:1']", "devices: []", "poll_secs: 0", "poll_secs: 2", "when_busy: never",
        "when_busy: share", "log: xml", "log_level: loud", "upstream: https://box", "upstream: [https://box]",
        "upstream: [{url: 'https://box'}]", "upstream: [{token_file: x}]", "upstream: ftp://box", "upstream_secs: 61",
        "cluster: auto", "db:", "db: x.sqlite", "dbb: x", "[1]",
    ],
)  # fmt: skip
def test_the_schema_says_what_the_daemon_says(of_config: Draft202012Validator, tmp_path: Path, text: str) -> None:
    path = tmp_path / "fusiond.yaml"
    path.write_text(f"{text}\n")
    try:
        config.read(path)
    except RequestError:
        fits = False
    else:
        fits = True
    assert of_config.is_valid(yaml.safe_load(text)) == fits


# --- of kernels, pipelines and graphs -------------------------------------------------------------------


ROOT = Path(__file__).parents[2]
KINDS = ("kernel", "pipeline", "graph")
SHIPPED = [
    (kind, path)
    for kind, pattern in (("kernel", "hfuse/*/kernels"), ("pipeline", "mincut/*/pipelines"),
                          ("graph", "transfer/*/graphs"))
    for path in sorted(ROOT.glob(f"plugins/{pattern}/*.yaml"))
]  # fmt: skip
OF_OTHERS = [
    *sorted(ROOT.glob("tests/**/*.yaml")),
    *sorted(ROOT.glob("benchmarks/**/*.yaml")),
    *sorted(ROOT.glob("configs/**/*.yaml")),
]


class AsEditors(yaml.SafeLoader):
    """YAML 1.2, by which editors read and in which the key `on` is a text."""


AsEditors.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in each if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, each in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(text: str) -> Any:
    return yaml.load(text, AsEditors)


@pytest.fixture(scope="module")
def of(real: Registry) -> dict[str, Draft202012Validator]:
    found = schema.documents(real.strategies.values())
    for each in found.values():
        Draft202012Validator.check_schema(each)
    return {kind: Draft202012Validator(each) for kind, each in found.items()}


def kind_of(document: Any) -> str | None:
    """What a YAML document declares; None for a part of one."""
    if not isinstance(document, dict):
        return None
    if "strategy" in document:
        return "job"
    return next((kind for kind in KINDS if kind in document and len(document) > 2), None)


def in_docs() -> Iterator[tuple[str, str, Any]]:
    """(place, kind, document) of every whole YAML file that the docs and README show."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text()
        blocks = re.findall(r"^```(?:yaml|yml)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        blocks += re.findall(r"^cat > \S+\.yaml <<'END'\n(.*?)^END", text, re.MULTILINE | re.DOTALL)
        indented = re.findall(r"(?:^    [a-z_]+:.*\n)(?:^    .*\n|^\n(?=    ))*", text, re.MULTILINE)
        blocks += [re.sub("^    ", "", each, flags=re.MULTILINE) for each in indented]
        for number, block in enumerate(blocks):
            try:
                document = load(block)
            except yaml.YAMLError:
                continue
            if (kind := kind_of(document)) is not None:
                yield f"{path.name}-{number}", kind, document


DOCS = list(in_docs())


def test_there_is_something_to_look_at() -> None:
    assert len(SHIPPED) > 20
    assert {kind for _, kind, _ in DOCS} >= {"job", "kernel"}


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=[path.stem for _, path in SHIPPED])
def test_documents_that_are_shipped_fit(of: dict[str, Draft202012Validator], kind: str, path: Path) -> None:
    assert [each.message for each in of[kind].iter_errors(load(path.read_text()))] == []


@pytest.mark.parametrize(("place", "kind", "document"), DOCS, ids=[place for place, _, _ in DOCS])
def test_what_the_docs_show_fits(of: dict[str, Draft202012Validator], place: str, kind: str, document: Any) -> None:
    assert [each.message for each in of[kind].iter_errors(document)] == []


def test_what_tests_and_benchmarks_use_fits(of: dict[str, Draft202012Validator]) -> None:
    for path in OF_OTHERS:
        document = load(path.read_text())
        if (kind := kind_of(document)) is not None:
            assert [each.message for each in of[kind].iter_errors(document)] == [], path


# --- what is wrong ----------------------------------------------------------------------------------------

EXAMPLES = {"kernel": "hist", "pipeline": "harris", "graph": "fig2"}
WRONG = {
    "kernel": [
        {"kernel": "a b"}, {"sorce": "x.cu"}, {"block": {"shape": [256], "shapes": [[1]]}}, {"block": {"shape": []}},
        {"block": {"shape": [2048]}}, {"block": {"tune": "x"}}, {"grid": []}, {"grid": [1, 1, 1, 1]}, {"grid": 7},
        {"flags": ["-O3"]}, {"sizes": {"n": 0}}, {"sizes": {"n": "many"}}, {"entry": "1st"}, {"instance": "hist"},
        {"arguments": [{"name": "x", "dtype": "float31", "value": 1}]},
        {"arguments": [{"name": "x", "dtype": "int32"}]},
        {"arguments": [{"name": "x", "dtype": "int32", "elements": "n", "role": "in", "fill": "zeros"}]},
        {"arguments": [{"name": "x", "dtype": "int32", "elements": "n", "role": "input", "fill": "noise"}]},
        {"arguments": [{"name": "x", "dtype": "int32", "elements": "n", "role": "input", "fill": {"integers": [1]}}]},
        {"arguments": [{"name": "x", "dtype": "int32", "value": 1, "role": "input"}]},
        {"arguments": [{"name": "x", "bytes": "0x00"}]}, {"constants": [{"symbol": "c"}]}, {"shared": [4]},
        {"defines": {"N": [1, "x"]}},
    ],
    "pipeline": [
        {"pipeline": "a b"}, {"image": {"width": 0, "height": 2, "dtype": "uint8"}}, {"image": {"width": 5}},
        {"image": {"width": 5, "height": 5, "dtype": "int128"}}, {"inputs": []}, {"outputs": []}, {"kernels": {}},
        {"image": {"width": 5, "height": 5, "dtype": "uint8", "channels": 5}}, {"mask": {}}, {"masks": {"m": []}},
        {"kernels": {"k": {"pattern": "near", "reads": ["in"], "body": "in"}}},
        {"kernels": {"k": {"pattern": "local", "reads": ["in"], "body": "in"}}},
        {"kernels": {"k": {"pattern": "local", "mask": [3, 2], "reads": ["in"], "body": "in", "border": "clamp"}}},
        {"kernels": {"k": {"pattern": "point", "mask": [3, 3], "reads": ["in"], "body": "in"}}},
        {"kernels": {"k": {"pattern": "point", "reads": ["in"], "body": "in", "reduce": "sum"}}},
        {"kernels": {"k": {"pattern": "global", "reads": ["in"], "body": "in", "reduce": "mean"}}},
        {"parameters": {"p": {"value": 1, "dtype": "int8"}}}, {"parameters": {"p": "x"}},
    ],
    "graph": [
        {"graph": "a b"}, {"kernel": []}, {"dtype": "float12"}, {"sizes": {"n": -1}}, {"loop": "yes please"},
        {"kernels": [{"name": "k", "on": "gpu", "reads": ["A"], "writes": ["B"]}]},
        {"kernels": [{"name": "k", "on": "device", "reads": ["A"]}]},
        {"kernels": [{"name": "k", "on": "device", "writes": ["B"], "source": "x.cu"}]},
        {"kernels": [{"name": "k", "on": "device", "writes": ["B"], "grid": 3}]},
        {"kernels": [{"name": "k", "on": "device", "writes": ["B"], "source": "x.cu", "entry": "k", "body": "A"}]},
        {"limits": {"bytes": 5}}, {"vectors": {"A": {"elem": 5}}}, {"fill": {"uniform": [0]}},
        {"generate": {"kernels": 5, "inputs": 2, "indegree": [1, 2], "outdegree": [1, 2]}}, {"adjacent": ["A"]},
        {"regions": [{"pipeline": "./x.yaml", "reads": {"a": "A"}}]},
        {"regions": [{"reads": {"a": "A"}, "writes": {"b": "D"}}]},
        {"regions": [{"pipeline": "./x.yaml", "reads": {}, "writes": {"b": "D"}}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change"), [(kind, change) for kind, changes in WRONG.items() for change in changes], ids=str
)
def test_what_is_wrong_does_not_fit_and_is_refused(
    of: dict[str, Draft202012Validator], real: Registry, tmp_path: Path, kind: str, change: dict[str, Any]
) -> None:
    """The second half keeps the schema honest: what an editor marks red is an error of `fusiond plan`, too."""
    entry = real.catalogue[kind, EXAMPLES[kind]]
    document = {**copy.deepcopy(load(entry.path.read_text())), **change}
    assert list(of[kind].iter_errors(document))
    for each in entry.path.parent.iterdir():
        if each.suffix != ".yaml" and each.is_file():
            (tmp_path / each.name).symlink_to(each)
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(document))
    strategy, text = {
        "kernel": ("hfuse", "strategy: hfuse\npair: [./broken.yaml, maxpool]\n"),
        "pipeline": ("mincut", "strategy: mincut\npipeline: ./broken.yaml\n"),
        "graph": ("transfer", "strategy: transfer\ngraph: ./broken.yaml\n"),
    }[kind]
    (job,) = jobs.read(str(tmp_path / "job.yaml"), text)
    with pytest.raises(FusiondError):
        real.strategies[strategy].parse(job, JobInputs(real, job))
