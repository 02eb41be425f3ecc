"""What the pages show: everything escaped, everything there, the buttons that change something."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as Tree
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

import fusiond
from fusiond.cli import main
from fusiond.model.events import Events, TrialFinished
from fusiond.model.nouns import Rejection
from fusiond.model.outcomes import JobState
from fusiond.requests import jobs
from fusiond.service.daemon.config import DaemonConfig
from fusiond.service.remaining import Standing
from fusiond.service.web import pages, plots, views
from fusiond.store.database import Store
from fusiond.store.trials import TrialLine
from tests import fake_daemon as daemon
from tests.service.daemon.conftest import running
from tests.service.web.conftest import JOB

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


def test_what_is_asked_wrongly_is_a_page(page: Page) -> None:
    for path, status in (("/page/jobs/none", 404), ("/?state=asleep", 400)):
        answer = page(path)
        assert answer.status_code == status
    assert page("/static/../pages.py").status_code == 404
    assert page("/page/jobs/none/explode", "POST").status_code == 404


LONG = "the comparison would prove nothing, " * 20


def with_parts(store: Store) -> str:
    """A job with three parts, one of which failed for a long reason; its id."""
    whole = daemon.submit(store, jobs.read("/whole.yaml", JOB.replace("500", "501"))[0])
    for number in range(3):
        made = daemon.submit(store, jobs.read("/part.yaml", JOB.replace("500", str(600 + number)))[0])
        with store._transaction() as writer:
            writer.execute("UPDATE jobs SET parent_id = ? WHERE id = ?", [whole.id, made.id])
        store.finish(made.id, JobState.FAILED if number == 2 else JobState.DONE, LONG if number == 2 else None)
    return whole.id


def test_parts_fold_under_their_job(served: Served, page: Page) -> None:
    _, first, store = served
    job = with_parts(store)
    text = page("/").text
    assert re.findall(rf'<details class="parts" id="parts-{job}"><summary>([^<]*)', text) == ["3 parts, 1 failed"]
    heads = re.findall(r'<tr><td><a href="/page/jobs/(\w+)"', text)
    assert {job, first} <= set(heads)
    for part in store.parts(job):
        assert part.id not in heads
        assert text.count(f"/page/jobs/{part.id}") == 1
    assert f'<details class="note problem"><summary><span>{LONG.strip()}' in text
    (failed,) = [each.id for each in store.parts(job) if each.state is JobState.FAILED]
    alone = page("/?state=failed").text
    assert failed in re.findall(r'<tr><td><a href="/page/jobs/(\w+)"', alone)
    assert '<details class="parts"' not in alone


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
    assert "<dt>Gain</dt><dd>1.230x<" in text  # the answer is in it, too, with its history
    assert "answers to this question" in text
    assert len(re.findall("<h1", text)) == 1
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
    """The page of a large job has every trial in it."""
    _, job, store = served
    found = views.job(store, job)
    found["rows"] = found["rows"] * 1700
    text = pages.environment().get_template("job.html").render(found, alone=None)
    assert text.count("<tr data-number=") > 5000


def test_trials_that_are_shown_already_are_not_sent_again(served: Served, page: Page) -> None:
    _, job, _ = served
    numbers = re.findall(r"<tr data-number=(\d+)", page(f"/page/jobs/{job}?after=0").text)
    assert numbers == ["1", "2"]
    assert "<tr data-number" not in page(f"/page/jobs/{job}?after=2").text
    assert page(f"/page/jobs/{job}?after=x").status_code == 400


def test_a_program_that_was_struck_out_is_called_by_its_config(served: Served, page: Page) -> None:
    _, job, store = served
    key = store.trials(job)[1].program_key or "0" * 32
    store.add_rejections(job, [Rejection(rule="struck_out", nodes=(key, "crashed"), detail="process 3: crashed")])
    text = page(f"/page/jobs/{job}").text
    assert re.search(r"<strong>struck_out</strong> <code>(block=1|0{8})</code>: process 3", text)
    assert key not in text


def test_of_a_running_job_only_new_trials_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path / "fusiond.sqlite") as store:
        row = daemon.submit(store, jobs.read("/job.yaml", JOB.replace("trials: 3", "trials: 6"))[0])
        store.claim("nobody")
        shown = pages.Pages(store, views.Now, {})
        asked: list[int] = []
        reading = store.trial_lines

        def counted(job: str, *, after: int = 0) -> list[TrialLine]:
            found = reading(job, after=after)
            asked.append(len(found))
            return found

        monkeypatch.setattr(store, "trial_lines", counted)
        heard: list[list[int]] = []

        def look(event: object) -> None:
            if isinstance(event, TrialFinished) and event.done % 2 == 0:
                heard.append([each.sequence for each in shown._read(store.named_job(row.id))])

        daemon.MakeBelieve(store, 0.0).run(row, daemon.DEVICE, Events(look), lambda: False)
        assert heard == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
        assert asked == [2, 2, 2]
        assert len(shown._read(store.named_job(row.id))) == 6  # it has ended: all of it is read, and kept no more
        assert not shown._known


# --- what a running job shows -----------------------------------------------------------------------------


def test_parts_finals_and_the_time_left_are_shown(served: Served) -> None:
    _, job, store = served
    standing = Standing(job=job, phase="search", part=5, parts=11, part_name="<sx>", done=3, budget=8, left_secs=200.0,
                        final=2, finals=5)  # fmt: skip
    tiles = {each.name: each for each in views.job(store, job, standing)["tiles"]}
    assert (tiles["Part"].value, tiles["Part"].note) == ("5 of 11", "<sx>: 3 of 8 trials")
    assert tiles["Finals"].value == "2 of 5"
    assert tiles["Time left"].value == "about 3 min"
    worker = {"device": "cuda:0", "job": job, "waiting": None, "progress": standing.as_json()}
    found = views.overview(store, views.Now(workers=[worker, {"device": "cpu", "job": None, "waiting": None}]))
    assert found["busy"][0]["said"] == "part 5 of 11 (<sx>), final 2 of 5"
    assert found["idle"] == ["cpu"]
    text = pages.environment().get_template("overview.html").render(found, alone=None)
    assert "part 5 of 11 (&lt;sx&gt;)" in text
    assert "about 3 min left" in text


# --- keyboard, screen reader, dark ------------------------------------------------------------------------


class Outline(HTMLParser):
    """The elements of a page with their attributes, and which of them a `label` holds."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes), tuple(self._open)))
        if tag not in ("meta", "link", "input", "path", "rect", "circle", "tr", "td", "progress"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass


def test_everything_has_a_name_and_can_be_reached(served: Served, page: Page) -> None:
    _, job, store = served
    (record,) = store.answers(limit=1)
    for path in ("/", f"/page/jobs/{job}", views.answer_path(record), "/page/jobs/none"):
        outline = Outline()
        outline.feed(page(path).text)
        kinds = [tag for tag, _, _ in outline.elements]
        assert kinds.count("h1") == kinds.count("main") == 1, path
        assert ("html", {"lang": "en"}, ()) in outline.elements
        assert kinds.count("table") == kinds.count("caption"), path
        for tag, given, within in outline.elements:
            if tag == "th":
                assert given.get("scope") in ("col", "row"), path
            if tag in ("input", "select"):
                assert "label" in within or given.get("aria-label"), path
            if tag == "svg":
                assert given["role"] == "img"
                assert given["aria-label"]
            if tag == "progress":
                assert given.get("aria-label") or given.get("aria-hidden") == "true"
            if "scroll" in (given.get("class") or "").split() or given.get("class") == "wide":
                assert (given.get("tabindex"), given.get("role")) == ("0", "region"), path  # the keyboard scrolls it
                assert given.get("aria-label"), path
        assert any(tag == "a" and given.get("href") == "#main" for tag, given, _ in outline.elements)


def luminance(colour: str) -> float:
    """WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_stands_out_in_light_and_in_dark() -> None:
    """WCAG's 4.5 to 1 for text, 3 to 1 for bars and lines that mean something."""
    sheet = (pages.STATIC / "style.css").read_text()
    plain, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", each))
        for each in re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)
    )
    for colours in (plain, {**plain, **dark}):
        for back in ("card", "back", "row"):
            for text in ("text", "dim", "link", "bad", "mark"):
                assert contrast(colours[text], colours[back]) >= 4.5, (text, back)
        for kind in ("good", "bad", "mark"):
            assert contrast(colours[kind], colours[f"{kind}-back"]) >= 4.5, kind
        for text in ("text", "dim"):
            assert contrast(colours[text], colours["fill"]) >= 4.5, text
        assert contrast(colours["bar"], colours["fill"]) >= 3
    pictures = (pages.STATIC / "plots.css").read_text()
    plain, dark = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", each))
        for each in re.findall(r"\.plot \{(.*?)\}", pictures, re.DOTALL)[:2]
    )
    for colours in (plain, {**plain, **dark}):
        for text in ("ink", "quiet"):
            assert contrast(colours[text], colours["paper"]) >= 4.5
        for line in ("point", "gain", "loss"):
            assert contrast(colours[line], colours["paper"]) >= 3
    for fill in re.findall(r"\.g\d \{ fill: (#[0-9a-f]{6})", pictures):
        assert contrast("#ffffff", fill) >= 4.5  # the text on it is white


