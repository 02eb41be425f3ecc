"""`export --answers`, `import`, `keys`, `tokens`: between two stores, as a user of both."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.store.database import Store

Run = Callable[..., Any]


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
