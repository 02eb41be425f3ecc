"""Where code for rows finds its values: in registers, shared memory or global memory.

Memory is read and written in packs of up to 16 bytes wherever the place of a value is `pack` times something, plus the
column inside the pack.
"""

from dataclasses import dataclass

from fusiond.model.codegen.code import Code, cpp, hole
from fusiond_stitching.analysis.indexing import Index, linear
from fusiond_stitching.analysis.plan import BlockProgram, Registers, StageResult
from fusiond_stitching.analysis.row_workspaces import held_bytes
from fusiond_stitching.codegen.elemental import Indices, type_of
from fusiond_stitching.codegen.row_cursor import ALWAYS, RowCursor
from fusiond_stitching.codegen.scope import Scope
from fusiond_stitching.frontend.graph import HloModule


@dataclass
class RowMemory:
    """An `elemental.ValueReader`."""

    module: HloModule
    program: BlockProgram
    at: RowCursor
    available: set[str]
    pointers: dict[str, bool]  #: Buffers that the code uses -> whether it writes them

    def __post_init__(self) -> None:
        self.kept: dict[str, Code] = {}  #: Arrays of kept values and of held packs, by instruction
        self.filled: set[str] = set()  #: Those whose values are there by now
        self.first_read: list[str] = []  #: What the sweeps so far have put into shared memory
        self.piece_totals: dict[str, Code] = {}
        """Pointers to what the columns of runs were reduced to, in shared memory."""

    def declare(self, scope: Scope, offset: int) -> None:
        """Arrays for what stays in registers, or in shared memory behind the workspaces, at `offset`."""
        self.filled.clear()
        for name in self.at.rows.held:
            kind = type_of(self.module[name])
            array = scope.function.fresh("held")
            scope.comment(f"{self.module[name]}")
            self.kept[name] = array
            if self.at.rows.streamed:
                pack = scope.function.unit.pack(kind, self.at.rows.pack)
                scope.line(cpp("{0}* const {1} = ({0}*)(arena + {2});", pack, array, offset))
                offset += held_bytes(self.module, self.at.rows, name)
                continue
            scope.line(cpp("{} {}[{}];", scope.function.unit.pack(kind, self.at.rows.pack), array, self.at.rows.steps))
        for result in self.program.results:
            instruction = self.module[result.instruction]
            if Registers() in result.homes and instruction.opcode != "reduce":
                kind = type_of(instruction)
                array = scope.function.fresh(f"kept_{instruction.opcode}")
                scope.line(cpp("{} {}[{}];", kind.memory, array, self.at.rows.per_thread).needing(*kind.headers))
                self.kept[result.instruction] = array

    # --- elemental.ValueReader ---

    def place(self, scope: Scope, name: str, indices: Indices) -> Code | None:
        at, position = self.at, linear(indices, self.module[name].dims)
        if name in self.piece_totals and position == at.piece:
            return cpp("{}[{}]", self.piece_totals[name], scope.index(at.own * at.rows.run + at.of_run))
        if name in self.kept and at.packing is not None and position == at.place:
            if name in at.rows.held:
                return self._held_place(scope, name, at.packing)
            # A value that a sweep has computed; none where it is this one that computes it.
            return cpp("{}[{}]", self.kept[name], scope.index(at.held)) if name in self.filled else None
        if name not in self.available:
            return None
        pack = self._pack_of(position)
        if pack is not None:
            return cpp("{}.at[{}]", self._loaded_pack(name, pack), scope.index(at.element))
        return cpp("{}[{}]", self._buffer(name), scope.index(position))

    def _held_place(self, scope: Scope, name: str, packing: Scope) -> Code:
        """A value that is read from global memory once, when it is first asked for."""
        at = self.at
        if at.rows.streamed:
            return cpp("{}.at[{}]", self._streamed_pack(name), scope.index(at.element))
        if name not in self.filled:
            slot, pack = packing.index(at.step), self._pack_at(packing, name, at.place - at.element)
            packing.line(cpp("{}[{}] = {};", self.kept[name], slot, pack))
            self.filled.add(name)
        return cpp("{}[{}].at[{}]", self.kept[name], scope.index(at.step), scope.index(at.element))

    def _streamed_pack(self, name: str) -> Code:
        """The present pack of a value whose first packs are in shared memory, from the second sweep on. (Sweeps change
        their direction: what the second begins with was read last, and is still in the second-level cache.)"""
        first = self.at.place - self.at.element
        found = self.at.loaded.get((name, first))
        if found is not None:
            return found
        assert self.at.packing is not None
        scope, rows = self.at.packing, self.at.rows
        kind = scope.function.unit.pack(type_of(self.module[name]), rows.pack)
        slot = cpp("{}[{}]", self.kept[name], scope.index(self.at.step * rows.lanes + self.at.lanes))
        inside = cpp("{} < {}", scope.index(self.at.step), rows.shared_steps)
        if name in self.filled:
            load = cpp("{} ? {} : {}", inside, slot, self._pack_at(scope, name, first))
            found = scope.constant(kind, "pack", load)
        else:
            found = scope.constant(kind, "pack", self._pack_at(scope, name, first))
            scope.line(cpp("if ({}) {} = {};", inside, slot, found))
            self.first_read.append(name)
        self.at.loaded[name, first] = found
        return found

    def _buffer(self, name: str) -> Code:
        buffer = self.module.buffer_of(name)
        self.pointers.setdefault(buffer, False)
        return hole(buffer)

    def _pack_of(self, position: Index) -> Index | None:
        """Where the pack begins that a place lies in, if it is the present column of one."""
        pack = self.at.rows.pack
        if pack == 1 or self.at.packing is None:
            return None
        first = position - self.at.element
        if self.at.element.symbols & first.symbols or first.symbols == position.symbols:
            return None
        if not self.at.packing.knows(first.symbols):
            return None  # what stands behind a condition, or is found inside of the pack
        aligned = first.constant % pack == 0 and all(count % pack == 0 for _, count in first.terms)
        return first if aligned else None

    def _pack_at(self, scope: Scope, name: str, first: Index) -> Code:
        kind = scope.function.unit.pack(type_of(self.module[name]), self.at.rows.pack)
        return cpp("*(const {}*)({} + {})", kind, self._buffer(name), scope.index(first))

    def _loaded_pack(self, name: str, first: Index) -> Code:
        found = self.at.loaded.get((name, first))
        if found is None:
            assert self.at.packing is not None
            scope = self.at.packing
            kind = scope.function.unit.pack(type_of(self.module[name]), self.at.rows.pack)
            found = scope.constant(kind, "pack", self._pack_at(scope, name, first))
            self.at.loaded[name, first] = found
        return found

    # --- stores ---

    def store(self, packing: Scope, element: Scope, result: StageResult, written: Code) -> None:
        """Into a pack, which is stored when all its columns are there."""
        assert result.stored is not None
        buffer = result.stored.buffer
        self.pointers[buffer] = True
        guard = self.guard()
        if self.at.rows.pack == 1:
            element.line(cpp("{}{}[{}] = {};", guard, hole(buffer), element.index(self.at.place), written))
            return
        kind = packing.function.unit.pack(type_of(self.module[result.instruction]), self.at.rows.pack)
        name = packing.function.fresh("result")
        packing.line(cpp("{} {};", kind, name))
        element.line(cpp("{}.at[{}] = {};", name, element.index(self.at.element), written))
        first = packing.index(self.at.place - self.at.element)
        self.at.stores.append(cpp("{}*({}*)({} + {}) = {};", guard, kind, hole(buffer), first, name))

    def guard(self) -> Code:
        """What stands before a store, for threads without a row of their own."""
        return cpp("if ({}) ", self.at.inside) if self.at.inside else ALWAYS
