"""The front end: reads a kernel with libclang. The one home of libclang.

The source is parsed as it stands, against a stub of CUDA's declarations, so that neither a toolkit nor a GPU is
needed. Nothing is rewritten from the tree: a kernel's body stays word for word. All that is taken from the tree are
places to edit

    __global__ void __launch_bounds__(256) k(T* p, int n)  -->  __device__ __forceinline__ void k(SHADOWS, T* p, int n)
    extern __shared__ float tile[];                        -->  float* const tile = (float*)fusiond_shared;

and reasons to refuse. SHADOWS are parameters called `threadIdx`, `blockIdx`, `blockDim`, `gridDim` and
`__syncthreads`: they hide the built-in ones from the body, where the paper renames every use (Li et al., CGO 2022,
section III-A) and must lift all declarations to the top of the fused kernel (section III-C).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from clang import cindex
from clang.cindex import CursorKind

from fusiond.errors import RequestError, UnknownName
from fusiond.model import Rejection
from fusiond_hfuse import barriers, shadows
from fusiond_hfuse.graph import Edit, Parameter, Parsed, Unit
from fusiond_hfuse.includes import without_comments
from fusiond_hfuse.shadows import PASSED, SHADOWS, SHARED
from fusiond_hfuse.stub import STUB, VECTOR_OF

_MAIN = "/fusiond/kernel.cu"
_STUB = "/fusiond/stub.h"
_FUNCTIONS = (CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE, CursorKind.CXX_METHOD, CursorKind.CONSTRUCTOR,
              CursorKind.DESTRUCTOR, CursorKind.CONVERSION_FUNCTION)  # fmt: skip
_SCOPES = (CursorKind.NAMESPACE, CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL)
_RECORDS = (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL, CursorKind.CLASS_TEMPLATE, CursorKind.UNION_DECL)
_DTYPES = {
    "bool": "bool", "char": "int8", "signed char": "int8", "unsigned char": "uint8", "short": "int16",
    "unsigned short": "uint16", "int": "int32", "unsigned int": "uint32", "long": "int64", "unsigned long": "uint64",
    "long long": "int64", "unsigned long long": "uint64", "float": "float32", "double": "float64", "__half": "float16",
}  # fmt: skip


def parse_unit(
    unit: Unit, entry: str, *, name: str, template: bool, defines: tuple[tuple[str, str], ...], where: str
) -> Parsed:
    """Parse a unit and look at one kernel of it.

    `name` is the kernel's for messages, `where` the YAML key that names the entry. RequestError for what is no CUDA
    or has no such kernel; what is CUDA, but cannot be fused, is a Rejection in the result.
    """
    tree = _tree(unit, defines)
    try:
        return _Reader(unit, tree, name).read(entry, template, where)
    except RecursionError:
        raise RequestError("it is nested too deeply to be read", where=unit.where(1)) from None


def _tree(unit: Unit, defines: tuple[tuple[str, str], ...]) -> cindex.TranslationUnit:
    text = re.sub(r"(?m)^[ \t]*#[ \t]*include[^\n]*$", _spaces, unit.text)
    arguments = [
        "-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "-nostdinc", "-nostdinc++", "-std=c++17",
        "-ferror-limit=0", "-w", "-include", _STUB, *(f"-D{macro}={value}" for macro, value in defines),
    ]  # fmt: skip
    try:
        tree = cindex.Index.create().parse(_MAIN, args=arguments, unsaved_files=[(_MAIN, text), (_STUB, STUB)])
    except cindex.TranslationUnitLoadError as problem:
        raise RequestError(f"libclang cannot read it: {problem}", where=unit.where(1)) from None
    for found in tree.diagnostics:
        if found.severity < cindex.Diagnostic.Error or _tolerable(found.spelling):
            continue
        at = found.location
        in_source = at.file is not None and at.file.name == _MAIN
        raise RequestError(
            f"not CUDA C++ as libclang reads it: {found.spelling}",
            where=unit.where(at.line) if in_source else unit.where(1),
        )
    return tree


def _spaces(match: re.Match[str]) -> str:
    return " " * len(match.group().encode())


def _tolerable(message: str) -> bool:
    """A CUDA function that the stub lacks, an overload that it gets wrong, PTX: the compiler has the last word."""
    return bool(
        re.match(r"use of undeclared identifier '?(__\w+|\w+_(sync|rn|rz|ru|rd)|cudaConfigureCall)'?", message)
        or re.match(r"(no matching function for call to|call to) '(__\w+|atomic\w+|min|max)'", message)
        or "cudaConfigureCall" in message
        or re.search(r"in(line)? (asm|assembly)", message)
    )


class _Reader:
    """One pass over the tree of one unit; collects edits and rejections."""

    def __init__(self, unit: Unit, tree: cindex.TranslationUnit, name: str) -> None:
        self.unit = unit
        self.tree = tree
        self.name = name
        self.data = unit.text.encode()
        self.edits: list[Edit] = []
        self.rejections: list[Rejection] = []
        self.dynamic = False
        self.static_bytes: int | None = 0
        self.functions: list[cindex.Cursor] = []
        self.methods: list[cindex.Cursor] = []
        self.seeing: frozenset[str] = frozenset()

    def read(self, entry: str, template: bool, where: str) -> Parsed:
        top = [each for each in self.tree.cursor.get_children() if _in_main(each)]
        kernels = list(_kernels(top, ""))
        body, declarations = self._entry(kernels, entry, template, where)
        for qualified, cursor in kernels:
            if qualified != entry and (cursor.is_definition() or cursor.extent.end.offset > cursor.extent.start.offset):
                self._remove(cursor)
        removed = {cursor.hash for qualified, cursor in kernels if qualified != entry}
        for cursor in top:
            self._outside(cursor, removed | {each.hash for each in declarations})
        self.seeing = shadows.seeing(self.functions, _MAIN, _STUB)
        meeting = shadows.meeting(self.functions, _MAIN, barriers.BARRIER)
        for cursor in declarations:
            self._rewrite(cursor)
        for function in self.functions:
            if function.spelling in self.seeing:
                self._hand_on(function)
                self._body(function)
            else:
                self._static_arrays(function)
            if function.spelling in meeting and function.is_definition():
                self.rejections += barriers.early_returns(_body_of(function), meeting, False, self._refusal)
        self._body(body)
        for method in self.methods:
            self._method(method)
        self.rejections += barriers.early_returns(_body_of(body), meeting, True, self._refusal)
        self.rejections += barriers.forbidden(self.tree, _MAIN, self._refusal)
        self._linkage()
        return Parsed(
            entry=entry,
            parameters=tuple(_parameter(each) for each in _parameters(body)),
            edits=tuple(sorted(self.edits, key=lambda edit: (edit.start, edit.end))),
            uses_dynamic_shared=self.dynamic,
            static_shared_bytes=self.static_bytes,
            barriers=sum(self._own_barriers(each) for each in (body, *self.functions)),
            launch_bound=self._launch_bound(body),
            rejections=tuple(dict.fromkeys(self.rejections)),
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
            raise RequestError(f"{entry} is a template; say which instance with `instance:`", where=where)
        if template and not is_template:
            raise RequestError(f"{entry} is no template, so it has no instance", where=where)
        return bodies[0], found

    # --- edits ---

    def _rewrite(self, cursor: cindex.Cursor) -> None:
        """A declaration or the definition of the kernel becomes a device function with shadow parameters."""
        for child in cursor.get_children():
            start, end = child.extent.start.offset, child.extent.end.offset
            text = self.data[start:end].decode(errors="replace")
            if child.kind is CursorKind.CUDAGLOBAL_ATTR:
                if text != "__global__":
                    self._refuse("macro", child, "`__global__` stands inside a macro")
                else:
                    self._edit(start, end, "__device__ __forceinline__")
            elif text.startswith("__launch_bounds__"):
                self._edit(start, end, "")
            elif child.kind is CursorKind.ANNOTATE_ATTR and child.spelling == "maxnreg":
                self._refuse(
                    "maxnreg", child, "`__maxnreg__` stands in the source; the register cap is fusiond's to search"
                )
            elif child.kind is CursorKind.ANNOTATE_ATTR and child.spelling == "cluster_dims":
                self._refuse("cluster", child, "`__cluster_dims__`: thread block clusters are not supported")
        parameters = _parameters(cursor)
        for parameter in parameters:
            for child in parameter.get_children():
                if child.kind is CursorKind.ANNOTATE_ATTR and child.spelling == "grid_constant":
                    self._edit(child.extent.start.offset, child.extent.end.offset, "")
        self._shadow(cursor)

    def _hand_on(self, function: cindex.Cursor) -> None:
        """A function that sees the block gets the shadow parameters; operators cannot."""
        if function.spelling.startswith("operator"):
            self._refuse("helper", function, f"`{function.spelling}` sees the block, and can take no more parameters")
        else:
            self._shadow(function)

    def _shadow(self, function: cindex.Cursor) -> None:
        """Put the shadow parameters in front of a function's own."""
        opening = shadows.behind_parenthesis(self.data, function.location.offset, function.spelling)
        if opening is None:
            self._refuse("macro", function, f"the declaration of {function.spelling} stands inside a macro")
            return
        parameters = bool(_parameters(function))
        self._edit(opening, opening, f"{SHADOWS}, " if parameters else SHADOWS)
        if not parameters:
            closing = self.data.index(b")", opening)
            if self.data[opening:closing].strip() == b"void":
                self._edit(opening, closing, "")

    def _pass(self, reference: cindex.Cursor) -> None:
        """Hand the shadows on in a call of a function that sees the block."""
        name = reference.spelling
        opening = shadows.behind_parenthesis(self.data, reference.location.offset, name)
        if opening is None:
            self._refuse("helper", reference, f"{name} sees the block and is named in a macro, or its address is taken")
            return
        empty = self.data[opening:].lstrip().startswith(b")")
        self._edit(opening, opening, PASSED if empty else f"{PASSED}, ")

    def _remove(self, cursor: cindex.Cursor) -> None:
        """Take another kernel of the file out; it would not compile without its built-ins, and nobody calls it."""
        start, end = cursor.extent.start.offset, cursor.extent.end.offset
        following = self.data[end : end + 1]
        if following == b";":
            end += 1
        lines = self.data[start:end].count(b"\n")
        self._edit(start, end, f"/* {cursor.spelling}: another kernel */" + "\n" * lines)

    def _linkage(self) -> None:
        """`extern "C"` goes: two namespaces cannot both have a C function of one name."""
        code = self.unit.text
        for match in re.finditer(r'\bextern\s*"C"\s*(\{)?', without_comments(code)):
            start = len(code[: match.start()].encode())
            if match.group(1):
                line = code.count("\n", 0, match.start()) + 1
                detail = '`extern "C" {` round declarations; put it before each one, or leave it out'
                self.rejections.append(self._refusal("linkage_block", line, detail))
            else:
                self._edit(start, len(code[: match.end()].encode()), "")

    def _edit(self, start: int, end: int, text: str) -> None:
        self.edits.append(Edit(start=start, end=end, text=text))

    # --- looking at the text ---

    def _body(self, function: cindex.Cursor) -> None:
        """Shared variables of a function that sees the block, calls of others, and uses that no shadow reaches."""
        globals_: dict[str, str] = {}
        for cursor, inside in shadows.preorder(function):
            if cursor.kind is CursorKind.VAR_DECL and _has(cursor, CursorKind.CUDASHARED_ATTR):
                self._shared(cursor, inside)
            elif shadows.use(cursor, _STUB):
                self._reach(cursor, inside)
            elif cursor.kind is CursorKind.DECL_REF_EXPR and shadows.dynamic_shared(cursor):
                at = cursor.referenced.location.offset
                outside = not function.extent.start.offset <= at < function.extent.end.offset
                if outside and cursor.referenced.type.kind is cindex.TypeKind.INCOMPLETEARRAY:
                    globals_[cursor.spelling] = cursor.referenced.type.element_type.spelling
        for reference in shadows.references(function, self.seeing, _MAIN):
            self._pass(reference)
        if globals_ and function.is_definition():
            self.dynamic = True
            behind = _body_of(function).extent.start.offset + 1
            lines = [_arena_pointer(element, name) for name, element in sorted(globals_.items())]
            self._edit(behind, behind, " " + " ".join(lines))

    def _reach(self, cursor: cindex.Cursor, inside: tuple[cindex.Cursor, ...]) -> None:
        """Refuse a use of a built-in in a scope of its own, where the parameters are not seen."""
        for outer in inside:
            if outer.kind in _RECORDS:
                self._refuse("local_type", cursor, f"`{cursor.spelling}` is used in a method of a local type")
                return
            if outer.kind is CursorKind.LAMBDA_EXPR and self._captures_nothing(outer):
                self._refuse("lambda", cursor, f"`{cursor.spelling}` is used in a lambda that captures nothing")
                return

    def _captures_nothing(self, cursor: cindex.Cursor) -> bool:
        text = self.data[cursor.extent.start.offset : cursor.extent.start.offset + 40]
        return re.match(rb"\[\s*\]", text) is not None

    def _shared(self, cursor: cindex.Cursor, inside: tuple[cindex.Cursor, ...]) -> None:
        if cursor.storage_class is not cindex.StorageClass.EXTERN:
            self._static_array(cursor)
            return
        self.dynamic = True
        statement = next((each for each in reversed(inside) if each.kind is CursorKind.DECL_STMT), None)
        element = cursor.type.element_type.spelling if cursor.type.kind is cindex.TypeKind.INCOMPLETEARRAY else None
        if statement is None or element is None:
            self._refuse("extern_shared", cursor, f"`extern __shared__ {cursor.spelling}` is no plain array in a body")
            return
        start, end = statement.extent.start.offset, statement.extent.end.offset
        text = self.data[start:end].decode(errors="replace")
        if not text.startswith("extern") or not text.endswith(";") or len(list(statement.get_children())) != 1:
            self._refuse("extern_shared", cursor, "`extern __shared__` in a macro, or with several names")
            return
        self._aligned(cursor, text)
        self._edit(start, end, _arena_pointer(element, cursor.spelling))

    def _aligned(self, cursor: cindex.Cursor, declaration: str) -> None:
        alignment = re.search(r"(?:__align__|alignas|aligned)\s*\(+\s*(\w+)", declaration)
        if alignment and (not alignment.group(1).isdigit() or int(alignment.group(1)) > 16):
            self._refuse("alignment", cursor, f"`{cursor.spelling}` asks for more than 16 bytes of alignment")

    def _static_arrays(self, function: cindex.Cursor) -> None:
        for cursor, _ in shadows.preorder(function):
            if cursor.kind is CursorKind.VAR_DECL and _has(cursor, CursorKind.CUDASHARED_ATTR):
                self._static_array(cursor)

    def _static_array(self, cursor: cindex.Cursor) -> None:
        size = cursor.type.get_size()
        self.static_bytes = None if size < 0 or self.static_bytes is None else self.static_bytes + size

    def _outside(self, cursor: cindex.Cursor, skipped: set[int]) -> None:
        """What stands round the kernel: functions that may see the block, variables that the host must set."""
        if cursor.hash in skipped:
            return
        if cursor.kind in (CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE):
            self.functions.append(cursor)
        elif cursor.kind in _FUNCTIONS:
            self.methods.append(cursor)
        elif cursor.kind is CursorKind.VAR_DECL:
            self._variable(cursor)
        elif cursor.kind in _SCOPES or cursor.kind in _RECORDS:
            for child in cursor.get_children():
                self._outside(child, skipped)

    def _method(self, method: cindex.Cursor) -> None:
        """A method cannot be handed the shadows: it is called in too many ways."""
        for cursor in shadows.below(method):
            if shadows.use(cursor, _STUB) or shadows.dynamic_shared(cursor):
                detail = (
                    f"the method {method.spelling} uses `{cursor.spelling}`; pass it as an argument, or use a function"
                )
                self._refuse("method", cursor, detail)
        for reference in shadows.references(method, self.seeing, _MAIN):
            detail = f"the method {method.spelling} calls {reference.spelling}, which sees the block; use a function"
            self._refuse("method", reference, detail)
        self._static_arrays(method)

    def _variable(self, cursor: cindex.Cursor) -> None:
        if shadows.dynamic_shared(cursor) and cursor.type.kind is cindex.TypeKind.INCOMPLETEARRAY:
            start, end = cursor.extent.start.offset, cursor.extent.end.offset
            if self.data[start : start + 6] != b"extern" or self.data[end : end + 1] != b";":
                self._refuse("extern_shared", cursor, "`extern __shared__` in a macro, or with several names")
            else:
                self._aligned(cursor, self.data[start:end].decode(errors="replace"))
                self._edit(start, end + 1, "")  # each function that uses it gets a pointer of that name
        elif _has(cursor, CursorKind.CUDASHARED_ATTR):
            self._refuse("extern_shared", cursor, f"the shared variable `{cursor.spelling}` stands outside a function")
        elif _has(cursor, CursorKind.CUDACONSTANT_ATTR):
            text = self.data[cursor.extent.start.offset : cursor.extent.end.offset]
            if b"=" not in text and b"{" not in text:
                detail = (
                    f"`__constant__ {cursor.spelling}` is set by the host, which this version cannot do; initialise it "
                    f"in the source or pass a buffer"
                )
                self._refuse("symbol", cursor, detail)
        elif _has(cursor, CursorKind.CUDADEVICE_ATTR) and not cursor.type.is_const_qualified():
            element = cursor.type.element_type if cursor.type.kind is cindex.TypeKind.CONSTANTARRAY else cursor.type
            if not element.is_const_qualified():
                detail = f"`__device__ {cursor.spelling}` keeps its value from run to run; pass a buffer instead"
                self._refuse("symbol", cursor, detail)

    def _own_barriers(self, function: cindex.Cursor) -> int:
        return sum(1 for _ in barriers.calls(function, frozenset({barriers.BARRIER})))

    def _launch_bound(self, cursor: cindex.Cursor) -> int | None:
        for child in cursor.get_children():
            text = self.data[child.extent.start.offset : child.extent.end.offset].decode(errors="replace")
            match = re.match(r"__launch_bounds__\s*\(\s*(\d+)", text)
            if match:
                return int(match.group(1))
        return None

    # --- saying no ---

    def _refuse(self, rule: str, cursor: cindex.Cursor, detail: str) -> None:
        self.rejections.append(self._refusal(rule, cursor.location.line, detail))

    def _refusal(self, rule: str, line: int, detail: str) -> Rejection:
        return Rejection(rule=rule, nodes=(self.name,), detail=f"{self.unit.where(line)}: {' '.join(detail.split())}")


