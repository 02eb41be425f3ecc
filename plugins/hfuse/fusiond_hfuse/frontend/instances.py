"""The instance of a kernel template that a draft is for: the one that the file names.

pool<float, 5><<<grid, block>>>(...)      -->  pool<float, 5>
"""

from __future__ import annotations

import re

from fusiond.model.errors import RequestError
from fusiond_hfuse.frontend import launches

_PLAIN = re.compile(
    r"(?:unsigned |signed )?(?:float|double|int|char|short|long|bool|half|__half|u?int\d+_t|size_t|\d+|true|false)"
)


def parameters_of(code: str, kernel: str) -> list[str]:
    """The template parameters of a kernel, as a text without comments declares them: `["class T", "int N = 4"]`."""
    head = re.compile(
        rf"\btemplate\s*<(?P<given>[^;{{}}]*?)>(?=[^;{{}}<>]*__global__|\s*\w*\s*__global__)[^;{{}}]*?\b{re.escape(kernel)}\s*\("
    )
    found = [each for each in head.finditer(code) if "template" not in each.group("given")]
    return launches.template_parts(found[-1].group("given")) if found else []


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
    found = [[*each.arguments] for each in launches.launches(code, kernel) if each.arguments]
    for match in re.finditer(rf"\b{re.escape(kernel)}\s*<(?!<)([^;(){{}}]*?)>(?!>)", code):
        found.append(launches.template_parts(match.group(1)))
    return [[" ".join(each.split()) for each in arguments] for arguments in found]
