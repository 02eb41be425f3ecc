"""Which instance of a kernel template a draft is of, where the user does not say.

    pool<float, 5><<<grid, block>>>(...)                 -->  pool<float, 5>
    pool<scalar_t, 5><<<...>>> in a template of the host's  -->  pool<float, 5>        (and a line that says so)
    no launch in the file                                -->  what its parameters' kinds and names suggest

What is suggested is tried: clang instantiates the kernel's body with it, and one that does not compile is left out.
Which types are tried for a parameter is decided by its kind, then by its name (`index_t`), then by the file's own
classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fusiond.errors import RequestError
from fusiond_hfuse.frontend import launches

_MOST_TRIED = 24
_MOST_CLASSES = 6
_INDEX = re.compile(
    r"(?i)(?:^|_)(?:idx|index|id|int|offset|size|key|label|count)(?:_?t|_?type)?$|(?:Idx|Index|Id)(?:Type|T)?$"
)
_PLAIN = re.compile(
    r"(?:unsigned |signed )?(?:float|double|int|char|short|long|bool|half|__half|u?int\d+_t|size_t|\d+|true|false)"
)
_WHOLE = re.compile(
    r"((const|unsigned|signed|long|short) )*(int|char|long|short|size_t|unsigned|u?int\d*_t|uint)( (int|long))*"
)
_TYPES = ("float", "int", "__half", "double", "unsigned char", "long long")
_INDICES = ("int", "long long", "unsigned int", "float")
_NUMBERS = ("128", "4", "1", "2", "32", "0", "3", "64", "256")
_FEW = re.compile(r"(?i)dim|rank|^n$|^d$|^k$|^c$|unroll|vec|pack|ilp|items|per_?thread|size$")


@dataclass(frozen=True, slots=True)
class TemplateParameter:
    """A parameter of a template. `kind`: `class`, `template`, or the type of a value (`enum Mode`)."""

    name: str
    kind: str
    default: bool = False


_GIVEN = r"\b(?:constexpr|const)\s+(?:\w+\s+)*{name}\s*=\s*(\w+)\s*;|^[ \t]*#[ \t]*define[ \t]+{name}[ \t]+(\w+)[ \t]*$"


def _somewhere(code: str, name: str) -> str:
    """The first value that a text gives a constant of that name anywhere; the name, where it gives none."""
    found = re.search(_GIVEN.format(name=re.escape(name)), code, re.MULTILINE) if name.isidentifier() else None
    value = (found.group(1) or found.group(2)) if found is not None else ""
    return value if _PLAIN.fullmatch(value) else name


def _of_aliases(code: str, name: str) -> tuple[str, ...]:
    """What a text calls a name anywhere, `using Traits = Kernel_traits<kThreads, input_t>;`, with what its arguments
    are called put in by their names."""
    if not name.isidentifier():
        return ()
    pattern = rf"\busing\s+{re.escape(name)}\s*=\s*(?:typename\s+)?([^;{{}}]+);"
    found: dict[str, None] = {}
    for each in re.finditer(pattern, code):
        head, bracket, rest = each.group(1).partition("<")
        inner, _, behind = rest.rpartition(">")
        if bracket and "::" not in behind:
            arguments = (_by_name(_somewhere(code, one)) for one in launches.template_parts(inner))
            found.setdefault(f"{head.strip()}<{', '.join(arguments)}>")
    return tuple(found)[:_MOST_CLASSES]


def _by_name(name: str) -> str:
    """What may stand for a template argument of which nothing but its name is known."""
    if not name.isidentifier() or _PLAIN.fullmatch(name):
        return name
    for pattern, instead in _NAMED:
        if pattern.search(name):
            return instead
    return name


_NAMED = (
    (re.compile(r"^k?(?:Is|Has|Use|Do|With)[A-Z]|^(?:is|has|use)_"), "true"),
    (re.compile(r"(?i)index|idx|int"), "int"),
    (re.compile(r"_t$|^T$|(?i:type|scalar)"), "float"),
    (re.compile(r"(?i)thread|block"), "128"),
    (re.compile(r"^k?[A-Z]"), "4"),
)


def candidates(code: str, kernel: str) -> list[str]:
    """The template arguments that a text without comments has behind a kernel's name, launches first; each once."""
    launched = [
        ", ".join(_somewhere(code, name) for name in each.arguments)
        for each in launches.launches(code, kernel, ())
        if each.instance
    ]
    named: list[str] = []
    for match in re.finditer(rf"\b{re.escape(kernel)}\s*<(?!<)", code):
        end = _behind(code, match.end())
        if end is not None:
            written = launches.template_parts(code[match.end() : end - 1])
            named.append(", ".join(_somewhere(code, each) for each in written))
    return list(dict.fromkeys(" ".join(each.split()) for each in (*launched, *named)))


