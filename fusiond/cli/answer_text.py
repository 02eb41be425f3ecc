"""Prints an answer as text for `best`, `run` and `verify`. Standard library only: `best` imports it.

It takes the document of `best --json`, which is a contract, so that people and programs are told the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusiond.model.english import counted

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than a lookup
    from typing import Any, TypeAlias

    Document: TypeAlias = Mapping[str, Any]


def lines(document: Document) -> list[str]:
    """A few aligned lines: the workload, the verdict, how to do it, fused and unfused, where it was measured, what to
    know about it."""
    rows = [("workload", _workload(document)), ("verdict", verdict(document))]
    if document.get("config") and document.get("verdict") != "keep":
        rows.append(("config", config_text(document["config"])))
    if document.get("unfused"):
        rows.append(("unfused", unfused(document["unfused"])))
    rows.append(("times", _times(document)))
    if document.get("figures"):
        rows.append(("figures", figures(document["figures"])))
    evidence = document.get("evidence")
    rows.append((str(evidence) if evidence in ("counted", "replayed") else "measured", _measured(document)))
    if document.get("counted"):
        rows.append(("would pay", paid(document["counted"])))
    if document.get("source"):
        rows.append(("source", str(document["source"])))
    rows += [("note", text) for text in notes(document)]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {text}" for name, text in rows]


def ambiguous(document: Document) -> list[str]:
    """A name that stands for several contents: which ones, and how to ask for one of them."""
    name, answers = document["name"], document["answers"]
    rows = [
        (str(each["path"] or each["strategy"]), f"content {each['content_key'] or 'unknown'}, found {each['found_at']}")
        for each in answers
    ]
    width = max(len(path) for path, _ in rows)
    return [
        f"fusiond: error: {name} stands for {len(answers)} contents, and no file here says which one is meant; "
        "ask `fusiond best JOB.yaml`, or ask in the folder of the file:",
        *(f"  {path:<{width}}  {text}" for path, text in rows),
    ]


def unfused(way: Mapping[str, Any]) -> str:
    """The fastest unfused way with the block sizes and caps that it was measured with."""
    how = f"{way['name']} at {config_text(way['config'])}" if way.get("config") else str(way["name"])
    return how if way.get("time_us") is None else f"{how}: {microseconds(way['time_us'])}"


def config_text(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())


def verdict(document: Document) -> str:
    """One sentence: fuse, keep, tuned, or undecided; with the numbers that say so."""
    speedup, baseline = document.get("speedup"), document.get("baseline")
    interval = document.get("ci95")
    between = f" (95% interval {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    against = baseline or "the fastest unfused way"
    match document.get("verdict"):
        case "fuse":
            return f"fuse: {_pace(speedup)} {against}{between}"
        case "tuned":
            pace = _pace(speedup)
            return f"tuned: a better shape or variant of the kernel runs at {pace} the kernel as given{between}"
        case "promising" | "unpromising" as said:
            return f"{said}: {_bounds(document)}"
        case "keep" if speedup is not None:
            return f"keep it as it is: the best candidate runs at {_pace(speedup)} {against}{between}"
        case "keep":
            return f"keep it as it is: no candidate ran and was right; use {against}"
        case _ if speedup is not None:
            return f"undecided: the best candidate runs at {_pace(speedup)} {against}{between}, too close to call"
        case _:
            return f"undecided: no candidate came through the final measurement{_reason(document)}; use {against}"


def _bounds(document: Document) -> str:
    ratio = document.get("bound_ratio")
    if ratio is None:
        return "no candidate was right and could be counted"
    return f"the lower bound of {document.get('baseline')} is {ratio:.3f}x that of the best candidate (not measured)"


def _reason(document: Document) -> str:
    """Why nothing was measured, where that is known."""
    reason = document.get("ended") or next(iter(document.get("checks") or ()), "")
    return f" ({reason})" if reason else ""


def _pace(speedup: float | None) -> str:
    """One form for faster and slower, in the same terms as the interval."""
    return "more than the speed of" if speedup is None else f"{speedup:.3f}x the speed of"


def _workload(document: Document) -> str:
    workload = document["workload"]
    sizes = ", ".join(f"{name}={value}" for name, value in workload.get("sizes", {}).items())
    return f"{workload['name']} [{workload['strategy']}]" + (f" at {sizes}" if sizes else "")


def _times(document: Document) -> str:
    known = []
    for name, key in ((_winner(document), "bound_us"), (document.get("baseline", "unfused"), "unfused_bound_us")):
        if document.get(key) is not None:
            known.append(f"{name} at least {microseconds(document[key])}")
    if document.get("time_us") is not None:
        known.append(f"{_winner(document)} {microseconds(document['time_us'])}")
    if document.get("baseline_us") is not None:
        known.append(f"{document.get('baseline', 'unfused')} {microseconds(document['baseline_us'])}")
    return ", ".join(known) or "none"


def _winner(document: Document) -> str:
    return "tuned" if document.get("verdict") == "tuned" else "fused"


def _measured(document: Document) -> str:
    caches = ", with cold caches" if document.get("cache") == "cold" else ""
    text = f"on {document['device']['name']}{caches}, {document.get('found_at') or 'at an unknown time'}"
    if document.get("trials") is not None:
        text += f", {counted(document['trials'], 'trial')}"
    if document.get("config"):
        compared = "compared" if document.get("verified") else "NOT compared"
        other = "that of the kernel as given" if document.get("verdict") == "tuned" else "the unfused one"
        text += f", its result {compared} with {other}"
    return text


def paid(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the fused side would pay beside the unfused one, in one line."""
    sides = {name: [each for each in rows if each["program"] == name] for name in ("native", "fused")}
    lacking = [each for each in rows if each["failed"]]
    if lacking or not all(sides.values()):
        return f"not counted: {lacking[0]['failed']}" if lacking else "not counted"
    native, fused = sides["native"], sides["fused"]
    said = [f"{counted(len(fused), 'launch', 'launches')} in place of {len(native)}"]
    for name, key in (("DRAM bytes", "dram_bytes"), ("instructions", _instructions(rows))):
        whole = sum(each[key] for each in native)
        if whole:
            said.append(f"{sum(each[key] for each in fused) / whole:.2f}x the {name}")
    bounds = [side[0]["program_bound_us"] for side in (fused, native)]
    binding = [max(side, key=lambda each: each["bound_us"])["binding"] for side in (fused, native)]
    said.append(
        f"at least {microseconds(bounds[0])} ({binding[0]}) where the unfused one needs at least "
        f"{microseconds(bounds[1])} ({binding[1]}) on {fused[0]['model']}"
    )
    return ", ".join(said)


