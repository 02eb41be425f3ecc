"""Drafts the YAML of a Triton kernel from its Python: parameters, memory, and values of `triton.autotune`."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.inputs.documents import UNKNOWN
from fusiond.strategy import Inputs
from fusiond_hfuse.frontend.python_slice import last_name, parsed

_MOVES = ("make_block_ptr", "make_tensor_descriptor", "advance", "to", "cast", "multiple_of", "max_contiguous")
"""What makes an address of its first argument, or of what it is a method of."""


def draft(path: str, name: str, inputs: Inputs) -> str:
    """The YAML text. RequestError for a file without such a kernel."""
    tree = parsed(inputs.text(path, where=path), path)
    jitted = {
        each.name: each
        for each in tree.body
        if isinstance(each, ast.FunctionDef) and any(last_name(one) == "jit" for one in each.decorator_list)
    }
    kernels = [each for each in jitted if _uses(jitted[each], jitted, ()).keys()] or list(jitted)
    if not kernels:
        raise RequestError("contains no function with @triton.jit", where=path)
    kernel = chosen(name, kernels, path)
    if kernel not in jitted:
        raise UnknownName("kernel", kernel, jitted, where=path)
    return "\n".join([*_lines(path, jitted[kernel], jitted), ""])


def chosen(name: str, kernels: Sequence[str], path: str) -> str:
    """The kernel that is named, or the only one. RequestError."""
    if not name and len(kernels) != 1:
        raise RequestError(f"there are {len(kernels)} kernels in it: {', '.join(kernels)}; say which", where=path)
    return name or kernels[0]


def _lines(path: str, kernel: ast.FunctionDef, jitted: Mapping[str, ast.FunctionDef]) -> Iterator[str]:
    unknown = f'"{UNKNOWN}"'
    yield f'# Drafted by `fusiond init`. "{UNKNOWN}" stands for what the source does not say.'
    yield from (f"kernel: {kernel.name}", f"source: {PurePath(path).name}", f"entry: {kernel.name}")
    tuned, warps, stages = _configs(kernel)
    spec = kernel.args
    every = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    with_default = {each.arg for each in (spec.posonlyargs + spec.args)[::-1][: len(spec.defaults)]}
    constants = [
        each.arg for each in every if each.annotation is not None and "constexpr" in ast.unparse(each.annotation)
    ]
    given = [each for each in constants if each not in with_default]
    if given:
        yield "constants:"
        for each in given:
            yield f"  {named(each)}: {_several(tuned.get(each, ())) or unknown}"
    if warps:
        yield f"warps: {_several(warps)}"
    if stages:
        yield f"stages: {_several(stages)}"
    uses = _uses(kernel, jitted, ())
    yield "arguments:"
    for each in (one.arg for one in every if one.arg not in constants):
        if each not in uses:
            yield f"  - {{name: {named(each)}, dtype: {unknown}, value: {unknown}}}"
            continue
        role = "role: output" if uses[each] == {"store"} else "role: inout, fill: zeros"
        role = f"role: input, fill: {unknown}" if uses[each] == {"load"} else role
        yield f"  - {{name: {named(each)}, dtype: {unknown}, elements: {unknown}, {role}}}"
    yield f"grid: [{unknown}]"


def named(text: str) -> str:
    """YAML takes `on` and `no` for true and false."""
    return f'"{text}"' if text.lower() in ("on", "off", "yes", "no", "true", "false", "null") else text


def _several(values: tuple[object, ...]) -> str:
    said = [str(each).lower() if isinstance(each, bool) else str(each) for each in values]
    return f"[{', '.join(said)}]" if len(said) > 1 else "".join(said)


def _configs(kernel: ast.FunctionDef) -> tuple[dict[str, tuple[object, ...]], tuple[object, ...], tuple[object, ...]]:
    """(constants, warps, stages) that `triton.Config`s of its decorators hold, where they are written out."""
    held: dict[str, dict[object, None]] = {}
    for decorator in kernel.decorator_list:
        for call in ast.walk(decorator):
            if not (isinstance(call, ast.Call) and last_name(call) == "Config" and call.args):
                continue
            pairs = [(each.arg, each.value) for each in call.keywords]
            if isinstance(call.args[0], ast.Dict):
                keys = (getattr(each, "value", None) for each in call.args[0].keys)
                pairs += [(str(key), value) for key, value in zip(keys, call.args[0].values, strict=True)]
            for name, value in pairs:
                if name and isinstance(value, ast.Constant):
                    held.setdefault(name, {})[value.value] = None
    found = {name: tuple(values) for name, values in held.items()}
    return found, found.pop("num_warps", ()), found.pop("num_stages", ())


def _uses(
    function: ast.FunctionDef, jitted: Mapping[str, ast.FunctionDef], within: tuple[str, ...]
) -> dict[str, set[str]]:
    """Parameters that are addresses -> `load`, `store`: how they are used, in helpers too."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    values = _assigned(function)
    found: dict[str, set[str]] = {}

    def based(node: ast.expr | None, use: str, seen: frozenset[str] = frozenset()) -> None:
        if isinstance(node, ast.Name) and node.id not in seen:
            if node.id in names:
                found.setdefault(node.id, set()).add(use)
            for value in values.get(node.id, ()):
                based(value, use, seen | {node.id})
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            based(node.left, use, seen)
        elif isinstance(node, ast.IfExp):
            based(node.body, use, seen)
            based(node.orelse, use, seen)
        elif isinstance(node, ast.Call) and last_name(node) in _MOVES:
            plain = isinstance(node.func, ast.Attribute) and last_name(node) in ("to", "cast") and not node.args[1:]
            given = node.func.value if plain and isinstance(node.func, ast.Attribute) else next(iter(node.args), None)
            based(given, use, seen)

    for each in ast.walk(function):
        if not isinstance(each, ast.Call):
            continue
        called = last_name(each)
        helper = jitted.get(called)
        if called in ("load", "store") or called.startswith("atomic_"):
            first = each.args[0] if each.args else None
            if isinstance(each.func, ast.Attribute) and not isinstance(each.func.value, ast.Name):
                first = each.func.value
            for use in ("load", "store") if called.startswith("atomic_") else (called,):
                based(first, use)
        elif helper is not None and called not in within and called != function.name:
            inner = _uses(helper, jitted, (*within, called))
            for argument, parameter in zip(each.args, helper.args.args, strict=False):
                for use in inner.get(parameter.arg, ()):
                    based(argument, use)
    return found


def _assigned(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    """Variables of a function -> what is assigned to them."""
    values: dict[str, list[ast.expr]] = {}
    for each in (node for node in ast.walk(function) if isinstance(node, ast.Assign)):
        for target in each.targets:
            pairs = [(target, each.value)]
            if isinstance(target, ast.Tuple) and isinstance(each.value, ast.Tuple):
                pairs = list(zip(target.elts, each.value.elts, strict=False))
            for one, value in pairs:
                if isinstance(one, ast.Name):
                    values.setdefault(one.id, []).append(value)
    return values
