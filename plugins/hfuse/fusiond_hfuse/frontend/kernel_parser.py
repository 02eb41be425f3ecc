"""The front end: reads a kernel with libclang, which lives in this folder alone.

The source is parsed as it stands, against declarations of CUDA's own, so that neither a toolkit nor a GPU is needed.
Nothing is rewritten from the tree: a kernel's body stays word for word. All that is taken from the tree are places to
edit, and reasons to refuse:

    clang_tree.py         the tree of a text, and what was wrong with it
    recheck.py            the same for the edited text
    entries.py            which of the kernels is meant
    edited_text.py        the text, its edits, the reasons to refuse it
    call_graph.py         calls between functions; which of them see the block, or wait
    shadowing.py          the shadow parameters where they are declared and handed on
    shared_memory.py      dynamic and static shared arrays
    device_variables.py   `__constant__` and `__device__` variables
    parameters.py         the kernel's parameters, the insides of structs
    barriers.py, divergence.py, barrier_divergence.py    barriers, and who may leave before them

SHADOWS are parameters called `threadIdx`, `blockIdx`, `blockDim`, `gridDim` and `__syncthreads`: they hide the built-in
ones from the body, where the paper renames every use (Li et al., CGO 2022, section III-A) and must lift all
declarations to the top of the fused kernel (section III-C).

Then the edited text is parsed again, as it will stand in a fused source: whatever still names a built-in variable, or
does not compile any more, is a reason to refuse too (`recheck.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusiond.errors import RequestError, UnknownName
from fusiond.model import Rejection
from fusiond_hfuse.frontend import (
    barrier_divergence,
    barriers,
    clang_tree,
    cursors,
    entries,
    host_headers,
    overloads,
    recheck,
    shadows,
    slicing,
    undeclared,
)
from fusiond_hfuse.frontend.call_graph import CallGraph
from fusiond_hfuse.frontend.clang_tree import MAIN
from fusiond_hfuse.frontend.cursors import RECORDS, SCOPES, CursorKind, cindex
from fusiond_hfuse.frontend.device_variables import DeviceVariables
from fusiond_hfuse.frontend.edited_text import EditedText
from fusiond_hfuse.frontend.launches import parts
from fusiond_hfuse.frontend.parameters import Parameters
from fusiond_hfuse.frontend.shadowing import Shadowing
from fusiond_hfuse.frontend.shared_memory import MOVED, SharedMemory
from fusiond_hfuse.frontend.source_kernel import Edit, Parsed, TranslationUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Which kernel of a unit is read, and as what."""

    entry: str
    """With its namespaces."""
    name: str
    """The kernel's, for messages."""
    where: str
    """The YAML key that names the entry."""
    instance: str | None = None
    defines: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """Those that the host sets."""


def parse_kernel(unit: TranslationUnit, reading: Reading) -> tuple[TranslationUnit, Parsed]:
    """The unit cut down to one kernel, and what stands in it: with the declarations that the front end has, or, where
    these do not suffice, with the headers of the host's compiler. Errors are those of `parse_unit`."""
    found: tuple[TranslationUnit, Parsed] | None = None
    try:
        found = _cut_and_read(unit, reading)
        if not any(each.rule == "rewrite" for each in found[1].rejections):
            return found
    except UnknownName:
        raise
    except RequestError as problem:
        if not host_headers.available():
            raise undeclared.reason(problem, unit, reading.defines, reading.flags) from None
    try:
        return _cut_and_read(dataclasses.replace(unit, host_headers=host_headers.available()), reading)
    except RequestError as problem:
        if found is None:
            raise undeclared.reason(problem, unit, reading.defines, reading.flags) from None
        return found


def _cut_and_read(unit: TranslationUnit, reading: Reading) -> tuple[TranslationUnit, Parsed]:
    """Where what is reached cannot be read, with less of it: in three ways, each of which leaves out more."""
    known: set[str] = set()
    first: RequestError | None = None
    for broken, resolved in ((True, False), (False, False), (True, True), (False, True)):
        try:
            sliced = slicing.sliced(
                unit, reading.entry, instance=reading.instance, defines=reading.defines, where=reading.where,
                flags=reading.flags, variables=reading.variables, broken=broken, resolved=resolved,
            )  # fmt: skip
            if sliced.text not in known:
                known.add(sliced.text)
                return sliced, parse_unit(sliced, reading)
        except UnknownName:
            if first is None:
                raise
        except RequestError as problem:
            if not known:
                raise  # nothing was cut out
            first = first or problem  # what is wrong with the whole says more
        except RecursionError:
            continue  # bodies are nested too deeply to resolve words in them
    assert first is not None
    raise first


