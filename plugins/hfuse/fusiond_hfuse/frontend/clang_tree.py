"""The tree that libclang makes of a kernel's text, against declarations of CUDA's own, and what was wrong with it.

A text is read for each architecture that it asks for. Where something in it cannot be read, `tolerant` gives the tree
of the rest.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from clang import cindex
from clang.cindex import CursorKind

from fusiond.errors import RequestError
from fusiond_hfuse.frontend import (
    cooperative_groups,
    cursors,
    host_headers,
    library_declarations,
    messages,
    overloads,
    shadows,
)
from fusiond_hfuse.frontend.cuda_declarations import DECLARATIONS, STANDARD
from fusiond_hfuse.frontend.includes import GROUPS, OF_STANDARDS, without_comments
from fusiond_hfuse.frontend.source_kernel import KernelParameter, TranslationUnit

ARCHITECTURES = ("750", "800", "900", "1000", "1200")
"""What `__CUDA_ARCH__` may be; a source that asks for it is read as each, and as a compiler that does not define it."""
MAIN = "/fusiond/kernel.cu"
DECLARATIONS_FILE = "/fusiond/declarations.h"
OURS = ("fusiond_signature", "fusiond_instantiate", "fusiond_constant", "fusiond_pointee", "fusiond_whole",
        "fusiond_complete")  # fmt: skip

NAME_OF_CUDA = "a function of CUDA's own name with CUDA's own parameters; leave it out, or rename it"
_NO_TOOLKIT = ("--cuda-path=/fusiond", "-Xclang", "-fcuda-allow-variadic-functions")
"""No toolkit is looked for, since its version would decide what is taken: this is what clang takes with today's."""
_NOT_CLANG = (
    "__clang__",
    "__clang_major__",
    "__clang_minor__",
    "__clang_patchlevel__",
    "__clang_version__",
    "__CUDA__",
)


_BY_DIRECTIVE = "User-Defined Issue"
"""Clang's category of `#error`."""
_TAKEN_BY_NVCC = ("-Wno-register", "-Wno-c++11-narrowing", "-Wno-reserved-user-defined-literal")
"""What clang takes for errors, unless it is told otherwise, and nvcc does not."""


