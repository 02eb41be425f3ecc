"""What is known, what was known, and how it is given up; status, help, completion, examples."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond import cli
from fusiond.cli import COMMANDS, examples

Run = Callable[..., Any]


def test_answers(fusiond: Run, done_job: str) -> None:
    (found,) = fusiond("answers", "--json").json
    assert (found["workload"], found["verdict"], found["evidence"]) == ("hist,maxpool", "fuse", "emulated")
    assert found["ci95"][0] <= found["speedup"] <= found["ci95"][1]
    assert "hist,maxpool" in fusiond("answers").out
    for words in (["--verdict", "keep"], ["--device", "cuda"], ["--strategy", "hfuse"], ["--since", "2999-01-01"]):
        assert fusiond("answers", *words).out == "no answers\n"
    assert len(fusiond("answers", "--since", "2026-01-01", "--device", "cpu", "--strategy", "toy", "--json").json) == 1


def test_status_with_and_without_a_store(fusiond: Run, database: Path) -> None:
    said = fusiond("status")
    assert (said.status, database.exists()) == (0, False)
    assert "none answers" in said.out
    assert fusiond("status", "--json").json["daemon"]["state"] == "absent"


def test_status_of_a_store(fusiond: Run, done_job: str) -> None:
    said = fusiond("status").out
    assert "1 done job" in said
    assert "hist,maxpool on cpu: fuse, 1.230x" in said
    assert fusiond("status", "--json").json["store"]["jobs"]["done"] == 1


def test_the_manual_has_every_command_and_option(fusiond: Run, tmp_path: Path) -> None:
    """Read by groff, as man does, where there is one: without a warning, and nothing is lost."""
    source = fusiond("help", "--man").out
    words = source.replace("\\-", "-")
    for name in cli.COMMANDS:
        assert f".SS fusiond {name}\n" in source
        for action in cli.command_of(name)[1]._actions:
            assert all(each in words for each in action.option_strings), (name, action)
    if shutil.which("groff") is None:
        pytest.skip("no groff to set the page with: apt install groff-base")
    page = tmp_path / "fusiond.1"
    page.write_text(source)
    made = subprocess.run(["groff", "-man", "-ww", "-Tutf8", page], capture_output=True, text=True, check=True)
    assert made.stderr == ""
    shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", made.stdout)
    assert "fusiond best" in shown
    assert "--cluster ADDRESS" in shown.replace("\u2010", "-").replace("\u2212", "-")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes(fusiond: Run, shell: str, tmp_path: Path) -> None:
    script = fusiond("completion", shell).out
    assert all(command in script for command in COMMANDS)
    assert "--older-than" in script
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} to check the syntax with: apt install {shell}")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_bash_completes_as_one_types(fusiond: Run, tmp_path: Path) -> None:
    path = tmp_path / "completion"
    path.write_text(fusiond("completion", "bash").out)
    typed = f"""source {path}; COMP_WORDS=(fusiond prune --old); COMP_CWORD=2
    $(complete -p fusiond | sed -E 's/.*-F (\\S+) .*/\\1/') fusiond --old prune; echo "${{COMPREPLY[@]}}" """
    found = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["--older-than"]


def test_examples_are_listed_and_copied(fusiond: Run, tmp_path: Path) -> None:
    listed = fusiond("examples", "--json").json
    assert {"hist-maxpool.yaml", "gpu/hist-maxpool.yaml", "softmax.hlo"} <= set(listed["files"])
    assert all(each.split()[0] in listed["files"] for each in fusiond("examples").out.splitlines())
    target = tmp_path / "mine"
    copied = fusiond("examples", target)
    assert "fusiond plan" in copied.out
    files = {str(path.relative_to(target)) for path in target.rglob("*.*")}
    assert files == {*listed["files"], *(f"{kind}.schema.json" for kind in ("job", "kernel", "pipeline", "graph"))}
    for each in target.rglob("*.yaml"):  # an editor finds the schema, and the rest is as it was
        first, _, rest = each.read_text().partition("\n")
        kind = {"image/graph": "graph", "image/sharpen": "pipeline"}.get(str(each.relative_to(target).with_suffix("")))
        schema = (each.parent / first.removeprefix("# yaml-language-server: $schema=")).resolve()
        assert schema == target / f"{kind or 'job'}.schema.json"
        assert rest == (examples.examples_folder() / each.relative_to(target)).read_text()
    for each in (target / "jax").glob("*.py"):
        compile(each.read_text(), str(each), "exec")
    assert fusiond("examples", target).status == 2
    assert examples.examples_folder().is_dir()