def parse_unit(unit: TranslationUnit, reading: Reading, *, move: bool = False) -> Parsed:
    """Parse a unit and look at one kernel of it.

    With `move`, static shared arrays become part of the dynamic one. RequestError for what is not CUDA or has no such
    kernel; what is CUDA, but cannot be fused, is a Rejection in the result.
    """
    text = (unit.text, unit.origins, unit.system, unit.host_headers)
    if slicing.is_overload(reading.instance):  # slicing has left the others out
        reading = dataclasses.replace(reading, instance=None)
    return _parsed(_ParseRequest(text, reading, move, unit))


@dataclass(frozen=True, slots=True)
class _ParseRequest:
    """All that decides a Parsed; the unit is what the text and the origins are of."""

    text: tuple[str, tuple[tuple[str, int], ...], tuple[str, ...], bool]
    reading: Reading
    move: bool
    unit: TranslationUnit = field(compare=False)


@functools.lru_cache(maxsize=64)  # a kernel stands in many pairs, and each of them reads its files again
def _parsed(request: _ParseRequest) -> Parsed:
    unit, flags, defines = request.unit, request.reading.flags, request.reading.defines
    instance = request.reading.instance or request.reading.entry
    found: list[Parsed] = []
    readings = clang_tree.Readings(unit.text)
    for arch in clang_tree.architectures(unit.text):
        if unit.host_headers and readings.repeated(unit.text, unit.system, defines, flags, arch):
            continue
        try:
            tree = clang_tree.ClangTree(unit, unit.text, instance, defines, flags, arch)
            try:
                if not unit.host_headers and readings.repeats(tree.unit):
                    continue
                problem = tree.problem()
                if problem is not None:
                    raise problem
                text, parsed = _read(request, tree)
                if not parsed.rejections:
                    left = recheck.rejections(unit, parsed, tree, instance, defines, flags, arch, text.refusal)
                    parsed = _with(parsed, left)
            finally:
                cursors.forget(tree.unit)
        except RecursionError:
            raise RequestError("it is nested too deeply to be read", where=unit.where(1)) from None
        except RequestError:
            if found and not arch:
                continue  # what compilers of other processors see need not be right
            raise
        found.append(parsed)
    return _merged(found, request.reading.name)


def _with(parsed: Parsed, rejections: list[Rejection]) -> Parsed:
    return parsed.replaced(rejections=tuple(dict.fromkeys([*parsed.rejections, *rejections])))


_JOINED: Mapping[str, Callable[[Iterator[Any]], Any]] = {
    "uses_dynamic_shared": any,
    "moved_bytes": max,
    "alignment": max,
    "barriers": max,
    "resident_blocks": max,
    "counted": any,
    "drains": any,
    "by_warps": any,
    "leaves": any,
}
"""What holds of a kernel where architectures differ: what holds for one of them, or the most."""


def _merged(found: list[Parsed], name: str) -> Parsed:
    """One reading for all architectures: every edit that one of them asks for."""
    first = found[0]
    if len(found) == 1:
        return first
    edits = {edit for each in found for edit in each.edits}
    bounds = [each.launch_bound for each in found if each.launch_bound is not None]
    static = [each.static_shared_bytes for each in found]
    return first.replaced(
        edits=tuple(sorted(edits, key=lambda edit: (edit.start, edit.end, edit.text))),
        rejections=tuple(dict.fromkeys([*_all(each.rejections for each in found), *_contradictions(edits, name)])),
        beside=tuple(dict.fromkeys(_all(each.beside for each in found))),
        static_shared_bytes=None if None in static else max(each or 0 for each in static),
        launch_bound=min(bounds, default=None),
        overloads=tuple(sorted(set(_all(each.overloads for each in found)))),
        **{field: join(getattr(each, field) for each in found) for field, join in _JOINED.items()},
    )