# --- in a browser -----------------------------------------------------------------------------------------

needs_chromium = pytest.mark.skipif(not shutil.which("chromium"), reason="chromium is not here: `apt install chromium`")


def dom(url: str, folder: Path, *more: str) -> str:
    """What headless Chromium has made of a page."""
    words = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server",
        f"--user-data-dir={folder}/own", "--dump-dom",
    ]  # fmt: skip
    return subprocess.run([*words, *more, url], capture_output=True, text=True, timeout=100, check=True).stdout


@pytest.mark.slow
@needs_chromium
def test_a_browser_runs_the_script(served: Served, tmp_path: Path) -> None:
    """Heads of tables sort by keyboard and mouse once the script has run; without it the page is whole all the same."""
    _, job, store = served
    path = tmp_path / "job.html"
    text = pages.standing_alone(store, job)
    doing = (
        "document.querySelectorAll('#trials th button')[2].click();"
        "const box = document.querySelector('input'); box.value = '1.01'; box.dispatchEvent(new Event('input'))"
    )
    path.write_text(text.replace("</body>", f"<script>{doing}</script></body>"))
    shown = dom(path.as_uri(), tmp_path)
    assert 'aria-sort="ascending"' in shown
    times = [float(each) for each in re.findall(r'<td[^>]*>measured</td><td class="n"[^>]*>([\d.]+)', shown)]
    assert len(times) == 3
    assert times == sorted(times)
    assert len(re.findall(r"<tr data-number=\"\d\"[^>]* hidden", shown)) == 2  # the filter leaves one
    assert "1 of 3" in shown
    assert "aria-sort=" not in text.partition("<style>")[0] + text.partition("</style>")[2].partition("<script>")[0]


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("path", ["/", "job", "answer"])
def test_nothing_runs_out_of_a_narrow_page(served: Served, page: Page, tmp_path: Path, path: str) -> None:
    """At 420 pixels each row is a card whose values are named; a long note takes two lines until it is clicked."""
    _, job, store = served
    with_parts(store)
    store.finish(job, JobState.FAILED, LONG + "x" * 300)
    (record,) = store.answers(limit=1)
    text = page({"/": "/?state=failed", "job": f"/page/jobs/{job}", "answer": views.answer_path(record)}[path]).text
    style, script = (page(f"/static/{each}").text for each in ("style.css", "fusiond.js"))
    inner = tmp_path / "inner.html"
    measure = (
        "const wide = document.documentElement.scrollWidth, notes = [...document.querySelectorAll('.note span')];"
        "const high = () => notes.map((each) => each.getBoundingClientRect().height);"
        "const closed = high(); for (const each of document.querySelectorAll('.note')) each.open = true;"
        "const labels = [...document.querySelectorAll('tbody td')].filter((each) => each.dataset.label).length;"
        "parent.postMessage([wide, closed, high(), labels], '*');"
    )
    text = re.sub("<link[^>]*>|<script[^>]*></script>", "", text).replace(' data-refresh="3"', "")
    inner.write_text(f"{text}<style>{style}</style><script>{script}</script><script>{measure}</script>")
    outer = tmp_path / "outer.html"
    outer.write_text(
        "<script>onmessage = (each) => { document.title = JSON.stringify(each.data); }</script>"
        '<iframe src="inner.html" width="420" height="900"></iframe>'
    )
    shown = dom(outer.as_uri(), tmp_path, "--virtual-time-budget=3000")
    wide, closed, opened, labels = json.loads(re.findall("<title>(.*)</title>", shown)[0])
    assert wide <= 420
    assert labels >= 3
    assert all(height <= 3 * 15 * 1.5 for height in closed)
    if path == "/":
        assert max(opened) > 200


