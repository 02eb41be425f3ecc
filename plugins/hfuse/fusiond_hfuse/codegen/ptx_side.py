"""One side of a fused kernel of PTX: its body in a scope of its own, as if it had the block to itself.

    bar.sync 0;      -->  bar.sync 1, 128;            and the like: the table in docs/hfuse.md, "Fusion of PTX"

PtxRegisters, labels, local and static shared arrays keep their names: scopes of PTX keep them apart.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusiond.model.ptx import printer, rewrite
from fusiond.model.ptx.rewrite import Change
from fusiond.model.ptx.tree import Function, Instruction, PtxBlock, PtxRegisters, Statement, Variable, instructions
from fusiond_hfuse.analysis.fusion_schedule import FusedSide, FusionSchedule
from fusiond_hfuse.codegen.hidden_arguments import grid_places, offset_letters, slice_letters
from fusiond_hfuse.codegen.sides import grid_lengths
from fusiond_hfuse.frontend.ptx_kernel import barrier_id, barrier_numbers, is_block_barrier, static_places
from fusiond_hfuse.frontend.source_kernel import PtxText

ARENA = "fused_arena"
INDENT = "    "
_AXES = "xyz"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where shared memory of a side begins: a symbol, or a register, and bytes behind it."""

    name: str
    offset: int = 0

    @property
    def register(self) -> bool:
        return self.name.startswith("%")


