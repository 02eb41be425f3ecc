"""What the variables of a function may hold, as far as threads of one block can differ in it.

Two questions are asked of an expression. *Proven* uniform is what is made of literals, `blockIdx`, `blockDim`,
`gridDim`, parameters of the kernel, constants, what `const T* __restrict__` parameters point to, and variables that
hold nothing else, written where all threads come. *Tainted* is what is made of `threadIdx`, of lanes, votes, shuffles
and atomics, directly, through a variable or through a function. Between them lies what memory holds.

A variable is followed from its declaration on: what stands round both its declaration and a write of it (a loop in
whose body it lives) decides who gets there, but not in what those differ. A `break` or `continue` that only some
threads take makes what the loop writes differ, and so does a `goto`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from clang import cindex
from clang.cindex import CursorKind

from fusiond_hfuse.frontend import cursors, overloads, shadows
from fusiond_hfuse.frontend.graph import WARP
from fusiond_hfuse.frontend.recheck import STUB_FILE

LOOPS = (CursorKind.FOR_STMT, CursorKind.WHILE_STMT, CursorKind.DO_STMT, CursorKind.CXX_FOR_RANGE_STMT)
_UNIFORM_BUILTINS = ("blockIdx", "blockDim", "gridDim", "warpSize")
_UNIFORM_CALLS = frozenset({
    "min", "max", "abs", "llabs", "fminf", "fmaxf", "fmin", "fmax", "ceil", "ceilf", "floor", "floorf", "sqrtf",
    "__umulhi", "__mulhi", "__clz", "__ffs", "__popc", "__ldg", "log2", "log2f", "umin", "umax",
})  # fmt: skip
_DIFFERS = re.compile(r"__(shfl|ballot|any|all|match|activemask|reduce)\w*|atomic\w*|clock(64)?")
_ALIKE_OF_GROUPS = ("sync", "size", "num_threads", "group_index", "group_dim", "dim_threads", "meta_group_size",
                    "block_rank", "block_index", "num_blocks", "dim_blocks")  # fmt: skip
_WRITES = (CursorKind.BINARY_OPERATOR, CursorKind.COMPOUND_ASSIGNMENT_OPERATOR, CursorKind.UNARY_OPERATOR)
_BRANCHES = (CursorKind.IF_STMT, CursorKind.SWITCH_STMT, CursorKind.CONDITIONAL_OPERATOR)
_REFERENCES = (cindex.TypeKind.LVALUEREFERENCE, cindex.TypeKind.RVALUEREFERENCE)
_ARRAYS = (cindex.TypeKind.CONSTANTARRAY, cindex.TypeKind.DEPENDENTSIZEDARRAY)

Inside = tuple[cindex.Cursor, ...]


@dataclass(frozen=True, slots=True)
class _Write:
    """A write of a variable, and the constructs that the write stands in."""

    target: int
    """The variable's hash."""
    value: cindex.Cursor | None
    """What is written; None for what nobody can tell."""
    by_call: bool
    """`value` is a call that is handed the variable's address or a reference to it."""
    cursor: cindex.Cursor
    inside: Inside