class ClangTree:
    """A unit's tree in one reading (instance, macros, flags, architecture), and what was wrong with it."""

    def __init__(
        self,
        unit: TranslationUnit,
        text: str,
        instance: str,
        defines: tuple[tuple[str, str], ...],
        flags: tuple[str, ...],
        arch: str,
        *,
        inside: tuple[str, str] = ("", ""),
        kernels: bool = True,
    ) -> None:
        """`inside`: what stands before and behind the text. Without `kernels`, they are device functions, whose bodies
        clang makes for an instance that is only named."""
        self.where = unit
        self.instance = instance
        self.groups = any(name in GROUPS for name in unit.system)
        self.declarations = _declarations(unit.system, unit.host_headers, text)
        self.textures = re.search(r"\b(texture|surface)\s*<", unit.text) is not None
        self.group_declarations = cooperative_groups.declarations(unit.system) if self.groups else ""
        self._read = (text, defines, flags, arch)
        self.before = inside[0].count("\n")
        self.lines = text.count("\n") + (not text.endswith("\n"))
        suffix = (
            f"\nusing fusiond_signature = decltype({instance});\n"
            "template <class T, class = void> struct fusiond_pointee { enum { bytes }; };\n"
            "template <class T> struct fusiond_pointee<T*, decltype((void)sizeof(T))> {\n"
            "    enum { bytes = sizeof(T) };\n};\n"
            "template <class> struct fusiond_whole;\n"
            "template <class... P> struct fusiond_whole<void(P...)> {\n"
            "    template <unsigned long...> struct all {};\n"
            "    typedef all<sizeof(P)..., fusiond_pointee<P>::bytes...> type;\n};\n"
            "typedef fusiond_whole<fusiond_signature>::type fusiond_complete;\n"  # or structs stay without members
            f"__device__ void fusiond_instantiate() {{ auto fusiond_f = &{instance}; (void)fusiond_f; }}\n"
        )
        declarations = self.declarations + ("" if inside[0] else self.group_declarations)
        declarations += "" if kernels else "#undef __global__\n#define __global__ __attribute__((device))\n"
        self.unit = self._parse(unit, inside[0] + text + suffix + inside[1], declarations, defines, flags, arch)
        self.cursor = self.unit.cursor
        self.instantiation: set[str] = set()
        """Errors that only appear when templates are instantiated: what the declarations lack."""

    @staticmethod
    def _parse(
        unit: TranslationUnit,
        text: str,
        declarations: str,
        defines: tuple[tuple[str, str], ...],
        flags: tuple[str, ...],
        arch: str,
        *,
        opened: bool = False,
    ) -> cindex.TranslationUnit:
        """`opened`: members that are private may be named."""
        try:
            return _parse(text, declarations, defines, flags, arch, host=unit.host_headers, opened=opened)
        except cindex.TranslationUnitLoadError as problem:
            raise RequestError(f"libclang cannot read it: {problem}", where=unit.where(1)) from None

    def errors(self) -> list[tuple[int, str, bool]]:
        """(line of the text, message, whether only an instantiation shows it) of what a compiler would not take."""
        found = []
        for each in self.unit.diagnostics:
            if each.severity < cindex.Diagnostic.Error or tolerable(each.spelling):
                continue
            if self.textures and "reference to __host__ variable" in each.spelling:
                continue  # a texture reference: see `barriers.forbidden`
            at = each.location
            if at.file is not None and at.file.name not in (MAIN, DECLARATIONS_FILE):
                continue  # the host's headers, which declare for it what CUDA declares for both
            line = at.line - self.before if at.file is not None and at.file.name == MAIN else 1
            notes = any("in instantiation of" in child.spelling for child in each.children)
            of_user = each.category_name == _BY_DIRECTIVE
            found.append((line, f"#error {each.spelling}" if of_user else each.spelling, notes))
        return found

    def problem(self) -> RequestError | None:
        """The first error, when the text is not CUDA C++."""
        for line, message, instantiated in self.errors():
            if instantiated:
                self.instantiation.add(message)
            elif line <= self.lines and re.search(r"function '\w+' cannot overload __host__ __device__", message):
                name = message.split("'")[1]
                return RequestError(f"{name}: {NAME_OF_CUDA}", where=self.where.where(line))
            elif line <= self.lines and "cooperative_groups" not in message:
                return RequestError(sentence(self.where, message, line), where=self.where.where(line))
        return None

    def unknown_groups(self) -> list[tuple[int, str]]:
        """What of cooperative groups is not known."""
        return [(line, message) for line, message, _ in self.errors() if "cooperative_groups" in message]

    def instantiated(self) -> cindex.Cursor | None:
        """The function that the instance comes from, as clang resolves its name."""
        for top in cursors.children(self.cursor):
            if top.spelling == "fusiond_signature":
                named = [each for each in cursors.below(top) if each.kind is CursorKind.DECL_REF_EXPR]
                found = [each.referenced for each in named if each.referenced is not None]
                return next((each for each in found if each.kind in shadows.FUNCTIONS), None)
        return None

    def of_cuda(self) -> frozenset[str]:
        """CUDA's functions, as far as the declarations have them."""
        return frozenset(
            each.spelling
            for each in cursors.children(self.cursor)
            if each.kind in shadows.FUNCTIONS and cursors.file_of(each) == DECLARATIONS_FILE
        )

    def parameters(
        self, body: cindex.Cursor, where: str, parameter: Callable[[cindex.Cursor, cindex.Type], KernelParameter]
    ) -> tuple[KernelParameter, ...]:
        """The kernel's parameters, with their types in the instance."""
        written = [child for child in cursors.children(body) if child.kind is CursorKind.PARM_DECL]
        signature = next((each for each in cursors.children(self.cursor) if each.spelling == "fusiond_signature"), None)
        kind = signature.underlying_typedef_type.get_canonical() if signature is not None else None
        if body.kind is CursorKind.FUNCTION_DECL:  # it may be called as a function of CUDA
            kind = body.type.get_canonical()
        if kind is None or kind.kind is not cindex.TypeKind.FUNCTIONPROTO:
            after = [message for line, message, _ in self.errors() if line > self.lines]
            reason = after[0] if after else "its type cannot be told"
            raise RequestError(f"{self.instance}: {reason}", where=where)
        kinds = list(kind.argument_types())
        if len(kinds) != len(written):
            raise RequestError(f"{self.instance} takes a list of parameters of any length", where=where)
        return tuple(parameter(cursor, each) for cursor, each in zip(written, kinds, strict=True))

    def located(self, record: str, names: list[str]) -> list[tuple[cindex.Type, int] | None]:
        """The types of a struct's members, those of its bases too, and their places in bytes; None for what is not
        told."""
        if not names:
            return []
        text, defines, flags, arch = self._read
        record = record.replace("(anonymous namespace)::", "")
        added = "".join(
            f"\nusing fusiond_kind_{at} = decltype({record}::{name});"
            f"\nenum : long {{ fusiond_place_{at} = __builtin_offsetof({record}, {name}) }};"
            for at, name in enumerate(names)
        )
        declarations = self.declarations + self.group_declarations
        parsed = self._parse(self.where, text + added + "\n", declarations, defines, flags, arch, opened=True)
        kinds: dict[str, cindex.Type] = {}
        places: dict[str, int] = {}
        for top in parsed.cursor.get_children():
            if top.kind is CursorKind.TYPE_ALIAS_DECL and top.spelling.startswith("fusiond_kind_"):
                kinds[top.spelling.removeprefix("fusiond_kind_")] = top.underlying_typedef_type.get_canonical()
            elif top.kind is CursorKind.ENUM_DECL:
                for each in top.get_children():
                    if each.spelling.startswith("fusiond_place_"):
                        places[each.spelling.removeprefix("fusiond_place_")] = int(each.enum_value)
        broken = any(
            each.severity >= cindex.Diagnostic.Error and "fusiond" in each.spelling for each in parsed.diagnostics
        )
        return [
            None if broken or str(at) not in kinds or str(at) not in places else (kinds[str(at)], places[str(at)])
            for at in range(len(names))
        ]

    def constant(self, expression: str, scope: tuple[str, ...], head: str) -> int | None:
        """The value of an integral expression in the place of the kernel; None when it cannot be told.

        `scope` are the kernel's namespaces, `head` is its `template <...>`.
        """
        expression = expression.strip()
        if expression.isdigit():
            return int(expression)
        if not expression:
            return None
        text, defines, flags, arch = self._read
        arguments = self.instance.partition("<")[1] + self.instance.partition("<")[2] if head else ""
        opened = "".join(f"namespace {name} {{ " for name in scope)
        holder = f"{head} struct fusiond_holder {{ enum : long {{ value = ({expression}) }}; }};"
        path = "::".join([*scope, f"fusiond_holder{arguments}", "value"])
        added = f"\n{opened}{holder}{' }' * len(scope)}\nenum : long {{ fusiond_constant = ::{path} }};\n"
        declarations = self.declarations + self.group_declarations
        tree = self._parse(self.where, text + added, declarations, defines, flags, arch)
        last = [each for each in tree.cursor.get_children() if each.kind is CursorKind.ENUM_DECL][-1:]
        for each in last:
            for value in each.get_children():
                if value.spelling == "fusiond_constant":
                    broken = any(
                        "fusiond" in found.spelling or "constant expression" in found.spelling
                        for found in tree.diagnostics
                        if found.severity >= cindex.Diagnostic.Error
                    )
                    return None if broken else int(value.enum_value)
        return None


