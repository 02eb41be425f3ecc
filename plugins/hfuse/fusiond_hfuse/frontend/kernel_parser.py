"""The front end for C++: reads a kernel with libclang, which lives in this folder alone.

The source is parsed as it stands, against declarations of CUDA's own, so that neither a toolkit nor a GPU is needed.
Nothing is rewritten from the tree: a kernel's body stays word for word. All that is taken from the tree are places to
edit, and reasons why this form does not suffice; then the kernel is compiled, and its PTX is fused (ptx_kernel.py).

SHADOWS are parameters called `threadIdx`, `blockIdx`, `blockDim`, `gridDim` and `__syncthreads`: they hide the built-in
ones from the body, where the paper renames every use (Li et al., CGO 2022, section III-A) and must lift all
declarations to the top of the fused kernel (section III-C).

Then the edited text is parsed again, as it will stand in a fused source:

    namespace fusiond_a { poison; the edited text }      with the built-in variables outside

What the second tree still says of a built-in variable is a leak, however it was written: behind `::`, by a macro, in a
default argument, a destructor, a member's initialiser. What does not parse any more was edited wrongly, or cannot be.
So neither comes to a compiler, let alone to a device.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.nouns import Rejection
from fusiond_hfuse.frontend import clang_tree, cursors, launches, shadows, slicing, uniformity
from fusiond_hfuse.frontend.clang_tree import ClangTree, Reading
from fusiond_hfuse.frontend.cursors import RECORDS, SCOPES, CursorKind, cindex
from fusiond_hfuse.frontend.device_variables import DeviceVariables
from fusiond_hfuse.frontend.edited_text import EditedText
from fusiond_hfuse.frontend.parameters import of_kernel
from fusiond_hfuse.frontend.shadowing import Shadowing, forbid
from fusiond_hfuse.frontend.shared_memory import MOVED, SharedMemory
from fusiond_hfuse.frontend.source_kernel import UNREAD, Edit, KernelParameter, Parsed, TranslationUnit, applied

_NOT_CUDA = "not CUDA C++ as libclang reads it"


def parse_kernel(unit: TranslationUnit, reading: Reading, *, move: bool = False) -> tuple[TranslationUnit, Parsed]:
    """The unit cut down to one kernel, and what stands in it; with `move`, static shared arrays become part of the
    dynamic one. RequestError where there is no such kernel, or its declaration cannot be read; what cannot be fused in
    this form is a Rejection in the result."""
    cut = slicing.sliced(unit, reading)
    return cut, _parsed(cut, reading, move)


@functools.lru_cache(maxsize=64)  # a kernel stands in many pairs, and each of them reads its files again
def _parsed(unit: TranslationUnit, reading: Reading, move: bool) -> Parsed:
    tree = ClangTree(unit, unit.text, reading)
    try:
        text, found = _found(tree)
        body = found[0]
        begins = body.extent.start.offset
        ends = (cursors.body_of(body) or body).extent.start.offset
        for line, offset, message in tree.errors():
            if begins <= offset < ends:  # then its parameters may not be what they seem
                raise RequestError(f"{_NOT_CUDA}: {message}{_brought(unit)}", where=unit.where(line))
            if line <= tree.lines:
                text.refuse(UNREAD, line, f"{_NOT_CUDA}: {message}{_brought(unit)}")
        parsed = _read(move, text, found, of_kernel(tree, body, reading.where))
        if not parsed.rejections:
            parsed = dataclasses.replace(parsed, rejections=tuple(dict.fromkeys(_second_look(text, parsed))))
        return parsed
    except RecursionError:
        raise RequestError("it is nested too deeply to be read", where=unit.where(1)) from None
    finally:
        cursors.forget(tree.unit)


def _brought(unit: TranslationUnit) -> str:
    return f" (not read: {', '.join(unit.unread[:6])})" if unit.unread else ""


_Found = tuple[cindex.Cursor, list[cindex.Cursor], list[cindex.Cursor]]
"""The kernel's definition, all of its declarations, and all that the file declares."""


