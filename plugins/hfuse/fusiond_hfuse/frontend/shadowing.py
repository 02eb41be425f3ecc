"""Which functions of a unit see the block: there the shadow parameters are declared, and passed on (shadows.py).

__global__ void __launch_bounds__(256) k(T* p, int n)  -->  __device__ __forceinline__ void k(SHADOWS, T* p, int n)
extern "C" { ... }                                     -->  ...

What sees the block and is no plain function (a method, an operator, a lambda that captures by name, a macro that calls)
is refused here, or by the second look at the edited text (kernel_parser.py); such a kernel is fused as PTX.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Set

from fusiond_hfuse.frontend import cursors, directives, launches
from fusiond_hfuse.frontend.cursors import RECORDS, SCOPES, CursorKind, cindex
from fusiond_hfuse.frontend.edited_text import EditedText
from fusiond_hfuse.frontend.shadows import PASSED, SHADOWED, SHADOWS
from fusiond_hfuse.frontend.shared_memory import SharedMemory

_BARRIER = "__syncthreads"
_FORBIDDEN = re.compile(r"__barrier_sync\w*|__syncthreads_\w+|__cluster\w+|cudaGridDependencySynchronize")
_ASM_FORBIDDEN = re.compile(
    r"\b(bar|barrier|exit|ret|mbarrier|griddepcontrol|setmaxnreg|wgmma|tcgen05)\b"
    r"|%(tid|ntid|ctaid|nctaid|warpid|nwarpid|envreg\d*|dynamic_smem_size|total_smem_size)\b"
)
_RESERVED = re.compile(
    r"(?i:fusiond_)\w*|(?:thread|block)Idx|(?:block|grid)Dim|__syncthreads\w*|u?int3|dim3|make_uint3|const|void|unsigned"
    r"|int|struct|operator|return|while|if|using|namespace|extern|static_cast|reinterpret_cast"
)
_OPENING = re.compile(r"\s*([(<])")
_LINKAGE = re.compile(r'\bextern\s*" *"\s*(\{)?')  #: Of a text whose strings are blank


class Shadowing:
    """The functions of a unit round its kernel, and the edits that have to do with who sees the block. Where static
    shared arrays move, who uses one does."""

    def __init__(self, text: EditedText, shared: SharedMemory) -> None:
        self.text = text
        self.shared = shared
        self.functions: list[cindex.Cursor] = []  #: All but the kernel, methods too
        self.seeing: frozenset[str] = frozenset()
        """The names of those that see the block, by themselves or through others."""
        self.meeting: frozenset[str] = frozenset()  #: The names of what waits at a barrier

    def close(self, body: cindex.Cursor) -> None:
        """Once all functions are known: which of them see the block, and which wait."""
        calls: dict[str, set[str]] = {}
        for each in (*self.functions, body):
            calls.setdefault(each.spelling, set()).update(name for _, name in self._mentions(each))
        own = {each.spelling for each in self.functions if self._sees(each)}
        self.seeing = _closure(calls, own) - {body.spelling}
        waits = {
            function.spelling
            for function in (*self.functions, body)
            if any(each.kind is CursorKind.CALL_EXPR and each.spelling == _BARRIER for each in cursors.below(function))
        }
        self.meeting = _closure(calls, waits) | {_BARRIER}

    def meets(self) -> bool:
        """Whether something in the text is called like what threads of a warp wait for each other in."""
        names = (each.spelling for each in self.text.tokens)
        return any(each == "__syncwarp" or (each[:2] == "__" and each[-5:] == "_sync") for each in names)

    def _mentions(self, function: cindex.Cursor) -> Iterator[tuple[int, str]]:
        """(offset, name) of every word in a function that is one of the user's functions: more than are calls, and what
        is none does not compile with parameters put into it."""
        own = {each.spelling for each in self.functions}
        extent = function.extent
        for each in directives.WORD.finditer(self.text.code, extent.start.offset, extent.end.offset):
            if each.group() in own:
                yield each.start(), each.group()

    def _sees(self, function: cindex.Cursor) -> bool:
        """Whether a function itself uses a built-in variable, a barrier, or the arena in dynamic shared memory."""
        return any(
            cursors.use(each)
            or (each.kind in (CursorKind.VAR_DECL, CursorKind.DECL_REF_EXPR) and cursors.dynamic_shared(each))
            or (self.shared.move and cursors.shared(each))
            for each in cursors.below(function)
        )

    def rewrite(self, cursor: cindex.Cursor) -> None:
        """A declaration or the definition of the kernel becomes a device function with shadow parameters."""
        head = self.text.code[cursor.extent.start.offset : cursor.location.offset]
        inline = re.search(r"\b(inline|__inline__|__forceinline__)\b", head)
        for child in cursors.children(cursor):
            start, end = child.extent.start.offset, child.extent.end.offset
            if child.kind is CursorKind.CUDAGLOBAL_ATTR:
                if self.text.code[start:end] == "__global__":
                    self.text.edit(start, end, "__device__" if inline else "__device__ __forceinline__")
                else:
                    self.text.refuse("macro", child, "`__global__` stands inside a macro")
            elif child.kind is CursorKind.ANNOTATE_ATTR and child.spelling.startswith(("launch_bounds", "maxnreg")):
                place = re.compile(r"__(?:launch_bounds|maxnreg)__\s*\(").match(self.text.code, start)
                if place is None:
                    self.text.refuse("macro", child, "its launch bounds stand inside a macro")
                else:
                    self.text.edit(start, launches.behind(self.text.code, place.end()), "")
        for parameter in (each for each in cursors.children(cursor) if each.kind is CursorKind.PARM_DECL):
            for child in cursors.children(parameter):
                if child.kind is CursorKind.ANNOTATE_ATTR and child.spelling == "grid_constant":
                    self.text.edit(child.extent.start.offset, child.extent.end.offset, "")
        self._shadow(cursor)

    def hand_on(self, function: cindex.Cursor) -> None:
        """A function that sees the block gets the shadow parameters."""
        parent = function.semantic_parent
        if function.spelling.startswith("operator") or (parent is not None and parent.kind in RECORDS):
            self.text.refuse("helper", function, f"`{function.spelling}` sees the block, and is no plain function")
        else:
            self._shadow(function)

    def _shadow(self, function: cindex.Cursor) -> None:
        """Put the shadow parameters in front of a function's own."""
        opening = _behind_parenthesis(self.text.code, function.location.offset, function.spelling)
        if opening is None:
            self.text.refuse("macro", function, f"the declaration of {function.spelling} stands inside a macro")
            return
        closing = launches.behind(self.text.code, opening) - 1
        inner = self.text.code[opening:closing].strip()
        self.text.edit(opening, opening, SHADOWS if inner in ("", "void") else f"{SHADOWS}, ")
        if inner == "void":
            self.text.edit(opening, closing, "")

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

    def macro_names(self, macros: list[cindex.Cursor]) -> None:
        """A macro must not be called like what is written round the text."""
        for each in macros:
            if _RESERVED.fullmatch(each.spelling):
                self.text.refuse("macro", each, f"a macro called `{each.spelling}`")

    def body(self, function: cindex.Cursor) -> None:
        """Dynamic shared arrays of a function that sees the block, and calls of others."""
        outer: dict[str, str] = {}
        for cursor, inside in cursors.preorder(function):
            if cursor.kind is CursorKind.VAR_DECL and cursors.dynamic_shared(cursor):
                self.shared.dynamic_array(cursor, inside)
            elif _names_outer_array(cursor, function):
                outer[cursor.spelling] = cursor.referenced.type.element_type.spelling
        for offset, name in self._mentions(function):
            if name in self.seeing and offset != function.location.offset:
                self._called(offset, name)
        self._declare_arrays(function, outer)

    def _declare_arrays(self, function: cindex.Cursor, outer: Mapping[str, str]) -> None:
        """Pointers into the arena for arrays of the file (name -> type of its elements), where a body begins."""
        statement = cursors.body_of(function)
        if outer and statement is not None:
            self.shared.dynamic = True
            behind = statement.extent.start.offset + 1
            lines = [self.shared.arena_pointer(element, name) for name, element in sorted(outer.items())]
            self.text.edit(behind, behind, " " + " ".join(lines))

    def _called(self, offset: int, name: str) -> None:
        """A place where a function that sees the block is named: a call, or it is refused."""
        opening = _behind_parenthesis(self.text.code, offset, name)
        if opening is None:
            line = self.text.code.count("\n", 0, offset) + 1
            self.text.refuse("helper", line, f"{name} sees the block, and its address is taken")
            return
        empty = self.text.code[opening:].lstrip().startswith(")")
        self.text.edit(opening, opening, PASSED if empty else f"{PASSED}, ")


