"""The pictures of docs/images, from a real run: `python -m tools.screenshots [OUT]` (default docs/images).

A daemon with a store of its own tunes one job of each strategy on the processor, and one for an H100 that is not
there; headless Chromium opens each page as it is meanwhile and afterwards. Plots are written as SVG from that store.
Takes about five minutes on two cores, and needs chromium and g++.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fusiond.service.client.client import Client
from fusiond.service.web import plots, views
from fusiond.store.database import Store

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "configs" / "jobs"
WIDTH = 1200
DARK = "--blink-settings=preferredColorScheme=0"


class Shown:
    """A daemon with pages, and a browser."""

    def __init__(self, folder: Path, out: Path) -> None:
        self._folder, self._out = folder, out
        environment = {**os.environ, "HOME": str(folder), "FUSIOND_LOCKS": f"screenshots{os.getpid()}"}
        environment.pop("FUSIOND_DB", None)
        config = folder / "fusiond.yaml"
        config.write_text("devices: [cpu, 'counted:h100']\n")
        command = [sys.executable, "-m", "fusiond", "serve", "--db", str(self.db), "--config", str(config)]
        self._daemon = subprocess.Popen(
            [*command, "--web", "127.0.0.1:0"], env=environment, stdout=subprocess.PIPE,
            stderr=(folder / "log").open("w"), text=True,
        )  # fmt: skip
        assert self._daemon.stdout is not None
        self._base, _, self._token = self._daemon.stdout.readline().strip().partition("/?")
        if not self._token:
            raise SystemExit(f"the daemon did not start:\n{(folder / 'log').read_text()}")

    @property
    def db(self) -> Path:
        return self._folder / "fusiond.sqlite"

    def close(self) -> None:
        self._daemon.terminate()
        self._daemon.wait(60)

    def shoot(self, name: str, path: str, height: int, *more: str) -> None:
        """One page as it is now."""
        words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *more]
        words += [f"--user-data-dir={self._folder}/browser", f"--window-size={WIDTH},{height}"]
        target = self._out / f"{name}.png"
        subprocess.run(
            [*words, f"--screenshot={target}", f"{self._base}{path}?{self._token}"], check=True, timeout=100,
            capture_output=True,
        )  # fmt: skip
        _say(f"{target.name}: {path}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "docs" / "images")
    out: Path = parser.parse_args(argv).out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fusiond-screenshots-") as folder:
        shown = Shown(Path(folder), out)
        try:
            with Client(db=shown.db) as client:
                _run(shown, client)
                _plots(client.store, out)
        finally:
            shown.close()


def _run(shown: Shown, client: Client) -> None:
    def submit(name: str, **more: Any) -> str:
        (job,) = client.submit(JOBS / name, **more)
        return job

    (softmax, hist, fig2), harris = (
        (submit("softmax-h100.yaml"), submit("hist-maxpool.yaml", device="cpu", trials=40, seed=1),
         submit("transfer-fig2.yaml", device="cpu")),
        submit("mincut-harris.yaml", device="cpu", trials=10),
    )  # fmt: skip
    _wait(lambda: _progress(client, harris).get("part") == 5 and _progress(client, harris).get("done", 0) > 3)
    shown.shoot("page-overview", "/", 760)
    shown.shoot("page-overview-dark", "/", 760, DARK)
    shown.shoot("page-running", f"/page/jobs/{harris}", 700)
    for job in (softmax, hist, fig2, harris):
        _wait(lambda job=job: client.show(job).state.ended)  # type: ignore[misc]
        row = client.show(job)
        if row.state.value != "done":
            raise SystemExit(f"{row.workload_name} is {row.state}: {row.problem}")
    shown.shoot("page-job", f"/page/jobs/{hist}", 1330)
    shown.shoot("page-answer-hfuse", _answer(client, hist), 1330)
    shown.shoot("page-answer-counted", _answer(client, softmax), 1650)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _answer(client: Client, job: str) -> str:
    row = client.show(job)
    record = client.store.record(row.workload_key, str(row.device_key), row.search.cache)
    assert record is not None
    return views.answer_path(record)


def _progress(client: Client, job: str) -> dict[str, Any]:
    found = (each["progress"] for each in client.health()["workers"] if each["job"] == job)
    return next(found, None) or {}


def _wait(done: Callable[[], bool], secs: float = 900.0) -> None:
    deadline = time.monotonic() + secs
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit("it takes too long")
        time.sleep(0.2)


def _plots(store: Store, out: Path) -> None:
    """How a search went, a gain, a roofline, as files of their own."""
    for record in store.answers(limit=100):
        if record.workload_name == "hist,maxpool":
            (job,) = [each for each in store.jobs(None, 100) if each.workload_key == record.workload_key]
            pictures = {"plot-search": views.job(store, job.id)["plot"], "plot-gain": views.gain(record)}
        elif record.workload_name == "softmax":
            pictures = {"plot-roofline": plots.roofline(record.counted)}
        else:
            continue
        for name, picture in pictures.items():
            if picture is not None:
                (out / f"{name}.svg").write_text(f"{plots.alone(picture)}\n")
                _say(f"{name}.svg")


if __name__ == "__main__":
    main()