def _instructions(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of SASS, where it is known of all."""
    return "ptx_instructions" if any(each["instructions"] is None for each in rows) else "instructions"


def notes(document: Document) -> list[str]:
    """What one must know before using the answer."""
    found = []
    if document.get("evidence") == "emulated":
        found.append("emulated: these times are of the processor running the kernels; they say nothing about a GPU")
    if document.get("evidence") == "replayed":
        found.append("replayed: these times were recorded before, perhaps elsewhere; nothing was measured")
    if document.get("evidence") == "counted":
        found.append("counted: lower bounds for a GPU that is not here; a ratio of two bounds proves nothing")
    elif document.get("processes"):
        count = document["processes"]
        found.append(f"the verdict is from {count} fresh process{'es' * (count != 1)}")
    if document.get("ended") and str(document["ended"]) not in verdict(document):
        found.append(str(document["ended"]))
    given = [str(text) for text in document.get("notes") or ()]
    if document.get("match") == "stale" and not given:
        found.append("measured under another driver or toolkit; `fusiond verify` measures it again")
    if document.get("match") == "nearest" and not given:
        found.append("measured at other sizes: the nearest that are known")
    return found + given


def figures(found: Mapping[str, float]) -> str:
    """What a strategy makes of an answer: `fusable_ratio=0.62 library_us=12.3`."""
    return " ".join(
        f"{name}={value:.4g}" if abs(value) < 1e4 else f"{name}={value:.0f}" for name, value in found.items()
    )


def microseconds(time_us: float) -> str:
    """A time that people can read: `3.41 us`, `1.20 ms`."""
    if time_us >= 1e6:
        return f"{time_us / 1e6:.3g} s"
    if time_us >= 1e3:
        return f"{time_us / 1e3:.3g} ms"
    return f"{time_us:.3g} us"