def _found(tree: ClangTree) -> tuple[EditedText, _Found]:
    reading = tree.reading
    top = [each for each in cursors.written_in(tree.cursor) if each.spelling not in clang_tree.OURS]
    text = EditedText(tree)
    known = [(name, each) for name, each in _declared(top) if cursors.has(each, CursorKind.CUDAGLOBAL_ATTR)]
    body, declarations = _definition(known, reading.entry, reading.instance is not None, reading.where)
    text.head = _template_head(body, text.code)
    return text, (body, declarations, top)


def _read(move: bool, text: EditedText, found: _Found, parameters: tuple[KernelParameter, ...]) -> Parsed:
    """What the tree says of the kernel."""
    body, declarations, top = found
    shared = SharedMemory(text, move=move)
    shadowing = Shadowing(text, shared)
    variables = DeviceVariables(text)
    declared = list(_declared(top))
    own = {each.hash for each in declarations}
    shadowing.functions += [each for _, each in declared if each.kind in cursors.FUNCTIONS and each.hash not in own]
    for name, cursor in declared:
        shared.file_wide(cursor)
        variables.declare(cursor, name)
    shadowing.close(body)
    functions = (body, *shadowing.functions)
    for cursor in declarations:
        shadowing.rewrite(cursor)
    shadowing.body(body)
    for function in shadowing.functions:
        if function.spelling in shadowing.seeing:
            shadowing.hand_on(function)
            shadowing.body(function)
    for function in functions:
        shared.statics(function)
    shadowing.macro_names([each for each in top if each.kind is CursorKind.MACRO_DEFINITION])
    shadowing.linkage(top)
    forbid(text)
    for function in functions:
        _check(text, function, shadowing.meeting, kernel=function is body)
    variables.check()
    edits = (
        Edit(start=start, end=end, text=new.replace(MOVED, str(shared.before_dynamic)))
        for (start, end), new in sorted(text.edits.items())
    )
    return Parsed(
        entry=text.tree.reading.entry, parameters=parameters, edits=tuple(edits),
        uses_dynamic_shared=shared.dynamic or shared.moved_bytes > 0, moved_bytes=shared.before_dynamic,
        static_shared_bytes=shared.static_bytes, alignment=shared.alignment,
        launch_bound=_launch_bound(text, body, 0), resident_blocks=_launch_bound(text, body, 1) or 0,
        parts=uniformity.leaves(body) and shadowing.meets(),
        variables=tuple(variables.known[each] for each in sorted(variables.wanted)),
        settable=tuple(variables.settable), rejections=tuple(dict.fromkeys(text.rejections)),
    )  # fmt: skip


def _check(text: EditedText, function: cindex.Cursor, meeting: frozenset[str], *, kernel: bool) -> None:
    """Refuse what hides CUDA's own functions in a namespace, and what returns before barriers."""
    plain = function.semantic_parent is None or function.semantic_parent.kind not in RECORDS
    if plain and function.spelling in text.tree.of_cuda():
        text.refuse("name", function, f"{function.spelling} is called like a function of CUDA")
    apart = uniformity.parting(function, meeting, kernel=kernel)
    if apart is not None:
        text.refuse("return_before_barrier", apart, "some threads may not come to a barrier that others reach")


def _launch_bound(text: EditedText, kernel: cindex.Cursor, place: int) -> int | None:
    """An argument of `__launch_bounds__`: the most threads, then the least resident blocks."""
    for child in cursors.children(kernel):
        if child.kind is CursorKind.ANNOTATE_ATTR and child.spelling.startswith("launch_bounds "):
            given = launches.parts(child.spelling.partition(" ")[2])
            return text.constant(given[place]) if place < len(given) else None
    return None


# --- which kernel is meant ------------------------------------------------------------------------------