@pytest.mark.slow
@needs_chromium
def test_a_browser_keeps_the_page_of_a_running_job_up_to_date(tmp_path: Path) -> None:
    """The token in the URL becomes a cookie; trials come to the table, each once, while the job runs."""
    urls: list[str] = []
    with Store.open(tmp_path / "fusiond.sqlite") as store:
        config = DaemonConfig(poll_secs=0.05, web=("127.0.0.1", 0))
        with running(store, trial_secs=0.02, config=config, announce=urls.append) as (_, client):
            (job,) = client.submit(tmp_path / "job.yaml", JOB.replace("trials: 3", "trials: 3000"))
            while store.named_job(job).trials < 3:
                time.sleep(0.02)
            base, _, token = urls[0].partition("/?")
            shown = dom(f"{base}/page/jobs/{job}?{token}", tmp_path, "--virtual-time-budget=10000")
            client.cancel(job)
    numbers = [int(each) for each in re.findall(r'<tr data-number="(\d+)"', shown)]
    assert numbers == list(range(len(numbers)))
    told = re.search(r"<dt>Trials</dt><dd>(\d+) of 3000", shown)
    assert told is not None
    assert int(told[1]) >= 3
    assert "data-was" in re.search(r'<section[^>]*data-live="state"[^>]*>', shown)[0]  # type: ignore[index]
    assert len(numbers) >= int(told[1])


