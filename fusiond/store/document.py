"""The document of `best --json`, from a record. Standard library only."""

from __future__ import annotations

import os

from fusiond.store import sources
from fusiond.store.format import ARTIFACT, artifact_path, decoded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from fusiond.store.candidates import StoredAnswer

DAMAGED_SOURCE = "source is damaged"  #: How the note begins that says why an answer comes without its source


def answer(
    found: StoredAnswer,
    path: str,
    asked: dict[str, int],
    *,
    changed: list[str],
    today: Mapping[str, str | None],
    confirmed: bool,
) -> dict[str, Any]:
    """The document. `changed`: what is another one today; `confirmed`: the sources were compared with the user's. Where
    they were not, they are in `to_compare`, for `compared`."""
    row, workload, sizes = found.row, found.workload, found.sizes
    notes = list(_notes(found, asked, changed, today))
    source = artifact_path(path, row["source"])
    if source is not None and row["source"].startswith(ARTIFACT) and not is_intact(source):
        notes.append(f"{DAMAGED_SOURCE}: {source} is not what was written; `fusiond store check` says how to go on")
        source = None
    said = {
        **row,
        "workload": {name: workload[name] for name in ("strategy", "name")} | {"key": row["workload_key"]},
        "content_key": workload["content_key"] or None,
        "device": {"name": row["device_name"], "key": row["device_key"]},
        "config": decoded(row["config"]),
        "baseline_config": decoded(row["baseline_config"]),
        "ci95": [row["ci_low"], row["ci_high"]] if row["ci_low"] is not None else None,
        "verified": bool(row["verified"]),
        "processes": row["processes"] or 0,
        "ended": row["ended"] or "",
        "source": source,
        "checks": decoded(row["checks"]),
        "figures": decoded(row["figures"], {}),
        "counted": decoded(row["counted"], []),
    }
    document = document_of(said, sizes, asked, changed, notes)
    return document | ({"to_compare": found.hashes} if found.hashes and not confirmed else {})


def document_of(
    said: Mapping[str, Any], sizes: Mapping[str, int], asked: Mapping[str, int], changed: list[str], notes: list[str]
) -> dict[str, Any]:
    """The document of an answer that was measured at `sizes`, for the sizes that are asked for. `said` has the values
    that are served as they are, under their names in the document, and `baseline_config` and `baseline_program_key`."""
    found = {name: said[name] for name in _AS_SAID}
    found["workload"] = {**said["workload"], "sizes": sizes}
    found["unfused"] = {
        "name": said["baseline"],
        "config": said["baseline_config"],
        "time_us": said["baseline_us"],
        "program_key": said["baseline_program_key"],
    }
    found["match"] = "nearest" if sizes != asked else "stale" if changed else "exact"
    found |= {"changed": changed, "sizes_asked": asked, "notes": notes}
    return found if said["evidence"] != "counted" else _of_bounds(found)


_AS_SAID = (
    "workload", "content_key", "device", "verdict", "config", "program_key", "time_us", "baseline", "baseline_us",
    "speedup", "ci95", "verified", "evidence", "cache", "trials", "processes", "ended", "replaced", "source",
    "found_at", "checks", "figures", "counted",
)  # fmt: skip


def _of_bounds(document: dict[str, Any]) -> dict[str, Any]:
    """What is counted for a GPU that is not here is a bound, and stands under no name of something measured."""
    bounds = {"bound_us": document["time_us"], "unfused_bound_us": document["baseline_us"]}
    nothing = {"time_us": None, "baseline_us": None, "speedup": None, "ci95": None}
    unfused = {**document["unfused"], "time_us": None}
    return {**document, **nothing, "unfused": unfused, **bounds, "bound_ratio": document["speedup"]}


def compared(document: dict[str, Any]) -> dict[str, Any]:
    """The same, changed in place, after a look at the sources of the record. They may lie on a mount that is gone, and
    then this takes for ever: never inside a transaction, nor where others wait."""
    hashes = document.pop("to_compare", {})
    if hashes:
        lines, surely = sources.changes(hashes, document["found_at"])
        document["notes"] += lines
        if surely:
            document["changed"] = [*document["changed"], "source"]
            document["match"] = "stale" if document["match"] == "exact" else document["match"]
    return document


def is_intact(path: str) -> bool:
    """Whether an artifact holds what its name says; one that is missing is for whoever opens it to say."""
    try:
        with open(path, "rb") as stream:
            return sources.text_key(stream.read()) == os.path.basename(path).partition(".")[0]
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _notes(
    found: StoredAnswer, asked: dict[str, int], changed: list[str], today: Mapping[str, str | None]
) -> Iterator[str]:
    sizes = found.sizes
    if sizes != asked:
        differing = [name for name in asked if sizes.get(name) != asked[name]]
        measured = ", ".join(f"{name}={sizes.get(name)}" for name in differing)
        wanted = ", ".join(f"{name}={asked[name]}" for name in differing)
        yield f"measured at {measured}; nothing is known at {wanted}"
    for name in changed:
        if name == "strategy":
            workload = found.workload
            yield (
                f"found by version {workload['strategy_version']} of {workload['strategy']}; today it is version "
                f"{found.version_today}"
            )
        else:
            yield f"found with {name} {found.env[name]}; today it is {today[name]}"
