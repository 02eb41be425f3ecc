"""Events reach every subscriber; one that fails is dropped and costs nobody else."""

import dataclasses
import json
import logging
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fusiond.model.events import DeviceTurnedSick, Event, Events, JobEnded, PhaseStarted, RecordChanged
from fusiond.model.outcomes import Record, Verdict
from fusiond.requests.registry import Registry
from tests import webhook_plugin
from tests.fake_daemon import DEVICE

PHASE = PhaseStarted(job="1", phase="search")


class Listener:
    def __init__(self) -> None:
        self.heard: list[Event] = []

    def hear(self, event: Event) -> None:
        self.heard.append(event)


def test_a_bound_method_can_be_taken_out() -> None:
    listener, other = Listener(), Listener()
    events = Events(listener.hear, other.hear)
    events.publish(PHASE)
    events.unsubscribe(listener.hear)
    events.unsubscribe(listener.hear)
    events.publish(JobEnded(job="1", state="done"))
    assert listener.heard == [PHASE]
    assert len(other.heard) == 2


def test_a_subscriber_that_raises_is_dropped_with_a_logged_line(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def broken(event: Event) -> None:
        calls.append("broken")
        raise OSError("the pipe is closed")

    listener = Listener()
    events = Events(broken, listener.hear)
    with caplog.at_level(logging.ERROR, "fusiond.model.events"):
        events.publish(PHASE)
        events.publish(PHASE)
    assert calls == ["broken"]
    assert listener.heard == [PHASE, PHASE]
    assert "PhaseStarted" in caplog.text


def test_one_event_at_a_time_whichever_thread_publishes() -> None:
    """A subscriber may publish itself; two threads never meet in one."""
    inside: list[int] = []
    met: list[int] = []

    def note(event: Event) -> None:
        inside.append(1)
        time.sleep(0.002)
        met.append(len(inside))
        inside.pop()

    events = Events(note)
    events.subscribe(lambda event: events.publish(PHASE) if isinstance(event, JobEnded) else None)
    threads = [threading.Thread(target=events.publish, args=(JobEnded(job="1", state="done"),)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert met == [1] * 8


# --- alerts by a plugin that only listens ---------------------------------------------------------------


RECORD = Record(
    strategy="toy", workload_name="toy", workload_key="k", sizes={}, device_name="d", device_key="d", env_key="e",
    verdict=Verdict.FUSE, config=None, program_key=None, time_us=None, baseline="b", baseline_us=1.0, speedup=1.5,
    ci95=None, verified=False, evidence="measured", trials=1, found_at="2026-01-01T00:00:00+00:00",
)  # fmt: skip
SOURCE = Path(webhook_plugin.__file__)


def test_it_is_the_one_that_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    quoted = text.partition("## Alerts")[2].partition("```python\n")[2].partition("```")[0]
    assert quoted.strip()
    assert quoted in SOURCE.read_text(encoding="utf-8")


def test_what_somebody_should_see_is_posted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["content-length"])))["text"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    registry = Registry()
    registry.add(webhook_plugin, "webhook")
    assert registry.listens
    sick = DeviceTurnedSick(job="1", device=DEVICE, reason="it fell over")
    with HTTPServer(("127.0.0.1", 0), Chat) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("FUSIOND_WEBHOOK", f"http://127.0.0.1:{server.server_port}/")
        registry.notify(RecordChanged(job="1", record=RECORD))
        registry.notify(RecordChanged(job="1", record=dataclasses.replace(RECORD, evidence="emulated")))
        registry.notify(sick)
        server.shutdown()
    assert heard == ["toy on d: fuse, 1.50x", "cpu is sick: it fell over"]
    monkeypatch.setenv("FUSIOND_WEBHOOK", "http://127.0.0.1:1/")  # nobody is there
    with caplog.at_level(logging.ERROR, "fusiond.requests.registry"):
        registry.notify(sick)
    assert "plugin webhook failed on DeviceTurnedSick" in caplog.text
