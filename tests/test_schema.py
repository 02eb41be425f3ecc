"""The schema of job files, by a validator that others wrote: what is shipped fits, what a job may not be does not."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from fusiond.model.errors import RequestError
from fusiond.requests import jobs, schema
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
