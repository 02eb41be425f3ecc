"""How host code launches a kernel, as far as its text says it in words that a kernel's YAML has.

    int blocks = (N + 255) / 256;
    scale<<<blocks, 256>>>(d_out, d_in, N);     -->   block [256], grid [(n + 255) // 256]    (N is passed for n)

Variables of the launching function, constants and macros of the file are put in for their names. What is left of the
host's own (an option, a property of the device) makes a part unknown: None, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from fusiond.language import expressions
from fusiond.language.expressions import ExpressionError

_MOST_STEPS = 12
"""Names that are put in one after the other."""
_BYTES = {"char": 1, "short": 2, "int": 4, "float": 4, "long": 8, "double": 8, "int2": 8, "float2": 8, "float4": 16,
          "int4": 16, "unsigned": 4, "uint32_t": 4, "int32_t": 4, "half": 2, "__half": 2, "uint8_t": 1}  # fmt: skip
_ROUNDED_UP = re.compile(r"\b(?:i?div_?up|ceil_?div|cdiv|div_?round_?up|divide_?up)\b", re.IGNORECASE)
_VARIABLE = (
    r"\b(?:(?:static|const|constexpr|unsigned|signed)\s+)*(?:int|long|size_t|auto|dim3|unsigned|uint|u?int(?:32|64)_t)\s+"
    r"(?:const\s+)?(?:\w[^;]*?,\s*)?{name}\s*(?P<mark>[=({{])"
)
_CHANGED = (
    r"(?<![\w.>&])&\s*{name}\b|\b{name}\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)|\b{name}\s*(?:\+\+|--|\.\w+\s*=)"
    r"|(?:\+\+|--){name}\b"
)
"""What may give a variable another value: `name = ...`, `name += 1`, `name.x = 4`, `f(&name)`."""


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """One launch. Of what is not told, None; `text` is the launch as it is written, `line` counts from 1."""

    text: str
    line: int
    instance: str
    """The template arguments, `<float, 5>`; empty where there are none."""
    arguments: tuple[str, ...]
    """They, each by itself, with numbers worked out: `kThreads` is 256."""
    block: tuple[str, ...] | None
    grid: tuple[str, ...] | None
    shared: str | None


def launches(code: str, kernel: str, parameters: Collection[str]) -> Iterator[LaunchSite]:
    """The launches of a kernel in a text without comments. `parameters` are the kernel's, in their order."""
    for match in re.finditer(rf"\b{re.escape(kernel)}\s*(?P<instance><[^;{{}}()]*?>)?\s*<<<", code):
        closing = code.find(">>>", match.end())
        opening = code.find("(", closing)
        if closing < 0 or opening < 0 or code[closing + 3 : opening].strip():
            continue
        end = _behind(code, opening)
        given = parts(code[match.end() : closing])
        names: dict[str, str] = {}
        for given_, parameter in zip(parts(code[opening + 1 : end - 1]), parameters, strict=False):
            names.setdefault(given_, parameter)
        resolved = _Resolved(code, match.start(), names)
        yield LaunchSite(
            text=" ".join(code[match.start() : end].split()),
            line=code.count("\n", 0, match.start()) + 1,
            instance=(match.group("instance") or "").strip(),
            arguments=tuple(
                _worked_out(resolved, each) for each in template_parts((match.group("instance") or "<>").strip()[1:-1])
            ),
            grid=resolved.lengths(given[0]) if given else None,
            block=resolved.lengths(given[1]) if len(given) > 1 else None,
            shared=resolved.number(given[2]) if len(given) > 2 else "0",
        )


def _worked_out(resolved: _Resolved, argument: str) -> str:
    """A template argument; a number where it is one by other names."""
    if re.fullmatch(r"true|false|\W*\d.*", argument):
        return argument
    number = resolved.number(argument)
    return number if number is not None and number.isdigit() else argument