def _declared(nodes: Iterable[cindex.Cursor], scope: str = "") -> Iterator[tuple[str, cindex.Cursor]]:
    """(qualified name, cursor) of all that is declared, in namespaces and classes too."""
    for cursor in nodes:
        if cursor.kind in SCOPES or cursor.kind in RECORDS:
            plain = cursor.kind in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL) or not cursor.spelling
            yield from _declared(cursors.children(cursor), scope if plain else f"{scope}{cursor.spelling}::")
        else:
            yield scope + cursor.spelling, cursor


def _definition(
    known: list[tuple[str, cindex.Cursor]], entry: str, template: bool, where: str
) -> tuple[cindex.Cursor, list[cindex.Cursor]]:
    """The definition of the kernel called `entry`, and all of its declarations. `template`: an instance is named.
    UnknownName, or a RequestError, where there is none, or several."""
    found = [cursor for name, cursor in known if name == entry]
    if not found:
        raise UnknownName("kernel", entry, {name for name, _ in known}, where=where)
    bodies = [cursor for cursor in found if cursor.is_definition()]
    if len(bodies) != 1:
        kinds = ", ".join(str(each.spelling) for each in found[0].type.get_canonical().argument_types())
        how = f'is defined more than once; say which: `instance: "{entry}({kinds})"`' if bodies else "is only declared"
        raise RequestError(f"{entry} {how}", where=where)
    is_template = bodies[0].kind is CursorKind.FUNCTION_TEMPLATE
    if is_template and not template:
        types = CursorKind.TEMPLATE_NON_TYPE_PARAMETER
        named = [
            f"{each.type.spelling if each.kind is types else 'class'} {each.spelling}"
            for each in _template_parameters(bodies[0])
        ]
        raise RequestError(launches.asked(entry, named), where=where)
    if template and not is_template:
        raise RequestError(f"{entry} is not a template, so it has no instance", where=where)
    return bodies[0], found


def _template_head(body: cindex.Cursor, code: str) -> str:
    """`template <...>` in front of a kernel; empty where there is none."""
    parameters = _template_parameters(body)
    return code[body.extent.start.offset : code.find(">", parameters[-1].extent.end.offset) + 1] if parameters else ""


def _template_parameters(template: cindex.Cursor) -> list[cindex.Cursor]:
    kinds = (
        CursorKind.TEMPLATE_TYPE_PARAMETER,
        CursorKind.TEMPLATE_NON_TYPE_PARAMETER,
        CursorKind.TEMPLATE_TEMPLATE_PARAMETER,
    )
    return [each for each in cursors.children(template) if each.kind in kinds]


# --- the edited text ------------------------------------------------------------------------------------

_HEAD = (
    f"{shadows.MACROS}namespace fusiond_a {{\n{shadows.POISON}"
    "struct fusiond_barrier { __device__ void operator()() const; };\n"
)


def _second_look(text: EditedText, parsed: Parsed) -> Iterator[Rejection]:
    """What is wrong with the edited text of a unit that was right before."""
    unit = text.tree.where
    edited = applied(unit.text, parsed.edits, keep_lines=True)
    again = ClangTree(unit, edited, text.tree.reading, inside=(_HEAD, "}\n"))
    try:
        for line, _, message in again.errors():
            yield text.refusal(*_reason(message, min(max(line, 1), again.lines)))
        for top in cursors.written_in(again.cursor):
            for cursor in cursors.below(top) if top.kind.is_declaration() else ():
                if cursors.use(cursor):
                    detail = f"`{cursor.spelling}` names the built-in past its shadow"
                    yield text.refusal("leak", cursor.location.line - again.before, detail)
    finally:
        cursors.forget(again.unit)


def _reason(message: str, line: int) -> tuple[str, int, str]:
    """Rule, line and detail of a refusal, for an error in the edited text."""
    if "fusiond_leak" in message or "deleted function '__syncthreads" in message:
        return "leak", line, "a built-in variable or the barrier is used where no parameter can stand for it"
    if re.search(r"redefinition of '(threadIdx|blockIdx|blockDim|gridDim|__syncthreads)'", message):
        return "name", line, f"`{message.split(chr(39))[1]}` is the name of a variable; rename it"
    return "rewrite", line, f"it cannot be made part of another kernel: {message}"
