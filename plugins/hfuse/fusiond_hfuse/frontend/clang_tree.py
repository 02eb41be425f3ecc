"""The tree that libclang makes of a kernel's text, against CUDA declarations of ours, and its diagnostics."""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fusiond.model.errors import RequestError
from fusiond_hfuse.frontend import cursors
from fusiond_hfuse.frontend.cuda_declarations import declarations
from fusiond_hfuse.frontend.cursors import DECLARATIONS_FILE, MAIN, CursorKind, cindex
from fusiond_hfuse.frontend.includes import without_comments
from fusiond_hfuse.frontend.source_kernel import TranslationUnit

OURS = ("fusiond_signature", "fusiond_instantiate", "fusiond_constant", "fusiond_pointee", "fusiond_whole",
        "fusiond_complete")  # fmt: skip

_NO_TOOLKIT = ("--cuda-path=/fusiond", "-Xclang", "-fcuda-allow-variadic-functions")
"""No toolkit is looked for, since its version would decide what is taken: this is what clang takes with today's."""
_NOT_CLANG = (
    "__clang__", "__clang_major__", "__clang_minor__", "__clang_patchlevel__", "__clang_version__", "__CUDA__",
)  # fmt: skip
_TAKEN_BY_NVCC = ("-Wno-register", "-Wno-c++11-narrowing", "-Wno-reserved-user-defined-literal")
"""What clang takes for errors, unless it is told otherwise, and nvcc does not."""
_COMPLETE = """
template <class T, class = void> struct fusiond_pointee { enum { bytes }; };
template <class T> struct fusiond_pointee<T*, decltype((void)sizeof(T))> { enum { bytes = sizeof(T) }; };
template <class> struct fusiond_whole;
template <class... P> struct fusiond_whole<void(P...)> {
    template <unsigned long...> struct all {};
    typedef all<sizeof(P)..., fusiond_pointee<P>::bytes...> type;
};
typedef fusiond_whole<fusiond_signature>::type fusiond_complete;
"""
"""Or structs that are parameters stay without members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Which kernel of a unit is read, and as what."""

    entry: str  #: With its namespaces
    name: str  #: The kernel's, for messages
    where: str  #: The YAML key that names the entry
    instance: str | None = None
    defines: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()  #: Those that the host sets

    @property
    def function(self) -> str:
        """The kernel, with template arguments where it is a template."""
        return self.instance or self.entry


class ClangTree:
    """A unit's tree, and what was wrong with it."""

    def __init__(
        self, unit: TranslationUnit, text: str, reading: Reading, *, inside: tuple[str, str] = ("", "")
    ) -> None:
        """`inside`: what stands before and behind the text. RequestError for what libclang cannot read at all."""
        self.where = unit
        self.reading = reading
        self.before = inside[0].count("\n")
        self.lines = text.count("\n") + (not text.endswith("\n"))
        self._text = text
        instance = reading.function
        suffix = (
            f"\nusing fusiond_signature = decltype({instance});{_COMPLETE}"
            f"__device__ void fusiond_instantiate() {{ auto fusiond_f = &{instance}; (void)fusiond_f; }}\n"
        )
        self.unit = self._parse(inside[0] + text + suffix + inside[1])
        self.cursor = self.unit.cursor

    def _parse(self, text: str, *flags: str) -> cindex.TranslationUnit:
        try:
            return tolerant(text, self.where.system, self.reading.defines, (*self.reading.flags, *flags))
        except cindex.TranslationUnitLoadError as problem:
            raise RequestError(f"libclang cannot read it: {problem}", where=self.where.where(1)) from None

    def errors(self) -> list[tuple[int, int, str]]:
        """(line of the text, offset in all that was parsed, message) of what a compiler would not take."""
        found = []
        for each in self.unit.diagnostics:
            if each.severity >= cindex.Diagnostic.Error and not _tolerable(each.spelling):
                at = each.location
                line = at.line - self.before if at.file is not None and at.file.name == MAIN else 1
                found.append((line, at.offset, each.spelling))
        return found

    def of_cuda(self) -> frozenset[str]:
        """CUDA's functions, as far as the declarations have them."""
        return frozenset(
            each.spelling
            for each in cursors.children(self.cursor)
            if each.kind in (CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE)
            and cursors.file_of(each) == DECLARATIONS_FILE
        )

    def located(self, record: str, names: list[str]) -> list[tuple[cindex.Type, int]] | None:
        """The types of a struct's members, those of its bases too, and their places in bytes; None where these cannot
        be told."""
        added = "".join(
            f"\nusing fusiond_kind_{at} = decltype({record}::{name});"
            f"\nenum : long {{ fusiond_place_{at} = __builtin_offsetof({record}, {name}) }};"
            for at, name in enumerate(names)
        )
        parsed = self._parse(self._text + added + "\n", _OPENED)
        if any(each.severity >= cindex.Diagnostic.Error and "fusiond" in each.spelling for each in parsed.diagnostics):
            return None
        kinds = [
            top.underlying_typedef_type.get_canonical()
            for top in parsed.cursor.get_children()
            if top.kind is CursorKind.TYPE_ALIAS_DECL and top.spelling.startswith("fusiond_kind_")
        ]
        places = list(_enumerated(parsed, "fusiond_place_"))
        return list(zip(kinds, places, strict=True)) if len(kinds) == len(places) == len(names) else None

    def constant(self, expression: str, head: str) -> int | None:
        """The value of an integral expression in the place of the kernel, which has this `template <...>`; None when it
        cannot be told."""
        expression = expression.strip()
        if expression.isdigit() or not expression:
            return int(expression) if expression else None
        instance, scope = self.reading.function, self.reading.entry.split("::")[:-1]
        arguments = instance[instance.index("<") :] if head and "<" in instance else ""
        opened = "".join(f"namespace {name} {{ " for name in scope)
        holder = f"{head} struct fusiond_holder {{ enum : long {{ value = ({expression}) }}; }};"
        path = "::".join([*scope, f"fusiond_holder{arguments}", "value"])
        added = f"\n{opened}{holder}{' }' * len(scope)}\nenum : long {{ fusiond_constant = ::{path} }};\n"
        tree = self._parse(self._text + added)
        if any(
            each.severity >= cindex.Diagnostic.Error
            and ("fusiond" in each.spelling or "constant expression" in each.spelling)
            for each in tree.diagnostics
        ):
            return None
        return next(_enumerated(tree, "fusiond_constant"), None)