def chosen(
    entry: str,
    slots: tuple[TemplateParameter, ...],
    code: str,
    classes: tuple[str, ...],
    declared: Mapping[str, bool],
    wrong: Callable[[str], int | None],
) -> tuple[str, str]:
    """An instance, and what there is to say of it (nothing, where the file writes it so). `code`: the file without
    comments; `classes`: of the file;
    `declared`: all that has a name there, and whether namespaces hold it (a macro is in none).
    `wrong`: how many errors an instance has; None where it cannot be told. RequestError where nothing can be put in
    for a parameter."""
    tried: dict[str, int | None] = {}

    def errors(arguments: list[str]) -> int | None:
        text = f"{entry}<{', '.join(arguments)}>"
        if text not in tried:
            if len(tried) >= _MOST_TRIED:
                return None
            tried[text] = wrong(text)
        return tried[text]

    scope, _, last = entry.rpartition("::")
    written = candidates(code, last)
    begins = [
        (each, arguments)
        for each in written
        if (arguments := launches.template_parts(each)) and len(arguments) <= len(slots)
    ]
    for _, arguments in begins:
        if errors(arguments) == 0:
            return f"{entry}<{', '.join(arguments)}>", ""
    best: tuple[int, list[str], str] | None = None
    for each, arguments in [*begins, ("", [])]:
        filled = _filled(slots, arguments, classes, code, scope, declared)
        if filled is None:
            continue
        found, count = _descended(*filled, errors)
        if count is not None and (best is None or count < best[0]):
            best = (count, found, each)
        if count == 0:
            break
    if best is None:
        raise RequestError(asked(entry, slots))
    count, found, each = best
    text = f"{entry}<{', '.join(found)}>"
    if not each:
        return text, f"{text}: the file names no instance"
    return text, f"{text}: the file has {last}<{each}>"


def asked(entry: str, slots: tuple[TemplateParameter, ...]) -> str:
    """What is said where an instance has to be named."""
    head = ", ".join(f"{each.kind} {each.name}".strip() for each in slots)
    return (
        f"{entry} is a template <{head}>; say which instance under `instance:`, or with FILE.cu:'{entry}<...>' for "
        f"`fusiond init`"
    )


def _descended(
    arguments: list[str], options: list[tuple[str, ...]], errors: Callable[[list[str]], int | None]
) -> tuple[list[str], int | None]:
    """One argument after the other is changed as long as fewer errors are left."""
    count = errors(arguments)
    for at, others in enumerate(options):
        for other in others:
            if count == 0 or count is None:
                return arguments, count
            changed = [*arguments[:at], other, *arguments[at + 1 :]]
            fewer = errors(changed)
            if fewer is not None and fewer < count:
                arguments, count = changed, fewer
    return arguments, count


def _filled(
    slots: tuple[TemplateParameter, ...],
    arguments: list[str],
    classes: tuple[str, ...],
    code: str,
    scope: str,
    declared: Mapping[str, bool],
) -> tuple[list[str], list[tuple[str, ...]]] | None:
    """What to begin with, and what else may stand for each parameter; what the file writes plainly stays. None where
    nothing is known for one."""
    filled: list[str] = []
    options: list[tuple[str, ...]] = []
    for at, slot in enumerate(slots):
        given = arguments[at] if at < len(arguments) else None
        if given is None and slot.default:
            break
        if given is not None and _PLAIN.fullmatch(given):
            filled.append(given)
            options.append(())
            continue
        wanted = _suggested(slot, classes)
        if given is not None and given in declared:
            wanted = (f"{scope}::{given}" if scope and declared[given] else given, *wanted)
        elif given is not None and slot.kind == "class" and (named := _of_aliases(code, given)):
            wanted = (*named, *wanted)
        elif given is not None and not given.isidentifier():
            wanted = (*wanted[:1], given, *wanted[1:])
        if not wanted:
            return None
        filled.append(wanted[0])
        options.append(tuple(wanted[1:]))
    return filled, options


def _suggested(slot: TemplateParameter, classes: tuple[str, ...]) -> tuple[str, ...]:
    if slot.kind == "class":
        plain = _INDICES if _INDEX.search(slot.name) else _TYPES
        return (*plain, *classes[:_MOST_CLASSES])
    if slot.kind == "template":
        return ()
    if slot.kind == "bool":
        return ("true", "false")
    if _WHOLE.fullmatch(slot.kind):
        return ("2", "4", "1", "3", "32", "128") if _FEW.search(slot.name) else _NUMBERS
    if slot.kind in ("float", "double"):
        return ("1",)
    if slot.kind.startswith("enum "):
        kind = slot.kind.removeprefix("enum ")
        return (f"({kind})0", f"({kind})1")
    return ()


def _behind(code: str, opened: int) -> int | None:
    """The place behind the `>` that closes template arguments; None where they are not closed."""
    depth = round_ = 0
    for at in range(opened, min(len(code), opened + 400)):
        mark = code[at]
        round_ += {"(": 1, ")": -1}.get(mark, 0)
        if mark in ";{}" or round_ < 0:
            return None
        if not round_:
            depth += {"<": 1, ">": -1}.get(mark, 0)
        if depth < 0:
            return at + 1
    return None
