"""A function that Inductor wrote, with its launches in another order: those that do not need each other's results come
together, in rounds.

    norm.run(x, a, 64, stream=s)              _launch_0 = (s, x, a, 64)
    b = empty_strided_cuda(...)          -->  b = empty_strided_cuda(...)
    scale.run(y, b, 99, stream=s)             _launch_1 = (s, y, b, 99)
    extern_kernels.mm(a, b, out=c)            _rounds[0](_launch_0, _launch_1)
                                              extern_kernels.mm(a, b, out=c)

A launch may wait, with what it is handed kept alive, until a statement comes that touches its memory, or of which that
is not known. Nothing else moves. By then those that wait run in as few rounds as the longest chain of them asks for. A
launch that would be alone in its round stays where it was, unless it needs one that waits.

Names are memory: `buf1 = buf0` and views are the same memory, and so is all that a statement names that is not known
here. Inductor reorders by the same names.
"""

import ast
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

MOST_KERNELS = 8  #: Of a round; a question of more would take a daemon long
MOST_CALLS = 4  #: Of a library, for which a launch waits: what it reads stays in memory until then
ROUNDS = "_fusiond_rounds"  #: The name of the rounds, by their numbers, in the function's module

Uses: TypeAlias = "Mapping[str, Sequence[bool | None]]"
_WITHOUT_MEMORY = {"assert_size_stride", "assert_alignment"}
_FRESH = {"get_raw_stream", "empty_strided", "empty_strided_cuda", "empty_strided_cpu"}


@dataclass(slots=True)
class _Waiting:
    """A launch that may wait."""

    place: int  #: Among the statements that are put out
    original: ast.stmt
    kernel: str
    handed: ast.expr  #: A tuple: stream, arguments
    read: set[str]
    written: set[str]
    name: str = ""  #: Of what it is handed, where it waits

    def conflicts(self, read: set[str], written: set[str]) -> bool:
        return bool(self.written & (read | written) or self.read & written)


def put_together(
    function: ast.FunctionDef, uses: Uses, first: int = 0, chosen: Container[int] | None = None
) -> list[tuple[str, ...]]:
    """Rewrites a function; the kernels of the rounds of more than one launch, in their order, which it calls
    `ROUNDS[first]` and so on with what each launch is handed: (stream, arguments ...).

    uses: kernel -> for each argument: whether what it points to may be written, None of a number. chosen: the numbers
    of the rounds that come together; the launches of the others stay where they were, as far as they can."""
    blocks = _Blocks(_Memory(function, uses), uses, first, chosen)
    blocks.rewrite(function)
    ast.fix_missing_locations(function)
    return blocks.found


class _Memory:
    """Which names of a function are the same memory."""

    def __init__(self, function: ast.FunctionDef, kernels: Container[str]) -> None:
        self._parents: dict[str, str] = {}
        self._kernels = kernels
        arguments = [each.arg for each in function.args.args]
        self._inputs = arguments[-1] if arguments else ""
        self._variables = {*arguments}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                self._variables.add(node.id)
            elif call := self.launched(node):
                self._variables |= {each.id for each in call.args if isinstance(each, ast.Name)}
        for node in ast.walk(function):
            if isinstance(node, ast.stmt) and node is not function and not self._apart(node):
                self._join(self.names(*(each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.stmt))))

    def launched(self, statement: ast.AST) -> ast.Call | None:
        """kernel.run(buf0, buf1, 64, stream=stream0)"""
        match statement:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(kernel), "run")) as call) if kernel in self._kernels:
                return call
        return None

    def _apart(self, statement: ast.stmt) -> bool:
        """Whether the names in a statement stay memory of their own."""
        match statement:
            case ast.Delete() | ast.Return():
                return True
            case ast.Expr(value) | ast.Assign(value=value):
                inputs = isinstance(value, ast.Name) and value.id == self._inputs  # a, b = inputs
                fresh = _called(value) in _FRESH | _WITHOUT_MEMORY or _library(value)
                return inputs or fresh or self.launched(statement) is not None
        return False

    def _join(self, names: Iterable[str]) -> None:
        homes = [self.home(each) for each in names]
        for each in homes[1:]:
            if (home := self.home(each)) != (first := self.home(homes[0])):
                self._parents[home] = first

    def home(self, name: str) -> str:
        while name in self._parents:
            name = self._parents[name]
        return name

    def names(self, *nodes: ast.AST) -> set[str]:
        """The function's variables in statements or expressions."""
        found = {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}
        return found & self._variables

    def touched(self, statement: ast.stmt) -> tuple[set[str], set[str]] | None:
        """What memory a statement may read, and what it may write; None where that is not known."""
        value = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
        if isinstance(statement, ast.Delete) or isinstance(value, ast.Name):
            return set(), set()
        if not isinstance(value, ast.Call):
            return None
        called = _called(value)
        if called in _FRESH | _WITHOUT_MEMORY | {"reinterpret_tensor"}:
            return set(), set()
        if called != "copy_if_misaligned" and not _library(value):
            return None
        named = {self.home(each) for each in self.names(statement)}
        out = [each.value for each in value.keywords if each.arg == "out"]
        if called or out:
            return named, {self.home(each) for each in self.names(*out)}
        return named, named


