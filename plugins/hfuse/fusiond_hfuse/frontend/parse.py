"""The front end: reads a kernel with libclang. With shadows.py, barriers.py, divergence.py, parameters.py and
recheck.py the one home of libclang.

The source is parsed as it stands, against a stub of CUDA's declarations, so that neither a toolkit nor a GPU is
needed. Nothing is rewritten from the tree: a kernel's body stays word for word. All that is taken from the tree are
places to edit

    __global__ void __launch_bounds__(256) k(T* p, int n)  -->  __device__ __forceinline__ void k(SHADOWS, T* p, int n)
    extern __shared__ float tile[];                        -->  float* const tile = (float*)fusiond_shared;
    [n](int i) { return threadIdx.x + n; }                 -->  [threadIdx, n](int i) { return threadIdx.x + n; }
    T* p = Pool<T>();  (a struct that converts to it)      -->  T* p = Pool<T>(PASSED);
    extern "C" { ... }                                     -->  ...

and reasons to refuse. SHADOWS are parameters called `threadIdx`, `blockIdx`, `blockDim`, `gridDim` and
`__syncthreads`: they hide the built-in ones from the body, where the paper renames every use (Li et al., CGO 2022,
section III-A) and must lift all declarations to the top of the fused kernel (section III-C).

Then the edited text is parsed again, as it will stand in a fused source: whatever still names a built-in variable, or
does not compile any more, is a reason to refuse too (`recheck.py`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from clang import cindex
from clang.cindex import CursorKind

from fusiond.errors import RequestError, UnknownName
from fusiond.model import Rejection
from fusiond_hfuse.frontend import (
    barrier_divergence,
    barriers,
    cursors,
    divergence,
    groups,
    overloads,
    recheck,
    shadows,
)
from fusiond_hfuse.frontend.cuda_declarations import VECTOR_OF
from fusiond_hfuse.frontend.graph import Edit, Parsed, Unit, Variable
from fusiond_hfuse.frontend.includes import without_comments
from fusiond_hfuse.frontend.launches import parts
from fusiond_hfuse.frontend.parameters import DTYPES, Parameters, has_pointer
from fusiond_hfuse.frontend.recheck import HERE, MAIN, STUB_FILE
from fusiond_hfuse.frontend.shadows import PASSED, SHADOWS, SHARED

LEAST_ALIGNMENT, MOST_ALIGNMENT = 16, 128
"""Of the arena in dynamic shared memory, in bytes."""

_SCOPES = (CursorKind.NAMESPACE, CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL)
_RECORDS = (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL, CursorKind.CLASS_TEMPLATE, CursorKind.UNION_DECL,
            CursorKind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION)  # fmt: skip


def parse_unit(
    unit: Unit,
    entry: str,
    *,
    name: str,
    instance: str | None,
    defines: tuple[tuple[str, str], ...],
    where: str,
    flags: tuple[str, ...] = (),
    variables: tuple[str, ...] = (),
    move: bool = False,
) -> Parsed:
    """Parse a unit and look at one kernel of it.

    `name` is the kernel's for messages, `where` the YAML key that names the entry, `variables` those that the host
    sets. With `move`, static shared arrays become part of the dynamic one. RequestError for what is no CUDA or has no
    such kernel; what is CUDA, but cannot be fused, is a Rejection in the result.
    """
    return _parsed(_Asked((unit.text, unit.origins, unit.system), entry, name, instance, defines, where, flags,
                          variables, move, unit))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Asked:
    """All that decides a Parsed; the unit is what the text and the origins are of."""

    text: tuple[str, tuple[tuple[str, int], ...], tuple[str, ...]]
    entry: str
    name: str
    instance: str | None
    defines: tuple[tuple[str, str], ...]
    where: str
    flags: tuple[str, ...]
    variables: tuple[str, ...]
    move: bool
    unit: Unit = field(compare=False)


@functools.lru_cache(maxsize=64)  # a kernel stands in many pairs, and each of them reads its files again
def _parsed(asked: _Asked) -> Parsed:
    unit, flags, defines = asked.unit, asked.flags, asked.defines
    instance = asked.instance or asked.entry
    found: list[Parsed] = []
    readings = recheck.Readings(unit.text)
    for arch in recheck.architectures(unit.text):
        try:
            tree = recheck.Tree(unit, unit.text, instance, defines, flags, arch)
            try:
                if readings.repeats(tree.unit):
                    continue
                problem = tree.problem()
                if problem is not None:
                    raise problem
                reader = _Reader(unit, tree, asked.name, frozenset(asked.variables), asked.move)
                parsed = reader.read(asked.entry, asked.instance, asked.where)
                if not parsed.rejections:
                    left = recheck.rejections(unit, parsed, tree, instance, defines, flags, arch, reader.refusal)
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
    return _merged(found, asked.name)


def _with(parsed: Parsed, rejections: list[Rejection]) -> Parsed:
    return parsed.replaced(rejections=tuple(dict.fromkeys([*parsed.rejections, *rejections])))


def _merged(found: list[Parsed], name: str) -> Parsed:
    """One reading for all architectures: every edit that one of them asks for."""
    first = found[0]
    if len(found) == 1:
        return first
    edits = {edit for each in found for edit in each.edits}
    rejections = list(dict.fromkeys(rejection for each in found for rejection in each.rejections))
    places = [(edit.start, edit.end) for edit in edits if edit.end > edit.start]
    if len(set(places)) < len(places):
        detail = "it would have to be rewritten in one way for one `__CUDA_ARCH__`, and otherwise for another"
        rejections.append(Rejection(rule="architecture", nodes=(name,), detail=detail))
    bounds = [each.launch_bound for each in found if each.launch_bound is not None]
    static = [each.static_shared_bytes for each in found]
    return first.replaced(
        edits=tuple(sorted(edits, key=lambda edit: (edit.start, edit.end, edit.text))),
        rejections=tuple(rejections),
        beside=tuple(dict.fromkeys(rejection for each in found for rejection in each.beside)),
        uses_dynamic_shared=any(each.uses_dynamic_shared for each in found),
        static_shared_bytes=None if None in static else max(each or 0 for each in static),
        moved_bytes=max(each.moved_bytes for each in found),
        alignment=max(each.alignment for each in found),
        barriers=max(each.barriers for each in found),
        launch_bound=min(bounds, default=None),
        resident_blocks=max(each.resident_blocks for each in found),
        counted=any(each.counted for each in found),
        drains=any(each.drains for each in found),
        by_warps=any(each.by_warps for each in found),
        leaves=any(each.leaves for each in found),
        overloads=tuple(sorted({name for each in found for name in each.overloads})),
    )


class _Reader:
    """One pass over the tree of one unit; collects edits and rejections."""

    def __init__(self, unit: Unit, tree: recheck.Tree, name: str, wanted: frozenset[str], move: bool) -> None:
        self.unit = unit
        self.tree = tree
        self.name = name
        self.wanted = wanted
        self.move = move
        self.data = unit.text.encode()
        self.code = recheck.blanked(self.data)
        self.edits: dict[tuple[int, int], str] = {}
        self.rejections: list[Rejection] = []
        self.beside: list[Rejection] = []
        self.dynamic = False
        self.static_bytes: int | None = 0
        self.moved_bytes = 0
        self.alignment = LEAST_ALIGNMENT
        self.functions: list[cindex.Cursor] = []
        self.variables: dict[str, Variable] = {}
        self.settable: list[Variable] = []
        self.macros: list[tuple[int, int]] = []
        self.seeing: frozenset[str] = frozenset()
        self.holders: frozenset[str] = frozenset()
        self.constructors: frozenset[str] = frozenset()
        self.counted = False
        self.scope: tuple[str, ...] = ()
        self.head = ""

    def read(self, entry: str, instance: str | None, where: str) -> Parsed:
        ours = cursors.written_in(self.tree.cursor, MAIN)
        top = [each for each in ours if each.spelling not in recheck.OURS]
        self.macros = [
            (each.extent.start.offset, each.extent.end.offset)
            for each in ours
            if each.kind is CursorKind.MACRO_DEFINITION
        ]
        kernels = list(_kernels(top, ""))
        body, declarations = self._entry(kernels, entry, instance is not None, where)
        parameters = self.tree.parameters(body, where, Parameters(self.tree).of)
        for line, message in self.tree.unknown_groups():
            self.rejections.append(self.refusal("block_barrier", line, f"of cooperative groups: {message}"))
        self.scope = tuple(entry.split("::")[:-1])
        self.head = self._template_head(body)
        skipped = {each.hash for each in declarations}
        for cursor in top:
            self._outside(cursor, skipped, "")
        self._inner_methods(body)
        self.holders = frozenset(each.semantic_parent.spelling for each in self.functions if self._held(each))
        self.constructors = frozenset(shadows.named(each) for each in self.functions if shadows.constructs(each))
        calls = {each.hash: self._calls(each) for each in (*self.functions, body)}
        names = {each.hash: shadows.named(each) for each in (*self.functions, body)}
        own = {shadows.named(each) for each in self.functions if self._sees(each)} | self.holders
        self.seeing = shadows.closure(calls, names, own) - {body.spelling} if own else frozenset()
        waits = {each.spelling for each in (*self.functions, body) if self._waits(each)}
        meeting = shadows.closure(calls, names, waits) | {*barriers.BARRIERS, *self._group_waits()}
        for cursor in declarations:
            self._rewrite(cursor)
        for function in self.functions:
            if shadows.named(function) in self.seeing:
                self._hand_on(function)
                self._body(function)
            self._statics(function)
        self._body(body)
        self._statics(body)
        self._macro_calls()
        parting = self._parting(body, meeting)
        self.counted = any(each in self.code for each in shadows.COUNTED)
        by_warps = parting is not None and not self.counted and self._parting(body, meeting, by_warps=True) is None
        if parting is not None and (why := self._cannot_drain(by_warps)):
            detail = (
                f"some threads may leave before a barrier that others reach, {why}. Put the work behind the test "
                f"instead of returning"
            )
            self.beside.append(self.refusal("return_before_barrier", parting.location.line, detail))
        self.rejections += barriers.forbidden(self.tree.unit, self.refusal)
        self.rejections += barriers.grid_waits((body, *self.functions), self.refusal)
        self._global_names(top)
        self._macro_names(ours)
        self._linkage()
        for missing in sorted(self.wanted - set(self.variables)):
            raise UnknownName("variable of the source", missing, set(self.variables) or {"none"}, where=where)
        moved = -(-self.moved_bytes // self.alignment) * self.alignment
        return Parsed(
            entry=entry,
            parameters=parameters,
            edits=tuple(
                Edit(start=start, end=end, text=text.replace(_MOVED, str(moved)))
                for (start, end), text in sorted(self.edits.items())
            ),
            uses_dynamic_shared=self.dynamic or self.moved_bytes > 0,
            static_shared_bytes=self.static_bytes,
            moved_bytes=moved,
            alignment=self.alignment,
            barriers=sum(self._own_barriers(each) for each in (body, *self.functions)),
            launch_bound=self._launch_bound(body, 0),
            resident_blocks=self._launch_bound(body, 1) or 0,
            counted=self.counted,
            drains=parting is not None,
            by_warps=by_warps and bool(self._meets()),
            leaves=barrier_divergence.leaves(body),
            meets=self._meets(),
            variables=tuple(self.variables[each] for each in sorted(self.wanted)),
            settable=tuple(self.settable),
            overloads=overloads.declared({each.spelling for each in (body, *self.functions) if _free(each)}, self.code),
            rejections=tuple(dict.fromkeys(self.rejections)),
            beside=tuple(self.beside),
        )

    # --- finding the kernel ---

    def _entry(
        self, kernels: list[tuple[str, cindex.Cursor]], entry: str, template: bool, where: str
    ) -> tuple[cindex.Cursor, list[cindex.Cursor]]:
        found = [cursor for name, cursor in kernels if name == entry]
        if not found:
            raise UnknownName("kernel", entry, {name for name, _ in kernels}, where=where)
        bodies = [cursor for cursor in found if cursor.is_definition()]
        if len(bodies) != 1:
            what = "is only declared" if not bodies else "is defined more than once (overloads or specialisations)"
            raise RequestError(f"{entry} {what}; this version wants one definition", where=where)
        is_template = bodies[0].kind is CursorKind.FUNCTION_TEMPLATE
        if is_template and not template:
            head = ", ".join(_template_parameters(bodies[0]))
            example = f"{entry}<{', '.join(_EXAMPLES.get(kind, '128') for kind in _template_kinds(bodies[0]))}>"
            raise RequestError(
                f'{entry} is a template <{head}>; say which instance: `instance: "{example}"` in its YAML, '
                f"FILE.cu:'{example}' for `fusiond init`",
                where=where,
            )
        if template and not is_template:
            raise RequestError(f"{entry} is no template, so it has no instance", where=where)
        return bodies[0], found

    def _template_head(self, body: cindex.Cursor) -> str:
        """`template <...>` in front of a kernel."""
        text = self.data[body.extent.start.offset : body.location.offset].decode("latin-1")
        opening = re.match(r"template\s*<", text)
        if opening is None:
            return ""
        depth, at = 1, opening.end()
        while depth and at < len(text):
            depth += {"<": 1, ">": -1}.get(text[at], 0)
            at += 1
        return text[:at]

    def _constant(self, expression: str) -> int | None:
        return self.tree.constant(expression, self.scope, self.head)

    def _outside(self, cursor: cindex.Cursor, skipped: set[int], scope: str) -> None:
        """What stands round the kernel: functions that may see the block, variables that the host must set."""
        if cursor.hash in skipped:
            return
        if cursor.kind in shadows.FUNCTIONS:
            self.functions.append(cursor)
            self._inner_methods(cursor)
        elif cursor.kind is CursorKind.VAR_DECL:
            self._variable(cursor, scope)
        elif cursor.kind in _SCOPES or cursor.kind in _RECORDS:
            inner = scope
            if cursor.kind not in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL) and cursor.spelling:
                inner = f"{scope}{cursor.spelling}::"
            for child in cursors.children(cursor):
                self._outside(child, skipped, inner)

    def _inner_methods(self, function: cindex.Cursor) -> None:
        """The methods of types that stand inside a function."""
        for cursor, inside in cursors.preorder(function):
            if cursor.kind in shadows.FUNCTIONS and inside and inside[-1].kind in _RECORDS:
                self.functions.append(cursor)

    def _sees(self, function: cindex.Cursor) -> bool:
        """Whether a function itself uses a built-in variable, a barrier, or the arena in dynamic shared memory."""
        return any(
            shadows.use(each, STUB_FILE) or shadows.dynamic_shared(each) or (self.move and shadows.shared(each))
            for each in cursors.below(function)
        )

    def _held(self, function: cindex.Cursor) -> bool:
        """Whether a function turns an empty struct into the dynamic shared array, as CUDA's samples have it."""
        record = function.semantic_parent
        if function.kind is not CursorKind.CONVERSION_FUNCTION or not self._sees(function):
            return False
        barred = (CursorKind.FIELD_DECL, CursorKind.CONSTRUCTOR, CursorKind.DESTRUCTOR, CursorKind.CXX_BASE_SPECIFIER)
        return not any(shadows.use(each, STUB_FILE) for each in cursors.below(function)) and not any(
            each.kind in barred for each in cursors.children(record)
        )

    def _hold(self, record: cindex.Cursor) -> None:
        """Such a struct gets the arena's place when it is made."""
        opening = self.code.index("{", record.location.offset) + 1
        name = record.spelling.partition("<")[0]
        constructor = f"__device__ __forceinline__ {name}({SHADOWS}) : {SHARED}({SHARED}) {{}}"
        self._edit(opening, opening, f" void* {SHARED}; {constructor}")

    def _waits(self, function: cindex.Cursor) -> bool:
        waits = {*barriers.BARRIERS, *self._group_waits()}
        return any(
            each.kind is CursorKind.CALL_EXPR and each.spelling in waits and not shadows.of_a_tile(each)
            for each in cursors.below(function)
        )

    def _group_waits(self) -> tuple[str, ...]:
        return ("sync",) if self.tree.groups else ()

    def _parting(self, body: cindex.Cursor, meeting: frozenset[str], *, by_warps: bool = False) -> cindex.Cursor | None:
        """Where threads may part before a barrier, in the kernel or in a function that waits; those of one warp where
        `by_warps` is asked."""
        callees = divergence.Callees(self.functions, self.data, self._constant if by_warps else None)
        for function in (body, *self.functions):
            if function.is_definition() and divergence.body_of(function) is not None:
                found = barrier_divergence.diverges(function, meeting, callees, is_kernel=function is body)
                if found is not None:
                    return found
        return None

    def _cannot_drain(self, by_warps: bool) -> str:
        """Why threads that leave early cannot go on voting at the barriers of the others; empty when they can."""
        if self.counted:
            return "in a kernel with `__syncthreads_count`, `_and` or `_or`"
        meets = self._meets()
        if meets and not by_warps:  # it waits for every thread of its mask that still runs, and who votes still runs
            return f"in a kernel where threads of a warp meet in `{meets}`"
        return ""

    def _meets(self) -> str:
        """The first word of the text that threads of a warp wait for each other in."""
        found = re.search(r"\b(__\w+_sync|__syncwarp|tiled_partition|thread_block_tile)\b", self.code)
        return found.group() if found else ""

    def _calls(self, function: cindex.Cursor) -> frozenset[str]:
        """The names that a function may call: those that the tree resolves, and those it leaves to an instantiation."""
        return frozenset(name for _, name in self._mentions(function))

    def _mentions(self, function: cindex.Cursor) -> Iterator[tuple[int, str]]:
        """(offset, name) of every place in a function where one of the user's functions may be called."""
        own = {shadows.named(each) for each in self.functions} | self.holders
        elsewhere = set()
        for cursor in cursors.below(function):
            offset = cursor.location.offset
            if cursor.kind in (CursorKind.DECL_REF_EXPR, CursorKind.MEMBER_REF_EXPR, CursorKind.OVERLOADED_DECL_REF):
                target = cursor.referenced
                if cursor.spelling in own and (
                    cursor.kind is CursorKind.OVERLOADED_DECL_REF or target is None or shadows.callable_of(target, MAIN)
                ):
                    yield offset, cursor.spelling
                elif target is not None and not shadows.callable_of(target, MAIN):
                    elsewhere.add(offset)
            elif cursor.kind is CursorKind.CALL_EXPR and cursor.spelling in own:
                if cursor.referenced is not None and shadows.callable_of(cursor.referenced, MAIN):
                    yield -1, cursor.spelling  # a constructor, a conversion: called without being named
            elif cursor.kind.is_declaration():
                elsewhere.add(offset)
        start, end = function.extent.start.offset, function.extent.end.offset
        for match in re.finditer(r"[A-Za-z_]\w*", self.code[start:end]):
            if match.group() in own and start + match.start() not in elsewhere:
                yield start + match.start(), match.group()

    # --- edits ---

    def _rewrite(self, cursor: cindex.Cursor) -> None:
        """A declaration or the definition of the kernel becomes a device function with shadow parameters."""
        head = self.code[cursor.extent.start.offset : cursor.location.offset]
        inline = re.search(r"\b(inline|__inline__|__forceinline__)\b", head)
        device = "__device__" if inline else "__device__ __forceinline__"
        for child in cursors.children(cursor):
            start, end = child.extent.start.offset, child.extent.end.offset
            text = self.code[start:end]
            if child.kind is CursorKind.CUDAGLOBAL_ATTR:
                if text == "__global__":
                    self._edit(start, end, device)
                elif not self._in_macros(r"\b__global__\b", device):
                    self._refuse("macro", child, "`__global__` stands inside a macro")
            elif child.kind is CursorKind.ANNOTATE_ATTR and child.spelling.startswith(("launch_bounds", "maxnreg")):
                word = "__launch_bounds__" if child.spelling.startswith("launch_bounds") else "__maxnreg__"
                place = re.compile(word + r"\s*\(").match(self.code, start)
                if place is None:
                    self._in_macros(word + r"\s*\((?:[^()]|\([^()]*\))*\)", "")
                else:
                    self._edit(start, self._behind(place.end()), "")
            elif child.kind is CursorKind.ANNOTATE_ATTR and child.spelling == "cluster_dims":
                self._refuse("cluster", child, "`__cluster_dims__`: thread block clusters are not supported")
        for parameter in _parameters(cursor):
            for child in cursors.children(parameter):
                if child.kind is CursorKind.ANNOTATE_ATTR and child.spelling == "grid_constant":
                    self._edit(child.extent.start.offset, child.extent.end.offset, "")
        self._shadow(cursor)

    def _behind(self, opened: int) -> int:
        """The offset behind the parenthesis that closes one opened just before `opened`."""
        depth = 1
        while depth and opened < len(self.code):
            depth += {"(": 1, ")": -1}.get(self.code[opened], 0)
            opened += 1
        return opened

    def _in_macros(self, pattern: str, text: str) -> bool:
        """Replace a pattern in the macros of the file; whether it stood in one."""
        found = False
        for start, end in self.macros:
            for match in re.finditer(pattern, self.code[start:end]):
                found = True
                self._edit(start + match.start(), start + match.end(), text)
        return found

    def _hand_on(self, function: cindex.Cursor) -> None:
        """A function or method that sees the block gets the shadow parameters; what is called without a list of
        arguments cannot."""
        name = function.spelling
        parent = function.semantic_parent
        method = parent is not None and parent.kind in _RECORDS
        special = function.kind in (CursorKind.DESTRUCTOR, CursorKind.CONVERSION_FUNCTION)
        if self._held(function):
            self._hold(parent)
        elif special or name.startswith("operator"):
            rule = "method" if method else "helper"
            self._refuse(rule, function, f"`{name}` sees the block, and can take no more parameters; use a function")
        elif method and function.is_virtual_method():
            self._refuse("method", function, f"the virtual method {name} sees the block")
        else:
            self._shadow(function)

    def _shadow(self, function: cindex.Cursor) -> None:
        """Put the shadow parameters in front of a function's own."""
        opening = shadows.behind_parenthesis(self.data, function.location.offset, shadows.named(function))
        if opening is None:
            self._refuse("macro", function, f"the declaration of {function.spelling} stands inside a macro")
            return
        closing = self._behind(opening) - 1
        inner = self.code[opening:closing].strip()
        self._edit(opening, opening, SHADOWS if inner in ("", "void") else f"{SHADOWS}, ")
        if inner == "void":
            self._edit(opening, closing, "")

    def _pass(self, offset: int, name: str) -> bool:
        """Hand the shadows on in a call; whether there is one at this place."""
        opening = shadows.behind_parenthesis(self.data, offset, name)
        if opening is None:
            return False
        empty = self.code[opening:].lstrip().startswith(")")
        self._edit(opening, opening, PASSED if empty else f"{PASSED}, ")
        return True

    def _linkage(self) -> None:
        """`extern "C"` goes, before a declaration or round several: two namespaces cannot both have a C function of one
        name."""
        kept = without_comments(self.data.decode("latin-1"))
        for match in re.finditer(r'\bextern\s*"C(\+\+)?"\s*(\{)?', kept):
            if self.code[match.start() : match.start() + 6] != "extern":
                continue  # inside a string
            if match.group(2) is None:
                self._edit(match.start(), match.end(), "")
                continue
            closing = self._closing(match.end() - 1)
            if closing is None:
                line = kept.count("\n", 0, match.start()) + 1
                self.rejections.append(self.refusal("linkage_block", line, '`extern "C" {` has no end in the file'))
                continue
            self._edit(match.start(), match.end(), "")
            self._edit(closing, closing + 1, "")

    def _global_names(self, top: list[cindex.Cursor]) -> None:
        """`::name` of the user's own is now a name of the kernel's namespace."""
        names = set()
        scopes = list(top)
        while scopes:
            each = scopes.pop()
            inner = each.kind in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL, CursorKind.ENUM_DECL)
            if inner or (each.kind is CursorKind.NAMESPACE and not each.spelling.isidentifier()):
                scopes += list(cursors.children(each))
            names.add(each.spelling)
        for match in re.finditer(r"::\s*([A-Za-z_]\w*)", self.code):
            before = re.search(r"(\w+|>|\))\s*$", self.code[max(0, match.start() - 200) : match.start()])
            if match.group(1) in names and (before is None or before.group(1) in _BEFORE_NAMES):
                self._edit(match.start(), match.start(1), f" ::{HERE}::")

    def _macro_names(self, ours: list[cindex.Cursor]) -> None:
        """A macro must not be called like what is written round the text."""
        for each in ours:
            if each.kind is CursorKind.MACRO_DEFINITION and _RESERVED.fullmatch(each.spelling):
                self._refuse("macro", each, f"a macro called `{each.spelling}`; call it otherwise")

    def _closing(self, opening: int) -> int | None:
        """The offset of the brace that closes the one at `opening`."""
        depth = 0
        for match in re.compile(r"[{}]").finditer(self.code, opening):
            depth += 1 if match.group() == "{" else -1
            if depth == 0:
                return match.start()
        return None

    def _macro_calls(self) -> None:
        """Calls of functions that see the block, in the macros of the file."""
        for start, end in self.macros:
            head = re.match(r"\w+", self.code[start:end])
            for match in re.finditer(r"[A-Za-z_]\w*", self.code[start:end]):
                name = match.group()
                if head is not None and match.start() < head.end():
                    continue
                if name in self.seeing or (name in groups.NAMES and self.tree.groups):
                    self._pass(start + match.start(), name)

    def _edit(self, start: int, end: int, text: str) -> None:
        self.edits[start, end] = text

    # --- looking at a function ---

    def _body(self, function: cindex.Cursor) -> None:
        """Shared variables of a function that sees the block, calls of others, lambdas, the block's group."""
        globals_: dict[str, str] = {}
        for cursor, inside in cursors.preorder(function):
            if cursor.kind is CursorKind.VAR_DECL and shadows.shared(cursor):
                if cursor.storage_class is cindex.StorageClass.EXTERN:
                    self._dynamic_array(cursor, inside)
            elif cursor.kind is CursorKind.LAMBDA_EXPR:
                self._lambda(cursor)
            elif cursor.kind is CursorKind.DECL_REF_EXPR and shadows.dynamic_shared(cursor):
                at = cursor.referenced.location.offset
                outside = not function.extent.start.offset <= at < function.extent.end.offset
                if outside and cursor.referenced.type.kind is cindex.TypeKind.INCOMPLETEARRAY:
                    globals_[cursor.spelling] = cursor.referenced.type.element_type.spelling
            elif (
                shadows.use(cursor, STUB_FILE)
                and cursor.spelling in groups.NAMES
                and not self._pass(cursor.location.offset, cursor.spelling)
                and not self._named_in_macro(cursor.spelling)
            ):
                self._refuse("helper", cursor, f"{cursor.spelling} is named, but not called")
        for offset, name in dict.fromkeys(self._mentions(function)):
            if name in self.seeing and offset >= 0:
                self._called(function, offset, name)
        statement = divergence.body_of(function)
        if globals_ and function.is_definition() and statement is not None:
            self.dynamic = True
            behind = statement.extent.start.offset + 1
            lines = [self._arena_pointer(element, name) for name, element in sorted(globals_.items())]
            self._edit(behind, behind, " " + " ".join(lines))

    def _called(self, function: cindex.Cursor, offset: int, name: str) -> None:
        """A place where a function that sees the block is named: a call, or it is refused."""
        here = self.code[offset : offset + len(name)] == name
        if here and any(each.location.offset == offset for each in self.functions):
            return  # a declaration
        if name.startswith("operator ") and self.holders:
            return  # a conversion, which has what it needs in its struct
        if name in self.holders or name in self.constructors:
            self._made(offset, name)
            return  # a type, if nothing is made here; what is made otherwise does not compile any more
        if self._pass(offset, name) or (
            not here and (self._named_in_macro(name) or self._handed_to_macro(offset, name))
        ):
            return
        line = self.code.count("\n", 0, offset) + 1
        what = "its address is taken" if here else "a macro names it"
        self.rejections.append(self.refusal("helper", line, f"{name} sees the block, and {what}"))

    def _named_in_macro(self, name: str) -> bool:
        return any(re.search(rf"\b{name}\s*[(<]", self.code[start:end]) for start, end in self.macros)

    def _made(self, offset: int, name: str) -> None:
        """Hand the shadows to a struct that is made here: `Lane lane;`, `Lane lane(1);`, `Lane{1}`, `Pool<T>()`."""
        head = re.compile(rf"{name}\s*(?:<[^;(){{}}]*>)?\s*(?P<variable>\w*)\s*(?P<mark>[({{;])").match(
            self.code, offset
        )
        if head is None:
            return
        variable, mark = head.start("variable"), head.group("mark")
        if mark == ";":
            if head.group("variable"):
                self._edit(head.end("variable"), head.end("variable"), f"({PASSED})")
        elif not any(each.location.offset == variable for each in self.functions):  # it is no function that gives one
            empty = self.code[head.end() :].lstrip()[:1] in (")", "}")
            self._edit(head.end(), head.end(), PASSED if empty else f"{PASSED}, ")

    def _handed_to_macro(self, offset: int, name: str) -> bool:
        """Whether it is named in the arguments of the macro that is used here: that place is looked at by itself."""
        opening = re.compile(r"\w+\s*\(").match(self.code, offset)
        if opening is None:
            return False
        arguments = self.code[opening.end() : self._behind(opening.end()) - 1]
        return re.search(rf"\b{re.escape(name)}\b", arguments) is not None

    def _lambda(self, cursor: cindex.Cursor) -> None:
        """A lambda that captures by name gets the shadows that it uses; one with `=` or `&` has them anyway."""
        used = dict.fromkeys(
            each.spelling
            for each in cursors.below(cursor)
            if shadows.use(each, STUB_FILE) and each.spelling not in groups.NAMES
        )
        arrays = dict.fromkeys(
            each.spelling
            for each in cursors.below(cursor)
            if each.kind is CursorKind.DECL_REF_EXPR and shadows.dynamic_shared(each)
        )
        hands_on = any(name in self.seeing or name in groups.NAMES for _, name in self._mentions(cursor))
        hands_on |= any(
            shadows.use(each, STUB_FILE) and each.spelling in groups.NAMES for each in cursors.below(cursor)
        )
        hands_on |= self.move and any(shadows.shared(each) for each in cursors.below(cursor))
        if not used and not hands_on and not arrays:
            return
        start = cursor.extent.start.offset
        if self.code[start : start + 1] != "[":
            self._refuse("lambda", cursor, "a lambda that sees the block stands in a macro")
            return
        inner = self.code[start + 1 :].lstrip()
        if re.match(r"=|&\s*[,\]]", inner):
            return
        wanted = [PASSED] if hands_on else list(used)
        wanted += list(arrays)
        self._edit(start + 1, start + 1, ", ".join(wanted) + ("" if inner.startswith("]") else ", "))

    # --- shared and other variables ---

    def _dynamic_array(self, cursor: cindex.Cursor, inside: tuple[cindex.Cursor, ...]) -> None:
        self.dynamic = True
        statement = next((each for each in reversed(inside) if each.kind is CursorKind.DECL_STMT), None)
        element = cursor.type.element_type.spelling if cursor.type.kind is cindex.TypeKind.INCOMPLETEARRAY else None
        if statement is None or element is None:
            self._refuse("extern_shared", cursor, f"`extern __shared__ {cursor.spelling}` is no plain array in a body")
            return
        start, end = statement.extent.start.offset, statement.extent.end.offset
        text = self.code[start:end]
        if "extern" not in text or not text.endswith(";") or len(list(cursors.children(statement))) != 1:
            self._refuse("extern_shared", cursor, "`extern __shared__` in a macro, or with several names")
            return
        self._aligned(cursor, text)
        lines = self.data[start:end].count(b"\n")
        self._edit(start, end, self._arena_pointer(element, cursor.spelling) + "\n" * lines)

    def _aligned(self, cursor: cindex.Cursor, declaration: str) -> None:
        own = max(0, cursor.type.element_type.get_align())
        for each in re.finditer(r"\b(?:__align__|alignas|aligned)\s*(?=\()", declaration):
            inner = declaration[each.end() : _closed(declaration, each.end())].strip()
            while inner.startswith("(") and _closed(inner, 0) == len(inner):
                inner = inner[1:-1].strip()
            asked = self._constant(inner)
            own = max(own, self._constant(f"alignof({inner})") or MOST_ALIGNMENT + 1 if asked is None else asked)
        if own > MOST_ALIGNMENT:
            detail = f"`{cursor.spelling}` asks for more than {MOST_ALIGNMENT} bytes of alignment"
            self._refuse("alignment", cursor, detail)
        self.alignment = max(self.alignment, own)

    def _arena_pointer(self, element: str, name: str) -> str:
        """The declaration that stands for a dynamic shared array. `element` is as written in the source, so that it
        means in the body what it meant in the declaration."""
        alias = ""
        if "[" in element:  # an array of arrays: a pointer to one of them needs a name for the type
            alias, element = f"using fusiond_{name} = {element}; ", f"fusiond_{name}"
        # What was moved lies before it, and what is moved is counted before the text is complete: see `_place`.
        return f"{alias}{element}* const {name} = reinterpret_cast<{element}*>({self._place()});"

    def _place(self) -> str:
        return f"static_cast<unsigned char*>({SHARED}) + {_MOVED}" if self.move else SHARED

    def _statics(self, function: cindex.Cursor) -> None:
        """Static variables of a function: shared arrays, which count, and what keeps its value from run to run."""
        for cursor, inside in cursors.preorder(function):
            if cursor.kind is not CursorKind.VAR_DECL or any(each.kind in shadows.FUNCTIONS for each in inside[1:]):
                continue
            if shadows.shared(cursor):
                if cursor.storage_class is not cindex.StorageClass.EXTERN:
                    self._static_array(cursor, inside)
            elif (
                cursor.storage_class is cindex.StorageClass.STATIC
                and not _constant(cursor.type)
                and not _host_only(function)
            ):
                detail = f"`static {cursor.spelling}` keeps its value from run to run; pass a buffer instead"
                self._refuse("symbol", cursor, detail)

    def _static_array(self, cursor: cindex.Cursor, inside: tuple[cindex.Cursor, ...]) -> None:
        size = cursor.type.get_size()
        self.static_bytes = None if size < 0 or self.static_bytes is None else self.static_bytes + size
        if not self.move:
            return
        if self.static_bytes is not None:
            self.static_bytes -= max(size, 0)  # no static memory any more
        statement = next((each for each in reversed(inside) if each.kind is CursorKind.DECL_STMT), None)
        text = "" if statement is None else self.code[statement.extent.start.offset : statement.extent.end.offset]
        spelling = cursor.type.spelling
        if size < 0 or statement is None or "__shared__" not in text or not text.endswith(";") or "(" in spelling:
            self._refuse("static_shared", cursor, f"`{cursor.spelling}` cannot become part of the dynamic array")
            return
        start, end = statement.extent.start.offset, statement.extent.end.offset
        alignment = max([16, cursor.type.get_align(), *map(int, re.findall(r"align\w*\s*\(+\s*(\d+)", text))])
        place = -(-self.moved_bytes // alignment) * alignment
        self.moved_bytes = place + size
        self.alignment = max(self.alignment, alignment)
        name = f"fusiond_{cursor.spelling}"
        moved = (
            f"using {name} = {spelling}; {name}& {cursor.spelling} = "
            f"*reinterpret_cast<{name}*>(static_cast<unsigned char*>({SHARED}) + {place});"
        )
        before = self.edits.get((start, end), "\n" * text.count("\n"))
        self._edit(start, end, f"{moved} {before}".rstrip(" "))

    def _variable(self, cursor: cindex.Cursor, scope: str) -> None:
        name = f"{scope}{cursor.spelling}"
        constant = _has(cursor, CursorKind.CUDACONSTANT_ATTR)
        if shadows.shared(cursor):
            if cursor.storage_class is not cindex.StorageClass.EXTERN:
                self.static_bytes = None if self.static_bytes is None else self.static_bytes + cursor.type.get_size()
                if self.move:
                    self._refuse("static_shared", cursor, f"`{name}` cannot become part of the dynamic array")
            elif cursor.type.kind is cindex.TypeKind.INCOMPLETEARRAY:
                self._file_wide_array(cursor)
            else:
                self._refuse("extern_shared", cursor, f"`extern __shared__ {name}` is no array of unknown length")
        elif constant or _has(cursor, CursorKind.CUDADEVICE_ATTR):
            element = cursor.type.get_canonical()
            while element.kind is cindex.TypeKind.CONSTANTARRAY:
                element = element.element_type
            bare = re.sub(r"^(const |volatile )+", "", element.spelling)
            self.variables[name] = Variable(
                name=name,
                bytes=cursor.type.get_size(),
                dtype=DTYPES.get(VECTOR_OF.get(bare, bare)),
                constant=constant,
                address=has_pointer(element),
            )
            if self.variables[name].address and cursor.storage_class is not cindex.StorageClass.EXTERN:
                self._address(cursor, name)
                return
            if name in self.wanted or cursor.storage_class is cindex.StorageClass.EXTERN:
                return
            text = self.code[cursor.extent.start.offset : cursor.extent.end.offset]
            if constant and "=" not in text and "{" not in text:
                detail = (
                    f"`__constant__ {name}` is set by the host; say with what under `constants:`, or initialise it in "
                    f"the source"
                )
                self._refuse("symbol", cursor, detail)
                self.settable.append(self.variables[name])
            elif not constant and not _constant(cursor.type):
                detail = (
                    f"`__device__ {name}` keeps its value from run to run; pass a buffer, or give it a start under "
                    f"`constants:`"
                )
                self._refuse("symbol", cursor, detail)
                self.settable.append(self.variables[name])

    def _address(self, cursor: cindex.Cursor, name: str) -> None:
        """A variable that is an address, or holds one: of what was allocated before the launch, so the host sets it."""
        text = self.code[cursor.extent.start.offset : cursor.extent.end.offset]
        if "=" not in text or name in self.wanted:
            detail = (
                f"`{name}` has an address in it that the host sets, and no buffer can hold one; make it a parameter of "
                f"the kernel"
            )
            self._refuse("symbol", cursor, detail)

    def _file_wide_array(self, cursor: cindex.Cursor) -> None:
        start, end = cursor.extent.start.offset, cursor.extent.end.offset
        while (before := _SPECIFIER.search(self.code, 0, start)) is not None:  # `__shared__ extern float tile[];`
            start = before.start()
        if not re.search(r"\bextern\b", self.code[start:end]) or self.data[end : end + 1] != b";":
            self._refuse("extern_shared", cursor, "`extern __shared__` in a macro, or with several names")
        else:
            self._aligned(cursor, self.code[start:end])
            lines = self.data[start:end].count(b"\n")
            self._edit(start, end + 1, "\n" * lines)  # each function that uses it gets a pointer of that name

    # --- numbers ---

    def _own_barriers(self, function: cindex.Cursor) -> int:
        return sum(
            1
            for each in cursors.below(function)
            if each.kind is CursorKind.CALL_EXPR and each.spelling in barriers.BARRIERS
        )

    def _launch_bound(self, cursor: cindex.Cursor, place: int) -> int | None:
        """An argument of `__launch_bounds__`: the most threads, then the least resident blocks."""
        for child in cursors.children(cursor):
            if child.kind is CursorKind.ANNOTATE_ATTR and child.spelling.startswith("launch_bounds "):
                given = parts(child.spelling.partition(" ")[2])
                return self._constant(given[place]) if place < len(given) else None
        return None

    # --- saying no ---

    def _refuse(self, rule: str, cursor: cindex.Cursor, detail: str) -> None:
        self.rejections.append(self.refusal(rule, cursor.location.line, detail))

    def refusal(self, rule: str, line: int, detail: str) -> Rejection:
        return Rejection(rule=rule, nodes=(self.name,), detail=f"{self.unit.where(line)}: {' '.join(detail.split())}")


# --- small questions about cursors ----------------------------------------------------------------------


_RESERVED = re.compile(
    r"(?i:fusiond_)\w*|(?:thread|block)Idx|(?:block|grid)Dim|__syncthreads\w*|u?int3|dim3|make_uint3|const|void|unsigned"
    r"|int|struct|operator|return|while|if|using|namespace|extern|static_cast|reinterpret_cast"
)
_SPECIFIER = re.compile(r"\b(?:extern|__shared__|volatile|const)\s*\Z")
_BEFORE_NAMES = ("return", "case", "else", "do", "new", "sizeof", "throw", "typename", "const", "constexpr", "static")
_MOVED = "FUSIOND_MOVED"
"""Stands for how many bytes were moved before the dynamic array; a macro of the namespace."""


def _has(cursor: cindex.Cursor, kind: CursorKind) -> bool:
    return any(child.kind is kind for child in cursors.children(cursor))


def _constant(kind: cindex.Type) -> bool:
    while kind.kind in (cindex.TypeKind.CONSTANTARRAY, cindex.TypeKind.DEPENDENTSIZEDARRAY):
        if kind.is_const_qualified():
            return True
        kind = kind.element_type
    return bool(kind.is_const_qualified())


def _host_only(function: cindex.Cursor) -> bool:
    return not any(
        child.kind in (CursorKind.CUDADEVICE_ATTR, CursorKind.CUDAGLOBAL_ATTR) for child in cursors.children(function)
    )


def _closed(text: str, opening: int) -> int:
    """The place behind the parenthesis that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    return len(text)


def _free(function: cindex.Cursor) -> bool:
    """Whether a function is no method."""
    parent = function.semantic_parent
    return parent is None or parent.kind not in _RECORDS


def _parameters(cursor: cindex.Cursor) -> list[cindex.Cursor]:
    return [child for child in cursors.children(cursor) if child.kind is CursorKind.PARM_DECL]


_TEMPLATE_PARAMETERS = (CursorKind.TEMPLATE_TYPE_PARAMETER, CursorKind.TEMPLATE_NON_TYPE_PARAMETER,
                        CursorKind.TEMPLATE_TEMPLATE_PARAMETER)  # fmt: skip
_EXAMPLES = {"class": "float", "bool": "true", "template": "?"}
"""What stands for a template's parameter in a message, by its kind."""


def _template_kinds(template: cindex.Cursor) -> list[str]:
    return [
        "class"
        if each.kind is CursorKind.TEMPLATE_TYPE_PARAMETER
        else "template"
        if each.kind is CursorKind.TEMPLATE_TEMPLATE_PARAMETER
        else str(each.type.spelling)
        for each in cursors.children(template)
        if each.kind in _TEMPLATE_PARAMETERS
    ]


def _template_parameters(template: cindex.Cursor) -> list[str]:
    names = [each.spelling for each in cursors.children(template) if each.kind in _TEMPLATE_PARAMETERS]
    return [f"{kind} {name}".strip() for kind, name in zip(_template_kinds(template), names, strict=True)]


def _kernels(nodes: list[cindex.Cursor], scope: str) -> Iterator[tuple[str, cindex.Cursor]]:
    """(qualified name, cursor) of every `__global__` function, declarations included."""
    for cursor in nodes:
        if cursor.kind in _SCOPES:
            inner = f"{scope}{cursor.spelling}::" if cursor.kind is CursorKind.NAMESPACE and cursor.spelling else scope
            yield from _kernels(list(cursors.children(cursor)), inner)
        elif cursor.kind in (CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE) and _has(
            cursor, CursorKind.CUDAGLOBAL_ATTR
        ):
            yield scope + cursor.spelling, cursor
