"""`export --answers`, `import`, `keys`, `tokens`: between two stores, as a user of both."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.build.exporting import t4
from fusiond.model.errors import RequestError
from fusiond.store.database import Store

Run = Callable[..., Any]


def result(**fields: Any) -> dict[str, Any]:
    given = {
        "configuration": {"x": 1, "map": "pad"}, "times": {"runtimes": [1.5, 1.25]}, "invalidity": "correct",
        "correctness": 1,
    }  # fmt: skip
    return {**given, **fields}


def test_answers_travel_from_store_to_store(fusiond: Run, done_job: str, tmp_path: Path) -> None:
    path, other = tmp_path / "answers.jsonl", tmp_path / "other.sqlite"
    said = fusiond("export", "--answers", path)
    key = fusiond("keys", "--json").json["own"]
    assert said.out == f"1 answer in {path}, those of this box signed by {key}\n"
    assert fusiond("export", "--answers", "-").out == path.read_text()
    said = fusiond("import", path, "--db", other)
    assert said.status == 0
    assert said.out.startswith("1 answer imported, 0 known already, 0 refused\n")
    assert f"`fusiond keys trust {key} --name NAME`" in said.out
    listed = ["answers", "--imported", "--db", other]
    (entry,) = fusiond(*listed, "--json").json
    assert (entry["workload"], entry["signer"], entry["trusted"], entry["refuted"]) == ("hist,maxpool", key, None, None)
    assert f"{key[:12]} (not trusted)" in fusiond(*listed, "--strategy", "toy", "--verdict", "fuse").out
    assert fusiond(*listed, "--verdict", "keep").out == "no imported answers\n"
    assert fusiond("answers", "--imported").out == "no imported answers\n"  # its own is none
    assert fusiond("import", path, "--db", other, "--json").json == {
        "new": 0, "known": 1, "refused": 0, "why": [], "untrusted": [key],
    }  # fmt: skip
    assert fusiond("keys", "trust", key, "--name", "the first", "--db", other).status == 0
    assert fusiond("keys", "--db", other, "--json").json["trusted"] == [{"key": key, "name": "the first"}]
    assert fusiond("import", path, "--db", other, "--json").json["untrusted"] == []
    again = tmp_path / "again.jsonl"
    with Store.open(other):
        pass
    fusiond("export", "--answers", again, "--db", other)  # what was imported goes on, signed as it was
    assert again.read_text() == path.read_text()
    fusiond("export", "--answers", again, "--own", "--db", other)
    assert again.read_text() == ""
    assert fusiond("keys", "distrust", key, "--db", other).status == 0
    assert fusiond("keys", "distrust", key, "--db", other).err.endswith("KEY: is not trusted here\n")


def test_what_is_refused_is_said(fusiond: Run, done_job: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    fusiond("export", "--answers", path)
    line = path.read_text()
    path.write_text(line + line.replace('"trials":3', '"trials":4') + '{"fusiond_answer": 1}\n')
    said = fusiond("import", path, "--db", tmp_path / "other.sqlite")
    assert (said.status, said.out.split("\n")[0]) == (0, "1 answer imported, 0 known already, 2 refused")
    assert said.err == (
        f"fusiond: {path}: line 2: key: is not the digest of its body\n"
        f"fusiond: {path}: line 3: the field 'key' is missing\n"
    )
    path.write_text('{"fusiond_answer": 1}\n')
    assert fusiond("import", path, "--db", tmp_path / "other.sqlite").status == 1
    path.write_text("")
    assert fusiond("import", path).err == f"fusiond: error: FILE: {path} holds no answers; `fusiond export --answers` "\
        "writes such a file\n"  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["import", "gone.jsonl"], "FILE: gone.jsonl cannot be read: No such file or directory"),
        (["import", "."], "FILE: . "),
        (["keys", "trust"], "KEY: is missing; 64 hexadecimal digits"),
        (["keys", "trust", "abc", "--name", "x"], "KEY: is not a public key: 64 hexadecimal digits"),
        (["keys", "trust", "a" * 64], "--name: is missing; say whose key it is"),
        (["tokens", "add"], "NAME: is missing"),
        (["tokens", "add", "a b"], "NAME: can have letters, digits"),
        (["tokens", "remove", "anna"], "NAME: has no token"),
        (["export", "k3f", "--answers", "x"], "ID: is a job; --answers writes the answers of the store"),
    ],
)
def test_mistakes_are_one_line(
    fusiond: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = fusiond(*words)
    assert said.status == 2
    assert says in said.err
    assert said.err.count("\n") == 1


def test_a_token_is_shown_once_and_kept_as_a_digest(fusiond: Run, database: Path) -> None:
    said = fusiond("tokens", "add", "box2", "--rights", "write")
    token = said.out.strip()
    assert re.fullmatch(r"fusiond_[A-Za-z0-9_-]{43}", token)
    assert "shown this once" in said.err
    assert [each["rights"] for each in fusiond("tokens", "--json").json] == ["write"]
    files = list(database.parent.glob("fusiond.exchange.sqlite*"))
    assert files
    assert not any(token.encode() in each.read_bytes() for each in files)
    assert "there is a token for box2 already" in fusiond("tokens", "add", "box2").err
    assert fusiond("tokens", "remove", "box2").out == "no tokens\n"


# --- T4 -------------------------------------------------------------------------------------------------


def test_t4_becomes_a_recorded_space(fusiond: Run, tmp_path: Path) -> None:
    path, target = tmp_path / "conv.json.gz", tmp_path / "conv.jsonl.gz"
    results = [
        result(),
        result(configuration={"x": 2, "map": "pad"}, invalidity="compile", correctness=0, times={}),
        result(configuration={"x": 3}, times={}, measurements=[{"name": "time", "value": 2, "unit": "ms"}]),
        result(configuration={"x": 1, "map": "pad"}, times={"runtimes": [9.0]}),  # again: the first one counts
    ]
    document = {"schema_version": "1.0.0", "metadata": {"device": "A100", "kernel": "conv"}, "results": results}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    said = fusiond("import", path, "--out", target)
    assert said.out.startswith(f"3 trials in {target}, 1 of them failed\n")
    lines = [json.loads(line) for line in gzip.decompress(target.read_bytes()).decode().splitlines()]
    assert lines[0]["parameters"] == {"x": [1, 2, 3], "map": ["pad"]}
    assert (lines[0]["device"], lines[0]["kernel"], lines[0]["unit"]) == ("A100", "conv", "us")
    assert [each[:2] for each in lines[1:]] == [[[0, 0], [1500.0, 1250.0]], [[1, 0], "compile"], [[2, None], [2000.0]]]


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"results": 1}, "results: expected a list"),
        ({"results": []}, "holds no results"),
        ({"results": [1]}, "results[0]: expected an object"),
        ({"results": [{}]}, "results[0]: the field 'configuration' is missing"),
        ({"results": [result(invalidity="broken")]}, "results[0].invalidity: expected one of timeout"),
        ({"results": [result(times=[])]}, "results[0].times: expected an object"),
        ({"results": [result(times={"runtimes": "x"})]}, "results[0].times.runtimes: expected a list"),
        ({"results": [result(measurements=[{"name": 1}])]}, "measurements[0].name: expected a text"),
        ({"results": [result()], "schema_version": "2.0.0"}, "schema_version: 2.0.0; this fusiond reads 1"),
        ({"results": [result(configuration={"x": [1]})]}, "configuration.x: expected a plain value"),
        ({"results": [result(times={"runtimes": [-1]})]}, "times must be positive"),
        ({"results": [result(times={"runtimes": ["1"]})]}, "times.runtimes: expected numbers"),
        ({"results": [result(invalidity="compile")]}, "no configuration of it was measured"),
        ({}, "holds no results"),
    ],
)
def test_what_is_not_t4_is_refused(fusiond: Run, tmp_path: Path, document: Any, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    said = fusiond("import", path, "--out", tmp_path / "pack")
    assert said.status == 2
    assert said.err.count("\n") == 1
    assert says in said.err
    assert not (tmp_path / "pack").exists()


def test_cut_short_and_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json.gz"
    whole = gzip.compress(json.dumps({"results": [result()] * 500}).encode())
    for length in range(2, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(RequestError):
            t4.read(path)
    monkeypatch.setattr(t4, "MOST_BYTES", 1_000_000)
    path.write_bytes(gzip.compress(b"[" + b" " * 50_000_000 + b"]"))
    with pytest.raises(RequestError, match="longer than 1 MB"):
        t4.read(path)


def test_the_schema_s_own_words(tmp_path: Path) -> None:
    """Against the schema as its authors wrote it, where Kernel Tuner is installed (the extra `peers`)."""
    kernel_tuner = pytest.importorskip("kernel_tuner", reason="needs the schema: pip install 'fusiond[peers]'")
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(kernel_tuner.__file__).parent / "schema/T4/1.0.0/results-schema.json").read_text())
    values = (
        None, True, 0, 1.5, "x", "compile", [], [1], {}, {"compilation_time": "1"}, {"runtimes": 3}, [{"name": 3}],
    )  # fmt: skip
    for name in (*result(), "timestamp", "objectives", "measurements"):
        for value in values:
            if isinstance(value, bool) or (name == "invalidity" and isinstance(value, list | dict)):
                continue
            document = {"results": [result(**{name: value})]}
            wrong = not jsonschema.Draft202012Validator(schema).is_valid(document)
            assert bool(list(t4.problems(document))) == wrong, (name, value)
