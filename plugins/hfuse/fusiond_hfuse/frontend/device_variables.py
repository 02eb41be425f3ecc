"""`__constant__` and `__device__` variables of a unit: what the host sets, and what a run would find changed."""

from __future__ import annotations

import re

from fusiond_hfuse.frontend import cursors
from fusiond_hfuse.frontend.cuda_declarations import VECTOR_OF
from fusiond_hfuse.frontend.cursors import CursorKind, cindex
from fusiond_hfuse.frontend.edits import EditedText
from fusiond_hfuse.frontend.graph import Variable
from fusiond_hfuse.frontend.parameters import DTYPES, has_pointer
from fusiond_hfuse.frontend.shared_memory import constant


class DeviceVariables:
    """Those of one reading. `wanted`: the names, with their namespaces, that the YAML gives a start."""

    def __init__(self, text: EditedText, wanted: frozenset[str]) -> None:
        self.text = text
        self.wanted = wanted
        self.known: dict[str, Variable] = {}
        self.settable: list[Variable] = []
        """Those that are a reason to refuse as long as the host does not set them."""

    def declare(self, cursor: cindex.Cursor, name: str) -> None:
        """Look at a variable of the file; one of the host's is none of these."""
        is_constant = cursors.has(cursor, CursorKind.CUDACONSTANT_ATTR)
        if not is_constant and not cursors.has(cursor, CursorKind.CUDADEVICE_ATTR):
            return
        element = cursor.type.get_canonical()
        while element.kind is cindex.TypeKind.CONSTANTARRAY:
            element = element.element_type
        bare = re.sub(r"^(const |volatile )+", "", element.spelling)
        variable = self.known[name] = Variable(
            name=name,
            bytes=cursor.type.get_size(),
            dtype=DTYPES.get(VECTOR_OF.get(bare, bare)),
            constant=is_constant,
            address=has_pointer(element),
        )
        if cursor.storage_class is cindex.StorageClass.EXTERN:
            return
        written = self.text.code[cursor.extent.start.offset : cursor.extent.end.offset]
        if variable.address:
            if "=" not in written or name in self.wanted:  # the address of what was allocated before the launch
                self._refuse(
                    cursor,
                    f"`{name}` has an address in it that the host sets, and no buffer can hold one; make it a "
                    f"parameter of the kernel",
                )
        elif name in self.wanted:
            return
        elif is_constant and "=" not in written and "{" not in written:
            self._refuse(
                cursor,
                f"`__constant__ {name}` is set by the host; say with what under `constants:`, or initialise it in the "
                f"source",
            )
            self.settable.append(variable)
        elif not is_constant and not constant(cursor.type):
            self._refuse(
                cursor,
                f"`__device__ {name}` keeps its value from run to run; pass a buffer, or give it a start under "
                f"`constants:`",
            )
            self.settable.append(variable)

    def _refuse(self, cursor: cindex.Cursor, detail: str) -> None:
        self.text.refuse("symbol", cursor, detail)
