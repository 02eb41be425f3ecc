"""Shared arrays of a kernel: dynamic ones, and static ones that are moved, become pointers into a side's part of the
arena.

    extern __shared__ float tile[];   -->   float* const tile = reinterpret_cast<float*>(fusiond_shared);
    __shared__ int cells[64];         -->   using fusiond_cells = int[64]; fusiond_cells& cells = ...;     (moved)
"""

import re

from fusiond_hfuse.frontend import cursors
from fusiond_hfuse.frontend.cursors import CursorKind, cindex
from fusiond_hfuse.frontend.edited_text import EditedText
from fusiond_hfuse.frontend.shadows import SHARED

LEAST_ALIGNMENT, MOST_ALIGNMENT = 16, 128  #: Of the arena in dynamic shared memory, in bytes
MOVED = "FUSIOND_MOVED"  #: Stands for how many bytes were moved before the dynamic array, until all of them are known
_SPECIFIER = re.compile(r"\b(?:extern|__shared__|volatile|const)\s*\Z")


class SharedMemory:
    """What a unit has of it. `move`: static arrays become part of the dynamic one."""

    def __init__(self, text: EditedText, *, move: bool) -> None:
        self.text = text
        self.move = move
        self.moved_bytes = 0
        self.dynamic = False
        self.static_bytes: int | None = 0  #: None when a size depends on a template's argument
        self.alignment = LEAST_ALIGNMENT

    def file_wide(self, cursor: cindex.Cursor) -> None:
        """A declaration of the file, which may be a shared variable."""
        if not cursors.shared(cursor):
            return
        if cursor.storage_class is not cindex.StorageClass.EXTERN:
            self._static(cursor, ())
            return
        start, end = cursor.extent.start.offset, cursor.extent.end.offset
        while (before := _SPECIFIER.search(self.text.code, 0, start)) is not None:  # `__shared__ extern float tile[];`
            start = before.start()
        if self._plain(cursor, start, end) and self.text.code[end : end + 1] == ";":
            lines = self.text.code.count("\n", start, end)
            self.text.edit(start, end + 1, "\n" * lines)  # each function that uses it gets a pointer of that name
        else:
            self._odd(cursor)

    def dynamic_array(self, cursor: cindex.Cursor, inside: tuple[cindex.Cursor, ...]) -> None:
        """One that a function declares."""
        self.dynamic = True
        statement = next((each for each in reversed(inside) if each.kind is CursorKind.DECL_STMT), None)
        if statement is None or len(cursors.children(statement)) != 1:
            self._odd(cursor)
            return
        start, end = statement.extent.start.offset, statement.extent.end.offset
        if not self._plain(cursor, start, end) or self.text.code[end - 1] != ";":
            self._odd(cursor)
            return
        lines = self.text.code.count("\n", start, end)
        self.text.edit(
            start, end, self.arena_pointer(cursor.type.element_type.spelling, cursor.spelling) + "\n" * lines
        )

    def _odd(self, cursor: cindex.Cursor) -> None:
        self.text.refuse("extern_shared", cursor, f"`extern __shared__ {cursor.spelling}` is not a plain array")

    def _plain(self, cursor: cindex.Cursor, start: int, end: int) -> bool:
        """Whether a dynamic array is declared by itself, and in no macro; its alignment is noted."""
        declaration = self.text.code[start:end]
        if cursor.type.kind is not cindex.TypeKind.INCOMPLETEARRAY or "extern" not in declaration:
            return False
        own = max(0, cursor.type.element_type.get_align())
        for each in re.finditer(r"\b(?:__align__|alignas|aligned)\s*\(+([^()]*)\)", declaration):
            own = max(own, self.text.constant(each.group(1)) or MOST_ALIGNMENT + 1)
        self.alignment = max(self.alignment, own)
        return bool(own <= MOST_ALIGNMENT)

    def arena_pointer(self, element: str, name: str) -> str:
        """The declaration that stands for a dynamic shared array. `element` is as written in the source, so that it
        means in the body what it meant in the declaration."""
        alias = ""
        if "[" in element:  # an array of arrays: a pointer to one of them needs a name for the type
            alias, element = f"using fusiond_{name} = {element}; ", f"fusiond_{name}"
        return f"{alias}{element}* const {name} = reinterpret_cast<{element}*>({self._place(MOVED)});"

    def _place(self, byte: object) -> str:
        return f"static_cast<unsigned char*>({SHARED}) + {byte}" if self.move else SHARED

    def statics(self, function: cindex.Cursor) -> None:
        """Static variables of a function: shared arrays, which count, and what keeps its value from run to run."""
        for cursor, inside in cursors.preorder(function):
            if cursor.kind is not CursorKind.VAR_DECL:
                continue
            if cursors.shared(cursor):
                if cursor.storage_class is not cindex.StorageClass.EXTERN:
                    self._static(cursor, inside)
            elif cursor.storage_class is cindex.StorageClass.STATIC and not constant(cursor.type):
                detail = f"`static {cursor.spelling}` keeps its value from run to run; pass a buffer instead"
                self.text.refuse("symbol", cursor, detail)

    def _static(self, cursor: cindex.Cursor, inside: tuple[cindex.Cursor, ...]) -> None:
        size, spelling = cursor.type.get_size(), cursor.type.spelling
        if not self.move:
            self.static_bytes = None if size < 0 or self.static_bytes is None else self.static_bytes + size
            return
        statement = next((each for each in reversed(inside) if each.kind is CursorKind.DECL_STMT), None)
        start, end = (statement.extent.start.offset, statement.extent.end.offset) if statement is not None else (0, 0)
        text = self.text.code[start:end]
        if size < 0 or "__shared__" not in text or not text.endswith(";") or "(" in spelling:
            self.text.refuse("static_shared", cursor, f"`{cursor.spelling}` cannot become part of the dynamic array")
            return
        alignment = max([16, cursor.type.get_align(), *map(int, re.findall(r"align\w*\s*\(+\s*(\d+)", text))])
        place = -(-self.moved_bytes // alignment) * alignment
        self.moved_bytes = place + size
        self.alignment = max(self.alignment, alignment)
        name = f"fusiond_{cursor.spelling}"
        moved = (
            f"using {name} = {spelling}; {name}& {cursor.spelling} = *reinterpret_cast<{name}*>({self._place(place)});"
        )
        before = self.text.edits.get((start, end), "\n" * text.count("\n"))  # of one statement with several names
        self.text.edit(start, end, f"{moved} {before}".rstrip(" "))

    @property
    def before_dynamic(self) -> int:
        """Bytes of the arena that moved arrays take, before the dynamic one begins."""
        return -(-self.moved_bytes // self.alignment) * self.alignment


def constant(kind: cindex.Type) -> bool:
    """Whether a type, or what an array has of it, is const."""
    while kind.kind in (cindex.TypeKind.CONSTANTARRAY, cindex.TypeKind.DEPENDENTSIZEDARRAY):
        if kind.is_const_qualified():
            return True
        kind = kind.element_type
    return bool(kind.is_const_qualified())
