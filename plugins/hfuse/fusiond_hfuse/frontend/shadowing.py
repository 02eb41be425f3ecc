"""Puts the shadow parameters where they are declared and handed on: see shadows.py.

__global__ void __launch_bounds__(256) k(T* p, int n)  -->  __device__ __forceinline__ void k(SHADOWS, T* p, int n)
[n](int i) { return threadIdx.x + n; }                 -->  [threadIdx, n](int i) { return threadIdx.x + n; }
T* p = Pool<T>();  (a struct that converts to it)      -->  T* p = Pool<T>(PASSED);
extern "C" { ... }                                     -->  ...
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fusiond_hfuse.frontend import constructs, cooperative_groups, cursors, shadows
from fusiond_hfuse.frontend.call_graph import CallGraph
from fusiond_hfuse.frontend.clang_tree import DECLARATIONS_FILE
from fusiond_hfuse.frontend.cursors import RECORDS, SCOPES, CursorKind, cindex
from fusiond_hfuse.frontend.edited_text import EditedText
from fusiond_hfuse.frontend.shadows import PASSED, SHADOWS, SHARED
from fusiond_hfuse.frontend.shared_memory import SharedMemory
from fusiond_hfuse.frontend.source_kernel import HERE

_RESERVED = re.compile(
    r"(?i:fusiond_)\w*|(?:thread|block)Idx|(?:block|grid)Dim|__syncthreads\w*|u?int3|dim3|make_uint3|const|void|unsigned"
    r"|int|struct|operator|return|while|if|using|namespace|extern|static_cast|reinterpret_cast"
)
_LINKAGE = re.compile(r'\bextern\s*" *"\s*(\{)?')
"""Of a text whose strings are blank."""
_BEFORE_NAMES = ("return", "case", "else", "do", "new", "sizeof", "throw", "typename", "const", "constexpr", "static")


class Shadowing:
    """The edits of one reading that have to do with who sees the block."""

    def __init__(self, text: EditedText, graph: CallGraph, shared: SharedMemory) -> None:
        self.text = text
        self.graph = graph
        self.shared = shared

    def rewrite(self, cursor: cindex.Cursor) -> None:
        """A declaration or the definition of the kernel becomes a device function with shadow parameters."""
        head = self.text.code[cursor.extent.start.offset : cursor.location.offset]
        inline = re.search(r"\b(inline|__inline__|__forceinline__)\b", head)
        device = "__device__" if inline else "__device__ __forceinline__"
        for child in cursors.children(cursor):
            start, end = child.extent.start.offset, child.extent.end.offset
            text = self.text.code[start:end]
            if child.kind is CursorKind.CUDAGLOBAL_ATTR:
                if text == "__global__":
                    self.text.edit(start, end, device)
                elif not self.text.in_macros("__global__", device):
                    self.text.refuse("macro", child, "`__global__` stands inside a macro")
            elif child.kind is CursorKind.ANNOTATE_ATTR and child.spelling.startswith(("launch_bounds", "maxnreg")):
                word = "__launch_bounds__" if child.spelling.startswith("launch_bounds") else "__maxnreg__"
                place = re.compile(word + r"\s*\(").match(self.text.code, start)
                if place is None:
                    self.text.in_macros(word, "", called=True)
                else:
                    self.text.edit(start, self.text.behind(place.end()), "")
            elif child.kind is CursorKind.ANNOTATE_ATTR and child.spelling == "cluster_dims":
                self.text.refuse("cluster", child, "`__cluster_dims__`: thread block clusters are not supported")
        for parameter in (each for each in cursors.children(cursor) if each.kind is CursorKind.PARM_DECL):
            for child in cursors.children(parameter):
                if child.kind is CursorKind.ANNOTATE_ATTR and child.spelling == "grid_constant":
                    self.text.edit(child.extent.start.offset, child.extent.end.offset, "")
        self._shadow(cursor)

    def drop(self, cursor: cindex.Cursor) -> None:
        """A definition of the kernel that is not the instance's: of a template the declaration stays, of which the
        instance's is a specialisation; another specialisation goes."""
        statement = constructs.body_of(cursor)
        if statement is None:
            return
        start, end = statement.extent.start.offset, statement.extent.end.offset
        if cursor.kind is CursorKind.FUNCTION_TEMPLATE:
            self.text.edit(start, end, ";")
        else:
            self.text.edit(cursor.extent.start.offset, end, "")

    def hand_on(self, function: cindex.Cursor) -> None:
        """A function or method that sees the block gets the shadow parameters; what is called without a list of
        arguments cannot."""
        name = function.spelling
        parent = function.semantic_parent
        method = parent is not None and parent.kind in RECORDS
        special = function.kind in (CursorKind.DESTRUCTOR, CursorKind.CONVERSION_FUNCTION)
        if self.graph.held(function):
            self._hold(parent)
        elif special or name.startswith("operator"):
            rule = "method" if method else "helper"
            self.text.refuse(
                rule, function, f"`{name}` sees the block, and can take no more parameters; use a function"
            )
        elif method and function.is_virtual_method():
            self.text.refuse("method", function, f"the virtual method {name} sees the block")
        else:
            self._shadow(function)

    def _hold(self, record: cindex.Cursor) -> None:
        """Such a struct gets the arena's place when it is made."""
        opening = self.text.code.index("{", record.location.offset) + 1
        name = record.spelling.partition("<")[0]
        constructor = f"__device__ __forceinline__ {name}({SHADOWS}) : {SHARED}({SHARED}) {{}}"
        self.text.edit(opening, opening, f" void* {SHARED}; {constructor}")

    def _shadow(self, function: cindex.Cursor) -> None:
        """Put the shadow parameters in front of a function's own."""
        opening = shadows.behind_parenthesis(self.text.data, function.location.offset, shadows.named(function))
        if opening is None:
            self.text.refuse("macro", function, f"the declaration of {function.spelling} stands inside a macro")
            return
        closing = self.text.behind(opening) - 1
        inner = self.text.code[opening:closing].strip()
        self.text.edit(opening, opening, SHADOWS if inner in ("", "void") else f"{SHADOWS}, ")
        if inner == "void":
            self.text.edit(opening, closing, "")

    def _pass_on(self, offset: int, name: str) -> bool:
        """Hand the shadows on in a call; whether there is one at this place."""
        opening = shadows.behind_parenthesis(self.text.data, offset, name)
        if opening is None:
            return False
        empty = self.text.code[opening:].lstrip().startswith(")")
        self.text.edit(opening, opening, PASSED if empty else f"{PASSED}, ")
        return True

    def linkage(self, top: list[cindex.Cursor]) -> None:
        """`extern "C"` goes, before a declaration or round several: two namespaces cannot both have a C function of one
        name."""
        waiting = list(top)
        while waiting:
            each = waiting.pop()
            if each.kind not in SCOPES:
                continue
            waiting += cursors.children(each)
            start, end = each.extent.start.offset, each.extent.end.offset
            head = _LINKAGE.match(self.text.code, start)
            if head is not None and each.kind is not CursorKind.NAMESPACE:
                self.text.edit(start, head.end(), "")
                if head.group(1) is not None:
                    self.text.edit(end - 1, end, "")
        for start, end in self.text.macros:
            for head in _LINKAGE.finditer(self.text.code, start, end):
                self.text.edit(*head.span(), "")

    def global_names(self, top: list[cindex.Cursor]) -> None:
        """`::name` of the user's own is now a name of the kernel's namespace."""
        names = set()
        scopes = list(top)
        while scopes:
            each = scopes.pop()
            inner = each.kind in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL, CursorKind.ENUM_DECL)
            if inner or (each.kind is CursorKind.NAMESPACE and not each.spelling.isidentifier()):
                scopes += list(cursors.children(each))
            names.add(each.spelling)
        for match in re.finditer(r"::\s*([A-Za-z_]\w*)", self.text.code):
            before = re.search(r"(\w+|>|\))\s*$", self.text.code[max(0, match.start() - 200) : match.start()])
            if match.group(1) in names and (before is None or before.group(1) in _BEFORE_NAMES):
                self.text.edit(match.start(), match.start(1), f" ::{HERE}::")

    def macro_names(self, ours: list[cindex.Cursor]) -> None:
        """A macro must not be called like what is written round the text."""
        for each in ours:
            if each.kind is CursorKind.MACRO_DEFINITION and _RESERVED.fullmatch(each.spelling):
                self.text.refuse("macro", each, f"a macro called `{each.spelling}`; rename it")

    def macro_calls(self) -> None:
        """Calls of functions that see the block, in the macros of the file."""
        for start, end in self.text.macros:
            head = re.match(r"\w+", self.text.code[start:end])
            for match in re.finditer(r"[A-Za-z_]\w*", self.text.code[start:end]):
                name = match.group()
                if head is not None and match.start() < head.end():
                    continue
                if name in self.graph.seeing or (name in cooperative_groups.NAMES and self.text.tree.groups):
                    self._pass_on(start + match.start(), name)

    def body(self, function: cindex.Cursor) -> None:
        """Shared variables of a function that sees the block, calls of others, lambdas, the block's group."""
        outer: dict[str, str] = {}
        for cursor, inside in cursors.preorder(function):
            if cursor.kind is CursorKind.VAR_DECL and shadows.shared(cursor):
                if cursor.storage_class is cindex.StorageClass.EXTERN:
                    self.shared.dynamic_array(cursor, inside)
            elif cursor.kind is CursorKind.LAMBDA_EXPR:
                self._capture(cursor)
            elif _names_outer_array(cursor, function):
                outer[cursor.spelling] = cursor.referenced.type.element_type.spelling
            elif self._keeps_group(cursor):
                self.text.refuse("helper", cursor, f"{cursor.spelling} is named, but not called")
        for offset, name in dict.fromkeys(self.graph.mentions(function)):
            if name in self.graph.seeing and offset >= 0:
                self._called(function, offset, name)
        self._declare_arrays(function, outer)

    def _keeps_group(self, cursor: cindex.Cursor) -> bool:
        """Whether a function of the block's group is named and no call that the shadows can be handed to."""
        return (
            shadows.use(cursor, DECLARATIONS_FILE)
            and cursor.spelling in cooperative_groups.NAMES
            and not self._pass_on(cursor.location.offset, cursor.spelling)
            and not self.text.named_in_macro(cursor.spelling)
        )

    def _declare_arrays(self, function: cindex.Cursor, outer: Mapping[str, str]) -> None:
        """Pointers into the arena for arrays of the file (name -> type of its elements), where a body begins."""
        statement = constructs.body_of(function)
        if outer and function.is_definition() and statement is not None:
            self.shared.dynamic = True
            behind = statement.extent.start.offset + 1
            lines = [self.shared.arena_pointer(element, name) for name, element in sorted(outer.items())]
            self.text.edit(behind, behind, " " + " ".join(lines))

    def _called(self, function: cindex.Cursor, offset: int, name: str) -> None:
        """A place where a function that sees the block is named: a call, or it is refused."""
        here = self.text.code[offset : offset + len(name)] == name
        if here and any(each.location.offset == offset for each in self.graph.functions):
            return  # a declaration
        if name.startswith("operator ") and self.graph.holders:
            return  # a conversion, which has what it needs in its struct
        if name in self.graph.holders or name in self.graph.constructors:
            self._made(offset, name)
            return  # a type, if nothing is made here; what is made otherwise does not compile any more
        if self._pass_on(offset, name) or (
            not here and (self.text.named_in_macro(name) or self.text.handed_to_macro(offset, name))
        ):
            return
        line = self.text.code.count("\n", 0, offset) + 1
        what = "its address is taken" if here else "a macro names it"
        self.text.rejections.append(self.text.refusal("helper", line, f"{name} sees the block, and {what}"))

    def _made(self, offset: int, name: str) -> None:
        """Hand the shadows to a struct that is made here: `Lane lane;`, `Lane lane(1);`, `Lane{1}`, `Pool<T>()`."""
        head = re.compile(rf"{name}\s*(?:<[^;(){{}}]*>)?\s*(?P<variable>\w*)\s*(?P<mark>[({{;])").match(
            self.text.code, offset
        )
        if head is None:
            return
        variable, mark = head.start("variable"), head.group("mark")
        if mark == ";":
            if head.group("variable"):
                self.text.edit(head.end("variable"), head.end("variable"), f"({PASSED})")
        elif not any(
            each.location.offset == variable for each in self.graph.functions
        ):  # it is not a function that returns one
            empty = self.text.code[head.end() :].lstrip()[:1] in (")", "}")
            self.text.edit(head.end(), head.end(), PASSED if empty else f"{PASSED}, ")

    def _capture(self, cursor: cindex.Cursor) -> None:
        """A lambda that captures by name gets the shadows that it uses; one with `=` or `&` has them anyway."""
        used = dict.fromkeys(
            each.spelling
            for each in cursors.below(cursor)
            if shadows.use(each, DECLARATIONS_FILE) and each.spelling not in cooperative_groups.NAMES
        )
        arrays = dict.fromkeys(
            each.spelling
            for each in cursors.below(cursor)
            if each.kind is CursorKind.DECL_REF_EXPR and shadows.dynamic_shared(each)
        )
        hands_on = any(
            name in self.graph.seeing or name in cooperative_groups.NAMES for _, name in self.graph.mentions(cursor)
        )
        hands_on |= any(
            shadows.use(each, DECLARATIONS_FILE) and each.spelling in cooperative_groups.NAMES
            for each in cursors.below(cursor)
        )
        hands_on |= self.shared.move and any(shadows.shared(each) for each in cursors.below(cursor))
        if not used and not hands_on and not arrays:
            return
        start = cursor.extent.start.offset
        if self.text.code[start : start + 1] != "[":
            self.text.refuse("lambda", cursor, "a lambda that sees the block stands in a macro")
            return
        inner = self.text.code[start + 1 :].lstrip()
        if re.match(r"=|&\s*[,\]]", inner):
            return
        wanted = [PASSED] if hands_on else list(used)
        wanted += list(arrays)
        self.text.edit(start + 1, start + 1, ", ".join(wanted) + ("" if inner.startswith("]") else ", "))


def _names_outer_array(cursor: cindex.Cursor, function: cindex.Cursor) -> bool:
    """Whether a dynamic shared array is named that is declared outside of the function."""
    if cursor.kind is not CursorKind.DECL_REF_EXPR or not shadows.dynamic_shared(cursor):
        return False
    at = cursor.referenced.location.offset
    inside = function.extent.start.offset <= at < function.extent.end.offset
    return not inside and bool(cursor.referenced.type.kind is cindex.TypeKind.INCOMPLETEARRAY)
