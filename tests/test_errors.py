"""Errors: one line, the nearest name, an exit status."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusiond.model.errors import RequestError, UnknownName


@given(st.text(), st.text())
def test_a_request_error_is_one_line(problem: str, where: str) -> None:
    text = str(RequestError(f"wrong {problem}", where=where))
    assert len(text.splitlines()) == 1


def test_the_nearest_name_is_offered() -> None:
    assert "did you mean 'hist'?" in str(UnknownName("kernel", "hits", ["hist", "maxpool"]))
    assert "known: hist, maxpool" in str(UnknownName("kernel", "zzzzzz", ["maxpool", "hist"]))
    assert "none is known" in str(UnknownName("kernel", "hist", []))
    many = str(UnknownName("kernel", "zzz", [f"k{number:02}" for number in range(20)]))
    assert many.endswith("k11, ...")
