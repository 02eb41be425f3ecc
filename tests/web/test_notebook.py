"""What a notebook shows of answers and jobs: XML that brings its style along, and loads nothing."""

import dataclasses
import json
import subprocess
import sys
import xml.etree.ElementTree as Tree
from collections.abc import Callable
from pathlib import Path

import pytest

import fusiond
from fusiond.store.database import Store

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def store(tmp_path: Path, run_job: Callable[[Store], str]) -> Path:
    with Store.open(tmp_path / "fusiond.sqlite") as opened:
        run_job(opened)
    return tmp_path / "fusiond.sqlite"


def shown(text: str | None) -> Tree.Element:
    assert text is not None
    return Tree.fromstring(text.replace("<br>", "<br/>"))


def test_an_answer(store: Path) -> None:
    with fusiond.Client(db=store) as client:
        answer = client.best("<b>maxpool,hist")
    assert answer is not None
    root = shown(answer._repr_html_())
    rows = {row[0].text: row[1].text for row in root.iter("tr")}
    assert rows["verdict"] == "fuse"
    assert rows["gain"] == "1.230x, 95 % interval 1.210 to 1.250"
    assert root.findtext("strong") == "<b>maxpool,hist"  # a name, and no markup
    pictures = list(root.iter(f"{SVG}svg"))
    assert len(pictures) == 2
    assert all(each.find(f"{SVG}style") is not None for each in pictures)
    assert not [each for each in root.iter() if each.tag in ("script", "link", "img")]


def test_a_job(store: Path) -> None:
    with fusiond.Client(db=store) as client:
        (row,) = client.jobs()
        assert row == client.store.named_job(row.id)  # the same row, whoever asks first
        assert client.store.named_job(row.id) == row
        assert row != dataclasses.replace(row, id="another")
        assert len({row, client.show(row.id)}) == 1
    root = shown(row._repr_html_())  # type: ignore[attr-defined]
    assert "3 of 3" in {row[1].text for row in root.iter("tr")}
    search, outcomes = root.iter(f"{SVG}svg")
    assert len(search.findall(f"{SVG}circle")) == 3
    assert outcomes.attrib["aria-label"] == "outcomes: 3 measured"
    store.unlink()
    assert row._repr_html_() is None  # type: ignore[attr-defined]


@pytest.mark.slow
def test_an_answer_costs_no_template_engine_before_it_is_shown(store: Path) -> None:
    program = (
        "import sys, json, fusiond\n"
        f"answer = fusiond.Client(db={str(store)!r}).best('<b>maxpool,hist')\n"
        "before = 'jinja2' in sys.modules\n"
        "answer._repr_html_()\n"
        "print(json.dumps([before, 'jinja2' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, True]
