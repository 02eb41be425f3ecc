"""Shared arrays of a kernel: the dynamic ones become pointers into a side's part of the arena, and so do static ones
where they are moved.

    extern __shared__ float tile[];   -->   float* const tile = reinterpret_cast<float*>(fusiond_shared);
    __shared__ int cells[64];         -->   using fusiond_cells = int[64]; fusiond_cells& cells = ...;     (moved)
"""

from __future__ import annotations

import re

from fusiond_hfuse.frontend import cursors, shadows
from fusiond_hfuse.frontend.cursors import CursorKind, cindex
from fusiond_hfuse.frontend.edited_text import EditedText
from fusiond_hfuse.frontend.shadows import SHARED

LEAST_ALIGNMENT, MOST_ALIGNMENT = 16, 128
"""Of the arena in dynamic shared memory, in bytes."""
MOVED = "FUSIOND_MOVED"
"""Stands for how many bytes were moved before the dynamic array; a macro of the namespace."""
_SPECIFIER = re.compile(r"\b(?:extern|__shared__|volatile|const)\s*\Z")


class SharedMemory:
    """What a unit has of it. `move`: static arrays become part of the dynamic one."""

    def __init__(self, text: EditedText, *, move: bool) -> None:
        self.text = text
        self.move = move
        self.dynamic = False
        self.static_bytes: int | None = 0
        """None when a size depends on a template's argument."""
        self.moved_bytes = 0
        self.alignment = LEAST_ALIGNMENT

    @property
    def before_dynamic(self) -> int:
        """Bytes of the arena that moved arrays take, before the dynamic one begins."""
        return -(-self.moved_bytes // self.alignment) * self.alignment

    def file_wide(self, cursor: cindex.Cursor, name: str) -> None:
        """A shared variable of the file."""
        if cursor.storage_class is not cindex.StorageClass.EXTERN:
            self.static_bytes = None if self.static_bytes is None else self.static_bytes + cursor.type.get_size()
            if self.move:
                self.text.refuse("static_shared", cursor, f"`{name}` cannot become part of the dynamic array")
        elif cursor.type.kind is cindex.TypeKind.INCOMPLETEARRAY:
            self._file_wide_array(cursor)
        else:
            detail = f"`extern __shared__ {name}` is not an array of unknown length"
            self.text.refuse("extern_shared", cursor, detail)

    def dynamic_array(self, cursor: cindex.Cursor, inside: tuple[cindex.Cursor, ...]) -> None:
        self.dynamic = True
        statement = next((each for each in reversed(inside) if each.kind is CursorKind.DECL_STMT), None)
        element = cursor.type.element_type.spelling if cursor.type.kind is cindex.TypeKind.INCOMPLETEARRAY else None
        if statement is None or element is None:
            self.text.refuse(
                "extern_shared", cursor, f"`extern __shared__ {cursor.spelling}` is not a plain array in a body"
            )
            return
        start, end = statement.extent.start.offset, statement.extent.end.offset
        text = self.text.code[start:end]
        if "extern" not in text or not text.endswith(";") or len(list(cursors.children(statement))) != 1:
            self.text.refuse("extern_shared", cursor, "`extern __shared__` in a macro, or with several names")
            return
        self._aligned(cursor, text)
        lines = self.text.data[start:end].count(b"\n")
        self.text.edit(start, end, self.arena_pointer(element, cursor.spelling) + "\n" * lines)

    def _aligned(self, cursor: cindex.Cursor, declaration: str) -> None:
        own = max(0, cursor.type.element_type.get_align())
        for each in re.finditer(r"\b(?:__align__|alignas|aligned)\s*(?=\()", declaration):
            inner = declaration[each.end() : _closed(declaration, each.end())].strip()
            while inner.startswith("(") and _closed(inner, 0) == len(inner):
                inner = inner[1:-1].strip()
            requested = self.text.constant(inner)
            own = max(
                own, self.text.constant(f"alignof({inner})") or MOST_ALIGNMENT + 1 if requested is None else requested
            )
        if own > MOST_ALIGNMENT:
            detail = f"`{cursor.spelling}` asks for more than {MOST_ALIGNMENT} bytes of alignment"
            self.text.refuse("alignment", cursor, detail)
        self.alignment = max(self.alignment, own)

    def arena_pointer(self, element: str, name: str) -> str:
        """The declaration that stands for a dynamic shared array. `element` is as written in the source, so that it
        means in the body what it meant in the declaration."""
        alias = ""
        if "[" in element:  # an array of arrays: a pointer to one of them needs a name for the type
            alias, element = f"using fusiond_{name} = {element}; ", f"fusiond_{name}"
        # What was moved lies before it, and what is moved is counted before the text is complete: see `_place`.
        return f"{alias}{element}* const {name} = reinterpret_cast<{element}*>({self._place()});"

    def _place(self) -> str:
        return f"static_cast<unsigned char*>({SHARED}) + {MOVED}" if self.move else SHARED

    def statics(self, function: cindex.Cursor) -> None:
        """Static variables of a function: shared arrays, which count, and what keeps its value from run to run."""
        for cursor, inside in cursors.preorder(function):
            if cursor.kind is not CursorKind.VAR_DECL or any(each.kind in shadows.FUNCTIONS for each in inside[1:]):
                continue
            if shadows.shared(cursor):
                if cursor.storage_class is not cindex.StorageClass.EXTERN:
                    self._static_array(cursor, inside)
            elif (
                cursor.storage_class is cindex.StorageClass.STATIC
                and not constant(cursor.type)
                and not _host_only(function)
            ):
                detail = f"`static {cursor.spelling}` keeps its value from run to run; pass a buffer instead"
                self.text.refuse("symbol", cursor, detail)

    def _static_array(self, cursor: cindex.Cursor, inside: tuple[cindex.Cursor, ...]) -> None:
        size = cursor.type.get_size()
        self.static_bytes = None if size < 0 or self.static_bytes is None else self.static_bytes + size
        if not self.move:
            return
        if self.static_bytes is not None:
            self.static_bytes -= max(size, 0)  # no static memory any more
        statement = next((each for each in reversed(inside) if each.kind is CursorKind.DECL_STMT), None)
        text = "" if statement is None else self.text.code[statement.extent.start.offset : statement.extent.end.offset]
        spelling = cursor.type.spelling
        if size < 0 or statement is None or "__shared__" not in text or not text.endswith(";") or "(" in spelling:
            self.text.refuse("static_shared", cursor, f"`{cursor.spelling}` cannot become part of the dynamic array")
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
        before = self.text.edits.get((start, end), "\n" * text.count("\n"))
        self.text.edit(start, end, f"{moved} {before}".rstrip(" "))

    def _file_wide_array(self, cursor: cindex.Cursor) -> None:
        start, end = cursor.extent.start.offset, cursor.extent.end.offset
        while (before := _SPECIFIER.search(self.text.code, 0, start)) is not None:  # `__shared__ extern float tile[];`
            start = before.start()
        if not re.search(r"\bextern\b", self.text.code[start:end]) or self.text.data[end : end + 1] != b";":
            self.text.refuse("extern_shared", cursor, "`extern __shared__` in a macro, or with several names")
        else:
            self._aligned(cursor, self.text.code[start:end])
            lines = self.text.data[start:end].count(b"\n")
            self.text.edit(start, end + 1, "\n" * lines)  # each function that uses it gets a pointer of that name


def constant(kind: cindex.Type) -> bool:
    """Whether a type, or what an array has of it, is const."""
    while kind.kind in (cindex.TypeKind.CONSTANTARRAY, cindex.TypeKind.DEPENDENTSIZEDARRAY):
        if kind.is_const_qualified():
            return True
        kind = kind.element_type
    return bool(kind.is_const_qualified())


def _host_only(function: cindex.Cursor) -> bool:
    return not any(cursors.has(function, kind) for kind in (CursorKind.CUDADEVICE_ATTR, CursorKind.CUDAGLOBAL_ATTR))


def _closed(text: str, opening: int) -> int:
    """The place behind the parenthesis that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    return len(text)