_all = itertools.chain.from_iterable


def _contradictions(edits: Collection[Edit], name: str) -> list[Rejection]:
    """Where one architecture's edit of a place is not another's."""
    places = [(edit.start, edit.end) for edit in edits if edit.end > edit.start]
    if len(set(places)) == len(places):
        return []
    detail = "it would have to be rewritten in one way for one `__CUDA_ARCH__`, and otherwise for another"
    return [Rejection(rule="architecture", nodes=(name,), detail=detail)]


# --- one reading ---


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundKernel:
    """The kernel in one architecture's tree, and what the file holds besides."""

    body: cindex.Cursor
    declarations: list[cindex.Cursor]
    """Its own, the definition included."""
    top: list[cindex.Cursor]
    """All that the file declares."""
    macros: list[cindex.Cursor]


def _read(request: _ParseRequest, tree: clang_tree.ClangTree) -> tuple[EditedText, Parsed]:
    """What one architecture's tree says of the kernel."""
    reading = request.reading
    text, kernel = _found(request, tree)
    parameters = tree.parameters(kernel.body, reading.where, Parameters(tree).of)
    for line, message in tree.unknown_groups():
        text.rejections.append(text.refusal("block_barrier", line, f"of cooperative groups: {message}"))

    graph = CallGraph(text, move=request.move)
    shared = SharedMemory(text, move=request.move)
    variables = DeviceVariables(text, frozenset(reading.variables), Parameters(tree))
    skipped = {each.hash for each in kernel.declarations}
    for cursor in kernel.top:
        _declare(cursor, "", skipped, graph, shared, variables)
    graph.inner_methods(kernel.body)
    graph.close(kernel.body)
    functions = (kernel.body, *graph.functions)

    shadowing = Shadowing(text, graph, shared)
    _add_shadows(shadowing, kernel, graph, shared)
    leaving = _leaving(text, graph, kernel.body)
    text.rejections += barriers.forbidden(text.tokens, text.refusal)
    text.rejections += barriers.grid_waits(functions, text.refusal)
    shadowing.global_names(kernel.top)
    shadowing.macro_names(kernel.macros)
    shadowing.linkage(kernel.top)
    for missing in sorted(variables.wanted - set(variables.known)):
        raise UnknownName("variable of the source", missing, set(variables.known) or {"none"}, where=reading.where)
    moved = shared.before_dynamic
    return text, Parsed(
        entry=reading.entry,
        parameters=parameters,
        edits=tuple(
            Edit(start=start, end=end, text=new.replace(MOVED, str(moved)))
            for (start, end), new in sorted(text.edits.items())
        ),
        uses_dynamic_shared=shared.dynamic or shared.moved_bytes > 0,
        static_shared_bytes=shared.static_bytes,
        moved_bytes=moved,
        alignment=shared.alignment,
        barriers=sum(_own_barriers(each) for each in functions),
        launch_bound=_launch_bound(text, kernel.body, 0),
        resident_blocks=_launch_bound(text, kernel.body, 1) or 0,
        counted=leaving.counted,
        drains=leaving.drains,
        by_warps=leaving.by_warps,
        leaves=barrier_divergence.leaves(kernel.body),
        meets=graph.meets(),
        variables=tuple(variables.known[each] for each in sorted(variables.wanted)),
        settable=tuple(variables.settable),
        overloads=overloads.declared({each.spelling for each in functions if _free(each)}, text.code),
        rejections=tuple(dict.fromkeys(text.rejections)),
        beside=leaving.refused,
    )


def _found(request: _ParseRequest, tree: clang_tree.ClangTree) -> tuple[EditedText, _FoundKernel]:
    reading = request.reading
    ours = cursors.written_in(tree.cursor, MAIN)
    top = [each for each in ours if each.spelling not in clang_tree.OURS]
    macros = [each for each in ours if each.kind is CursorKind.MACRO_DEFINITION]
    text = EditedText(
        request.unit, tree, reading.name, [(each.extent.start.offset, each.extent.end.offset) for each in macros]
    )
    chosen = tree.instantiated() if reading.instance is not None else None
    body, declarations = entries.definition(
        list(entries.kernels(top, "")), reading.entry, reading.instance is not None, reading.where, chosen
    )
    text.scope = tuple(reading.entry.split("::")[:-1])
    text.head = entries.template_head(body, text.data)
    return text, _FoundKernel(body=body, declarations=declarations, top=top, macros=macros)