def _names_outer_array(cursor: cindex.Cursor, function: cindex.Cursor) -> bool:
    """Whether a dynamic shared array is named that is declared outside of the function."""
    if cursor.kind is not CursorKind.DECL_REF_EXPR or not cursors.dynamic_shared(cursor):
        return False
    at = cursor.referenced.location.offset
    inside = function.extent.start.offset <= at < function.extent.end.offset
    return not inside and bool(cursor.referenced.type.kind is cindex.TypeKind.INCOMPLETEARRAY)


def forbid(text: EditedText) -> None:
    """Refuse what the shadow parameters cannot hide, found in the tokens: macros, `::`, inline assembly."""
    for position, token in enumerate(text.tokens):
        word, line = token.spelling, token.location.line
        before = text.tokens[position - 1].spelling if position else ""
        qualifies = position >= 2 and text.tokens[position - 2].kind is cindex.TokenKind.IDENTIFIER
        if _FORBIDDEN.fullmatch(word):
            text.refuse("block_barrier", line, f"`{word}` acts on more than a side of a fused block")
        elif word in SHADOWED and before == "::" and not qualifies:
            text.refuse("leak", line, f"`::{word}` names the built-in past its shadow")
        elif word in ("asm", "__asm__", "__asm"):
            if problem := _of_assembly(text.tokens, position):
                text.refuse("assembly", line, f"inline assembly {problem}")
        elif word == "__managed__":
            text.refuse("symbol", line, "`__managed__` variables are not supported; pass a buffer")
        elif word == "<<<":
            text.refuse("launch", line, "a kernel that launches kernels (`<<<`) needs the device runtime")
        elif word == "__CUDA_ARCH__":
            text.refuse("architecture", line, "it is another kernel for each `__CUDA_ARCH__`")


