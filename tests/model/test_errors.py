"""Errors: one line, the nearest name, an exit status."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.model.english import LONGEST_LINE, shortened, shown
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


# --- texts of others on a terminal ----------------------------------------------------------------------


BIDIRECTIONAL = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]


@pytest.mark.parametrize("code", [*BIDIRECTIONAL, *CONTROLS, 0xD800, 0xDFFF, 0xFEFF, 0xE0041])
def test_what_does_something_to_a_terminal_is_written_out(code: int) -> None:
    text = shown(f"a{chr(code)}b")
    assert text.isascii()
    assert text.startswith("a\\")
    assert eval(f"'{text}'") == f"a{chr(code)}b"


@pytest.mark.slow
@given(st.text(st.characters(codec=None)))
def test_no_text_gets_through(text: str) -> None:
    for each in shown(text):
        assert unicodedata.category(each)[0] not in "CZ" or each == " "


def test_a_long_line_keeps_its_beginning_and_its_end() -> None:
    text = "begin" + "x" * 5000 + "end"
    cut = shortened(text)
    assert len(cut) < LONGEST_LINE + 60
    assert cut.startswith("beginx")
    assert cut.endswith("xend")
    assert f" ... ({len(text) - LONGEST_LINE:,} more characters) ... " in cut
    assert shortened("y" * LONGEST_LINE) == "y" * LONGEST_LINE