def _enumerated(tree: cindex.TranslationUnit, prefix: str) -> Iterator[int]:
    """The values of enumerators whose names begin so."""
    for top in tree.cursor.get_children():
        for each in top.get_children() if top.kind is CursorKind.ENUM_DECL else ():
            if each.spelling.startswith(prefix):
                yield int(each.enum_value)


_ALIGNED_SHARED = re.compile(
    r"((?:\b(?:extern|static)[ \t]+)?\b__shared__\b)([ \t]*)"
    r"(\balignas[ \t]*\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\))"
)
"""`__shared__ alignas(16) float x`, which nvcc takes, for clang: `alignas(16)__shared__ float x`, as long as before."""
_PRAGMA_OF_MACRO = re.compile(r"^([ \t]*#[ \t]*define[ \t]+\w+[ \t]+)#[ \t]*pragma\b[\w \t()]*", re.MULTILINE)
"""`#define UNROLL #pragma unroll`, which nvcc takes; for clang it is nothing, and as long."""
_OPENED = "-fno-access-control"  #: Members that are private may be named
_KEEP_GOING = 0x200  #: CXTranslationUnit_KeepGoing, which the bindings do not name


def tolerant(
    text: str, system: tuple[str, ...], defines: tuple[tuple[str, str], ...], flags: tuple[str, ...]
) -> cindex.TranslationUnit:
    """The tree of a text that may be wrong. Raises TranslationUnitLoadError."""
    standard = next((flag.partition("=")[2] for flag in flags if "std=" in flag), "c++17")
    arguments = [
        "-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "-nostdinc", "-nostdinc++", *_NO_TOOLKIT,
        f"-std={standard}", "-ferror-limit=0", "-w", *_TAKEN_BY_NVCC, "-include", DECLARATIONS_FILE,
        *(f"-U{name}" for name in _NOT_CLANG), *(f"-D{macro}={value}" for macro, value in defines),
        *(flag for flag in flags if flag == _OPENED),
    ]  # fmt: skip
    text = _PRAGMA_OF_MACRO.sub(
        lambda each: each.group(1).ljust(len(each.group())), _ALIGNED_SHARED.sub(r"\3\1\2", text)
    )
    return cindex.Index.create().parse(
        MAIN,
        args=arguments,
        unsaved_files=[(MAIN, text), (DECLARATIONS_FILE, declarations(system))],
        options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD | _KEEP_GOING,
    )


@functools.lru_cache(maxsize=8)
def blanked(data: bytes) -> str:
    """The text with comments and the insides of strings blanked, one character a byte."""
    text = without_comments(data.decode("latin-1"))
    pattern = re.compile(
        r'\b(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"|"(?:\\.|[^"\\\n])*"', re.DOTALL
    )
    return pattern.sub(lambda match: '"' + re.sub(r"[^\n]", " ", match.group()[1:-1]) + '"', text)


_OF_CUDA = re.compile(
    r"use of undeclared identifier '?(?!__pipeline)"
    r"(__\w+|\w+_(sync|rn|rz|ru|rd)|CUDART_\w+|M_[A-Z0-9_]+|[A-Z0-9]+_(MAX|MIN|EPSILON))'?"
    r"|(no matching function for call to|call to) '(__\w+|atomic\w+)'"
)


def _tolerable(message: str) -> bool:
    """A function or constant of CUDA that is not declared here, an overload that is declared wrongly, PTX, a
    `template` left out that nvcc does without: left to the compiler."""
    return bool(
        _OF_CUDA.match(message)
        or "reference to __global__ function" in message  # to have it made; who launches it is refused elsewhere
        or re.search(r"in(line)? (asm|assembly)|^(missing|use) 'template' keyword .*dependent template name", message)
    )
