"""Finds the launch of a kernel in a text, and splits its argument lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """One launch. `text` is the launch as it is written, `line` counts from 1."""

    text: str
    line: int
    arguments: tuple[str, ...]  #: The template arguments, each by itself; empty where there are none


def launches(code: str, kernel: str) -> Iterator[LaunchSite]:
    """The launches of a kernel in a text without comments."""
    for match in re.finditer(rf"\b{re.escape(kernel)}\s*(?:<(?P<instance>[^;{{}}()]*?)>)?\s*<<<", code):
        closing = code.find(">>>", match.end())
        opening = code.find("(", closing)
        if closing < 0 or opening < 0 or code[closing + 3 : opening].strip():
            continue
        yield LaunchSite(
            text=" ".join(code[match.start() : _behind(code, opening)].split()),
            line=code.count("\n", 0, match.start()) + 1,
            arguments=tuple(template_parts((match.group("instance") or "").strip())),
        )


def parts(text: str, opening: str = "({[", closing: str = ")}]") -> list[str]:
    """What commas part, outside of parentheses; nothing of an empty text."""
    found, depth = [""], 0
    for mark in text:
        depth += (mark in opening) - (mark in closing)
        if mark == "," and depth == 0:
            found.append("")
        else:
            found[-1] += mark
    return [each.strip() for each in found] if text.strip() else []


def template_parts(text: str) -> list[str]:
    """Template arguments, each by itself."""
    return parts(text, "({[<", ")}]>")


def _behind(code: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(code)):
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(code[at], 0)
        if depth == 0:
            return at + 1
    return len(code)
