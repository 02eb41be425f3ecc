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
from collections.abc import Callable, Sequence

from fusiond_hfuse.frontend import cursors, overloads, shadows
from fusiond_hfuse.frontend.clang_tree import DECLARATIONS_FILE
from fusiond_hfuse.frontend.constructs import (
    LOOPS,
    Inside,
    body_of,
    by_reference,
    called,
    constant_memory,
    nearest,
    of_groups,
    parameter_types,
    pointed_to,
    sign,
    uniform_of_groups,
    variable,
)
from fusiond_hfuse.frontend.cursors import CursorKind, cindex
from fusiond_hfuse.frontend.source_kernel import WARP
from fusiond_hfuse.frontend.writes import UNIFORM_CALLS, Write, Writes

_UNIFORM_BUILTINS = ("blockIdx", "blockDim", "gridDim", "warpSize")
_DIFFERS = re.compile(r"__(shfl|ballot|any|all|match|activemask|reduce)\w*|atomic\w*|clock(64)?")
_NEVER_PROVEN = (CursorKind.CXX_THIS_EXPR, CursorKind.LAMBDA_EXPR, CursorKind.StmtExpr)
_BRANCHES = (CursorKind.IF_STMT, CursorKind.SWITCH_STMT, CursorKind.CONDITIONAL_OPERATOR)


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
        return any(by_reference(kind) for each in self._of.get(name, ()) for kind in parameter_types(each))

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
        flow = DivergenceAnalysis(function, self, parameters_agree=True, tainted_parameters=question == "through")
        if question == "looks" or shadows.constructs(function):
            return question == "through" or (question != "pure" and flow.looks())
        returns = [(cursor, inside) for cursor, inside in flow.nodes if cursor.kind is CursorKind.RETURN_STMT]
        proven = question == "pure"
        agree = all(
            flow.comes_together(cursor, inside, proven=proven) and flow.agrees(cursor, proven=proven)
            for cursor, inside in returns
        )
        return agree if proven else not agree


class DivergenceAnalysis:
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
        writes = Writes(callees, self._names)
        self.writes = [write for cursor, inside in self.nodes for write in writes.of(cursor, inside)]
        self.tainted = {each.hash for each in parameters} if tainted_parameters else set()
        self.unproven: set[int] = set()
        self._spread(self.tainted, proven=False)
        self._spread(self.unproven, proven=True)
        self._within: dict[int, DivergenceAnalysis] = {}

    # --- questions ---

    def agrees(self, cursor: cindex.Cursor, *, proven: bool) -> bool:
        """Whether an expression is proven uniform; without `proven`, whether it is free of taint."""
        return self._is_proven(cursor) if proven else not self._is_tainted(cursor)

    def comes_together(self, cursor: cindex.Cursor, inside: Inside, *, proven: bool, behind: int = 0) -> bool:
        """Whether all threads agree on how they pass the constructs that something stands in, from the one numbered
        `behind` on."""
        path = (*inside, cursor)
        return all(self._together(path[at], path[at + 1], proven) for at in range(behind, len(inside)))

    def within(self, loop: cindex.Cursor, inside: Inside) -> DivergenceAnalysis:
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

    def _shared_path(self, write: Write) -> int:
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
            short = cursors.binary_operator(outer) in ("&&", "||")
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
        if cursors.file_of(each.referenced) not in (None, DECLARATIONS_FILE):
            return False
        return _DIFFERS.fullmatch(name) is not None or (of_groups(each) and not uniform_of_groups(each, name))

    def _own(self, call: cindex.Cursor, name: str) -> bool:
        """Whether a call may be of one of the user's functions."""
        return name in self.callees and cursors.file_of(call.referenced) != DECLARATIONS_FILE

    def _is_tainted(self, cursor: cindex.Cursor) -> bool:
        stack = [cursor]
        while stack:
            each = stack.pop()
            if each.kind is CursorKind.CALL_EXPR:
                name = called(each)
                if name.startswith("__syncthreads") or (of_groups(each) and uniform_of_groups(each, name)):
                    continue  # what the block has counted, and what its size is, is the same for all its threads
                if cursors.file_of(each.referenced) not in (None, DECLARATIONS_FILE) and self._own(each, name):
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
            parts = self._proven_by(stack.pop())
            if parts is None:
                return False
            stack += parts
        return True

    def _proven_by(self, each: cindex.Cursor) -> list[cindex.Cursor] | None:
        """The parts that prove an expression once they are proven; None where it may differ whatever they are."""
        children = list(cursors.children(each))
        if each.kind is CursorKind.CALL_EXPR:
            return self._call_proven_by(each, children)
        if each.kind is CursorKind.BINARY_OPERATOR and self._divides_into_warps(each):
            return []
        if each.kind is CursorKind.UNARY_OPERATOR:
            return None if sign(each) in ("*", "&") else children
        if each.kind is CursorKind.ARRAY_SUBSCRIPT_EXPR:
            return children if constant_memory(children[0]) or self._read_only(children[0]) else None
        if each.kind is CursorKind.MEMBER_REF_EXPR:  # not of `this`, nor in memory
            return children if children and not self._points(each, children[0]) else None
        if each.kind is CursorKind.DECL_REF_EXPR:
            return children if self._proven_name(each) else None
        return None if each.kind in _NEVER_PROVEN else children

    def _call_proven_by(self, call: cindex.Cursor, children: list[cindex.Cursor]) -> list[cindex.Cursor] | None:
        name = called(call)
        if name.startswith("__syncthreads") or self._number_of_warp(call, name):
            return []
        if not self._proven_call(call, name):
            return None
        return [pointed_to(argument) for argument in call.get_arguments()] if name == "__ldg" else children

    def _number_of_warp(self, call: cindex.Cursor, name: str) -> bool:
        """Whether a method of a group is the same for all: of the block, or for tiles of a warp within each."""
        if not of_groups(call) or list(call.get_arguments()):
            return False
        if name != "meta_group_rank":
            return uniform_of_groups(call, name)
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
        operator = cursors.binary_operator(cursor)
        right = self.data[children[1].extent.start.offset : children[1].extent.end.offset].decode("latin-1")
        value = self.callees.constant(right) if operator in ("/", ">>") else None
        return value is not None and (
            (operator == "/" and value > 0 and value % WARP == 0) or (operator == ">>" and value >= 5)
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
        if name not in self.callees or of == DECLARATIONS_FILE:
            target = call.referenced
            copied = target is not None and target.kind is CursorKind.CONSTRUCTOR
            copied = copied and (target.is_copy_constructor() or target.is_move_constructor())
            return name in UNIFORM_CALLS or copied
        return self.callees.pure(name) and (of is not None or name not in overloads.NAMES or name in UNIFORM_CALLS)

    def _points(self, member: cindex.Cursor, base: cindex.Cursor) -> bool:
        """Whether a member is one of what a pointer points to."""
        arrow = self.data[base.extent.end.offset : member.extent.end.offset].lstrip().startswith(b"->")
        return arrow or base.type.get_canonical().kind is cindex.TypeKind.POINTER

    def _read_only(self, pointer: cindex.Cursor) -> bool:
        """Whether it names a parameter of the kernel that promises that what it points to is not written to."""
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
