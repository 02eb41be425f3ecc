"""Pictures of answers as SVG: whole, in words, and safe whatever the names are."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from fusiond.model import drawing
from fusiond.model.drawing import DrawnGraph, DrawnNode, Edge, LaneDrawing, TimelineLane, TimelineSpan
from fusiond.service.web import drawings, plots, views
from fusiond.store.database import Store

SVG = "{http://www.w3.org/2000/svg}"
EVIL = '<script>alert("x")</script>&'
LANES = LaneDrawing(
    title="Threads",
    unit="thread",
    lanes=(
        TimelineLane(name="a: hist", spans=(TimelineSpan(start=0, end=512, text="barrier 1", kind=0),)),
        TimelineLane(
            name=EVIL,
            spans=(TimelineSpan(start=512, end=768, text=EVIL, kind=9), TimelineSpan(start=768, end=1024, text="c")),
        ),
    ),
)
GRAPH = DrawnGraph(
    title="Module",
    nodes=(DrawnNode(name="in", text="parameter", group=-1), DrawnNode(name="x", text="add", group=0),
           DrawnNode(name="y", text=EVIL, group=0), DrawnNode(name="z", text="reduce", group=1)),
    edges=(Edge(source="in", target="x"), Edge(source="x", target="y"), Edge(source="y", target="z", text="4 kB"),
           Edge(source="x", target="z")),
)  # fmt: skip


def tree(picture: drawing.Drawing) -> ElementTree.Element:
    return ElementTree.fromstring(str(drawings.svg(picture)))


def test_a_graph_goes_down_from_what_reads_nothing() -> None:
    root = tree(GRAPH)
    tops = [float(each.attrib["y"]) for each in root.findall(f"{SVG}rect")]
    assert tops == sorted(set(tops))  # in, x, y, z: each below what it reads
    cuts = [each.findtext(f"{SVG}title") for each in root.findall(f"{SVG}path") if "cut" in each.attrib["class"]]
    assert cuts == ["y -> z 4 kB", "x -> z"]  # what two kernels hand over; an input is read by whoever needs it
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for each in root.findall(f"{SVG}rect"):
        assert 0 <= float(each.attrib["x"]) <= float(each.attrib["x"]) + float(each.attrib["width"]) <= width
        assert float(each.attrib["y"]) + float(each.attrib["height"]) <= height


@pytest.mark.parametrize("picture", [LANES, GRAPH])
def test_a_picture_says_in_words_what_it_shows_and_no_name_is_markup(picture: drawing.Drawing) -> None:
    root = tree(picture)
    assert not list(root.iter(f"{SVG}script"))
    assert EVIL in root.attrib["aria-label"]
    assert root.attrib["role"] == "img"


def test_pictures_are_kept_and_what_is_none_is_left_out(tmp_path: Path) -> None:
    with Store.open(tmp_path / "fusiond.sqlite") as store:
        assert store.drawings("w", "d", "warm") == ()
        store.save_drawings("w", "d", "warm", [LANES, GRAPH])
        assert store.drawings("w", "d", "warm") == (LANES, GRAPH)
        store.save_drawings("w", "d", "warm", [GRAPH])
        assert store.drawings("w", "d", "warm") == (GRAPH,)
        with store._transaction() as database:
            database.execute("UPDATE drawings SET drawings = ?", ['[{"is": "hologram"}]'])
        assert store.drawings("w", "d", "warm") == ()
    for wrong in ({"is": "lanes"}, {"is": "graph", "title": "", "nodes": [{}], "edges": []}, {}, 3):
        with pytest.raises(ValueError, match="not a drawing"):
            drawing.from_json([wrong])  # type: ignore[list-item]


def counted(program: str, launch: str, bound_us: float, **more: object) -> dict[str, object]:
    return {
        "program": program, "launch": launch, "kernel": EVIL, "failed": None, "model": "h100", "binding": "dram",
        "bound_us": bound_us, "warp_instructions": {"fp32": 1000}, "dram_bytes": 3350 * 1000 * bound_us,
        "minimal_bytes": 1, "instructions": 32000, "shared_wavefronts": 0, "occupancy": 0.75, "limited_by": "registers",
        "error": None, **more,
    }  # fmt: skip


def test_the_roofline_has_a_point_for_each_launch_that_was_counted() -> None:
    rows = [counted("native", "a", 2.0), counted("fused", "a", 1.0), counted("fused", "b", 1.0, failed="it is not")]
    picture = plots.roofline(rows)
    assert picture is not None
    root = ElementTree.fromstring(str(picture))
    points = root.findall(f"{SVG}circle")
    assert [each.attrib["class"] for each in points] == ["fused", "unfused"]
    roof = [
        tuple(map(float, each.split()))
        for each in next(path for path in root.findall(f"{SVG}path") if path.attrib["class"] == "roof")
        .attrib["d"][1:]
        .split("L")
    ]
    for each in points:  # both move as many bytes as DRAM gives in their time: on the slanted roof
        x, y = float(each.attrib["cx"]), float(each.attrib["cy"])
        along = (x - roof[0][0]) / (roof[1][0] - roof[0][0])
        assert y == pytest.approx(roof[0][1] + along * (roof[1][1] - roof[0][1]), abs=1)
    assert "occupancy 75 %" in root.findall(f"{SVG}text")[-1].text
    assert plots.roofline(rows[2:]) is None


def test_the_table_of_what_is_counted_is_short_and_says_what_is_not_known() -> None:
    found = views._paid(counted("native", "a", 2.0))
    assert (found["occupancy"], found["error"], found["at least, us"]) == ("75 %", "unknown", "2.000")
    failed = views._paid({"program": "fused", "launch": "b", "failed": "it is not"})
    assert failed.keys() == found.keys()
    assert failed["launch"] == "b: it is not"
