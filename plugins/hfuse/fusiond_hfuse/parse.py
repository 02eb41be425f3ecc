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
from fusiond_hfuse import barriers
from fusiond_hfuse.graph import Edit, Parameter, Parsed, Unit
from fusiond_hfuse.includes import without_comments
from fusiond_hfuse.stub import STUB, VECTOR_OF

SHADOWED = ("threadIdx", "blockIdx", "blockDim", "gridDim", "__syncthreads")
"""What the body sees its own version of."""
SHADOWS = "FUSIOND_SHADOWS"
"""The macro that stands for the shadow parameters in a fused source."""
SHARED = "fusiond_shared"
"""The shadow parameter that holds the side's part of the arena."""

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
    return _Reader(unit, tree, name).read(entry, template, where)


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
    """A CUDA function that the stub lacks, or an overload that it gets wrong: the compiler has the last word."""
    return bool(
        re.match(r"use of undeclared identifier '?(__\w+|\w+_(sync|rn|rz|ru|rd)|cudaConfigureCall)'?", message)
        or re.match(r"(no matching function for call to|call to) '(__\w+|atomic\w+|min|max)'", message)
        or "cudaConfigureCall" in message
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

    def read(self, entry: str, template: bool, where: str) -> Parsed:
        top = [each for each in self.tree.cursor.get_children() if _in_main(each)]
        kernels = list(_kernels(top, ""))
        body, declarations = self._entry(kernels, entry, template, where)
        for qualified, cursor in kernels:
            if qualified != entry and (cursor.is_definition() or cursor.extent.end.offset > cursor.extent.start.offset):
                self._remove(cursor)
        for cursor in declarations:
            self._rewrite(cursor)
        self._body(body)
        others = {cursor.hash for qualified, cursor in kernels if qualified != entry}
        for cursor in top:
            self._outside(cursor, {body.hash}, others)
        self.rejections += barriers.early_returns(_body_of(body), self._refusal)
        self.rejections += barriers.forbidden(self.tree, _MAIN, self._refusal)
        self._linkage()
        return Parsed(
            entry=entry,
            parameters=tuple(_parameter(each) for each in _parameters(body)),
            edits=tuple(sorted(self.edits, key=lambda edit: (edit.start, edit.end))),
            uses_dynamic_shared=self.dynamic,
            static_shared_bytes=self.static_bytes,
            barriers=len(list(barriers.calls(body))),
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
        opening = self._opening(cursor)
        if opening is None:
            self._refuse("macro", cursor, "the parameter list stands inside a macro")
        else:
            self._edit(opening, opening, f"{SHADOWS}, " if parameters else SHADOWS)
            if not parameters:
                closing = self.data.index(b")", opening)
                if self.data[opening:closing].strip() == b"void":
                    self._edit(opening, closing, "")

    def _opening(self, cursor: cindex.Cursor) -> int | None:
        """The offset behind the parenthesis that opens a function's parameter list."""
        name = cursor.location.offset
        spelling = cursor.spelling.encode()
        if self.data[name : name + len(spelling)] != spelling:
            return None
        match = re.compile(rb"\s*\(").match(self.data, name + len(spelling))
        return match.end() if match else None

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
        """Shared variables of the kernel, and uses of the built-ins where the shadow parameters do not reach."""
        for cursor, inside in _walk(function, ()):
            if cursor.kind is CursorKind.VAR_DECL and _has(cursor, CursorKind.CUDASHARED_ATTR):
                self._shared(cursor, inside)
            elif (
                cursor.kind is CursorKind.DECL_REF_EXPR and cursor.spelling in SHADOWED and _is_stub(cursor.referenced)
            ):
                for outer in inside:
                    if outer.kind in _RECORDS:
                        self._refuse("local_type", cursor, f"`{cursor.spelling}` is used in a method of a local type")
                        break
                    if outer.kind is CursorKind.LAMBDA_EXPR and self._captures_nothing(outer):
                        self._refuse("lambda", cursor, f"`{cursor.spelling}` is used in a lambda that captures nothing")
                        break

    def _captures_nothing(self, cursor: cindex.Cursor) -> bool:
        text = self.data[cursor.extent.start.offset : cursor.extent.start.offset + 40]
        return re.match(rb"\[\s*\]", text) is not None

    def _shared(self, cursor: cindex.Cursor, inside: tuple[cindex.Cursor, ...]) -> None:
        if cursor.storage_class is not cindex.StorageClass.EXTERN:
            size = cursor.type.get_size()
            self.static_bytes = None if size < 0 or self.static_bytes is None else self.static_bytes + size
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
        alignment = re.search(r"(?:__align__|alignas|aligned)\s*\(+\s*(\w+)", text)
        if alignment and (not alignment.group(1).isdigit() or int(alignment.group(1)) > 16):
            self._refuse("alignment", cursor, f"`{cursor.spelling}` asks for more than 16 bytes of alignment")
        # `element` is as written in the source, so that it means in the body what it meant in the declaration.
        self._edit(start, end, f"{element}* const {cursor.spelling} = reinterpret_cast<{element}*>({SHARED});")

    def _outside(self, cursor: cindex.Cursor, skipped: set[int], removed: set[int]) -> None:
        """What stands round the kernel: helpers that would see the fused block, variables that the host must set."""
        if cursor.hash in skipped or cursor.hash in removed:
            return
        if cursor.kind in _FUNCTIONS:
            self._helper(cursor)
        elif cursor.kind is CursorKind.VAR_DECL:
            self._variable(cursor)
        elif cursor.kind in _SCOPES or cursor.kind in _RECORDS:
            for child in cursor.get_children():
                self._outside(child, skipped, removed)

    def _helper(self, function: cindex.Cursor) -> None:
        for cursor, _ in _walk(function, ()):
            if cursor.kind is CursorKind.DECL_REF_EXPR and cursor.spelling in SHADOWED and _is_stub(cursor.referenced):
                detail = (
                    f"the function {function.spelling} uses `{cursor.spelling}` itself; this version shadows "
                    f"the built-ins in the kernel only, so pass it as an argument"
                )
                self._refuse("helper", cursor, detail)
            if cursor.kind is CursorKind.VAR_DECL and _has(cursor, CursorKind.CUDASHARED_ATTR):
                if cursor.storage_class is cindex.StorageClass.EXTERN:
                    self._refuse(
                        "extern_shared", cursor, f"`extern __shared__ {cursor.spelling}` stands outside the kernel"
                    )
                else:
                    size = cursor.type.get_size()
                    self.static_bytes = None if size < 0 or self.static_bytes is None else self.static_bytes + size

    def _variable(self, cursor: cindex.Cursor) -> None:
        if _has(cursor, CursorKind.CUDASHARED_ATTR):
            self._refuse("extern_shared", cursor, f"the shared variable `{cursor.spelling}` stands outside the kernel")
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


def _parameters(cursor: cindex.Cursor) -> list[cindex.Cursor]:
    return [child for child in cursor.get_children() if child.kind is CursorKind.PARM_DECL]


def _body_of(cursor: cindex.Cursor) -> cindex.Cursor:
    return next(child for child in cursor.get_children() if child.kind is CursorKind.COMPOUND_STMT)


def _walk(
    cursor: cindex.Cursor, inside: tuple[cindex.Cursor, ...]
) -> Iterator[tuple[cindex.Cursor, tuple[cindex.Cursor, ...]]]:
    """Every cursor below one, with those that it stands in."""
    for child in cursor.get_children():
        yield child, (*inside, cursor)
        yield from _walk(child, (*inside, cursor))


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
        for child in cursor.walk_preorder()
    )