def _of_assembly(tokens: list[cindex.Token], position: int) -> str:
    """What is wrong with one asm statement, by its template, up to the first colon or closing parenthesis.

    What macros put into it is looked for in all strings of the file; what they make of their arguments cannot be known.
    """
    template = ""
    for token in tokens[position + 1 : position + 400]:
        if token.kind is cindex.TokenKind.LITERAL and '"' in token.spelling:
            template += token.spelling
        elif token.spelling in (":", "::", ";") or (token.spelling == ")" and template):
            break
        elif token.spelling == "#":
            return "that a macro puts together from its arguments"
        elif token.kind is cindex.TokenKind.IDENTIFIER and token.spelling != "__volatile__":
            template += " ".join(each.spelling for each in tokens if each.kind is cindex.TokenKind.LITERAL)
    match = _ASM_FORBIDDEN.search(template)
    why = "acts on more than a side of a fused block, or reads where the thread is in it"
    return f"with `{match.group()}`, which {why}" if match is not None else ""


def _closure(called: Mapping[str, Set[str]], begin: Iterable[str]) -> frozenset[str]:
    """The names of all functions that reach one of `begin`. `called`: by function, what it calls."""
    found = set(begin)
    while more := {name for name, inner in called.items() if name not in found and inner & found}:
        found |= more
    return frozenset(found)


def _behind_parenthesis(code: str, start: int, name: str) -> int | None:
    """The offset behind the parenthesis that opens the list of a function named at `start`, template arguments skipped.

    None when the name does not stand there (a macro hides it) or no parenthesis follows (its address is taken)."""
    if not code.startswith(name, start):
        return None
    position = start + len(name)
    match = _OPENING.match(code, position)
    if match and match.group(1) == "<":
        depth, nested, position = 1, 0, match.end()
        while depth and position < len(code):
            mark = code[position]
            nested += {"(": 1, ")": -1}.get(mark, 0)
            depth += 0 if nested else {"<": 1, ">": -1}.get(mark, 0)
            position += 1
            if mark in ";{":
                return None
        match = _OPENING.match(code, position)
    return match.end() if match and match.group(1) == "(" else None