class Callees:
    """The user's functions, by name; overloads of one name are taken together, and the worst of them counts. With
    `constant`, which gives the value of an expression, *proven* is what all threads of a warp have alike: the number of
    their warp too."""

    def __init__(
        self,
        functions: Sequence[cindex.Cursor],
        data: bytes,
        constant: Callable[[str], int | None] | None = None,
    ) -> None:
        self.data = data
        self.constant = constant
        self._of: dict[str, list[cindex.Cursor]] = {}
        for each in functions:
            self._of.setdefault(shadows.named(each), []).append(each)
        self._known: dict[tuple[str, str], bool] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def pure(self, name: str) -> bool:
        """The result is the same for all threads, where the arguments are."""
        return self._ask("pure", name, False)

    def differs(self, name: str, *, arguments: bool) -> bool:
        """The result may differ between threads; `arguments`: these do."""
        return self._ask("through" if arguments else "own", name, True)

    def looks(self, name: str) -> bool:
        """It looks at what differs between threads, whatever it does with that."""
        return self._ask("looks", name, True)

    def takes_references(self, name: str) -> bool:
        """One of these functions can write to what is handed to it."""
        return any(_by_reference(kind) for each in self._of.get(name, ()) for kind in _kinds(each))

    def _ask(self, question: str, name: str, worst: bool) -> bool:
        key = (question, name)
        if key not in self._known:
            self._known[key] = worst  # of a function that calls itself
            bodies = [body for each in self._of[name] if (body := body_of(each)) is not None]
            if bodies:
                answers = [self._answer(question, each) for each in self._of[name] if body_of(each) is not None]
                self._known[key] = any(answers) if worst else all(answers)
        return self._known[key]

    def _answer(self, question: str, function: cindex.Cursor) -> bool:
        flow = Flow(function, self, parameters_agree=True, tainted_parameters=question == "through")
        if question == "looks" or shadows.constructs(function):
            return question == "through" or (question != "pure" and flow.looks())
        returns = [(cursor, inside) for cursor, inside in flow.nodes if cursor.kind is CursorKind.RETURN_STMT]
        proven = question == "pure"
        agree = all(
            flow.comes_together(cursor, inside, proven=proven) and flow.agrees(cursor, proven=proven)
            for cursor, inside in returns
        )
        return agree if proven else not agree


