"""The documentation cannot rot: what it quotes is there, what is there is documented, what it promises happens."""

import dataclasses
import inspect
import re
import shlex
from pathlib import Path

import pytest

from fusiond import cli
from fusiond.model.errors import RequestError
from fusiond.model.language import expressions
from fusiond.model.nouns import Job, Search
from fusiond.requests import jobs
from fusiond.requests.jobs import CORE_KEYS, MEASURE_KEYS, SEARCH_KEYS, check_keys
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond.strategy import Strategy, hookspecs

ROOT = Path(__file__).parents[1]
PLUGINS = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
JOBS = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")
STRANGER = Path(__file__).parent / "stranger"
HOOKS = sorted(name for name, each in vars(hookspecs).items() if hasattr(each, "fusiond_spec"))
METHODS = sorted(name for name, each in vars(Strategy).items() if inspect.isfunction(each) and not name.startswith("_"))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def rows(text: str, heading: str) -> list[tuple[str, ...]]:
    """The cells of the table below a heading row, without back quotes."""
    body = text.partition(heading + "\n")[2].split("\n\n")[0].splitlines()[1:]
    assert body, heading
    return [tuple(cell.strip().strip("`") for cell in line.strip("| ").split(" | ")) for line in body]


# --- docs/plugins.md ---


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_with_its_exact_signature(hook: str) -> None:
    signature = str(inspect.signature(getattr(hookspecs, hook))).replace("'", "")
    assert f"### `{hook}{signature}`\n" in PLUGINS


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_used_by_a_test(hook: str) -> None:
    used = [path for path in Path(__file__).parent.rglob("*.py") if f"def {hook}(" in path.read_text(encoding="utf-8")]
    assert used


def test_no_hook_is_documented_that_is_not_there() -> None:
    assert re.findall(r"^### `(\w+)\(", PLUGINS, re.MULTILINE) == [
        "register_strategies", "register_devices", "register_workloads", "trial_finished", "record_changed",
        "device_sick",
    ]  # fmt: skip
    assert len(HOOKS) == 6


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_a_strategy_is_in_the_table_with_its_arguments(method: str) -> None:
    names = [each for each in inspect.signature(getattr(Strategy, method)).parameters if each != "self"]
    assert f"| `{method}({', '.join(names)})` |" in PLUGINS


def test_the_walk_quotes_the_strangers_plugin_word_for_word() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (*STRANGER.rglob("*.py"), STRANGER / "pyproject.toml")
    )
    walk = PLUGINS.partition("## A walk through one")[2].partition("### All of a strategy")[0]
    quoted = blocks(walk, "python") + blocks(walk, "toml")
    assert len(quoted) >= 6
    for text in quoted:
        assert text in sources, text


# --- docs/jobs.md ---


def test_every_core_key_is_documented_and_no_other() -> None:
    assert {key for key, *_ in rows(JOBS, "| key | meaning | default |")} == set(CORE_KEYS)
    assert {key for key, *_ in rows(JOBS, "| key of `search` | meaning | default |")} == set(SEARCH_KEYS)
    assert {key for key, *_ in rows(JOBS, "| key of `measure` | meaning | default |")} == set(MEASURE_KEYS)


def test_defaults_are_as_documented() -> None:
    documented = {key: default for key, _, default in rows(JOBS, "| key of `search` | meaning | default |")}
    text = ", ".join(f"{key}: {value}" for key, value in documented.items())
    (job,) = jobs.read("job.yaml", f"strategy: toy\nsearch: {{{text}}}")
    assert job.search == Search()


def test_every_key_of_the_other_strategies_is_named(real: Registry) -> None:
    named = {name: set(re.findall(r"\w+", keys)) for name, keys, _ in rows(JOBS, "| strategy | key | meaning |")}
    others = ("mincut", "replay", "stitching", "transfer", "variants")
    assert named == {name: set(real.strategy(name).job_keys) for name in others}


