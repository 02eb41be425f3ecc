"""Pipelines written as files, and what docs/mincut.md says of them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.model.inputs import documents
from fusiond.requests import jobs
from fusiond_mincut import plugin, request, strategy
from fusiond_mincut.analysis import legality
from fusiond_mincut.codegen import block_configs
from fusiond_mincut.frontend import borders, parser, printer, syntax
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.graph import Pipeline

from . import oracle
from .generated import pipeline as generated


def read(text: str) -> Pipeline:
    return parser.read(documents.parse(text, "written.yaml"))


@pytest.mark.parametrize("path", sorted(plugin.PIPELINES.glob("*.yaml")), ids=lambda each: each.stem)
def test_what_is_written_is_read_again(path: Any) -> None:
    made = parser.read(documents.parse(path.read_text(), str(path)))
    assert read(printer.text(made)) == made


@pytest.mark.parametrize("seed", range(8))
def test_random_pipelines_are_written_and_read_again(seed: int) -> None:
    made = generated(seed, 15)
    assert read(printer.text(made)) == made


# --- docs/mincut.md -------------------------------------------------------------------------------------


TEXT = (Path(__file__).parents[3] / "docs" / "mincut.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def cells(heading: str) -> list[str]:
    """The first cells of the table below a heading row (or the beginning of one)."""
    rows = TEXT.partition(heading)[2].partition("\n|")[2].split("\n\n")[0].splitlines()[1:]
    return [row.split("|")[1].strip().strip("`") for row in rows]


def test_the_examples_are_a_job_and_a_pipeline() -> None:
    job, pipeline, sizes = blocks("yaml")
    (found,) = jobs.read("job.yaml", job)
    jobs.check_keys(found, strategy.Mincut.job_keys)
    made = parser.read(documents.parse(pipeline, "edges.yaml"))
    assert [each.name for each in made.kernels] == ["blurred", "brightest", "marked"]
    made = parser.read(documents.parse(sizes, "blend.yaml"))
    assert [made.sides(name) for name in ("mask", "half", "out")] == [(480, 270), (960, 540), (1920, 1080)]


def test_every_key_rule_border_and_parameter_is_told() -> None:
    assert cells("| key | meaning | default |") == ["pipeline", "sizes", "model", "blocks", "accuracy", "block"]
    assert {*cells("| key | meaning | default |")} - {"sizes"} == set(strategy.Mincut.job_keys)
    assert [each.split("`")[0] for each in cells("| `border` | outside `abcd`")] == [
        "clamp", "mirror", "reflect", "repeat", "{constant: v}",
    ]  # fmt: skip
    assert set(borders.MODES) == {"clamp", "mirror", "reflect", "repeat", "constant"}
    source = Path(legality.__file__).read_text(encoding="utf-8")
    rules = set(re.findall(r'rule="(\w+)"', source)) - {"convex"}
    assert set(cells("| rule | a block is refused when |")) == rules
    for function in tree.FUNCTIONS:
        assert re.search(rf"\b{function}\b", TEXT), function
    for name in syntax.TYPES:
        assert f"{name}(x)" in TEXT
    assert cells("| parameter of a block | values |") == ["shape", "threads", "pixels", "local", "strip"]
    assert f"`{block_configs.STRIPS[0]}`" in TEXT
    for each in block_configs.THREADS:
        assert f"`{each}`" in TEXT
    assert f"measures no block, only whole partitions | `{request.MOST_BLOCKS}` |" in TEXT


def test_the_borders_are_those_of_numpy() -> None:

    rows = TEXT.partition("| `border` | outside `abcd`")[2].split("\n\n")[0].splitlines()[2:]
    for row in rows:
        mode, shown, pad = (each.strip().strip("`") for each in row.split("|")[1:4])
        name = "constant" if "constant" in mode else mode
        more = {"constant_values": ord("v")} if name == "constant" else {}
        letters = np.frombuffer(b"abcd", np.uint8)
        padded = bytes(np.pad(letters, 3, mode=pad, **more)).decode()
        assert shown.replace(" ", "") == padded
        if name != "constant":
            at = [oracle.indices(offset, 4, name)[0] for offset in (-3, 3)]
            assert bytes(letters[at[0]][:3]).decode() + "abcd" + bytes(letters[at[1]][1:]).decode() == padded
