"""Plots as SVG: whole, in words, and safe whatever the names are."""

import xml.etree.ElementTree as ElementTree

import pytest

from fusiond.service.web import plots, views

SVG = "{http://www.w3.org/2000/svg}"
EVIL = '<script>alert("x")</script>&'


def counted(program: str, launch: str, bound_us: float, **more: object) -> dict[str, object]:
    return {
        "program": program, "launch": launch, "kernel": EVIL, "failed": None, "model": "h100", "binding": "dram",
        "bound_us": bound_us, "warp_instructions": {"fp32": 1000}, "dram_bytes": 3350 * 1000 * bound_us,
        "minimal_bytes": 1, "instructions": 32000, "shared_wavefronts": 0, "occupancy": 0.75, "limited_by": "registers",
        "error": None, **more,
    }  # fmt: skip


def test_the_roofline_has_a_point_for_each_launch_that_was_counted() -> None:
    rows = [counted("native", "a", 2.0), counted("fused", "a", 1.0), counted("fused", "b", 1.0, failed="it is not")]
    rows[0]["launch"] = EVIL
    picture = plots.roofline(rows)
    assert picture is not None
    root = ElementTree.fromstring(str(picture))
    assert EVIL in root.attrib["aria-label"]  # no name is markup
    assert not list(root.iter(f"{SVG}script"))
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
