"""YAML files as checked trees that know where every value stands.

The one home of PyYAML. A `Node` hands out typed values and raises `RequestError` with file, line and key when the
file holds something else, so that no dict travels on and no user's mistake becomes a traceback. Tags, merge keys,
duplicate keys, oversized files and alias bombs are refused here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from fusiond.model.errors import RequestError, UnknownName

_POWER_OF_TEN = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
"""`1e-5`: a number of YAML 1.2's core schema (section 10.3.2), and a text of PyYAML's 1.1."""
UNKNOWN = "?"  #: What `fusiond init` writes for what it cannot know
MAX_BYTES = 1_000_000
MAX_NODES = 50_000
_MAX_DEPTH = 40
_INTEGER_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a YAML file. `key` is its dotted path inside the file."""

    path: str
    key: str
    line: int
    value: Any  #: None, bool, int, float, str, a tuple of Nodes or a dict of Nodes
    first: int | None = None  #: The line on which the text of a literal block (`|`) begins

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}: {self.key}" if self.key else f"{self.path}:{self.line}"

    def fail(self, problem: str) -> RequestError:
        """An error about this value, to be raised."""
        return RequestError(problem, where=self.where)

    def fail_in(self, problem: str, column: int) -> RequestError:
        """An error about a place in this text, to be raised. `column` counts from 1 over all of the text; in a literal
        block, the place has a line of its own."""
        before = self.text()[: column - 1]
        if self.first is None:
            return self.fail(f"column {column}: {problem}")
        here = dataclasses.replace(self, line=self.first + before.count("\n"))
        return here.fail(f"column {column - 1 - before.rfind(chr(10))}: {problem}")

    # --- what the value must be ---

    def mapping(self, *, known: tuple[str, ...] | None = None, required: tuple[str, ...] = ()) -> dict[str, Node]:
        """The value as a mapping with `known` keys only (None: any), `required` ones present."""
        if not isinstance(self.value, dict):
            raise self.fail(f"is {_kind(self.value)}; a mapping is wanted")
        for name, node in self.value.items():
            if known is not None and name not in known:
                raise UnknownName("key", name, known, where=f"{self.path}:{node.line}")
        for name in required:
            if name not in self.value:
                raise self.fail(f"the key {name!r} is missing")
        return dict(self.value)

    def sequence(self) -> tuple[Node, ...]:
        if not isinstance(self.value, tuple):
            raise self.fail(f"is {_kind(self.value)}; a list is wanted")
        return self.value

    def text(self) -> str:
        if isinstance(self.value, bool):  # a kernel may well be called `on`
            raise self.fail("is true or false, as on, off, yes and no are in YAML; a text is wanted, in quotes")
        if not isinstance(self.value, str):
            raise self.fail(f"is {_kind(self.value)}; a text is wanted")
        return self.value

    def choice(self, *choices: str) -> str:
        text = self.text()
        if text not in choices:
            raise self.fail(f"is {text[:80]!r}; it can be {', '.join(choices)}")
        return text

    def boolean(self) -> bool:
        """`true` or `false`."""
        if not isinstance(self.value, bool):
            raise self.fail(f"is {self.value!r}; write true or false")
        return self.value

    def integer(self, *, least: int = -_INTEGER_LIMIT, most: int = _INTEGER_LIMIT - 1) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.fail(f"is {_kind(self.value)}; a whole number is wanted")
        if not least <= self.value <= most:
            shown = str(self.value) if abs(self.value) < 10**24 else "a number of many digits"
            if most == _INTEGER_LIMIT - 1 and self.value < least:  # nobody asked for a bound above
                raise self.fail(f"is {shown}; it must be at least {least}")
            raise self.fail(f"is {shown}; it must be from {least} to {most}")
        return self.value

    def number(self, *, least: float = float("-inf"), most: float = float("inf")) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.fail(f"is {_kind(self.value)}; a number is wanted")
        try:
            number = float(self.value)
        except OverflowError:
            raise self.fail("is too large a number") from None
        if not least <= number <= most:  # NaN lands here too
            bounds = f"at least {least:g}" if most == float("inf") else f"from {least:g} to {most:g}"
            raise self.fail(f"is {number:g}; it must be {bounds}")
        return number

    def plain(self) -> Any:
        """The value without positions: None, bool, int, float, str, list, dict."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value

    def lines(self) -> Iterator[tuple[str, int]]:
        """(dotted key, line) of this value and all below it."""
        yield self.key, self.line
        children: tuple[Node, ...] = ()
        if isinstance(self.value, dict):
            children = tuple(self.value.values())
        elif isinstance(self.value, tuple):
            children = self.value
        for child in children:
            yield from child.lines()


def parse(text: str, path: str) -> Node:
    """Parse the text of one YAML file; `path` is for messages. RequestError for everything that is not plain YAML, and
    where something is not known yet."""
    root = _parsed(text, path)
    left = list(unknown(root))
    if left:
        said = ", ".join(each.key for each in left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
        raise RequestError(f'not filled in yet, and still "{UNKNOWN}": {said}', where=f"{path}:{left[0].line}")
    return root


def drafted(text: str, path: str) -> tuple[Node, tuple[Node, ...]]:
    """The same of a draft, and the values in it that are not known."""
    root = _parsed(text, path)
    return root, tuple(unknown(root))


def unknown(node: Node) -> Iterator[Node]:
    """The values at and below a node that are not filled in, in the order of the text."""
    if node.value == UNKNOWN:
        yield node
    inner = node.value.values() if isinstance(node.value, dict) else node.value
    for each in inner if isinstance(node.value, dict | tuple) else ():
        yield from unknown(each)


def _parsed(text: str, path: str) -> Node:
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise RequestError(f"larger than {MAX_BYTES // 1000} kB, which no such file is", where=path)
    try:
        root = _composed(text)
        if root is None:
            raise RequestError("the file is empty", where=path)
        return _Converter(path).convert(root, "", 0)
    except yaml.MarkedYAMLError as problem:
        line = problem.problem_mark.line + 1 if problem.problem_mark else 1
        if (
            isinstance(problem, yaml.composer.ComposerError)
            and problem.context == "expected a single document in the stream"
        ):
            raise RequestError("a second document begins here (---); one is wanted", where=f"{path}:{line}") from None
        raise RequestError(f"not YAML: {problem.problem or problem.context}", where=f"{path}:{line}") from None
    except yaml.YAMLError as problem:
        raise RequestError(f"not YAML: {problem}", where=path) from None
    except RecursionError:
        raise RequestError("nested too deeply", where=path) from None


def _composed(text: str) -> yaml.Node | None:
    """The nodes of a text. libyaml's parser is five times quicker; what it refuses is for the other one to judge, and
    to put into words."""
    if yaml.__with_libyaml__:
        try:
            return _Quick(text).get_single_node()
        except yaml.YAMLError:
            pass
    return yaml.compose(text, Loader=yaml.SafeLoader)


if yaml.__with_libyaml__:

    class _Quick(yaml.composer.Composer, yaml.CSafeLoader):
        """libyaml's events, composed in Python: its own composer does not notice that a text is nested too deeply."""

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            yaml.composer.Composer.__init__(self)


