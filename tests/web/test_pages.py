"""What the pages show: everything escaped, everything there, the buttons that change something."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as Tree
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fusiond.cli import main
from fusiond.store.database import Store
from fusiond.web import pages, plots, views

Served = tuple[str, str, Store]
Page = Callable[..., Any]


class Links(HTMLParser):
    """What a page loads and leads to, and the kinds of elements that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.kinds: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.kinds.add(tag)
        self.found += [value or "" for name, value in attributes if name in ("href", "src", "action")]


def links(text: str) -> Links:
    parser = Links()
    parser.feed(text)
    return parser


def test_every_link_of_every_page_leads_somewhere(served: Served, page: Page) -> None:
    seen, waiting = set(), ["/"]
    while waiting:
        path = waiting.pop()
        seen.add(path)
        answer = page(path)
        assert answer.status_code == 200, path
        if "text/html" not in answer.headers["content-type"]:
            continue
        found = links(answer.text)
        assert all(each.startswith(("/", "#")) for each in found.found), path  # nothing from another host
        assert "b" not in found.kinds  # the workload's name has one, escaped
        assert {"main", "h1"} <= found.kinds
        waiting += [
            each
            for each in found.found
            if each.startswith("/") and each not in seen and not each.endswith(("cancel", "finish", "again"))
        ]
        seen.update(waiting)
    assert {"/", f"/page/jobs/{served[1]}", "/static/style.css", "/static/fusiond.js"} <= seen
    assert any(each.startswith("/answers/") for each in seen)


def test_a_job_s_page(served: Served, page: Page) -> None:
    _, job, _ = served
    text = page(f"/page/jobs/{job}").text
    assert "&lt;b&gt;maxpool" in text
    assert "3 of 3 trials" in text
    assert "emulated on the processor" in text
    assert text.count("<tr><td>") >= 3
    assert "Submit again" in text
    assert "Cancel" not in text


def test_an_answer_s_page(served: Served, page: Page) -> None:
    _, _, store = served
    (record,) = store.answers(limit=1)
    text = page(views.answer_path(record)).text
    assert f"{record.speedup:.3f}x against {record.baseline}" in text
    assert "95 % interval" in text
    assert "a.n=500" in text
    assert page("/answers/no/such/answer").status_code == 404


def test_what_is_asked_wrongly_is_a_page(page: Page) -> None:
    for path, status in (("/page/jobs/none", 404), ("/?state=asleep", 400)):
        answer = page(path)
        assert answer.status_code == status
    assert page("/static/../pages.py").status_code == 404
    assert page("/page/jobs/none/explode", "POST").status_code == 404


def test_a_button_submits_again(served: Served, page: Page) -> None:
    _, job, store = served
    said = page(f"/page/jobs/{job}/again", "POST")
    assert said.status_code == 303
    new = said.headers["location"].rpartition("/")[2]
    assert new != job
    assert store.named_job(new).workload_name == store.named_job(job).workload_name


def test_a_page_stands_alone(served: Served, tmp_path: Path) -> None:
    _, job, store = served
    path = tmp_path / "job.html"
    assert main(["explain", job, "--html", str(path), "--db", str(store.path)]) == 0
    text = path.read_text()
    found = links(text)
    assert not [each for each in found.found if not each.startswith("#")]
    assert "form" not in found.kinds
    assert "prefers-color-scheme: dark" in text
    assert main(["explain", job, "--html", "/none/x.html", "--db", str(store.path)]) == 2


@pytest.mark.parametrize(
    "trials", [[], [(0, None)], [(0, 1.0)], [(0, 0.5), (1, None), (2, 3.0)], [(at, 1e-9 * at) for at in range(1, 40)]]
)
def test_a_search_is_drawn(trials: list[tuple[int, float | None]]) -> None:
    picture = Tree.fromstring(plots.search(trials, budget=40, noun="measured"))
    assert picture.attrib["role"] == "img"
    assert picture.attrib["aria-label"]
    numbers = [float(each) for each in re.findall(r"-?\d+\.\d+", str(plots.search(trials, budget=40, noun="measured")))]
    assert all(-1 <= each <= 10_000 for each in numbers)


def test_pictures_are_xml_whatever_is_in_them() -> None:
    for picture in (plots.bars([("<unfused> & more", 3.0, "unfused"), ("fused", 1.0, "fused")], unit="us"),
                    plots.interval(1.2, 1.1, 1.3)):  # fmt: skip
        Tree.fromstring(picture)
    assert plots.bars([], unit="us") == ""


def test_what_a_template_is_not_given_is_an_error() -> None:
    with pytest.raises(Exception, match="undefined"):
        pages.environment().get_template("problem.html").render(alone=None)


def test_five_thousand_trials(served: Served) -> None:
    """The page of a large job has every trial in it; how long that takes is in benchmarks/web.py."""
    _, job, store = served
    found = views.job(store, job)
    found["lines"] = found["lines"] * 1700
    text = pages.environment().get_template("job.html").render(found, alone=None)
    assert text.count("<tr><td>") > 5000


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not here: `apt install chromium`")
def test_a_browser_runs_the_script(served: Served, tmp_path: Path) -> None:
    """Heads of tables sort by keyboard and mouse once the script has run; without it the page is whole all the same."""
    _, job, store = served
    path = tmp_path / "job.html"
    text = pages.standing_alone(store, job)
    path.write_text(
        text.replace("</body>", "<script>document.querySelectorAll('#trials th')[2].click()</script></body>")
    )
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"--user-data-dir={tmp_path}/own"]
    shown = subprocess.run([*words, path.as_uri()], capture_output=True, text=True, timeout=100, check=True).stdout
    assert 'aria-sort="ascending"' in shown
    times = [float(each) for each in re.findall(r"<td>measured</td><td>([\d.]+)", shown)]
    assert len(times) == 3
    assert times == sorted(times)
    assert "aria-sort=" not in text.partition("<style>")[0] + text.partition("</style>")[2].partition("<script>")[0]
