"""The tables of `--count`: one row per launch, and one sum per program beside the unfused one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusiond.cli import output, render
from fusiond.cli.answer_text import microseconds
from fusiond.model.errors import RequestError

COLUMNS = (
    *("program", "launch", "asked for", "of sectors", "DRAM", "least", "x least", "conflicts", "occupancy"),
    *("at least", "bound by"),
)
Row = Mapping[str, Any]


def show(rows: Sequence[Row]) -> None:
    """Print the tables."""
    models = ", ".join(dict.fromkeys(each["model"] for each in rows))
    render.table(f"counted for {models or 'no launch'} (nothing is measured)", COLUMNS, map(_cells, rows))
    sums = {name: _sum([each for each in rows if each["program"] == name]) for name in _programs(rows)}
    for name, found in sums.items():
        output.say(f"{name}: {_sentence(found, sums.get('native') if name != 'native' else None)}")
    for each in rows:
        if each["failed"]:
            output.say(f"{each['program']}, {each['launch']}: {each['failed']}")


def _cells(row: Row) -> tuple[object, ...]:
    begin = row["program"], row["launch"]
    if row["failed"]:
        return (*begin, *[""] * (len(COLUMNS) - 3), "not counted")
    asked = row["global_read_bytes"] + row["global_write_bytes"] + row["atomic_bytes"]
    sectors = 32 * (row["read_sectors"] + row["write_sectors"] + row["atomic_sectors"])
    least, dram = row["minimal_bytes"], row["dram_bytes"]
    phases = row["shared_minimal_wavefronts"]
    return (
        *begin,
        size(asked),
        f"{100 * asked / sectors:.0f} %" if sectors else "",
        size(dram) + _error(row),
        size(least),
        f"{dram / least:.2f}" if least else "",
        f"{row['shared_wavefronts'] / phases:.2f}" if phases else "",
        "" if row["occupancy"] is None else f"{100 * row['occupancy']:.0f} %",
        microseconds(row["bound_us"]),
        row["binding"],
    )


def _error(row: Row) -> str:
    if row["error"] is None:
        return " (error unknown)"
    return f" (to {row['error']:.0%})" if row["error"] or row["sampled"] < 1 else ""


def _programs(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(each["program"] for each in rows))


def _sum(rows: Sequence[Row]) -> Row | None:
    """Of one program's launches; None where one of them is not counted."""
    if any(each["failed"] for each in rows):
        return None
    return {"dram_bytes": sum(each["dram_bytes"] for each in rows), "bound_us": rows[0]["program_bound_us"]}


def _sentence(found: Row | None, native: Row | None) -> str:
    if found is None:
        return "not counted"
    dram, bound = found["dram_bytes"], found["bound_us"]
    text = f"{size(dram)} to and from DRAM, at least {microseconds(bound)}"
    if native is None or not native["dram_bytes"] or not bound:
        return text
    ratio = native["bound_us"] / bound
    return (
        f"{text}; {dram / native['dram_bytes']:.2f} times native's traffic, whose bound is {ratio:.2f} times this one"
    )


def size(count: int) -> str:
    """`1.5 MB`: powers of ten, as bandwidths are given."""
    if count < 1000:
        return f"{count} B"
    value, unit = count / 1e3, "kB"
    for larger in ("MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1e3, larger
    return f"{value:.3g} {unit}"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the roofline of counted rows as SVG. RequestError where no launch was counted, or the file cannot be
    written."""
    from fusiond.service.web import plots

    picture = plots.roofline(rows)
    if picture is None:
        raise RequestError("no launch was counted that there would be a picture of", where="--svg")
    try:
        path.write_text(plots.alone(picture), encoding="utf-8")
    except OSError as problem:
        raise RequestError(f"cannot write {path}: {problem.strerror}", where="--svg") from None
