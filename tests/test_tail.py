from __future__ import annotations

import os

from fusiond.model.system.tail import KEPT_BYTES, Tail, last_line


def test_what_a_child_writes_is_kept_to_its_end() -> None:
    """A kernel that prints for every thread fills neither the disk nor the memory."""
    read, write = os.pipe()
    tail = Tail(os.fdopen(read, "rb"))
    with os.fdopen(write, "wb") as pipe:
        for line in range(300_000):
            pipe.write(b"thread %d says hello\n" % line)
    text = tail.text()
    assert len(text) <= KEPT_BYTES
    assert text.endswith("thread 299999 says hello\n")


def test_whoever_listens_hears_all_of_it() -> None:
    read, write = os.pipe()
    heard: list[str] = []
    tail = Tail(os.fdopen(read, "rb"), heard.append)
    os.write(write, b"said \xff before\n")
    os.close(write)
    assert tail.text() == "said \ufffd before\n"
    assert heard == ["said \ufffd before"]


def test_the_last_line() -> None:
    assert Tail().text() == ""
    assert last_line("") == ""
    assert last_line("first\n  last  \n\n") == "last"
    assert last_line("x" * 600) == "x" * 500
