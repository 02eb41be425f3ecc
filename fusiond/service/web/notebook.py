"""An answer or a job as a notebook shows it: a few lines and the pictures of its page, with their style."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from fusiond.model.errors import FusiondError
from fusiond.service.web import plots, views
from fusiond.store.database import Store

_TEMPLATE = Environment(autoescape=True).from_string(
    "<div>"
    "<strong>{{ title }}</strong> {{ about }}"
    "{% if rows %}<table>{% for name, value in rows %}<tr><th style='text-align:left'>{{ name }}</th>"
    "<td style='text-align:left'>{{ value }}</td></tr>{% endfor %}</table>{% endif %}"
    "{% for each in pictures %}<div>{{ each }}</div>{% endfor %}"
    "</div>"
)


def answer(document: Mapping[str, Any]) -> str:
    """The document of `best --json`."""
    counted = document["evidence"] == "counted"
    rows = [("verdict", document["verdict"]), ("config", _words(document["config"]))]
    pictures = []
    if document["speedup"] is not None:
        spread = document["ci95"]
        if spread and not counted:
            pictures.append(plots.interval(document["speedup"], *spread))
            rows.append(("gain", f"{document['speedup']:.3f}x, 95 % interval {spread[0]:.3f} to {spread[1]:.3f}"))
        else:
            rows.append(("ratio of the lower bounds" if counted else "gain", f"{document['speedup']:.3f}x"))
    times = [
        ("fused", document["time_us"], "fused"),
        (f"unfused: {document['baseline']}", document["baseline_us"], "unfused"),
    ]
    known = [each for each in times if each[1] is not None]
    if known:
        pictures.append(plots.bars(known, unit="us at least" if counted else "us"))
    roofline = plots.roofline(document["counted"]) if document["counted"] else None
    if roofline is not None:
        pictures.append(roofline)
    rows.append(("found", f"{document['found_at'][:16].replace('T', ' ')} UTC, {document['match']}"))
    rows += [("note", each) for each in document["notes"]]
    about = f"{document['workload']['strategy']} on {document['device']['name']}, {document['evidence']}"
    return _shown(document["workload"]["name"], about, rows, pictures)


def job(db: Path, id: str) -> str:
    """A job of a store; empty where it cannot be read."""
    try:
        with Store.open(db, create=False) as store:
            found = views.job(store, id)
    except FusiondError:
        return ""
    row = found["row"]
    rows = [(each.name.lower(), f"{each.value} {each.note}".strip()) for each in found["tiles"]]
    if row.problem:
        rows.append(("problem", row.problem))
    return _shown(row.workload_name, f"job {row.id}, {row.state.value}", rows, [found["plot"], found["outcomes"]])


def _words(config: Mapping[str, Any] | None) -> str:
    return "keep them apart" if config is None else " ".join(f"{name}={value}" for name, value in config.items())


def _shown(title: str, about: str, rows: Sequence[tuple[str, str]], pictures: Sequence[Markup]) -> str:
    shown = [plots.alone(each) for each in pictures if each]
    return _TEMPLATE.render(title=title, about=about, rows=rows, pictures=shown)