class Flow:
    """One function's variables. `parameters_agree`: all threads have the same in its parameters, as in a `kernel`'s."""

    def __init__(
        self,
        function: cindex.Cursor,
        callees: Callees,
        *,
        parameters_agree: bool,
        kernel: bool = False,
        tainted_parameters: bool = False,
    ) -> None:
        body = body_of(function)
        assert body is not None
        self.function = function
        self.body = body
        self.callees = callees
        self.data = callees.data
        self.parameters_agree = parameters_agree
        self.kernel = kernel
        self.nodes = list(cursors.preorder(body))
        parameters = [each for each in cursors.children(function) if each.kind is CursorKind.PARM_DECL]
        self.declared: dict[int, Inside] = {each.hash: () for each in parameters}
        self._names: dict[str, list[int]] = {}
        for each in parameters:
            self._names.setdefault(each.spelling, []).append(each.hash)
        for cursor, inside in self.nodes:
            if cursor.kind is CursorKind.VAR_DECL:
                self.declared[cursor.hash] = inside
                self._names.setdefault(cursor.spelling, []).append(cursor.hash)
        self.writes = [write for cursor, inside in self.nodes for write in self._written(cursor, inside)]
        self.tainted = {each.hash for each in parameters} if tainted_parameters else set()
        self.unproven: set[int] = set()
        self._spread(self.tainted, proven=False)
        self._spread(self.unproven, proven=True)
        self._within: dict[int, Flow] = {}

    # --- questions ---

    def agrees(self, cursor: cindex.Cursor, *, proven: bool) -> bool:
        """Whether an expression is proven uniform; without `proven`, whether it is free of taint."""
        return self._is_proven(cursor) if proven else not self._is_tainted(cursor)

    def comes_together(self, cursor: cindex.Cursor, inside: Inside, *, proven: bool, behind: int = 0) -> bool:
        """Whether all threads agree on how they pass the constructs that something stands in, from the one numbered
        `behind` on."""
        path = (*inside, cursor)
        return all(self._together(path[at], path[at + 1], proven) for at in range(behind, len(inside)))

    def within(self, loop: cindex.Cursor, inside: Inside) -> Flow:
        """The same function as threads see it that are in one iteration of a loop: `inside` are its constructs.

        They agree on what the loop counted, since the loop holds a barrier, where CUDA itself asks that they all come.
        That holds for variables that no outer loop carries from one run of this one to the next.
        """
        if any(cursor.kind is CursorKind.GOTO_STMT for cursor, _ in self.nodes):
            return self
        if loop.hash not in self._within:
            outer = [at for at, each in enumerate(inside) if each.kind in LOOPS]
            around = (*inside, loop)[: outer[-1] + 2 if outer else 0]  # with the outer one's body
            fresh = frozenset(name for name, path in self.declared.items() if path[: len(around)] == around)
            flow = copy.copy(self)
            flow.unproven = set()
            flow._spread(flow.unproven, proven=True, loop=loop, fresh=fresh)
            self._within[loop.hash] = flow
        return self._within[loop.hash]

    def looks(self) -> bool:
        """Whether anything in the function, a constructor's members before its body too, differs between threads."""
        return any(self._source_of_taint(cursor) for cursor in cursors.below(self.function))

    # --- what variables hold ---

    def _spread(
        self,
        varying: set[int],
        *,
        proven: bool,
        loop: cindex.Cursor | None = None,
        fresh: frozenset[int] = frozenset(),
    ) -> None:
        """Collect the variables that may differ between threads, until there are no more."""
        before = -1
        while len(varying) != before:
            before = len(varying)
            for each in self.writes:
                if each.target in varying:
                    continue
                start = self._shared_path(each)
                if loop is not None and each.target in fresh and loop in each.inside:
                    start = max(start, each.inside.index(loop) + 1)
                told = each.value is not None and (
                    self._told_by_call(each.value, proven) if each.by_call else self.agrees(each.value, proven=proven)
                )
                if not told or not self.comes_together(each.cursor, each.inside, proven=proven, behind=start):
                    varying.add(each.target)
            if proven:
                varying |= self._after_jumps()

    def _shared_path(self, write: _Write) -> int:
        """How many constructs stand round both the variable's declaration and a write of it."""
        path = self.declared.get(write.target, ())
        count = 0
        for mine, other in zip(path, write.inside, strict=False):
            if mine is not other:
                break
            count += 1
        return count

    def _after_jumps(self) -> set[int]:
        """What is written where some threads have jumped away."""
        found: set[int] = set()
        for cursor, inside in self.nodes:
            if cursor.kind is CursorKind.GOTO_STMT:
                if not self.comes_together(cursor, inside, proven=True):
                    return {each.target for each in self.writes}
            elif cursor.kind in (CursorKind.BREAK_STMT, CursorKind.CONTINUE_STMT):
                at = nearest(cursor, inside)
                if at is None or self.comes_together(cursor, inside, proven=True, behind=at + 1):
                    continue
                # One iteration's own variables are none of those that jumped, nor what counts the iterations.
                around = inside[: at + (1 if cursor.kind is CursorKind.BREAK_STMT else 2)]
                found |= {
                    each.target
                    for each in self.writes
                    if inside[at] in each.inside and self.declared.get(each.target, ())[: len(around)] != around
                }
        return found

    def _written(self, cursor: cindex.Cursor, inside: Inside) -> Iterator[_Write]:
        for target, value, by_call in self._targets(cursor):
            if not shadows.shared(target):  # what all threads see is the same for all
                yield _Write(target.hash, value, by_call, cursor, inside)
        if cursor.kind is CursorKind.ASM_STMT:
            words = self.data[cursor.extent.start.offset : cursor.extent.end.offset].decode("latin-1")
            by_macro = re.match(r"\s*(__asm__|__asm|asm)\b", words) is None
            for name, hashes in self._names.items():
                if by_macro or re.search(rf"\b{name}\b", words):
                    yield from (_Write(each, None, False, cursor, inside) for each in hashes)

    def _targets(self, cursor: cindex.Cursor) -> Iterator[tuple[cindex.Cursor, cindex.Cursor | None, bool]]:
        """(variable, what is written to it, whether by a function that it is handed to)."""
        children = list(cursors.children(cursor))
        if cursor.kind is CursorKind.VAR_DECL:
            values = [each for each in children if each.kind.is_expression()]
            if cursor.type.kind in _REFERENCES:
                yield cursor, None, False  # what is written through it is not followed
                target = variable(values[-1]) if values else None
                if target is not None and not _constant_reference(cursor.type):
                    yield target, None, False
            elif values:
                yield cursor, values[-1], False
        elif cursor.kind is CursorKind.CALL_EXPR and self._copies(cursor):
            to, value = cursor.get_arguments()
            if (target := variable(to, elements=True)) is not None:
                yield target, value, False
        elif cursor.kind is CursorKind.CALL_EXPR:
            yield from ((each, cursor, True) for each in self._handed_over(cursor, children))
        elif cursor.kind in _WRITES and children:
            target = variable(children[0], elements=True)
            if target is None or target.type.is_const_qualified():
                return
            if cursor.kind is CursorKind.UNARY_OPERATOR:
                sign = self._sign(cursor, children[0])
                if sign == "&":
                    yield target, None, False
                elif sign == "++":
                    yield target, cursor, False
            elif self._assigns(cursor, children):
                yield target, cursor if variable(children[0]) is None else children[-1], False

    def _copies(self, call: cindex.Cursor) -> bool:
        """Whether a call is an assignment that the compiler made for a struct."""
        return call.spelling == "operator=" and "operator=" not in self.callees and len(list(call.get_arguments())) == 2

    def _sign(self, cursor: cindex.Cursor, operand: cindex.Cursor) -> str:
        """What a unary operator does: `&`, `*`, `++` (or what may be that), or nothing of these. Macros hide the text,
        and templates the types."""
        text = self.data[cursor.extent.start.offset : cursor.extent.end.offset].strip()
        whole, part = cursor.type.get_canonical(), operand.type.get_canonical()
        if text.startswith(b"&") or (whole.kind is cindex.TypeKind.POINTER and whole.get_pointee() == part):
            return "&"
        points = part.kind is cindex.TypeKind.POINTER and part.get_pointee() == whole
        if text.startswith(b"*") or points or (part.kind in _ARRAYS and part.element_type == whole):
            return "*"
        plain = (
            text[:1] in (b"-", b"+", b"!", b"~") and text[:2] not in (b"--", b"++") and text[-2:] not in (b"--", b"++")
        )
        return "" if plain else "++"

    def _assigns(self, cursor: cindex.Cursor, children: list[cindex.Cursor]) -> bool:
        if cursor.kind is CursorKind.COMPOUND_ASSIGNMENT_OPERATOR:
            return True
        return re.match(rb"\s*[^\s=]|\s*==", self._between(children)) is None

    def _between(self, children: list[cindex.Cursor]) -> bytes:
        return self.data[children[0].extent.end.offset : children[-1].extent.start.offset]

    def _handed_over(self, call: cindex.Cursor, children: list[cindex.Cursor]) -> Iterator[cindex.Cursor]:
        """The variables that a function can write to since it is handed a reference."""
        function = call.referenced
        arguments = [each for each in call.get_arguments() if each is not None]
        if function is not None and function.kind is CursorKind.CONSTRUCTOR and function.spelling not in self.callees:
            return  # the compiler's own
        if function is not None and function.kind in shadows.FUNCTIONS:
            kinds = _kinds(function) or list(function.type.argument_types())
            if function.kind is CursorKind.CXX_METHOD and not function.is_static_method():
                changes = not function.is_const_method()
                if function.spelling.startswith("operator") and len(arguments) == len(kinds) + 1:
                    owner: cindex.Cursor | None = arguments.pop(0)
                else:
                    owner = next(iter(cursors.children(children[0])), None) if children else None
                target = variable(owner) if owner is not None and changes else None
                if target is not None:
                    yield target
            for argument, kind in zip(arguments, kinds, strict=False):
                if _by_reference(kind) and (target := variable(argument, elements=True)) is not None:
                    yield target
            return
        name = called(call)
        if name in _UNIFORM_CALLS or (name in self.callees and not self.callees.takes_references(name)):
            return
        for argument in arguments:
            target = variable(argument)
            if target is not None and not target.type.is_const_qualified():
                yield target

    def _told_by_call(self, call: cindex.Cursor, proven: bool) -> bool:
        """Whether what a function writes to its arguments is the same for all threads."""
        if proven:
            return False
        name = called(call)
        if name in self.callees and self.callees.looks(name):
            return False
        return not any(self._is_tainted(each) for each in call.get_arguments() if each is not None)

    # --- constructs ---

    def _together(self, outer: cindex.Cursor, inner: cindex.Cursor, proven: bool) -> bool:
        """Whether all threads agree on how they pass a construct on the way to `inner`, a part of it."""
        if outer.kind is CursorKind.LAMBDA_EXPR:
            return not proven  # who calls it when is not followed
        if outer.kind is CursorKind.BINARY_OPERATOR:
            children = list(cursors.children(outer))
            short = len(children) == 2 and re.match(rb"\s*\)*\s*(&&|\|\|)", self._between(children)) is not None
            return not short or bool(inner == children[0]) or self.agrees(children[0], proven=proven)
        if outer.kind not in (*_BRANCHES, *LOOPS):
            return True
        children = list(cursors.children(outer))
        if outer.kind in _BRANCHES:
            conditions = children[:2] if children and children[0].kind is CursorKind.DECL_STMT else children[:1]
            if inner in conditions:
                return True
        elif outer.kind is CursorKind.DO_STMT:
            conditions = children[-1:]
        else:
            conditions = [each for each in children[:-1] if each.kind is not CursorKind.DECL_STMT]
        return all(self.agrees(each, proven=proven) for each in conditions)

    # --- expressions ---

    def _source_of_taint(self, each: cindex.Cursor) -> bool:
        """Whether a cursor itself, no variable considered, is what differs between threads."""
        if each.kind is CursorKind.DECL_REF_EXPR:
            return bool(each.spelling == "threadIdx")
        if each.kind is CursorKind.ASM_STMT:
            return True
        if each.kind is not CursorKind.CALL_EXPR:
            return False
        name = called(each)
        if self._own(each, name) and self.callees.looks(name):
            return True
        if cursors.file_of(each.referenced) not in (None, STUB_FILE):
            return False
        return _DIFFERS.fullmatch(name) is not None or (_of_groups(each) and not _alike_of_groups(each, name))

    def _own(self, call: cindex.Cursor, name: str) -> bool:
        """Whether a call may be of one of the user's functions."""
        return name in self.callees and cursors.file_of(call.referenced) != STUB_FILE

    def _is_tainted(self, cursor: cindex.Cursor) -> bool:
        stack = [cursor]
        while stack:
            each = stack.pop()
            if each.kind is CursorKind.CALL_EXPR:
                name = called(each)
                if name.startswith("__syncthreads") or (_of_groups(each) and _alike_of_groups(each, name)):
                    continue  # what the block has counted, and what its size is, is the same for all its threads
                if cursors.file_of(each.referenced) not in (None, STUB_FILE) and self._own(each, name):
                    if self.callees.differs(name, arguments=False):
                        return True
                    if each.referenced.kind is not CursorKind.CXX_METHOD and not self.callees.differs(
                        name, arguments=True
                    ):
                        continue
                elif self._source_of_taint(each):
                    return True
            elif each.kind is CursorKind.DECL_REF_EXPR:
                if self._source_of_taint(each):
                    return True
                target = each.referenced
                if target is not None and (target.hash in self.tainted or target.kind is CursorKind.UNEXPOSED_DECL):
                    return True  # what is not exposed is a part of something, and not followed
            stack += list(cursors.children(each))
        return False

    def _is_proven(self, cursor: cindex.Cursor) -> bool:
        stack = [cursor]
        while stack:
            each = stack.pop()
            if each.kind is CursorKind.CALL_EXPR:
                name = called(each)
                if name.startswith("__syncthreads") or self._number_of_warp(each, name):
                    continue
                if not self._proven_call(each, name):
                    return False
                if name == "__ldg":
                    stack += [_pointed_to(argument) for argument in each.get_arguments()]
                    continue
            elif each.kind is CursorKind.BINARY_OPERATOR and self._divides_into_warps(each):
                continue
            elif each.kind in (CursorKind.CXX_THIS_EXPR, CursorKind.LAMBDA_EXPR, CursorKind.StmtExpr):
                return False
            elif each.kind is CursorKind.UNARY_OPERATOR:
                if self._sign(each, next(iter(cursors.children(each)))) in ("*", "&"):
                    return False
            elif each.kind is CursorKind.ARRAY_SUBSCRIPT_EXPR:
                children = list(cursors.children(each))
                if not _constant_memory(children[0]) and not self._read_only(children[0]):
                    return False
            elif each.kind is CursorKind.MEMBER_REF_EXPR:
                base = next(iter(cursors.children(each)), None)
                if base is None or self._points(each, base):
                    return False  # of `this`, or in memory
            elif each.kind is CursorKind.DECL_REF_EXPR and not self._proven_name(each):
                return False
            stack += list(cursors.children(each))
        return True

    def _number_of_warp(self, call: cindex.Cursor, name: str) -> bool:
        """Whether a method of a group is the same for all: of the block, or for tiles of a warp within each."""
        if not _of_groups(call) or list(call.get_arguments()):
            return False
        if name != "meta_group_rank":
            return _alike_of_groups(call, name)
        owner = next(iter(cursors.children(next(iter(cursors.children(call)), call))), None)
        kind = "" if owner is None else owner.type.get_canonical().spelling
        return (
            self.callees.constant is not None
            and re.search(r"\bthread_block_tile<(32|64|128|256|512)\b", kind) is not None
        )

    def _divides_into_warps(self, cursor: cindex.Cursor) -> bool:
        """`threadIdx.x / 32`, `tid >> 5`: the same in a warp, where the rows of a block are whole warps."""
        children = list(cursors.children(cursor))
        if self.callees.constant is None or len(children) != 2 or not self._is_thread(children[0]):
            return False
        sign = self._between(children).strip(b" \t\n()")
        right = self.data[children[1].extent.start.offset : children[1].extent.end.offset].decode("latin-1")
        value = self.callees.constant(right) if sign in (b"/", b">>") else None
        return value is not None and (
            (sign == b"/" and value > 0 and value % WARP == 0) or (sign == b">>" and value >= 5)
        )

    def _is_thread(self, cursor: cindex.Cursor) -> bool:
        """Whether an expression is `threadIdx.x`, or a variable that holds that and nothing else."""
        text = self.data[cursor.extent.start.offset : cursor.extent.end.offset].strip()
        if text == b"threadIdx.x":
            return True
        target = variable(cursor)
        writes = [each for each in self.writes if target is not None and each.target == target.hash]
        if len(writes) != 1 or writes[0].cursor.kind is not CursorKind.VAR_DECL or writes[0].value is None:
            return False
        value = writes[0].value
        return self.data[value.extent.start.offset : value.extent.end.offset].strip() == b"threadIdx.x"

    def _proven_call(self, call: cindex.Cursor, name: str) -> bool:
        """Whether the result is the same where the arguments are, whichever function of that name it is."""
        of = cursors.file_of(call.referenced)
        if name not in self.callees or of == STUB_FILE:
            target = call.referenced
            copied = target is not None and target.kind is CursorKind.CONSTRUCTOR
            copied = copied and (target.is_copy_constructor() or target.is_move_constructor())
            return name in _UNIFORM_CALLS or copied
        return self.callees.pure(name) and (of is not None or name not in overloads.NAMES or name in _UNIFORM_CALLS)

    def _points(self, member: cindex.Cursor, base: cindex.Cursor) -> bool:
        """Whether a member is one of what a pointer points to."""
        arrow = self.data[base.extent.end.offset : member.extent.end.offset].lstrip().startswith(b"->")
        return arrow or base.type.get_canonical().kind is cindex.TypeKind.POINTER

    def _read_only(self, pointer: cindex.Cursor) -> bool:
        """Whether it names a parameter of the kernel that promises that nobody writes to what it points to."""
        target = variable(pointer)
        return (
            self.kernel
            and target is not None
            and target.kind is CursorKind.PARM_DECL
            and target.hash not in self.unproven
            and target.type.get_canonical().is_restrict_qualified()
            and bool(target.type.get_canonical().get_pointee().is_const_qualified())
            and not target.type.get_canonical().get_pointee().is_volatile_qualified()
        )

    def _proven_name(self, cursor: cindex.Cursor) -> bool:
        target = cursor.referenced
        if cursor.spelling == "threadIdx" or target is None:
            return False
        if cursor.spelling in _UNIFORM_BUILTINS:
            return True
        if target.kind in (
            CursorKind.TEMPLATE_NON_TYPE_PARAMETER,
            CursorKind.ENUM_CONSTANT_DECL,
            CursorKind.FUNCTION_DECL,
            CursorKind.FUNCTION_TEMPLATE,
        ):
            return True
        if target.kind is CursorKind.PARM_DECL:
            return self.parameters_agree and target.hash not in self.unproven
        if target.kind is not CursorKind.VAR_DECL or target.hash in self.unproven:
            return False
        if any(child.kind is CursorKind.CUDACONSTANT_ATTR for child in cursors.children(target)):
            return True
        if any(child.kind is CursorKind.CUDASHARED_ATTR for child in cursors.children(target)):
            return False
        local = self.body.extent.start.offset <= target.location.offset < self.body.extent.end.offset
        return local or bool(target.type.is_const_qualified())


