"""`__constant__` and `__device__` variables of a unit: those that the host sets, and those that a run changes."""

from fusiond.model.errors import UnknownName
from fusiond_hfuse.frontend import cursors
from fusiond_hfuse.frontend.cuda_declarations import DTYPES, VECTOR_OF
from fusiond_hfuse.frontend.cursors import CursorKind, cindex
from fusiond_hfuse.frontend.edited_text import EditedText
from fusiond_hfuse.frontend.parameters import bare_name, fields, has_pointer
from fusiond_hfuse.frontend.shared_memory import constant
from fusiond_hfuse.frontend.source_kernel import DeviceVariable


class DeviceVariables:
    """Those of one reading."""

    def __init__(self, text: EditedText) -> None:
        self.text = text
        self.wanted = frozenset(text.tree.reading.variables)
        """The names, with their namespaces, of those that the YAML gives a start."""
        self.known: dict[str, DeviceVariable] = {}
        self.settable: list[DeviceVariable] = []
        """Those that are a reason to refuse as long as the host does not set them."""

    def check(self) -> None:
        """UnknownName for a variable of the YAML's that there is not."""
        where = self.text.tree.reading.where
        for missing in sorted(self.wanted - set(self.known)):
            raise UnknownName("variable of the source", missing, set(self.known) or {"none"}, where=where)

    def declare(self, cursor: cindex.Cursor, name: str) -> None:
        """Look at a declaration of the file; variables of the host are skipped, and what is none."""
        if cursor.kind is not CursorKind.VAR_DECL or cursors.shared(cursor):
            return
        is_constant = cursors.has(cursor, CursorKind.CUDACONSTANT_ATTR)
        if not is_constant and not cursors.has(cursor, CursorKind.CUDADEVICE_ATTR):
            return
        element = cursor.type.get_canonical()
        while element.kind is cindex.TypeKind.CONSTANTARRAY:
            element = element.element_type
        bare = bare_name(element)
        address = has_pointer(element)
        record = element.kind is cindex.TypeKind.RECORD and bare not in (*VECTOR_OF, *DTYPES)
        variable = self.known[name] = DeviceVariable(
            name=name, bytes=cursor.type.get_size(), dtype=DTYPES.get(VECTOR_OF.get(bare, bare)),
            constant=is_constant, address=address, spelling=cursor.type.spelling,
            fields=tuple(fields(self.text.tree, cursor.type)) if address or (record and name in self.wanted) else (),
        )  # fmt: skip
        if name in self.wanted or cursor.storage_class is cindex.StorageClass.EXTERN:
            return
        begins = cursors.initializer(cursor)
        if address and variable.unfit and _is_null(begins):
            self.text.refuse("symbol", cursor, variable.unfit)
            return
        reason = _unset(variable, begins) or _kept_from_run_to_run(variable, cursor)
        if reason:
            self.text.refuse("symbol", cursor, reason)
            self.settable.append(variable)


def _unset(variable: DeviceVariable, begins: cindex.Cursor | None) -> str:
    """Why the host has to say what a variable holds; empty where the source does."""
    never_set = variable.constant and (begins is None or _only_made(begins))
    if not never_set and not (variable.address and _is_null(begins)):
        return ""
    what = "what its pointers point to" if variable.address else "with what"
    return (
        f"`{'__constant__' if variable.constant else '__device__'} {variable.name}` is set by the host; say {what} "
        f"under `constants:`, or initialise it in the source"
    )


def _kept_from_run_to_run(variable: DeviceVariable, cursor: cindex.Cursor) -> str:
    """Why a second run would find another value than the first; empty where it would not."""
    if variable.constant or variable.address or constant(cursor.type):
        return ""
    return (
        f"`__device__ {variable.name}` keeps its value from run to run; pass a buffer, or give it a start under "
        f"`constants:`"
    )


def _is_null(begins: cindex.Cursor | None) -> bool:
    """Whether a variable begins without an address: the host must give it one."""
    while begins is not None and begins.kind in (CursorKind.UNEXPOSED_EXPR, CursorKind.PAREN_EXPR):
        inner = cursors.children(begins)
        if len(inner) != 1:
            break
        begins = inner[0]
    if begins is None or _only_made(begins):
        return True
    empty = begins.kind is CursorKind.INIT_LIST_EXPR and not cursors.children(begins)
    nulls = (CursorKind.CXX_NULL_PTR_LITERAL_EXPR, CursorKind.INTEGER_LITERAL, CursorKind.GNU_NULL_EXPR)
    return empty or begins.kind in nulls


def _only_made(begins: cindex.Cursor) -> bool:
    """Whether it is the call of a constructor without arguments, which clang puts where nothing is written."""
    return begins.kind is CursorKind.CALL_EXPR and not list(begins.get_arguments())