class _Converter:
    """PyYAML's nodes to ours. Aliases are expanded, and counted against MAX_NODES."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.count = 0
        self.scalars = yaml.SafeLoader("")

    def convert(self, node: yaml.Node, key: str, depth: int) -> Node:
        line = node.start_mark.line + 1
        self.count += 1
        if self.count > MAX_NODES:
            raise RequestError(f"more than {MAX_NODES} values (aliases counted)", where=f"{self.path}:{line}")
        if depth > _MAX_DEPTH:
            raise RequestError("nested too deeply", where=f"{self.path}:{line}")
        if isinstance(node, yaml.MappingNode):
            return Node(self.path, key, line, self._mapping(node, key, depth))
        if isinstance(node, yaml.SequenceNode):
            if node.tag != "tag:yaml.org,2002:seq":
                raise RequestError(f"the tag {node.tag!r} is not allowed", where=f"{self.path}:{line}")
            values = tuple(self.convert(each, f"{key}[{index}]", depth + 1) for index, each in enumerate(node.value))
            return Node(self.path, key, line, values)
        assert isinstance(node, yaml.ScalarNode)
        return Node(self.path, key, line, self._scalar(node, line), line + 1 if node.style == "|" else None)

    def _mapping(self, node: yaml.MappingNode, key: str, depth: int) -> dict[str, Node]:
        line = node.start_mark.line + 1
        if node.tag != "tag:yaml.org,2002:map":
            raise RequestError(f"the tag {node.tag!r} is not allowed", where=f"{self.path}:{line}")
        values: dict[str, Node] = {}
        for name_node, value_node in node.value:
            line = name_node.start_mark.line + 1
            where = f"{self.path}:{line}"
            if not isinstance(name_node, yaml.ScalarNode):
                raise RequestError("a key must be a text", where=where)
            if name_node.tag == "tag:yaml.org,2002:merge":
                raise RequestError("merge keys (<<) are not allowed; write the keys out", where=where)
            if not name_node.tag.startswith("tag:yaml.org,2002:"):
                raise RequestError(f"the tag {name_node.tag!r} is not allowed", where=where)
            name = name_node.value
            if name in values:
                raise RequestError(f"the key {name[:80]!r} stands twice", where=where)
            child = self.convert(value_node, f"{key}.{name}" if key else name, depth + 1)
            values[name] = dataclasses.replace(child, line=line)
        return values

    def _scalar(self, node: yaml.ScalarNode, line: int) -> Any:
        kinds = ("null", "bool", "int", "float", "str")
        if node.tag not in {f"tag:yaml.org,2002:{kind}" for kind in kinds}:
            # Dates and the like are texts here; explicit tags are refused.
            if node.tag.startswith("tag:yaml.org,2002:timestamp"):
                return node.value
            raise RequestError(f"the tag {node.tag!r} is not allowed", where=f"{self.path}:{line}")
        if not node.style and _POWER_OF_TEN.fullmatch(node.value):
            return float(node.value)
        try:
            return self.scalars.construct_object(node)
        except (ValueError, KeyError, IndexError, OverflowError, yaml.YAMLError):
            raise RequestError(f"{node.value[:80]!r} is not a value", where=f"{self.path}:{line}") from None


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, tuple):
        return "a list"
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**24 else "a number of many digits"
    return text if len(text) <= 80 else text[:77] + "..."
