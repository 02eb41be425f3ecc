"""The unit files and the container file: hardened as the docs say, and no option that the daemon does not know."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fusiond.cli import COMMANDS, serve
from fusiond.cli.parser import Parser

ROOT = Path(__file__).parents[2]
SYSTEM = ROOT / "packaging" / "systemd" / "fusiond.service"
USER = ROOT / "packaging" / "systemd" / "user" / "fusiond.service"
CONTAINER = ROOT / "packaging" / "Containerfile"
DOCS = (ROOT / "docs" / "operating.md").read_text()
MOST_EXPOSED = 3.0


def settings(unit: Path) -> dict[str, list[str]]:
    """Directive -> its values, in order."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def arguments(words: list[str]) -> None:
    """RequestError for a command line that `fusiond` does not take."""
    command, *options = words
    assert command in COMMANDS
    parser = Parser(prog=command)
    serve.configure(parser)
    parser.parse_args(options)


@pytest.mark.parametrize("unit", [SYSTEM, USER])
def test_a_unit_starts_what_there_is_and_is_watched(unit: Path) -> None:
    found = settings(unit)
    program, *words = shlex.split(found["ExecStart"][0])
    assert program.endswith("/bin/fusiond")
    arguments(words)
    assert found["Type"] == ["notify"]
    assert int(found["WatchdogSec"][0]) >= 30  # it is fed each quarter of that
    assert found["KillSignal"] == ["SIGTERM"]
    assert found["UMask"] == ["0077"]
    assert found["TimeoutStartSec"] == ["infinity"]  # a large store is moved to a new format before it is ready


def test_the_system_unit_keeps_its_files_where_it_may_write() -> None:
    found = settings(SYSTEM)
    words = shlex.split(found["ExecStart"][0])
    for option, folder in (("--db", "/var/lib/fusiond/"), ("--socket", "/run/fusiond/")):
        assert words[words.index(option) + 1].startswith(folder)
    assert "FUSIOND_CACHE=/var/cache/fusiond" in " ".join(found["Environment"])
    for kind in ("State", "Cache", "Runtime"):
        assert (found[f"{kind}Directory"], found[f"{kind}DirectoryMode"]) == (["fusiond"], ["0700"])
    assert found["ExecStartPre"] == ["-+/usr/bin/nvidia-modprobe -u -c 0"]


def test_what_is_not_set_is_explained_and_not_set() -> None:
    text = SYSTEM.read_text()
    left_out = re.findall(r"^# (\w+)  +\S", text.partition("# Not set, and why:")[2], re.MULTILINE)
    assert set(left_out) == {"MemoryDenyWriteExecute", "PrivateDevices", "PrivateNetwork", "PrivateUsers", "ProcSubset"}
    assert not set(left_out) & set(settings(SYSTEM))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze: apt install systemd")
def test_the_exposure_of_the_system_unit() -> None:
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", f"--threshold={10 * MOST_EXPOSED:.0f}"]
    done = subprocess.run([*command, str(SYSTEM)], capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze looks at running units only")
    match = re.search(r"Overall exposure level for fusiond.service: (\d+\.\d)", done.stdout)
    assert match, done.stdout + done.stderr
    assert float(match[1]) < MOST_EXPOSED
    assert done.returncode == 0
    assert f"`systemd-analyze security` says under {MOST_EXPOSED:.0f} " in DOCS


def test_the_docs_name_the_files() -> None:
    for path in (SYSTEM, USER, CONTAINER):
        assert f"`{path.relative_to(ROOT)}`" in DOCS


def test_the_container_runs_as_a_plain_user() -> None:
    lines = CONTAINER.read_text().splitlines()
    user = next(line for line in lines if line.startswith("USER "))
    assert re.fullmatch(r"USER [1-9][0-9]*:[1-9][0-9]*", user)
    assert not any(line.startswith("RUN ") for line in lines[lines.index(user) :])
    (command,) = (line for line in lines if line.startswith("CMD "))
    arguments(re.findall(r'"([^"]*)"', command))


def test_the_container_has_an_init_and_asks_the_daemon() -> None:
    text = CONTAINER.read_text()
    assert 'ENTRYPOINT ["tini", "--", "fusiond"]' in text
    check = re.search(r'HEALTHCHECK .*\\\n +CMD \["python", "-c", "(.*)"\]', text)
    assert check
    assert "Client('/run/fusiond/socket').health()" in check[1]
    compile(check[1], "HEALTHCHECK", "exec")