def sentence(unit: TranslationUnit, message: str, line: int) -> str:
    """What clang says of a line of a unit, for the person who wrote it."""
    written = unit.text.split("\n")[line - 1] if line > 0 else ""
    file = unit.where(line).rpartition(":")[0]
    own = {  # those that the file itself includes are likelier to have the name
        header
        for header, places in unit.missing.items()
        if any(unit.where(place + 1).rpartition(":")[0] == file for place in places)
    }
    return messages.sentence(message, sorted(unit.missing, key=lambda each: each not in own), written)


def mistakes(
    unit: TranslationUnit, instance: str, defines: tuple[tuple[str, str], ...], flags: tuple[str, ...] = ()
) -> int:
    """How much is wrong with an instance of a unit's kernel, its body included, that is not wrong with all of them; as
    the first architecture reads it."""
    arch = architectures(unit.text)[0]
    tree = ClangTree(unit, unit.text, instance, defines, flags, arch, kernels=False)
    found = tree.errors()
    unnamed = any(line > tree.lines for line, _, _ in found)  # nothing was instantiated: no other error is seen
    return _MANY if unnamed else sum(1 for _, _, instantiated in found if instantiated)


_MANY = 1000


def architectures(text: str) -> tuple[str, ...]:
    """Those for which a text is read: one, unless it asks."""
    asks = re.search(r"\b__CUDA_ARCH__\b", without_comments(text)) is not None
    return (*ARCHITECTURES, "") if asks else ("800",)