class SideWriter:
    """Writes what one side needs: its module's variables and functions, what it works out once, its body."""

    def __init__(self, schedule: FusionSchedule, side: FusedSide) -> None:
        self.side = side
        self.letter = side.slot.letter
        kernel = side.slot.kernel
        assert kernel.ptx is not None
        self.ptx: PtxText = kernel.ptx
        self._alone = schedule.level == "block" and side.barrier == 0
        drains = side.slot.kernel.parsed.drains and not self._alone
        self.goes_on = (
            drains or schedule.map == "stride" or (schedule.kind == "vertical" and side != schedule.sides[-1])
        )
        """Whether a thread that has left the body has more to do."""
        self._offset = self.letter in offset_letters(schedule)
        self._slice = self.letter in slice_letters(schedule)
        self._grid_place = grid_places(schedule).get(self.letter)
        self.grid = grid_lengths(side.slot)
        self._names = {**self._parameter_names(), **self._module_names(), **self._special_names()}
        self._places = self._shared_places()
        self._names = {name: new for name, new in self._names.items() if name not in self._places}
        self._context = self._contexts()

    # --- names ---

    def _parameter_names(self) -> dict[str, str]:
        arguments = self.side.slot.kernel.arguments
        return {
            parameter.name: f"{self.letter}_{argument.name}"
            for parameter, argument in zip(self.ptx.entry.parameters, arguments, strict=True)
        }

    def _module_names(self) -> dict[str, str]:
        lasting = (each for each in self.ptx.variables if each.space != "shared" or each.elements is not None)
        named = [*(each.name for each in self.ptx.functions), *(each.name for each in lasting)]
        for function in self.ptx.functions:  # a copy of a function has shared arrays of its own
            assert function.body is not None
            named += [each.name for each in rewrite.variables_in(function.body) if each.space == "shared"]
        return {name: f"{self.letter}_{name}" for name in named}

    def _special_names(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for axis, length, threads in zip(_AXES, self.grid, self.side.shape, strict=True):
            found[f"%tid.{axis}"] = f"%{self.letter}_tid_{axis}" if threads > 1 else "0"
            found[f"%ntid.{axis}"] = str(threads)
            found[f"%ctaid.{axis}"] = "0" if length == 1 else f"%{self.letter}_ctaid_{axis}"
            found[f"%nctaid.{axis}"] = f"%{self.letter}_grid_{axis}" if length is None else str(length)
        found["%warpid"] = f"%{self.letter}_warpid"
        found["%nwarpid"] = str(-(-self.side.threads // 32))
        if self._grid_place is not None:
            found |= {f"%envreg{k}": f"%{self.letter}_envreg{k}" for k in (1, 2)}
        return found

    def _shared_places(self) -> dict[str, _Place]:
        """Name -> place, of the shared arrays that lie in the arena."""
        parsed = self.side.slot.kernel.parsed
        begin = f"%{self.letter}_arena" if self._offset or self._slice else ARENA
        found = {name: _Place(begin, parsed.moved_bytes) for name in self.ptx.dynamic}
        if parsed.moved_bytes:
            found |= {each.name: _Place(begin, place) for each, place in static_places(self.ptx)}
        return found

    def _contexts(self) -> dict[str, tuple[str, ...]]:
        """Function -> the registers that it has to be handed, since it sees the block."""
        own: dict[str, set[str]] = {}
        for each in self.ptx.functions:
            words = self.ptx.words[each.name]
            seen = {self._names[word] for word in words & self._names.keys() if self._names[word][0] == "%"}
            seen |= {place.name for name, place in self._places.items() if name in words and place.register}
            if self.side.virtual > 1 and any(map(is_block_barrier, self.ptx.notable[each.name])):
                seen.add(f"%{self.letter}_virtual")
            own[each.name] = seen
        changed = True
        while changed:
            changed = False
            for name in own:
                more = set().union(*(own[callee] for callee in self.ptx.words[name] & own.keys())) - own[name]
                if more:
                    own[name] |= more
                    changed = True
        return {name: tuple(sorted(seen)) for name, seen in own.items()}

    # --- what stands before the kernel ---

    def module_lines(self) -> Iterator[str]:
        """The variables of the module and the functions that the side uses, under the side's names."""
        for each in self.ptx.variables:
            if each.space == "shared" and (each.elements is None or each.name in self._places):
                continue
            yield printer.variable_text(rewrite.renamed_variable(each, self._names)) + ";"
        functions = [self._function(each) for each in self.ptx.functions]
        for function in functions:
            yield from printer.function_lines(dataclasses.replace(function, body=None))
        for function in functions:
            yield ""
            yield from printer.function_lines(function)

    def externals(self) -> Iterator[Function]:
        """Functions of the system that are declared and not defined: all sides have them in common."""
        named = self._words - {each.name for each in self.ptx.functions}
        return (each for each in self.ptx.module.functions if each.body is None and each.name in named)

    def parameters(self) -> list[str]:
        """The kernel's own, under the side's names."""
        return [
            printer.variable_text(rewrite.renamed_variable(each, self._names)) for each in self.ptx.entry.parameters
        ]

    @property
    def _words(self) -> frozenset[str]:
        return frozenset().union(*self.ptx.words.values())

    def _function(self, function: Function) -> Function:
        """A copy of a function for this side, which is handed what it sees of the block."""
        handed = self._context[function.name]
        more = tuple(Variable(0, (), "param", (), "b32", f"fused_{at}", (), ()) for at in range(len(handed)))
        before: list[Statement] = []
        if handed:
            before.append(PtxRegisters(0, "b32", tuple((name, None) for name in handed)))
            before += [Instruction(0, "", "ld.param.b32", f"{name}, [fused_{at}]") for at, name in enumerate(handed)]
        return dataclasses.replace(
            function,
            linkage=(),
            name=self._names[function.name],
            parameters=(*function.parameters, *more),
            body=self._body(function, before),
        )

    # --- the body ---

    def body_lines(self) -> Iterator[str]:
        """The kernel's body; a thread that is done comes to `$a_end`, behind it."""
        yield from printer.block_lines(self._body(self.ptx.entry), INDENT)

    def _body(self, function: Function, before: Sequence[Statement] = ()) -> PtxBlock:
        assert function.body is not None
        touched: dict[str, Change] = dict.fromkeys(self._places, self._placed)
        body = _without(function.body, self._places.keys())  # a declaration of an array that lies in the arena goes
        body = rewrite.mapped(body, self._names, self._changes(function), touched)
        return PtxBlock(body.line, (*before, *self._wide_arena(function.body), *body.statements))

    def _changes(self, function: Function) -> dict[str, Change]:
        changes: dict[str, Change] = {"griddepcontrol": lambda _: ()}
        if not self._alone:
            numbers = barrier_numbers(function, self.ptx.notable[function.name])
            changes["bar"] = changes["barrier"] = lambda each: self._barrier(each, numbers)
        if any(self._context.values()):
            changes["call"] = self._call
        if function is self.ptx.entry and self.goes_on:
            end = f"${self.letter}_end"
            leave: Change = lambda each: [Instruction(each.line, each.guard, "bra", end)]  # noqa: E731
            changes["ret"] = changes["exit"] = leave
        return changes

    def _barrier(self, barrier: Instruction, numbers: Mapping[str, int]) -> Sequence[Statement]:
        """A barrier of the block as one of the side's own threads."""
        if not is_block_barrier(barrier):
            return [rewrite.renamed(barrier, self._names)]
        own = self.side.barrier + self.ptx.barriers.index(numbers[barrier_id(barrier)])
        operands = barrier.text.replace(" ", "").split(",")
        at = 1 if ".red" in barrier.opcode else 0
        operands[at] = str(own)
        if len(operands) == 1 + 2 * at:
            operands.insert(at + 1, str(self.side.threads))
        if self.side.slot.kernel.parsed.drains:
            return [self._draining(barrier, operands)]
        if self.side.virtual == 1:
            return [Instruction(barrier.line, barrier.guard, barrier.opcode, ", ".join(operands))]
        return [self._by_virtual(barrier, operands, at)]

    def _draining(self, barrier: Instruction, operands: list[str]) -> PtxBlock:
        """`bar.sync 0;` --> `barrier.red.and.pred %q, 1, 128, %q;`: see `drain_lines`."""
        reduced = ["%q", *operands, "%q"]
        voting = Instruction(barrier.line, barrier.guard, "barrier.red.and.pred", ", ".join(reduced))
        false = Instruction(barrier.line, "", "mov.pred", "%q, 0")
        whole: list[Statement] = [PtxRegisters(barrier.line, "pred", (("%q", None),)), false]
        if self.side.virtual == 1:
            return PtxBlock(barrier.line, (*whole, voting))
        return PtxBlock(barrier.line, (*whole, *self._by_virtual(voting, reduced, 1).statements))

    def _by_virtual(self, barrier: Instruction, operands: list[str], at: int) -> PtxBlock:
        """One of as many barriers as there are virtual blocks: a number in a register would take all sixteen."""
        found: list[Statement] = [PtxRegisters(barrier.line, "pred", (("%v", None),))]
        for number in range(self.side.virtual):
            own = [*operands[:at], str(int(operands[at]) + number * len(self.ptx.barriers)), *operands[at + 1 :]]
            compared = f"%v, %{self.letter}_virtual, {number}"
            if barrier.guard:
                compare = Instruction(barrier.line, "", "setp.eq.and.u32", f"{compared}, {barrier.guard}")
            else:
                compare = Instruction(barrier.line, "", "setp.eq.u32", compared)
            found += [compare, Instruction(barrier.line, "%v", barrier.opcode, ", ".join(own))]
        return PtxBlock(barrier.line, tuple(found))

    def _call(self, call: Instruction) -> Sequence[Statement]:
        handed = self._context.get(rewrite.call_target(call), ())
        named = rewrite.renamed(call, self._names)
        if not handed:
            return [named]
        statements: list[Statement] = []
        for at, register in enumerate(handed):
            statements.append(Variable(call.line, (), "param", (), "b32", f"fused_{at}", (), ()))
            statements.append(Instruction(call.line, "", "st.param.b32", f"[fused_{at}], {register}"))
        more = [word for at in range(len(handed)) for word in (",", f"fused_{at}")]
        words = list(named.words)
        target = words.index(")") + 2 if words[0] == "(" else 0
        if words[target + 1 : target + 3] == [",", "("]:
            end = words.index(")", target + 1)
            words[end:end] = more if words[end - 1] != "(" else more[1:]
        else:
            words[target + 1 : target + 1] = [",", "(", *more[1:], ")"]
        text = "".join(words).replace(",", ", ")
        statements.append(Instruction(call.line, call.guard, call.opcode, text))
        return [PtxBlock(call.line, tuple(statements))]

    # --- shared memory ---

    def _placed(self, instruction: Instruction) -> Sequence[Statement]:
        """An instruction that names shared memory that lies in the arena."""
        words = [self._names.get(word, word) for word in instruction.words]
        at = next(k for k, word in enumerate(words) if word in self._places)
        place = self._places[words[at]]
        more, length = _added(words[at + 1 :])
        offset, addressed = place.offset + more, at > 0 and words[at - 1] == "["
        wide = instruction.opcode.endswith("64") and not addressed
        name = f"{place.name}_64" if place.register and wide else place.name
        if place.register and offset and not addressed:
            kind = "64" if wide else "32"
            if instruction.base != "mov" or at != 2:
                raise ValueError(f"PTX line {instruction.line}: {instruction.opcode} names shared memory and a place")
            text = f"{words[0]}, {name}, {offset}"
            return [Instruction(instruction.line, instruction.guard, f"add.u{kind}", text)]
        sign = "-" if offset < 0 and not addressed else "+"
        words[at : at + 1 + length] = [name, *([sign, str(-offset if sign == "-" else offset)] if offset else [])]
        text = "".join(words).replace(",", ", ")
        changed = Instruction(instruction.line, instruction.guard, instruction.opcode, text)
        return self._placed(changed) if any(word in self._places for word in words) else [changed]

    def _wide_arena(self, body: PtxBlock) -> list[Statement]:
        """The beginning of a side's shared memory in 64 bits, where something takes it so."""
        begin = f"%{self.letter}_arena"
        if not any(place.register for place in self._places.values()):
            return []
        wide = (e for e in instructions(body) if e.opcode.endswith("64") and not rewrite.is_plain(e.text))
        if all(self._places.keys().isdisjoint(each.words) for each in wide):
            return []
        convert = Instruction(0, "", "cvt.u64.u32", f"{begin}_64, {begin}")
        return [PtxRegisters(0, "b64", ((f"{begin}_64", None),)), convert]

    # --- what is worked out once ---

    def setup_lines(self, thread: str, block: str) -> Iterator[str]:
        """What the body reads of its thread and block, given both counted from 0 in registers; the grid's lengths and
        `%a_virtual` are there already."""
        words, letter = self._words, self.letter
        lengths = [length or f"%{letter}_grid_{axis}" for axis, length in zip(_AXES, self.grid, strict=True)]
        yield from _divided(letter, "tid", thread, self.side.shape, words)
        yield from _divided(letter, "ctaid", block, lengths, words)
        if "%warpid" in words:
            yield f"{INDENT}shr.u32 %{self.letter}_warpid, {thread}, 5;"
        if self._grid_place is not None:
            yield f"{INDENT}ld.param.u64 %place, [fused_tickets];"
            yield f"{INDENT}add.u64 %place, %place, {4 * self._grid_place};"
            yield f"{INDENT}mov.b64 {{%{self.letter}_envreg2, %{self.letter}_envreg1}}, %place;"
        if self._places and (self._offset or self._slice):
            yield f"{INDENT}mov.u32 %{self.letter}_arena, {ARENA};"
            if self._offset:
                yield f"{INDENT}ld.param.u32 %{self.letter}_part, [{self.letter}_shared];"
                yield f"{INDENT}add.u32 %{self.letter}_arena, %{self.letter}_arena, %{self.letter}_part;"
            if self._slice:
                yield f"{INDENT}ld.param.u32 %{self.letter}_part, [{self.letter}_slice];"
                a = self.letter
                yield f"{INDENT}mad.lo.u32 %{a}_arena, %{a}_virtual, %{a}_part, %{a}_arena;"

    def register_names(self) -> list[str]:
        """The registers of 32 bits that `setup_lines` and the schedule use, those that nothing uses among them."""
        axes = [f"%{self.letter}_{of}_{axis}" for of in ("tid", "ctaid", "grid") for axis in _AXES]
        rest = ("thread", "block", "blocks", "virtual", "arena", "part", "warpid", "rest", "envreg1", "envreg2")
        return [*axes, *(f"%{self.letter}_{each}" for each in rest)]

    def drain_lines(self) -> Iterator[str]:
        """Whoever has left is still waited for at the barriers of the others: it votes until all have left."""
        if not self.side.slot.kernel.parsed.drains or self._alone:
            return
        yield f"${self.letter}_drain:"
        for number in range(self.side.virtual):
            guard = ""
            if self.side.virtual > 1:
                yield f"{INDENT}setp.eq.u32 %who, %{self.letter}_virtual, {number};"
                guard = "@%who "
            yield f"{INDENT}mov.pred %gone, -1;"
            own = self.side.barrier + number * len(self.ptx.barriers)
            yield f"{INDENT}{guard}barrier.red.and.pred %gone, {own}, {self.side.threads}, %gone;"
            yield f"{INDENT}@!%gone bra ${self.letter}_drain;"


def _added(words: Sequence[str]) -> tuple[int, int]:
    """The number that is added to a name, and the words behind the name that say so: `+ 4`, `- 4`, `+ - 4`."""
    if words[:1] not in (["+"], ["-"]):
        return 0, 0
    minus = words[1] == "-"
    value = int(words[1 + minus], 0)
    return -value if minus or words[0] == "-" else value, 2 + minus


def _without(block: PtxBlock, names: Collection[str]) -> PtxBlock:
    """A block without the declarations of some names."""
    kept = (
        _without(each, names) if isinstance(each, PtxBlock) else each
        for each in block.statements
        if not (isinstance(each, Variable) and each.name in names)
    )
    return PtxBlock(block.line, tuple(kept))


def _divided(letter: str, of: str, number: str, lengths: Sequence[int | str], words: frozenset[str]) -> Iterator[str]:
    """The parts of a number that runs over up to three axes, x the fastest; only those that are read, nothing for axes
    of length one, no division by what is a power of two."""
    long = [axis for axis, length in zip(_AXES, lengths, strict=True) if length != 1]
    wanted = {axis for axis in _AXES if f"%{of}.{axis}" in words}
    rest, following = number, f"%{letter}_rest"
    for at, axis in enumerate(long):
        name, length = f"%{letter}_{of}_{axis}", lengths[_AXES.index(axis)]
        later = not wanted.isdisjoint(long[at + 1 :])
        if not later and axis not in wanted:
            return
        if at == len(long) - 1:
            yield f"{INDENT}mov.u32 {name}, {rest};"
            return
        if isinstance(length, int) and length & (length - 1) == 0:
            if axis in wanted:
                yield f"{INDENT}and.b32 {name}, {rest}, {length - 1};"
            if later:
                yield f"{INDENT}shr.u32 {following}, {rest}, {length.bit_length() - 1};"
        elif later:
            yield f"{INDENT}div.u32 %{letter}_part, {rest}, {length};"
            if axis in wanted:
                yield f"{INDENT}mul.lo.u32 {name}, %{letter}_part, {length};"
                yield f"{INDENT}sub.u32 {name}, {rest}, {name};"
            yield f"{INDENT}mov.u32 {following}, %{letter}_part;"
        else:
            yield f"{INDENT}rem.u32 {name}, {rest}, {length};"
        rest = following
