"""Finds the launches of a kernel in a text, splits their argument lists, and names the instance that they are of.

pool<float, 5><<<grid, block>>>(...)      -->  pool<float, 5>
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fusiond.model.errors import RequestError


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
            text=" ".join(code[match.start() : behind(code, opening + 1)].split()),
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


def behind(code: str, opened: int) -> int:
    """The offset behind the parenthesis that closes one opened just before `opened`."""
    depth = 1
    while depth and opened < len(code):
        depth += {"(": 1, ")": -1}.get(code[opened], 0)
        opened += 1
    return opened


# --- instances ------------------------------------------------------------------------------------------


_PLAIN = re.compile(
    r"(?:unsigned |signed )?(?:float|double|int|char|short|long|bool|half|__half|u?int\d+_t|size_t|\d+|true|false)"
)


def parameters_of(code: str, kernel: str) -> list[str]:
    """The template parameters of a kernel, as a text without comments declares them: `["class T", "int N = 4"]`."""
    head = re.compile(
        rf"\btemplate\s*<(?P<given>[^;{{}}]*?)>(?=[^;{{}}<>]*__global__|\s*\w*\s*__global__)[^;{{}}]*?\b{re.escape(kernel)}\s*\("
    )
    found = [each for each in head.finditer(code) if "template" not in each.group("given")]
    return template_parts(found[-1].group("given")) if found else []


def named(entry: str, code: str) -> str:
    """An instance of a kernel that a file writes out; empty for a kernel that is no template. `code`: the file without
    comments. RequestError where it writes none of plain types and numbers."""
    last = entry.rpartition("::")[2]
    parameters = parameters_of(code, last)
    if not parameters:
        return ""
    for arguments in _written(code, last):
        if 0 < len(arguments) <= len(parameters) and all(_PLAIN.fullmatch(each) for each in arguments):
            return f"{entry}<{', '.join(arguments)}>"
    raise RequestError(asked(entry, parameters))


def asked(entry: str, parameters: list[str]) -> str:
    """What is said where an instance has to be named."""
    return (
        f"{entry} is a template <{', '.join(parameters)}>; say which instance under `instance:`, or with "
        f"FILE.cu:'{entry}<...>' for `fusiond init`"
    )


def _written(code: str, kernel: str) -> list[list[str]]:
    """The template arguments that a text has behind a kernel's name, launches first."""
    found = [[*each.arguments] for each in launches(code, kernel) if each.arguments]
    for match in re.finditer(rf"\b{re.escape(kernel)}\s*<(?!<)([^;(){{}}]*?)>(?!>)", code):
        found.append(template_parts(match.group(1)))
    return [[" ".join(each.split()) for each in arguments] for arguments in found]