def _called(value: ast.expr) -> str:
    match value:
        case ast.Call(ast.Name(name)):
            return str(name)
    return ""


def _library(value: ast.expr | None) -> bool:
    """extern_kernels.mm(a, b, out=c): it gives fresh memory, and touches nothing but what it is handed; what else there
    is where it is told `out` it reads."""
    match value:
        case ast.Call(ast.Attribute(ast.Name("extern_kernels"))):
            return True
    return False


class _Blocks:
    """Rewrites the blocks of a function, the inner ones first."""

    def __init__(self, memory: _Memory, uses: Uses, first: int, chosen: Container[int] | None) -> None:
        self._memory, self._uses, self._first, self._chosen = memory, uses, first, chosen
        self.found: list[tuple[str, ...]] = []
        self._launches = 0

    def rewrite(self, node: ast.AST) -> None:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                setattr(node, name, self._rewritten(block))

    def _rewritten(self, block: Sequence[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        waiting: list[_Waiting] = []
        calls = 0
        for statement in block:
            launch = self._launch(statement, len(out))
            if launch is not None:
                waiting.append(launch)
            else:
                touched = self._memory.touched(statement)
                calls += bool(waiting) and isinstance(statement, ast.Expr | ast.Assign) and _library(statement.value)
                if touched is None or calls > MOST_CALLS or any(each.conflicts(*touched) for each in waiting):
                    out += self._flushed(waiting, out)
                    waiting, calls = [], 0
                self.rewrite(statement)
            out.append(statement)
        return out + self._flushed(waiting, out)

    def _launch(self, statement: ast.stmt, place: int) -> _Waiting | None:
        call = self._memory.launched(statement)
        if call is None or [each.arg for each in call.keywords] != ["stream"]:
            return None
        kernel: str = call.func.value.id  # type: ignore[attr-defined]
        uses = self._uses[kernel]
        plain = all(isinstance(each, ast.Name | ast.Constant) for each in call.args)
        if len(call.args) != len(uses) or not plain:
            return None
        read: set[str] = set()
        written: set[str] = set()
        for use, argument in zip(uses, call.args, strict=True):
            if use is not None:
                if not isinstance(argument, ast.Name):
                    return None
                (written if use else read).add(self._memory.home(argument.id))
        handed = ast.Tuple([call.keywords[0].value, *call.args], ast.Load())
        return _Waiting(place, statement, kernel, handed, read, written)

    def _flushed(self, waiting: Sequence[_Waiting], out: list[ast.stmt]) -> list[ast.stmt]:
        """Statements that run what waits; those of `out` that do not run it any more are replaced."""
        rounds = [(part, self._numbered(part)) for part in _rounds(waiting)]
        together = {id(launch) for part, number in rounds if number is not None for launch in part}
        late: list[_Waiting] = []
        for launch in waiting:
            if id(launch) in together or any(launch.conflicts(each.read, each.written) for each in late):
                launch.name = f"_launch_{self._launches}"
                self._launches += 1
                late.append(launch)
                out[launch.place] = _at(
                    launch.original, ast.Assign([ast.Name(launch.name, ast.Store())], launch.handed)
                )
        found: list[ast.stmt] = []
        for part, number in rounds:
            here = [launch for launch in part if launch.name]
            texts = [f"{each.kernel}.run(*{each.name}[1:], stream={each.name}[0]); del {each.name}" for each in here]
            if number is not None:
                handed = ", ".join(launch.name for launch in here)
                texts = [f"{ROUNDS}[{number}]({handed}); del {handed}"]
            found += [_at(part[-1].original, line) for text in texts for line in ast.parse(text).body]
        return found

    def _numbered(self, launches: Sequence[_Waiting]) -> int | None:
        """The number of a round; None where its launches do not come together."""
        if len(launches) < 2:
            return None
        number = self._first + len(self.found)
        self.found.append(tuple(launch.kernel for launch in launches))
        return number if self._chosen is None or number in self._chosen else None


def _at(original: ast.stmt, new: ast.stmt) -> ast.stmt:
    for each in ast.walk(new):
        ast.copy_location(each, original)
    return new


def _rounds(waiting: Sequence[_Waiting]) -> list[list[_Waiting]]:
    """Each launch as early as those before it allow that it conflicts with; at most MOST_KERNELS together."""
    places: list[int] = []
    found: list[list[_Waiting]] = []
    for launch in waiting:
        earlier = zip(places, waiting, strict=False)
        before = [place for place, each in earlier if launch.conflicts(each.read, each.written)]
        places.append(max(before, default=-1) + 1)
        if places[-1] == len(found):
            found.append([])
        found[places[-1]].append(launch)
    return [each[at : at + MOST_KERNELS] for each in found for at in range(0, len(each), MOST_KERNELS)]
