"""Cuts a function with its dependences out of a Python file.

    norm.py, rms_norm  -->  {"ops/norm.py": the kernel, its helpers, the constants and imports they name, ...}

A file of kernels in Triton imports frameworks, allocates on a GPU and measures as it is loaded; of all that a kernel
needs a few functions and numbers. So the statements at the top of the file that bind what the kernel names are kept,
and what these name, through the modules that lie beside the file or in its package. Lines stay where they were.
"""

import ast
import builtins
import copy
import symtable
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from fusiond.model.errors import RequestError, UnknownName
from fusiond.strategy import Inputs
from fusiond_hfuse.frontend.includes import beside

CONVENTIONS = {
    "triton": "import triton",
    "tl": "import triton.language as tl",
    "tldevice": "from triton.language.extra import libdevice as tldevice",
    "libdevice": "from triton.language.extra import libdevice",
}
"""Names that every file of kernels uses for the same; a package may import them by a module of its own."""
_INSTALLED = sys.stdlib_module_names | {"triton", "torch", "numpy"}
_MOST_FOLDERS = 8  #: Above the file in which its package may begin


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSlice:
    files: dict[str, str]  #: The slices, by their paths below a folder that is on the path
    module: str  #: The one with the function: `ops.norm`
    read: dict[str, str]  #: The files that were read, whole


@dataclass(slots=True)
class _Module:
    path: str
    name: str  #: With its packages
    text: str
    tree: ast.Module
    package: bool
    bound: dict[str, list[int]]  #: Name -> the statements at the top that bind it
    kept: dict[int, set[str]] = field(default_factory=dict)  #: Statement -> the names for which it is kept


def sliced(inputs: Inputs, path: str, function: str, *, where: str) -> PythonSlice:
    """A function, with what it needs. RequestError for a file that is not Python, UnknownName where it has no such
    function."""
    work = _Slicing(inputs, where)
    module = work.module(path, _dotted(inputs, path))
    functions = {each.name for each in module.tree.body if isinstance(each, ast.FunctionDef)}
    if function not in functions:
        raise UnknownName("function of the file", function, functions or {"none"}, where=where)
    work.keep(module, function)
    files = {}
    for each in work.modules.values():
        folders = PurePosixPath(*each.name.split("."))
        files[str(folders / "__init__.py" if each.package else folders.with_suffix(".py"))] = _written(each)
    read = {each.path: each.text for each in work.modules.values()}
    return PythonSlice(files=dict(sorted(files.items())), module=module.name, read=read)


