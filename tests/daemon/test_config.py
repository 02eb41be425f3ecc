"""The daemon's configuration file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fusiond.model.errors import RequestError
from fusiond.model.inputs import documents
from fusiond.service.daemon import config

SHIPPED = Path(__file__).parents[2] / "configs" / "fusiond.yaml"


def read(tmp_path: Path, text: str) -> config.DaemonConfig:
    path = tmp_path / "fusiond.yaml"
    path.write_text(text)
    return config.read(path)


def test_the_shipped_file_names_every_key_and_holds_the_defaults() -> None:
    assert config.read(SHIPPED) == config.DaemonConfig()
    keys = documents.parse(SHIPPED.read_text(), str(SHIPPED)).mapping()
    assert set(keys) == {field.name for field in dataclasses.fields(config.DaemonConfig)}


def test_everything_can_be_set(tmp_path: Path) -> None:
    text = "db: store/x.sqlite\nsocket: /run/x\ndevices: [cpu, 'cuda:1']\npoll_secs: 2\n"
    found = read(tmp_path, text + "when_busy: share\nlog_level: debug\nlog: json\n")
    assert found == config.DaemonConfig(
        db=tmp_path / "store/x.sqlite",
        socket=Path("/run/x"),
        devices=("cpu", "cuda:1"),
        poll_secs=2.0,
        when_busy="share",
        log_level="debug",
        log="json",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("poll_sec: 1\n", "fusiond.yaml:1: unknown key 'poll_sec'; did you mean 'poll_secs'?"),
        ("poll_secs: soon\n", "poll_secs: is 'soon'; a number is wanted"),
        ("poll_secs: 0\n", "must be from"),
        ("devices: [gpu]\n", "is 'gpu'; write all, cpu, cuda, cuda:0 or counted:h100"),
        ("devices: []\n", "names no device"),
        ("when_busy: never\n", "it can be share, wait, exclusive"),
        ("log_level: loud\n", "it can be debug"),
        ("db: 3\n", "a text is wanted"),
        ("- a\n", "a mapping is wanted"),
    ],
)
def test_mistakes_name_file_line_and_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert "fusiond.yaml:1" in str(caught.value)


def test_it_is_found_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, everybodys = tmp_path / "own", tmp_path / "all"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(own))
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"relative:{tmp_path / 'none'}:{everybodys}")
    assert config.find() is None
    for folder in (everybodys, own):
        (folder / "fusiond").mkdir(parents=True)
        (folder / "fusiond" / "fusiond.yaml").write_text("")
        assert config.find() == folder / "fusiond" / "fusiond.yaml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.find() == everybodys / "fusiond" / "fusiond.yaml"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("upstream: http://box.example", "write https://, or http:// of an SSH tunnel's end on this machine"),
        ("upstream: ftp://box", "write https://HOST[:PORT]"),
        ("upstream: https://anna:secret@box", "write https://HOST[:PORT]"),
        ("upstream: https://box:99999", "write https://HOST[:PORT]"),
        ("upstream: [https://box, https://box/]", "names one twice"),
        ("upstream: [{token_file: x}]", "url"),
        ("upstream: [{url: https://box, token_file: none}]", "cannot be read"),
        ("upstream: [{url: https://box, token_file: open}]", "can be read by others; `chmod 600` it"),
        ("upstream: [{url: https://box, token_file: empty}]", "holds no token"),
        ("upstream_secs: 0", "upstream_secs"),
    ],
)
def test_a_wrong_upstream_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    for name, content, mode in (("open", "x" * 40, 0o644), ("empty", "", 0o600)):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(mode)
    path = tmp_path / "fusiond.yaml"
    path.write_text(f"{text}\n")
    with pytest.raises(RequestError) as problem:
        config.read(path)
    assert says in str(problem.value)


def test_upstreams_and_their_tokens(tmp_path: Path) -> None:
    (tmp_path / "box.token").write_text("fusiond_abcdefghijklmnop\n")
    (tmp_path / "box.token").chmod(0o600)
    path = tmp_path / "fusiond.yaml"
    path.write_text("upstream: ['http://127.0.0.1:8080', {url: 'https://box/', token_file: box.token}]\n")
    found = config.read(path).upstream
    assert [each.url for each in found] == ["http://127.0.0.1:8080", "https://box"]
    assert [each.token for each in found] == ["", "fusiond_abcdefghijklmnop"]
    assert "abcdef" not in repr(found)  # in no log