class _Resolved:
    """Expressions of one place in the text."""

    def __init__(self, code: str, place: int, parameters: Mapping[str, str]) -> None:
        self.code = code
        self.place = place
        self.parameters = parameters

    def lengths(self, text: str) -> tuple[str, ...] | None:
        """One to three lengths: of a number, a `dim3(...)`, or a variable that is one."""
        text = text.strip()
        for _ in range(_MOST_STEPS):
            made = re.fullmatch(r"(?:dim3\s*)?[({](?P<inner>.*)[)}]", text, re.DOTALL)
            if made is not None and (text.startswith(("dim3", "{")) or len(parts(made.group("inner"))) > 1):
                found = tuple(self.number(each) for each in parts(made.group("inner")))
                return None if None in found or not 1 <= len(found) <= 3 else _known(found)
            if not re.fullmatch(r"[A-Za-z_]\w*", text) or text in self.parameters:
                break
            value = self._value(text)
            if value is None:
                return None
            text = value
        number = self.number(text)
        return None if number is None else (number,)

    def number(self, text: str) -> str | None:
        """The expression in the words of a YAML file: of whole numbers and the kernel's parameters."""
        for _ in range(_MOST_STEPS):
            text = _plain(text)
            unknown = [name for name in re.findall(r"(?<![\w.])[A-Za-z_]\w*", text) if not self._is_known(name)]
            if not unknown:
                break
            value = self._value(unknown[0])
            if value is None:
                return None
            text = re.sub(rf"\b{unknown[0]}\b", lambda _, value=value: f"({value})", text)  # type: ignore[misc]
        text = re.sub(r"\b[A-Za-z_]\w*", lambda each: self.parameters.get(each.group(), each.group()), text)
        try:
            parsed = expressions.parse(text)
        except ExpressionError:
            return None
        if not parsed.names:
            return str(parsed.integer({}))
        return parsed.text if parsed.names <= set(self.parameters.values()) else None

    def _is_known(self, name: str) -> bool:
        return name in self.parameters or name in ("ceil_div", "min", "max")

    def _value(self, name: str) -> str | None:
        """What a name stands for where the launch is: the last before it that the text gives it."""
        found, since = None, 0
        for each in re.finditer(_VARIABLE.format(name=re.escape(name)), self.code[: self.place]):
            end = self.code.find(";", each.end())
            since = max(end, each.end())
            if each.group("mark") == "=":
                found = parts(self.code[each.end() : end])[0]
            else:
                found = self.code[each.end() - 1 : _behind(self.code, each.end() - 1)]
        if found is not None:
            changed = _CHANGED.format(name=re.escape(name))
            return None if re.search(changed, self.code[since : self.place]) else found
        macro = re.search(rf"^[ \t]*#[ \t]*define[ \t]+{re.escape(name)}[ \t]+([^\n]+)$", self.code, re.MULTILINE)
        return macro.group(1) if macro else None


def _known(found: tuple[str | None, ...]) -> tuple[str, ...]:
    return tuple(each for each in found if each is not None)


def _plain(text: str) -> str:
    """C's operators as those of YAML's expressions."""
    text = re.sub(r"\bsizeof\s*\(\s*(?:unsigned\s+)?(\w+)\s*\)", lambda m: str(_BYTES.get(m.group(1), m.group())), text)
    text = re.sub(r"\(\s*(?:unsigned\s+)?(?:int|size_t|long|uint|unsigned|u?int(?:32|64)_t)\s*\)", "", text)
    text = re.sub(r"\bstatic_cast\s*<[^>]*>\s*", "", text)
    text = re.sub(r"\b(\d+)(?:[uU]?[lL]{0,2}|[lL]{1,2}[uU])\b", r"\1", text)
    text = _ROUNDED_UP.sub("ceil_div", text)
    text = re.sub(r"\bstd::(min|max)\b", r"\1", text)
    return re.sub(r"(?<!/)/(?!/)", "//", text).strip()


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
