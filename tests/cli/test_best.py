"""`fusiond best`: words, JSON, and that it imports next to nothing."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fusiond.cli import answer_text, best, command_of
from fusiond.requests import content_lookup
from fusiond.requests.registry import Registry
from fusiond.store.database import Store

Run = Callable[..., Any]


def test_words(fusiond: Run, done_job: str) -> None:
    said = fusiond("best", "--pair", "maxpool,hist")
    assert said.status == 0
    assert said.out.splitlines() == [
        "workload  hist,maxpool [toy] at a.n=500",
        "verdict   fuse: 1.230x the speed of streams_ab (95% interval 1.210 to 1.250)", "config    block=2",
        "unfused   streams_ab: 100 us", "times     fused 81.3 us, streams_ab 100 us",
        "measured  on cpu, 2026-01-31T12:00:00+00:00, 3 trials, its result compared with the unfused one",
        "note      emulated: these times are of the processor running the kernels; they say nothing about a GPU",
    ]  # fmt: skip


def test_json(fusiond: Run, done_job: str) -> None:
    found = fusiond("best", "--workload", "hist,maxpool", "--size", "a.n=500", "--json").json
    assert found["workload"]["sizes"] == {"a.n": 500}
    assert (found["verdict"], found["match"], found["ci95"]) == ("fuse", "exact", [1.21, 1.25])


def test_other_sizes_are_said_plainly(fusiond: Run, done_job: str) -> None:
    said = fusiond("best", "--pair", "hist,maxpool", "--size", "a.n=1e3")
    assert "note      measured at a.n=500; nothing is known at a.n=1000" in said.out


def test_an_unknown_size_or_device_or_name(fusiond: Run, done_job: str) -> None:
    assert fusiond("best", "--pair", "hist,maxpool", "--size", "a.m=1").status == 2
    assert fusiond("best", "--pair", "hist,maxpool", "--device", "cuda:0").status == 3
    said = fusiond("best", "--pair", "hist,softmax")
    assert said.status == 3
    assert "nothing is known about hist,softmax yet; known: hist,maxpool" in said.err


def test_it_imports_next_to_nothing(database: Path, done_job: str, real: Registry) -> None:
    """Times differ from machine to machine; what is imported does not."""
    with Store.open(database) as store:
        content_lookup.index(store, real)
    script = (
        "import sys; from fusiond.cli import main; status = main(['best', '--pair', 'hist,maxpool'])\n"
        "print(*sorted(sys.modules), file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],  # -S: without what the installed packages' .pth files import
        env={**os.environ, "FUSIOND_DB": str(database), "PYTHONPATH": str(Path(best.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    modules = set(done.stderr.split())
    heavy = {
        "rich", "yaml", "optuna", "pluggy", "numpy", "sqlite_utils", "httpx", "dataclasses", "pathlib", "logging",
        "argparse", "typing", "shutil", "difflib",
    }  # fmt: skip
    assert not modules & heavy
    ours = {name for name in modules if name.startswith("fusiond")}
    assert ours == {
        "fusiond", "fusiond.cli", "fusiond.cli.answer_text", "fusiond.cli.best", "fusiond.cli.options",
        "fusiond.cli.output",
        "fusiond.model.errors", "fusiond.store.named_files", "fusiond.model", "fusiond.service", "fusiond.service.best",
        "fusiond.model.system", "fusiond.model.system.driver", "fusiond.model.system.folders", "fusiond.store",
        "fusiond.store.last_commit", "fusiond.store.candidates", "fusiond.store.document", "fusiond.store.format",
        "fusiond.store.hashing", "fusiond.store.identity", "fusiond.store.location", "fusiond.store.lookup",
        "fusiond.store.reading", "fusiond.store.recheck", "fusiond.store.sources",
        "fusiond.store.tables", "fusiond.model.english",
    }  # fmt: skip


WORDS = st.sampled_from(
    ["--pair", "a,b", "--workload", "--db", "f.sqlite", "--device", "cpu", "--cache", "warm", "hot", "--json", "",
     "j.yaml", "--size", "a.n=1", "--source", "--export", "--js", "--db=x", "-h", "--", "-1", "--debug"]
)  # fmt: skip


@given(st.lists(WORDS, max_size=6))
@example(["", "a,b"])
@example(["--pair", "", "--workload", "a,b"])
def test_what_is_read_quickly_is_read_as_argparse_reads_it(words: list[str]) -> None:
    quick = best.quick(words)
    if quick is None:
        return
    _, parser = command_of("best")
    whole = vars(parser.parse_args(words))
    assert whole == {**vars(quick), "debug": False}


DOCUMENT: dict[str, Any] = {
    "workload": {"strategy": "hfuse", "name": "a,b", "sizes": {}}, "device": {"name": "cuda:0", "key": "k"},
    "verdict": "fuse", "config": {"order": "ab"}, "time_us": 10.0, "baseline": "streams_ab", "baseline_us": 12.0,
    "speedup": 1.2, "ci95": [1.1, 1.3], "verified": True, "evidence": "measured", "match": "exact", "trials": 9,
    "source": None, "found_at": "2026-01-31T12:00:00+00:00",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "fuse: 1.200x the speed of streams_ab (95% interval 1.100 to 1.300)"),
        ({"verdict": "keep", "speedup": 0.5, "ci95": [0.4, 0.6]},
         "keep it as it is: the best candidate runs at 0.500x the speed of streams_ab (95% interval 0.400 to 0.600)"),
        ({"verdict": "keep", "speedup": 1.001, "ci95": None},
         "keep it as it is: the best candidate runs at 1.001x the speed of streams_ab"),
        ({"verdict": "keep", "speedup": None, "ci95": None, "config": None},
         "keep it as it is: no candidate ran and was right; use streams_ab"),
        (
            {"verdict": "undecided", "speedup": 1.03, "ci95": [0.9, 1.2]},
            "undecided: the best candidate runs at 1.030x the speed of streams_ab (95% interval 0.900 to 1.200), "
            "too close to call",
        ),
        ({"verdict": "undecided", "speedup": None, "ci95": None},
         "undecided: no candidate came through the final measurement; use streams_ab"),
        ({"verdict": "undecided", "speedup": None, "ci95": None, "checks": ["the device was busy"]},
         "undecided: no candidate came through the final measurement (the device was busy); use streams_ab"),
        (
            {"verdict": "tuned", "speedup": 1.3, "ci95": [1.2, 1.4], "baseline": "given"},
            "tuned: a better shape or variant of the kernel runs at 1.300x the speed of the kernel as given "
            "(95% interval 1.200 to 1.400)",
        ),
    ],
)  # fmt: skip
def test_verdicts_in_words(changes: dict[str, Any], says: str) -> None:
    assert answer_text.verdict({**DOCUMENT, **changes}) == says


def test_the_unfused_way_is_said_with_its_shapes_and_caps() -> None:
    way = {"name": "sequential", "config": {"cap.a": 32, "threads.a": 512}, "time_us": 18900.0, "program_key": "k"}
    document = {**DOCUMENT, "verdict": "keep", "speedup": 0.5, "unfused": way}
    text = answer_text.lines(document)
    assert "unfused   sequential at cap.a=32 threads.a=512: 18.9 ms" in text
    assert not [line for line in text if line.startswith("config")]
    assert answer_text.unfused({**way, "config": {}}) == "sequential: 18.9 ms"


def test_how_the_search_and_the_finals_went_is_said() -> None:
    ended = "the search ended after 20 of 40 trials, as asked"
    text = answer_text.lines({**DOCUMENT, "processes": 5, "ended": ended})
    assert "note      the verdict is from 5 fresh processes" in text
    assert f"note      {ended}" in text
    lost = "10 processes of the finals were too noisy or lost (such as too_noisy: the pairs scatter by 49 %)"
    text = answer_text.lines({**DOCUMENT, "verdict": "undecided", "speedup": None, "ended": lost})
    assert [lost in line for line in text].count(True) == 1  # in the verdict