# --- small questions about cursors ----------------------------------------------------------------------


def _in_main(cursor: cindex.Cursor) -> bool:
    return cursor.location.file is not None and cursor.location.file.name == _MAIN


def _is_stub(cursor: cindex.Cursor | None) -> bool:
    return cursor is not None and cursor.location.file is not None and cursor.location.file.name == _STUB


def _has(cursor: cindex.Cursor, kind: CursorKind) -> bool:
    return any(child.kind is kind for child in cursor.get_children())


def _arena_pointer(element: str, name: str) -> str:
    """The declaration that stands for a dynamic shared array. `element` is as written in the source, so that it means
    in the body what it meant in the declaration."""
    alias = ""
    if "[" in element:  # an array of arrays: a pointer to one of them needs a name for the type
        alias, element = f"using fusiond_{name} = {element}; ", f"fusiond_{name}"
    return f"{alias}{element}* const {name} = reinterpret_cast<{element}*>({SHARED});"


def _parameters(cursor: cindex.Cursor) -> list[cindex.Cursor]:
    return [child for child in cursor.get_children() if child.kind is CursorKind.PARM_DECL]


def _body_of(cursor: cindex.Cursor) -> cindex.Cursor:
    return next(child for child in cursor.get_children() if child.kind is CursorKind.COMPOUND_STMT)