# --- small questions about cursors ----------------------------------------------------------------------


def body_of(function: cindex.Cursor) -> cindex.Cursor | None:
    """The braces of a function's definition."""
    return next((child for child in cursors.children(function) if child.kind is CursorKind.COMPOUND_STMT), None)


def nearest(cursor: cindex.Cursor, inside: Inside) -> int | None:
    """Which construct a `break` or `continue` belongs to, as a place in `inside`."""
    kinds = LOOPS if cursor.kind is CursorKind.CONTINUE_STMT else (*LOOPS, CursorKind.SWITCH_STMT)
    return next((at for at in reversed(range(len(inside))) if inside[at].kind in kinds), None)


def variable(cursor: cindex.Cursor, *, elements: bool = False) -> cindex.Cursor | None:
    """The variable that an expression names, conversions, members and parentheses left aside; with `elements` also the
    array that it names an element of."""
    while True:
        inner = list(cursors.children(cursor))
        if cursor.kind in (CursorKind.UNEXPOSED_EXPR, CursorKind.PAREN_EXPR, CursorKind.MEMBER_REF_EXPR):
            if len(inner) != 1:
                return None
            cursor = inner[0]
        elif elements and cursor.kind is CursorKind.ARRAY_SUBSCRIPT_EXPR:
            target = variable(inner[0], elements=True)
            return target if target is not None and target.type.kind in _ARRAYS else None
        else:
            break
    if cursor.kind is not CursorKind.DECL_REF_EXPR:
        return None
    target = cursor.referenced
    kinds = (CursorKind.VAR_DECL, CursorKind.PARM_DECL)
    return target if target is not None and target.kind in kinds else None