def parsed(text: str, path: str) -> ast.Module:
    """RequestError for what is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as problem:
        line = getattr(problem, "lineno", None) or 1
        raise RequestError(f"not Python: {getattr(problem, 'msg', problem)}", where=f"{path}:{line}") from None


class _Slicing:
    def __init__(self, inputs: Inputs, where: str) -> None:
        self._inputs, self._where = inputs, where
        self.modules: dict[str, _Module] = {}

    def module(self, path: str, name: str) -> _Module:
        if path not in self.modules:
            text = self._inputs.text(path, where=self._where)
            tree = parsed(text, path)
            bound: dict[str, list[int]] = {}
            for at, statement in enumerate(tree.body):
                for each in dict.fromkeys(_binds(statement)):
                    bound.setdefault(each, []).append(at)
            package = path.endswith("/__init__.py")
            self.modules[path] = _Module(path, name, text, tree, package, bound)
        return self.modules[path]

    def keep(self, module: _Module, name: str) -> None:
        """Keep what binds a name, and what that needs."""
        places = module.bound.get(name)
        if places is None and not hasattr(builtins, name):
            places = module.bound.get("*", [])
        for at in places or ():
            names = module.kept.setdefault(at, set())
            if name not in names:
                names.add(name)
                if name not in CONVENTIONS:
                    self._needed(module, module.tree.body[at], name)

    def _needed(self, module: _Module, statement: ast.stmt, name: str) -> None:
        statement = _plain(statement)
        for needed in _names(statement):
            self.keep(module, needed)
            self._attributes(module, statement, needed)
        for each in ast.walk(statement):
            if isinstance(each, ast.ImportFrom):
                self._imported(module, each, name if each is statement else "")

    def _imported(self, module: _Module, statement: ast.ImportFrom, name: str) -> None:
        """Keep in another module of the package what is imported of it: `name`, or everything."""
        there = _absolute(module, statement)
        if there.partition(".")[0] in _INSTALLED:
            return
        for alias in statement.names:
            if name in ("", alias.asname or alias.name) or alias.name == "*":
                if alias.name != "*" and self._found(module, f"{there}.{alias.name}") is not None:
                    continue  # a module; what of it, the places say that name it
                found = self._found(module, there)
                if found is not None:
                    self.keep(found, name if alias.name == "*" else alias.name)

    def _attributes(self, module: _Module, statement: ast.stmt, name: str) -> None:
        """Keep what is used of a module that has this name here."""
        found = self._module_called(module, name)
        if found is not None:
            for each in ast.walk(statement):
                if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == name:
                    self.keep(found, each.attr)

    def _module_called(self, module: _Module, name: str) -> _Module | None:
        for at in module.bound.get(name, ()):
            statement = module.tree.body[at]
            if isinstance(statement, ast.Import | ast.ImportFrom):
                within = f"{_absolute(module, statement)}." if isinstance(statement, ast.ImportFrom) else ""
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        return self._found(module, within + alias.name)
        return None

    def _found(self, module: _Module, name: str) -> _Module | None:
        """A module by its absolute name, where it lies in the package, or beside the file."""
        first, *rest = name.split(".")
        if first in _INSTALLED:
            return None
        for up in range(_MOST_FOLDERS):
            for end in (".py", "/__init__.py"):
                relative = "../" * up + "/".join((first, *rest)) + end
                path = beside(self._inputs, module.path, relative)
                if path is not None:
                    return self.module(path, name)
        return None


def _dotted(inputs: Inputs, path: str) -> str:
    """What a file is called as a module: with the packages that it is in."""
    parts = list(PurePosixPath(path).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    names = [parts.pop()]
    for up in range(_MOST_FOLDERS):
        if not parts or beside(inputs, path, f"{'../' * up or './'}__init__.py") is None:
            break
        names.insert(0, parts.pop())
    names[-1] = "".join(each if each.isalnum() or each == "_" else "_" for each in names[-1])
    if len(names) == 1:
        names[0] = f"_{names[0]}"  # 01-add.py, or triton.py
    return ".".join(names)


def _absolute(module: _Module, statement: ast.ImportFrom) -> str:
    """The module of a `from ... import`."""
    if not statement.level:
        return statement.module or ""
    packages = module.name.split(".")
    packages = packages[: len(packages) - statement.level + module.package]
    return ".".join([*packages, *filter(None, [statement.module])])


def _binds(node: ast.AST) -> Iterator[str]:
    """Names that a statement binds where it stands; `*` of an import of everything."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0])
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    for each in ast.iter_child_nodes(node):
        yield from _binds(each)


def _names(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement needs from around it."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return
    tables = [symtable.symtable(ast.unparse(statement), "slice", "exec")]
    top = True
    while tables:
        table = tables.pop(0)
        for each in table.get_symbols():
            if each.is_referenced() and (top or each.is_global()):
                yield each.get_name()
        top = False
        tables += table.get_children()


def _plain(statement: ast.stmt) -> ast.stmt:
    """A kernel with `@triton.jit` alone: who tunes, names or launches it is not asked here."""
    if not isinstance(statement, ast.FunctionDef):
        return statement
    jitted = [each for each in statement.decorator_list if last_name(each) == "jit"]
    if not jitted:
        return statement
    kept = copy.copy(jitted[-1])
    if isinstance(kept, ast.Call):
        kept.keywords = [each for each in kept.keywords if each.arg not in ("repr", "launch_metadata")]
    found = copy.copy(statement)
    found.decorator_list = [kept]
    return found


def last_name(node: ast.expr) -> str:
    """`jit` of `triton.jit(...)`."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _written(module: _Module) -> str:
    """A module with what is kept of it, each on its own line."""
    lines = module.text.splitlines()
    found = [""] * len(lines)
    for at, statement in enumerate(module.tree.body):
        names = module.kept.get(at, set())
        others = names - CONVENTIONS.keys()
        first, end = statement.lineno - 1, statement.end_lineno or statement.lineno
        if isinstance(statement, ast.ImportFrom) and statement.module != "__future__":
            wanted = [each for each in statement.names if each.name == "*" or (each.asname or each.name) in others]
            said = [ast.unparse(ast.ImportFrom(statement.module, wanted, statement.level))] if wanted else []
            found[first] = "; ".join([*(CONVENTIONS[each] for each in sorted(names - others)), *said])
        elif others or isinstance(statement, ast.ImportFrom):
            found[first:end] = lines[first:end]
            plain = _plain(statement)
            for number, each in enumerate(reversed(getattr(plain, "decorator_list", [])), 1):
                found[first - number] = f"@{ast.unparse(each)}"
        elif names:
            found[first] = "; ".join(CONVENTIONS[each] for each in sorted(names))
    return "\n".join([*found, ""])
