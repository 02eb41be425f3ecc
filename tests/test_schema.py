"""The schema of job files, by a validator that others wrote: what is shipped fits, what a job may not be does not."""

import copy
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from fusiond.model.errors import FusiondError, RequestError
from fusiond.requests import jobs, schema
from fusiond.requests.jobs import JobInputs
from fusiond.requests.registry import Registry
from fusiond.service.daemon import config, config_schema

JOBS = [
    path
    for path in sorted((Path(__file__).parents[1] / "configs" / "jobs").rglob("*.yaml"))
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
        "pair: [a, b]",
        "strategy: hfus\npair: [a, b]",
        "strategy: hfuse\npair: [a, b]\nserch: {}",
        "strategy: hfuse\nmodule: lr_step",
        "strategy: hfuse\npair: [a, b]\nsearch: {trails: 3}",
        "strategy: hfuse\npair: [a, b]\nsearch: {trials: 0}",
        "strategy: hfuse\npair: [a, b]\nsearch: {least_gain: 0.5}",
        "strategy: hfuse\npair: [a, b]\nsearch: {sampler: luck}",
        "strategy: hfuse\npair: [a, b]\nmeasure: {cache: hot}",
        "strategy: hfuse\npair: [a, b]\nsizes: {a.n: many}",
        "strategy: hfuse\npair: [a, b]\nsweep: {a.n: []}",
        "strategy: hfuse\npair: [a, b]\nschema: 2",
        "strategy: hfuse\npair: [a, b]\ndevice: GPU",
    ],
)
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
    found = config_schema.config()
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


def test_the_configuration_that_is_shipped_fits_and_has_every_key(of_config: Draft202012Validator) -> None:
    path = Path(__file__).parents[1] / "configs" / "fusiond.yaml"
    shipped = yaml.safe_load(path.read_text())
    assert not list(of_config.iter_errors(shipped))
    names = {each.name for each in dataclasses.fields(config.DaemonConfig)}
    assert names == set(config_schema.config()["properties"]) == set(shipped)


@pytest.mark.parametrize(
    "text",
    [
        "", "web: 127.0.0.1:80", "web: '[::1]:0'", "web: 80", "web: host:123456", "devices: gpu",
        "devices: [cpu, 'cuda:1']", "devices: []", "poll_secs: 0", "poll_secs: 2", "when_busy: never",
        "when_busy: share", "log: xml", "log_level: loud", "upstream: https://box", "upstream: [https://box]",
        "upstream: [{url: 'https://box'}]", "upstream: [{token_file: x}]", "upstream: ftp://box", "upstream_secs: 61",
        "cluster: auto", "cluster:", "db:", "db: x.sqlite", "dbb: x", "[1]",
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


ROOT = Path(__file__).parents[1]
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