def test_nothing_in_a_row_is_markup() -> None:
    """Rows are written without the template's own care."""
    evil = '<script>alert("1")</script>&'
    trial = TrialLine(
        id=1, sequence=0, role="candidate", origin=evil, outcome=evil, config={"a": evil, "b": True}, ratio=1.5,
        time_us=2.0, reason=evil,
    )  # fmt: skip
    rows = views._rows([trial], ["a", "b", "c"], trial)
    parser = Links()
    parser.feed(str(rows))
    assert parser.kinds == {"tr", "td"}
    assert rows.count("<td") == 4 + 3 + 2
    assert rows.striptags().count(evil) == 4
    assert "<tr data-number=0 class=top>" in rows


# --- what a notebook shows of answers and jobs ----------------------------------------------------------


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


# --- who may see the pages over TCP ---------------------------------------------------------------------


PATHS = (
    "/", "/health", "/jobs", "/judge", "/page/jobs/x", "/metrics", "/openapi.json", "/static/style.css", "/nothing",
)  # fmt: skip


def base(url: str) -> str:
    return url.partition("/?")[0]


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_nothing_without_the_token(served: Served, path: str) -> None:
    url, _, _ = served
    for method in ("GET", "POST", "DELETE"):
        assert httpx.request(method, base(url) + path).status_code == 401
        for wrong in ({"params": {"token": "wrong"}}, {"headers": {"authorization": "Bearer wrong"}},
                      {"headers": {"cookie": "fusiond_token=wrong"}}, {"params": {"token": ""}}):  # fmt: skip
            assert httpx.request(method, base(url) + path, **wrong).status_code == 403


def test_the_url_gives_a_cookie_and_goes_from_the_address(served: Served) -> None:
    url, _, _ = served
    with httpx.Client(follow_redirects=False) as client:
        moved = client.get(f"{url}&state=done", headers={"accept": "text/html"})
        assert (moved.status_code, moved.headers["location"]) == (303, "/?state=done")
        cookie = moved.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        page = client.get(base(url) + "/")
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_a_program_brings_it_as_a_bearer_or_in_the_url(served: Served) -> None:
    url, job, _ = served
    token = url.partition("token=")[2]
    found = httpx.get(f"{base(url)}/jobs/{job}", headers={"authorization": f"Bearer {token}"})
    assert found.json()["id"] == job
    assert httpx.get(f"{base(url)}/health", params={"token": token}).json()["state"] == "serving"


def test_a_form_of_another_page_is_refused(served: Served, page: Any) -> None:
    _, job, _ = served
    said = page(f"/page/jobs/{job}/cancel", "POST", headers={"origin": "http://elsewhere.example"})
    assert (said.status_code, said.text) == (403, "a form of another page\n")
    own = page(f"/page/jobs/{job}/cancel", "POST", headers={"origin": base(served[0])})
    assert (own.status_code, own.headers["location"]) == (303, f"/page/jobs/{job}")


@pytest.mark.parametrize("odd", ["fusiond_token=\x80", "a=b; ;=;fusiond_token", "fusiond_token=" + "x" * 4000])
def test_odd_cookies_are_no_token(served: Served, odd: str) -> None:
    url, _, _ = served
    assert httpx.get(base(url) + "/", headers=[(b"cookie", odd.encode("latin-1"))]).status_code in (401, 403)
