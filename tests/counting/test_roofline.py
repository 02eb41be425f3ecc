"""The picture of what is counted."""

from __future__ import annotations

import builtins
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from fusiond.devices.counting.model import H100
from fusiond.devices.counting.roofline import draw
from fusiond.model.errors import RequestError


def row(program: str = "native", **fields: Any) -> dict[str, Any]:
    plain = {
        "program": program, "launch": "k", "failed": None, "bound_us": 10.0, "binding": "dram",
        "dram_bytes": 32_000_000, "warp_instructions": {"fp32": 500_000, "global": 100_000}, "ptx_instructions": 1,
    }  # fmt: skip
    return {**plain, **fields}


@pytest.mark.slow
def test_it_is_a_picture_with_every_launch_and_the_same_every_time(tmp_path: Path) -> None:
    rows = [
        row(),
        row("seed 0", launch="fused <1>", warp_instructions=None, ptx_instructions=19_200_000),
        row(failed="it hung"),
    ]
    for name in ("a.svg", "b.svg"):
        draw(rows, H100, tmp_path / name, "hist & maxpool")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    found = [
        (each.text or "").strip() for each in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert {"native", "seed 0", "k: dram", "fused <1>: dram"} <= set(found)
    assert any("nothing is measured" in each for each in found)


def test_what_cannot_be_drawn_or_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match=r"cannot write .*: No such file"):
        draw([row()], H100, tmp_path / "none" / "a.svg", "t")
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RequestError, match=r"pip install 'fusiond\[plot\]'"):
        draw([row()], H100, tmp_path / "a.svg", "t")
