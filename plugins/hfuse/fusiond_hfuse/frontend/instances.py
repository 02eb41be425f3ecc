"""Which instance of a kernel template a draft is of, where the user does not say.

pool<float, 5><<<grid, block>>>(...)                    -->  pool<float, 5>
pool<scalar_t, 5><<<...>>> in a template of the host's  -->  pool<float, 5>        (and a line that says so)
no launch in the file                                   -->  what its parameters' kinds and names suggest
"""

from __future__ import annotations

import re

from fusiond.errors import RequestError
from fusiond_hfuse.frontend import launches

_PLAIN = re.compile(
    r"(?:unsigned |signed )?(?:float|double|int|char|short|long|bool|half|__half|u?int\d+_t|size_t|\d+|true|false)"
)
_INDEX = re.compile(
    r"(?i)(?:^|_)(?:idx|index|id|int|offset|size|key|count)(?:_?t|_?type)?$|(?:Idx|Index|Id)(?:Type|T)?$"
)


def parameters_of(code: str, kernel: str) -> list[str]:
    """The template parameters of a kernel, as a text without comments declares them: `["class T", "int N = 4"]`."""
    head = re.compile(
        rf"\btemplate\s*<(?P<given>[^;{{}}]*?)>(?=[^;{{}}<>]*__global__|\s*\w*\s*__global__)[^;{{}}]*?\b{re.escape(kernel)}\s*\("
    )
    found = [each for each in head.finditer(code) if "template" not in each.group("given")]
    return launches.template_parts(found[-1].group("given")) if found else []


def chosen(entry: str, code: str) -> tuple[str, str]:
    """An instance of a kernel, and what there is to say of it (nothing, where the file writes it so); nothing for one
    that is no template. `code`: the file without comments. RequestError where nothing can be put in for a parameter."""
    last = entry.rpartition("::")[2]
    parameters = parameters_of(code, last)
    if not parameters:
        return "", ""
    written = [each for each in _written(code, last) if 0 < len(each) <= len(parameters)]
    for arguments in written:
        if all(_PLAIN.fullmatch(each) for each in arguments):
            return f"{entry}<{', '.join(arguments)}>", ""
    first = written[0] if written else []
    filled = []
    for at, parameter in enumerate(parameters):
        given = first[at] if at < len(first) else ""
        if not given and "=" in parameter:
            break
        suggested = given if _PLAIN.fullmatch(given) else _suggested(parameter)
        if not suggested:
            head = f"{last}<{', '.join(first)}> in the file; " if first else ""
            raise RequestError(f"{asked(entry, parameters)}. {head}{parameter}: nothing is known for it")
        filled.append(suggested)
    text = f"{entry}<{', '.join(filled)}>"
    return text, f"{text}: the file has {last}<{', '.join(first)}>" if first else f"{text}: the file names no instance"


def asked(entry: str, parameters: list[str]) -> str:
    """What is said where an instance has to be named."""
    return (
        f"{entry} is a template <{', '.join(parameters)}>; say which instance under `instance:`, or with "
        f"FILE.cu:'{entry}<...>' for `fusiond init`"
    )


def _suggested(parameter: str) -> str:
    """What may stand for a template parameter of which nothing but its declaration is known."""
    kind, _, name = parameter.partition("=")[0].strip().rpartition(" ")
    if kind in ("class", "typename"):
        return "int" if _INDEX.search(name) else "float"
    return "true" if kind == "bool" else ""


def _written(code: str, kernel: str) -> list[list[str]]:
    """The template arguments that a text has behind a kernel's name, launches first."""
    found = [[*each.arguments] for each in launches.launches(code, kernel) if each.arguments]
    for match in re.finditer(rf"\b{re.escape(kernel)}\s*<(?!<)([^;(){{}}]*?)>(?!>)", code):
        found.append(launches.template_parts(match.group(1)))
    return [[" ".join(each.split()) for each in arguments] for arguments in found]
