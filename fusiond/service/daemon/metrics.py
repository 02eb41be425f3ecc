"""The metrics of `/metrics`, in Prometheus' text format. The only module that imports prometheus_client.

Counters and histograms count from the daemon's start; what the store and the workers are like is looked at when it is
asked for, and costs some milliseconds whatever the size of the store.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from fusiond import __version__
from fusiond.model.errors import FusiondError
from fusiond.model.events import Event, JobEnded, TrialFinished

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REASON_LETTERS = 120
"""Of a reason that becomes a label: one that names a process or a file would otherwise make a new series each time."""
_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)  #: Seconds of a look-up


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The daemon at one moment."""

    jobs: Mapping[str, int]  #: State -> number of jobs
    devices: Sequence[Mapping[str, Any]]
    """`device`, `job` (None: idle), `waiting` (why it is not used now, or None), `sick` (why, or None)."""
    store_bytes: int
    judging: Mapping[str, int] = field(default_factory=dict)  #: Candidates that are `running` and `waiting`
    exchange: Mapping[str, int] | None = None
    """`own`, `imported`, `claims`: how many of each; None where nothing is shared."""
    upstreams: Sequence[Mapping[str, Any]] = ()
    """`upstream`, `rests` (it failed a moment ago), `behind` (answers of this box that it was not told yet)."""


class Metrics(Collector):
    """`subscribe` it to the events; `text` is what is served. `look` gives the State, and may raise FusiondErrors."""

    def __init__(self, look: Callable[[], State]) -> None:
        self._registry = CollectorRegistry()
        self._look = look
        self._started = time.monotonic()
        self._trials = self._counter("trials", "Trials that were recorded, by outcome.", "outcome")
        self._ended = self._counter("jobs_ended", "Jobs that ended, by state.", "state")
        self._lookups = self._counter("lookups", "Questions for an answer, by what came of them.", "match")
        self._judged = self._counter("judged", "Candidates that were judged, by what came of it.", "result")
        self._latency = Histogram(
            "fusiond_lookup_seconds", "How long look-ups took.", registry=self._registry, buckets=_BUCKETS
        )
        self._asked = self._counter(
            "exchange_requests", "What other boxes asked and told here, by what came of it.", "request", "result"
        )
        self._calls = self._counter(
            "upstream_calls", "What upstreams were asked and told, by what came of it.", "upstream", "call", "result"
        )
        self._call_secs = Histogram(
            "fusiond_upstream_call_seconds", "How long upstreams took.", registry=self._registry, buckets=_BUCKETS
        )
        self._shares: dict[str, float] = {}
        self._device_of: dict[str, str] = {}
        self._registry.register(self)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fusiond_{name}_total", text, labels, registry=self._registry)

    def __call__(self, event: Event) -> None:
        """Count what happens."""
        if isinstance(event, TrialFinished):
            self._trials.labels(event.trial.outcome.value).inc()
        elif isinstance(event, JobEnded):
            self._ended.labels(event.state).inc()
            device = self._device_of.pop(event.job, None)
            if device is not None and event.device_share is not None:
                self._shares[device] = event.device_share

    def runs(self, job: str, device: str) -> None:
        """A worker has begun a job; whose share of the device's time is told when it ends."""
        self._device_of[job] = device

    def looked_up(self, match: str, secs: float) -> None:
        """A question was answered: `exact`, `stale`, `nearest`, `ambiguous`, `unknown`, or `refused`."""
        self._lookups.labels(match).inc()
        self._latency.observe(secs)

    def judged(self, result: str) -> None:
        """`right`, `wrong`, `failed`; `refused`: the request was, `full`: the queue was, `gone`: the client was."""
        self._judged.labels(result).inc()

    def served(self, request: str, result: str, count: int = 1) -> None:
        """Other boxes came: `answer` and `find` with `found` or `unknown`, `push` with `new`, `known` or `refused` for
        each line, `claim` with `granted` or `held`."""
        if count:
            self._asked.labels(request, result).inc(count)

    def called(self, upstream: str, call: str, result: str, secs: float) -> None:
        """An upstream was asked or told: `answer`, `push`, `claim`, `release`; `ok` or `failed`."""
        self._calls.labels(upstream, call, result).inc()
        self._call_secs.observe(secs)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format. FusiondErrors of the store."""
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Nothing: it must not be looked at when it is registered."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """What is looked at when it is asked for."""
        yield InfoMetricFamily("fusiond_build", "The daemon.", {"version": __version__})
        yield GaugeMetricFamily(
            "fusiond_uptime_seconds", "Since the daemon's start.", value=time.monotonic() - self._started
        )
        state = None
        with contextlib.suppress(FusiondError):  # what else there is goes on being served
            state = self._look()
        yield GaugeMetricFamily("fusiond_store_up", "Whether the store can be read.", value=int(state is not None))
        if state is None:
            return
        yield GaugeMetricFamily("fusiond_store_bytes", "The store's file and its log.", value=state.store_bytes)
        yield _gauge("jobs", "Jobs in the store, by state.", "state", state.jobs)
        yield _gauge("judging", "Candidates to be judged now, by state.", "state", state.judging)
        yield from self._devices(state.devices)
        if state.exchange is not None:
            text = "What is kept for other boxes, and of them."
            yield _gauge("exchange_entries", text, "kind", state.exchange)
            up = {str(each["upstream"]): not each["rests"] for each in state.upstreams}
            yield _gauge("upstream_up", "0 while it is left alone after a failure.", "upstream", up)
            behind = {str(each["upstream"]): each["behind"] for each in state.upstreams}
            yield _gauge("upstream_behind", "Answers that it was not told yet.", "upstream", behind)

    def _devices(self, devices: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
        of_name = {str(each["device"]): each for each in devices}
        busy = {name: each["job"] is not None for name, each in of_name.items()}
        yield _gauge("device_busy", "Whether a job runs on it.", "device", busy)
        sick = {name: each["sick"] is not None for name, each in of_name.items()}
        yield _gauge("device_sick", "Whether it failed on what is known to be good.", "device", sick)
        waits = GaugeMetricFamily(
            "fusiond_device_waiting", "Why it is not used, or its job does not go on, now.", labels=["device", "reason"]
        )
        for name, each in of_name.items():
            if each["waiting"]:
                waits.add_metric([name, str(each["waiting"])[:REASON_LETTERS]], 1)
        yield waits
        shares = {name: share for name, share in self._shares.items() if name in of_name}
        text = "Part of the last ended job's time in which its device measured."
        yield _gauge("device_share", text, "device", shares)


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A value for each value of a label."""
    found = GaugeMetricFamily(f"fusiond_{name}", text, labels=[label])
    for each, value in values.items():
        found.add_metric([each], float(value))
    return found
