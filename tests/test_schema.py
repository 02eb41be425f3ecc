"""The schema of job files, by a validator that others wrote: what is shipped fits, what a job may not be does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from fusiond.registry import Registry
from fusiond.requests import jobs, schema

JOBS = sorted((Path(__file__).parents[1] / "configs" / "jobs").rglob("*.yaml"))


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load()


@pytest.fixture(scope="module")
def validator(registry: Any) -> Draft202012Validator:
    found = schema.job(registry.strategies.values())
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


def test_every_key_is_in_it(registry: Any) -> None:
    found = schema.job(registry.strategies.values())["properties"]
    assert set(jobs.CORE_KEYS) <= set(found)
    assert set(found["search"]["properties"]) == set(jobs.SEARCH_KEYS)
    assert set(found["measure"]["properties"]) == set(jobs.MEASURE_KEYS)
    for strategy in registry.strategies.values():
        assert set(strategy.job_keys) <= set(found)


@pytest.mark.slow
def test_the_command_prints_it(capsys: pytest.CaptureFixture[str], validator: Draft202012Validator) -> None:
    from fusiond.cli import main

    assert main(["schema", "job"]) == 0
    assert json.loads(capsys.readouterr().out) == validator.schema
