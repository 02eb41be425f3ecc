"""Events reach every subscriber; one that fails is dropped and costs nobody else."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from fusiond.model.events import Event, Events, JobEnded, PhaseStarted

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