def test_every_key_of_hfuse_is_documented(real: Registry) -> None:
    assert {key for key, _ in rows(JOBS, "| key | meaning |")} == set(real.strategy("hfuse").job_keys)


@pytest.mark.parametrize("text", blocks(JOBS, "yaml"))
def test_the_examples_are_jobs(text: str, real: Registry, tmp_path: Path) -> None:
    kernels = ROOT / "plugins" / "hfuse" / "fusiond_hfuse" / "kernels"
    (tmp_path / "mine").mkdir()
    scan = (kernels / "hist.yaml").read_text().replace("kernel: hist", "kernel: scan")
    (tmp_path / "mine" / "scan.yaml").write_text(scan)
    (tmp_path / "mine" / "hist.cu").write_text((kernels / "hist.cu").read_text())
    found = jobs.read(tmp_path / "job.yaml", text)
    assert len(found) == (3 if "sweep" in text else 1)
    for job in found:
        check_keys(job, real.strategy(job.strategy).job_keys)
        prepare(real, job)


@pytest.mark.parametrize(("line", "answer"), rows(JOBS, "| the file says | fusiond answers |"))
def test_mistakes_are_answered_as_documented(line: str, answer: str, real: Registry) -> None:
    text = f"strategy: hfuse\npair: [hist, maxpool]\n{line}\n"

    def submitted() -> None:
        for job in jobs.read("job.yaml", text):
            prepare(real, job)

    with pytest.raises(RequestError) as caught:
        submitted()
    message = str(caught.value)
    assert message.endswith(answer)
    assert "job.yaml:3: " in message


def test_the_grammar_is_that_of_the_parser() -> None:
    written = inspect.getdoc(expressions) or ""
    (grammar,) = blocks(JOBS, "text")
    for line in grammar.splitlines():
        assert line in written


@pytest.mark.parametrize(("text", "value"), rows(JOBS, "| expression | value at n = 1000, block.x = 128 |"))
def test_expressions_have_the_documented_values(text: str, value: str) -> None:
    assert expressions.parse(text).integer({"n": 1000, "block.x": 128}) == int(value)


def test_a_search_has_no_field_that_no_key_sets() -> None:
    fields = {each.name.removesuffix("_secs") for each in dataclasses.fields(Search)}
    assert fields == {*SEARCH_KEYS, *MEASURE_KEYS}
    assert {each.name for each in dataclasses.fields(Job)} >= {"strategy", "sizes", "device", "search"}


# --- commands ---

PAGES = sorted(
    each for each in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    if each.name not in ("decisions.md", "CHANGELOG.md")
)  # fmt: skip
_COMMAND = re.compile(r"^(?:    |\$ |)(fusiond [a-z].*)$", re.MULTILINE)


def _words(line: str) -> list[str]:
    """The words of a command behind `fusiond`, without what a shell makes of the rest."""
    plain = line.replace("...", "X").replace("[", "").replace("]", "")
    words = shlex.split(plain, comments=True)[1:]
    ends = [number for number, word in enumerate(words) if word in ("&", "&&", "|", ";", ">") or word.startswith("2>")]
    return words[: ends[0]] if ends else words


COMMANDS_OF_DOCS = sorted({
    (page.name, line) for page in PAGES for body in [*blocks(page.read_text(encoding="utf-8"), "(?:sh|text)"),
    *re.findall(r"(?:^    .*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE)] for line in _COMMAND.findall(body)
})  # fmt: skip


def test_the_docs_have_commands() -> None:
    assert len(COMMANDS_OF_DOCS) > 80


@pytest.mark.parametrize(("page", "line"), COMMANDS_OF_DOCS)
def test_every_command_of_the_docs_is_one(page: str, line: str) -> None:
    words = _words(line)
    if words == ["COMMAND"] or words[0].isupper():
        return
    _, parser = cli.command_of(words[0])
    parser.parse_args(words[1:])
