"""`/metrics`, read by Prometheus' own parser, and `/openapi.json` held to what is served."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from fusiond.model.errors import StoreError
from fusiond.model.outcomes import JobState
from fusiond.service.daemon import openapi
from fusiond.service.daemon.app import App
from fusiond.service.daemon.config import UpstreamAddress
from fusiond.service.daemon.metrics import Metrics, State
from fusiond.service.daemon.stream import Broker
from fusiond.service.daemon.upstream_server import Endpoints
from fusiond.service.daemon.upstream_sync import Between
from fusiond.store.database import Store


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(name, labels) -> value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_a_daemon_did_and_is(store: Store, service_of: Callable[..., Any], job_file: Callable[..., Path]) -> None:
    with service_of(store) as (service, client):
        (job,) = client.submit(job_file(trials=3))
        for _ in client.watch(job):
            pass
        transport = httpx.HTTPTransport(uds=str(client.socket))
        with httpx.Client(transport=transport, base_url="http://fusiond") as http:
            assert http.get("/best", params={"pair": "hist,maxpool"}).status_code == 200
            assert http.get("/best", params={"pair": "a,b"}).status_code == 404
            assert http.get("/best", params={"pair": "a"}).status_code == 400
            store.set_sick(service.workers[0].device.key, service.workers[0].device.uuid, "it fell over")
            response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(response.text)
    assert found["fusiond_trials_total", (("outcome", "measured"),)] == 3
    assert found["fusiond_jobs_ended_total", (("state", "done"),)] == 1
    states = {labels[0][1]: value for (name, labels), value in found.items() if name == "fusiond_jobs"}
    assert states == {state.value: float(state is JobState.DONE) for state in JobState}
    matches = {labels[0][1]: value for (name, labels), value in found.items() if name == "fusiond_lookups_total"}
    assert matches == {"exact": 1, "unknown": 1, "refused": 1}
    assert found["fusiond_lookup_seconds_count", ()] == 3
    assert found["fusiond_device_busy", (("device", "cpu"),)] == 0
    assert found["fusiond_device_sick", (("device", "cpu"),)] == 1
    assert found["fusiond_store_bytes", ()] > 4096
    assert found["fusiond_store_up", ()] == 1
    assert all(name.startswith("fusiond_") for name, _ in found)


def test_a_store_that_cannot_be_read_is_a_figure() -> None:
    def look() -> State:
        raise StoreError("the disk is gone")

    found = samples(Metrics(look).text().decode())
    assert found["fusiond_store_up", ()] == 0
    assert ("fusiond_uptime_seconds", ()) in found


def test_every_route_is_described_with_its_methods(store: Store, service_of: Callable[..., Any]) -> None:
    with service_of(store) as (_, client):
        transport = httpx.HTTPTransport(uds=str(client.socket))
        with httpx.Client(transport=transport, base_url="http://fusiond") as http:
            document = http.get("/openapi.json").json()
    assert methods_of(document) == served_by(App(actions=None, broker=Broker()))  # type: ignore[arg-type]
    check_references(document)


def test_what_other_boxes_may_ask_is_described_where_they_may(store: Store) -> None:
    exchange = Endpoints(None).routes()  # type: ignore[arg-type]
    app = App(actions=None, broker=Broker(), exchange=exchange)  # type: ignore[arg-type]
    document = openapi.document(exchange=True)
    assert methods_of(document) == served_by(app)
    check_references(document)


def methods_of(document: Any) -> dict[str, set[str]]:
    return {path: set(methods) for path, methods in document["paths"].items()}


def served_by(app: App) -> dict[str, set[str]]:
    served: dict[str, set[str]] = {}
    for route in app.starlette().routes:
        served.setdefault(route.path, set()).update(each.lower() for each in route.methods - {"HEAD"})  # type: ignore[attr-defined]
    return served


def check_references(document: Any) -> None:
    schemas = document["components"]["schemas"]

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"].rpartition("/")[2]} if "$ref" in value else set()
            return own.union(*(references(each) for each in value.values()))
        return set().union(*(references(each) for each in value)) if isinstance(value, list) else set()

    assert references(document) <= set(schemas)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
            assert named == ({"id"} if "{id}" in path else set())


def test_what_goes_on_between_boxes_is_counted() -> None:
    kept = {"own": 3, "imported": 2, "claims": 1}
    there = {"upstream": "https://box", "rests": True, "behind": 4}
    state = State(jobs={}, devices=[], store_bytes=1, exchange=kept, upstreams=[there])
    metrics = Metrics(lambda: state)
    metrics.served("push", "new", 2)
    metrics.served("push", "refused", 0)  # nothing of it: no series
    metrics.called("https://box", "answer", "failed", 2.0)
    found = samples(metrics.text().decode())
    assert found["fusiond_exchange_requests_total", (("request", "push"), ("result", "new"))] == 2
    assert ("fusiond_exchange_requests_total", (("request", "push"), ("result", "refused"))) not in found
    where = ("upstream", "https://box")
    assert found["fusiond_upstream_calls_total", (("call", "answer"), ("result", "failed"), where)] == 1
    assert found["fusiond_upstream_call_seconds_sum", ()] == 2
    assert (found["fusiond_upstream_up", (where,)], found["fusiond_upstream_behind", (where,)]) == (0, 4)
    assert {dict(labels)["kind"]: value for (name, labels), value in found.items()
            if name == "fusiond_exchange_entries"} == kept  # fmt: skip


def test_the_dashboard_asks_for_what_is_there(service_of: Any, tmp_path: Path) -> None:
    """Every figure of packaging/grafana/fusiond.json is one that /metrics has, with the labels that group it."""
    path = Path(__file__).parents[2] / "packaging" / "grafana" / "fusiond.json"
    dashboard = json.loads(path.read_text())
    asked = [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]
    with Store.open(tmp_path / "fusiond.sqlite") as store, contextlib.ExitStack() as opened:
        between = Between(store, [UpstreamAddress(url="http://127.0.0.1:9")], 0.1)
        service, client = opened.enter_context(service_of(store, between=between))
        job = tmp_path / "job.yaml"
        job.write_text("strategy: toy\npair: [a, b]\nsearch: {trials: 2}\n")
        (id,) = client.submit(job)
        list(client.watch(id))
        service.metrics.looked_up("exact", 0.001)
        service.metrics.served("answer", "found")
        service.metrics.judged("right")
        service.metrics.called("https://box", "answer", "ok", 0.01)
        text = ""
        while "fusiond_jobs_ended_total{" not in text:  # those who watch are told first
            text = service.metrics.text().decode()
    names = set(re.findall(r"^# TYPE (\S+)", text, flags=re.M))
    assert len(asked) >= 12
    for expression in asked:
        (figure,) = set(re.findall(r"fusiond_\w+", expression))
        assert figure.removesuffix("_bucket") in names, figure
        for label in re.findall(r"by \((\w+)\)", expression):
            assert re.search(rf"^{figure}\{{[^}}]*\b{label}=", text, flags=re.M), (figure, label)
    used = {name.removesuffix("_bucket") for each in asked for name in re.findall(r"fusiond_\w+", each)}
    left = {each for each in names - used if not each.endswith("_created")}
    assert left <= {"fusiond_build_info"}, left  # nothing that is measured is left out