def _kernels(cursors: list[cindex.Cursor], scope: str) -> Iterator[tuple[str, cindex.Cursor]]:
    """(qualified name, cursor) of every `__global__` function, declarations included."""
    for cursor in cursors:
        if cursor.kind in _SCOPES:
            inner = f"{scope}{cursor.spelling}::" if cursor.kind is CursorKind.NAMESPACE and cursor.spelling else scope
            yield from _kernels(list(cursor.get_children()), inner)
        elif cursor.kind in (CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE) and _has(
            cursor, CursorKind.CUDAGLOBAL_ATTR
        ):
            yield scope + cursor.spelling, cursor


def _parameter(cursor: cindex.Cursor) -> Parameter:
    written = cursor.type
    kind = written.get_canonical()
    restrict = kind.is_restrict_qualified()
    pointer = kind.kind is cindex.TypeKind.POINTER
    target = kind.get_pointee() if pointer else kind
    bare = re.sub(r"^(const |volatile )+", "", target.spelling).removeprefix("struct ")
    vector = bare if pointer and bare in VECTOR_OF else None
    return Parameter(
        name=cursor.spelling,
        pointer=pointer,
        dtype=_DTYPES.get(VECTOR_OF[bare] if vector else bare),
        spelling=written.spelling,
        target=bare,
        constant=pointer and target.is_const_qualified(),
        restrict=restrict,
        dependent=_dependent(cursor),
        void=pointer and bare == "void",
    )


def _dependent(cursor: cindex.Cursor) -> bool:
    """Whether a parameter's type mentions a template parameter."""
    return any(
        child.kind is CursorKind.TYPE_REF
        and child.referenced is not None
        and child.referenced.kind is CursorKind.TEMPLATE_TYPE_PARAMETER
        for child in shadows.below(cursor)
    )