def _by_reference(kind: cindex.Type) -> bool:
    return kind.kind in _REFERENCES and not _constant_reference(kind)


def _constant_reference(kind: cindex.Type) -> bool:
    return bool(kind.get_canonical().get_pointee().is_const_qualified())


def _constant_memory(cursor: cindex.Cursor) -> bool:
    base = variable(cursor)
    return base is not None and any(child.kind is CursorKind.CUDACONSTANT_ATTR for child in cursors.children(base))


def _kinds(function: cindex.Cursor) -> list[cindex.Type]:
    return [child.type for child in cursors.children(function) if child.kind is CursorKind.PARM_DECL]


def _pointed_to(argument: cindex.Cursor) -> cindex.Cursor:
    """The element that `&p[i]` is the address of; anything else is itself, and no element."""
    found = argument
    while found.kind in (CursorKind.UNEXPOSED_EXPR, CursorKind.PAREN_EXPR, CursorKind.UNARY_OPERATOR):
        inner = list(cursors.children(found))
        if len(inner) != 1:
            return argument
        found = inner[0]
    return found if found.kind is CursorKind.ARRAY_SUBSCRIPT_EXPR else argument


def _alike_of_groups(call: cindex.Cursor, name: str) -> bool:
    """Whether a method of a group is the same for all of the block; of coalesced threads none is."""
    return name in _ALIKE_OF_GROUPS and bool(call.referenced.semantic_parent.spelling != "coalesced_group")


def _of_groups(call: cindex.Cursor) -> bool:
    target = call.referenced
    parent = target.semantic_parent if target is not None else None
    while parent is not None and parent.kind is not CursorKind.TRANSLATION_UNIT:
        if parent.spelling == "cooperative_groups":
            return True
        parent = parent.semantic_parent
    return False


def called(call: cindex.Cursor) -> str:
    """What a call calls, also where that depends on a template argument."""
    cursor = call
    while not cursor.spelling:
        inner = list(cursors.children(cursor))
        if not inner:
            return ""
        cursor = inner[0]
    return str(cursor.spelling)