class Readings:
    """Which architectures' readings of a text can differ: a tree costs little, looking at it much."""

    def __init__(self, text: str) -> None:
        rest = _CONDITION.sub("", without_comments(text))
        self._decided = re.search(r"\b__CUDA_ARCH__\b", rest) is None
        """Whether an architecture decides nothing but conditions."""
        self._seen: set[tuple[tuple[int, int], ...]] = set()

    def repeated(
        self,
        text: str,
        system: tuple[str, ...],
        defines: tuple[tuple[str, str], ...],
        flags: tuple[str, ...],
        arch: str,
    ) -> bool:
        """The same, without the host's headers, which take long to read and decide no architecture."""
        try:
            tree = tolerant(text, system, defines, flags, arch, host=False)
        except cindex.TranslationUnitLoadError:
            return False
        try:
            return self.repeats(tree)
        finally:
            cursors.forget(tree)

    def repeats(self, tree: cindex.TranslationUnit) -> bool:
        """Whether a tree is that of an architecture before: the same parts of the text are left out."""
        if not self._decided:
            return False
        skipped = tuple(cursors.skipped(tree, MAIN))
        if skipped in self._seen:
            return True
        self._seen.add(skipped)
        return False


_CONDITION = re.compile(
    r"^[ \t]*(?:#|%:)[ \t]*(?:(?:if|ifdef|ifndef|elif)\b|(?:define|undef)[ \t]+__CUDA_ARCH__\b)"
    r"(?:[^\n]*\\\n)*[^\n]*",
    re.MULTILINE,
)


def tolerant(
    text: str,
    system: tuple[str, ...],
    defines: tuple[tuple[str, str], ...],
    flags: tuple[str, ...],
    arch: str,
    *,
    host: bool,
    bodies: bool = True,
) -> cindex.TranslationUnit:
    """The tree of a text that may be wrong; `host`: with the host's headers; without `bodies`, those of functions are
    not looked at. Raises TranslationUnitLoadError."""
    declarations = _declarations(system, host, text)
    declarations += cooperative_groups.declarations(system) if any(name in GROUPS for name in system) else ""
    return _parse(
        text, declarations, defines, flags, arch, host=host, more=_KEEP_GOING | (0 if bodies else _SKIP_BODIES)
    )