def _add_shadows(shadowing: Shadowing, kernel: _FoundKernel, graph: CallGraph, shared: SharedMemory) -> None:
    """Shadow parameters for the kernel and all functions that see the block; their shared arrays."""
    others = entries.other_definitions(kernel.body, kernel.declarations)
    for cursor in kernel.declarations:
        if cursor in others:
            shadowing.drop(cursor)
        if cursor not in others or cursor.kind is CursorKind.FUNCTION_TEMPLATE:
            shadowing.rewrite(cursor)
    for function in graph.functions:
        if shadows.named(function) in graph.seeing:
            shadowing.hand_on(function)
            shadowing.body(function)
        shared.statics(function)
    shadowing.body(kernel.body)
    shared.statics(kernel.body)
    shadowing.macro_calls()


def _declare(
    cursor: cindex.Cursor,
    scope: str,
    skipped: set[int],
    graph: CallGraph,
    shared: SharedMemory,
    variables: DeviceVariables,
) -> None:
    """Take up what stands round the kernel: functions that may see the block, shared arrays, variables."""
    if cursor.hash in skipped:
        return
    if cursor.kind in shadows.FUNCTIONS:
        graph.functions.append(cursor)
        graph.inner_methods(cursor)
    elif cursor.kind is CursorKind.VAR_DECL:
        name = f"{scope}{cursor.spelling}"
        if shadows.shared(cursor):
            shared.file_wide(cursor, name)
        else:
            variables.declare(cursor, name)
    elif cursor.kind in SCOPES or cursor.kind in RECORDS:
        inner = scope
        if cursor.kind not in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL) and cursor.spelling:
            inner = f"{scope}{cursor.spelling}::"
        for child in cursors.children(cursor):
            _declare(child, inner, skipped, graph, shared, variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaving:
    """Whether threads may leave before a barrier that others reach, and what follows from it: see Parsed."""

    counted: bool
    drains: bool
    by_warps: bool
    refused: tuple[Rejection, ...]


def _leaving(text: EditedText, graph: CallGraph, body: cindex.Cursor) -> _Leaving:
    counted = any(each in text.code for each in shadows.COUNTED)
    parting = graph.parting(body)
    by_warps = parting is not None and not counted and graph.parting(body, by_warps=True) is None
    meets = graph.meets()
    why = ""  # those that leave early could not go on voting at the barriers of the others
    if counted:
        why = "in a kernel with `__syncthreads_count`, `_and` or `_or`"
    elif meets and not by_warps:  # it waits for every thread of its mask that still runs, and who votes still runs
        why = f"in a kernel where threads of a warp meet in `{meets}`"
    refused: tuple[Rejection, ...] = ()
    if parting is not None and why:
        detail = (
            f"some threads may leave before a barrier that others reach, {why}. Put the work behind the test instead "
            f"of returning"
        )
        refused = (text.refusal("return_before_barrier", parting.location.line, detail),)
    return _Leaving(counted=counted, drains=parting is not None, by_warps=by_warps and bool(meets), refused=refused)


def _own_barriers(function: cindex.Cursor) -> int:
    return sum(
        1
        for each in cursors.below(function)
        if each.kind is CursorKind.CALL_EXPR and each.spelling in barriers.BARRIERS
    )


def _launch_bound(text: EditedText, kernel: cindex.Cursor, place: int) -> int | None:
    """An argument of `__launch_bounds__`: the most threads, then the least resident blocks."""
    for child in cursors.children(kernel):
        if child.kind is CursorKind.ANNOTATE_ATTR and child.spelling.startswith("launch_bounds "):
            given = parts(child.spelling.partition(" ")[2])
            return text.constant(given[place]) if place < len(given) else None
    return None


def _free(function: cindex.Cursor) -> bool:
    """Whether a function is not a method."""
    parent = function.semantic_parent
    return parent is None or parent.kind not in RECORDS