def _declarations(system: tuple[str, ...], host: bool, text: str) -> str:
    """What stands before a text that includes these headers."""
    standard = host_headers.included([each for each in system if each in OF_STANDARDS], text) if host else STANDARD
    return DECLARATIONS + standard + library_declarations.of(system)


_ALIGNED_SHARED = re.compile(
    r"((?:\b(?:extern|static)[ \t]+)?\b__shared__\b)([ \t]*)"
    r"(\balignas[ \t]*\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\))"
)
"""`__shared__ alignas(16) float x`, which nvcc takes, for clang: `alignas(16)__shared__ float x`, as long as before."""
_PRAGMA_OF_MACRO = re.compile(r"^([ \t]*#[ \t]*define[ \t]+\w+[ \t]+)#[ \t]*pragma\b[\w \t()]*", re.MULTILINE)
"""`#define UNROLL #pragma unroll`, which nvcc takes; for clang it is nothing, and as long."""
_SKIP_BODIES = cindex.TranslationUnit.PARSE_SKIP_FUNCTION_BODIES
_KEEP_GOING = 0x200
"""CXTranslationUnit_KeepGoing, which the bindings do not name."""


def _parse(
    text: str,
    declarations: str,
    defines: tuple[tuple[str, str], ...],
    flags: tuple[str, ...],
    arch: str,
    *,
    host: bool,
    opened: bool = False,
    more: int = 0,
) -> cindex.TranslationUnit:
    """`host`: the host's headers are found; `opened`: members that are private may be named. Raises
    TranslationUnitLoadError."""
    standard = next((flag.partition("=")[2] for flag in flags if "std=" in flag), "c++17")
    arguments = [
        "-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "-nostdinc", "-nostdinc++", *_NO_TOOLKIT,
        f"-std={standard}", "-ferror-limit=0", "-w", *_TAKEN_BY_NVCC, "-include", DECLARATIONS_FILE,
        *(f"-U{name}" for name in _NOT_CLANG),
        *(["-fno-access-control"] if opened else []),
        *(each for folder in (host_headers.folders() if host else ()) for each in ("-isystem", folder)),
        *([f"-DFUSIOND_ARCH={arch}"] if arch else []), *(f"-D{macro}={value}" for macro, value in defines),
    ]  # fmt: skip
    text = _PRAGMA_OF_MACRO.sub(
        lambda each: each.group(1).ljust(len(each.group())), _ALIGNED_SHARED.sub(r"\3\1\2", text)
    )
    return cindex.Index.create().parse(
        MAIN,
        args=arguments,
        unsaved_files=[(MAIN, text), (DECLARATIONS_FILE, declarations)],
        options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD | more,
    )


@functools.lru_cache(maxsize=8)
def blanked(data: bytes) -> str:
    """The text with comments and the insides of strings blanked, one character a byte."""
    text = without_comments(data.decode("latin-1"))
    pattern = re.compile(
        r'\b(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"|"(?:\\.|[^"\\\n])*"', re.DOTALL
    )
    return pattern.sub(lambda match: '"' + re.sub(r"[^\n]", " ", match.group()[1:-1]) + '"', text)


_OF_CALLS = re.compile(r"(?:use of undeclared identifier|no matching function for call to|call to) '(\w+)'")


def tolerable(message: str) -> bool:
    """A function of CUDA that is not declared here, an overload that is declared wrongly, PTX, a
    `template` left out that nvcc does without: left to the compiler."""
    return bool(
        re.match(r"use of undeclared identifier '?(__\w+|\w+_(sync|rn|rz|ru|rd)|cudaConfigureCall)'?", message)
        or re.match(r"(no matching function for call to|call to) '(__\w+|atomic\w+)'", message)
        or ((name := re.match(_OF_CALLS, message)) is not None and name.group(1) in overloads.NAMES)
        or "cudaConfigureCall" in message
        or "reference to __global__ function" in message  # it launches it: see `barriers.forbidden`
        or re.search(r"in(line)? (asm|assembly)|^(missing|use) 'template' keyword .*dependent template name", message)
    )
