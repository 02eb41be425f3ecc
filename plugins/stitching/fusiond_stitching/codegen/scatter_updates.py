"""A scatter in place as statements: each thread applies some updates.

Where updates are sorted, the first of those that fall on one element applies all of them, in order:

    if (there is none before it, or that falls elsewhere)
        for (run = own; run < all && it falls here; ++run)  total += u[order[run]];

Two updates may fall on one element: what combines them is one atomic operation where the device has it, else a loop
that compares and swaps the element's bits until nobody came between. Its first guess is zero: that is what a gradient
begins with, and if it is wrong the answer is what lies there.
"""

from collections.abc import Sequence

from fusiond.model.codegen.code import Code, cpp, hole, joined
from fusiond_stitching.analysis.indexing import Index, linear, number
from fusiond_stitching.analysis.plan import Global, Stage
from fusiond_stitching.codegen import semantics
from fusiond_stitching.codegen.elemental import Indices, combine, type_of
from fusiond_stitching.codegen.indexed import component_place, signed_start
from fusiond_stitching.codegen.loop_nests import LoopNests, kept
from fusiond_stitching.codegen.scope import Scope
from fusiond_stitching.codegen.semantics import TYPES
from fusiond_stitching.frontend.graph import HloInstruction

_ADDED = {"f32": "float", "f64": "double", "s32": "int", "u32": "unsigned int",
          "s64": "unsigned long long", "u64": "unsigned long long"}  # fmt: skip
"""Types with an atomic addition in every device that is still sold -> as what they are added."""
_INTEGERS = {"maximum": "atomicMax", "minimum": "atomicMin", "and": "atomicAnd", "or": "atomicOr", "xor": "atomicXor"}


class Updates(LoopNests):
    """Writes the block program of a scatter in place."""

    def _stage(self, scope: Scope, stage: Stage) -> None:
        (result,) = stage.results
        scatter = self.module[result.instruction]
        home = result.stored
        assert home is not None
        scope.comment(f"{scatter}{kept(result)}, an update at a time")
        with (
            self._loop(scope, stage.chunk.size) as (inner, element),
            self._valid(inner, stage, element) as (body, indices),
        ):
            self._update(body, scatter, home, indices)

    def _update(self, scope: Scope, scatter: HloInstruction, home: Global, indices: Indices) -> None:
        """One update, to the element that it falls on, if there is one."""
        updates = scatter.operands[2]
        if scatter.attributes.get("sorted", False):
            self._run(scope, scatter, home, indices)
            return
        conditions, place = self._target(scope, scatter, indices)
        with scope.when(conditions) as hit:
            coordinates = _coordinates(hit, scatter, place)
            value = self._elemental.value(hit, updates, indices)
            self._apply(hit, scatter, self._element(hit, scatter, home, coordinates), value)

    def _run(self, scope: Scope, scatter: HloInstruction, home: Global, indices: Indices) -> None:
        """All updates of a run, where this is its first one. (Those that fall on no element come last.)"""
        own, *window = indices
        kind, count = type_of(scatter), self.module[scatter.operands[2]].dims[0]
        conditions, place = self._target(scope, scatter, indices)
        first = scope.function.fresh("first")
        scope.line(cpp("bool {} = true;", first))
        with scope.block(cpp("if ({} > 0)", scope.index(own))) as before:
            earlier = before.variable("earlier", before.index(own - 1), count)
            _, other = self._target(before, scatter, (earlier, *window))
            before.line(cpp("{} = {};", first, _differ(place, other)))
        with scope.when([first, *conditions]) as hit:
            target = self._element(hit, scatter, home, _coordinates(hit, scatter, place))
            total = hit.mutable(kind, "total", semantics.loaded(kind, target))
            run = hit.function.fresh("run")
            whole = hit.function.index_type
            header = cpp("for ({} {} = {}; {} < {}; ++{})", whole, run, hit.index(own), run, count, run)
            with hit.block(header) as each:
                at = (each.known(run, count), *window)
                _, other = self._target(each, scatter, at)
                each.line(cpp("if ({}) break;", _differ(place, other)))
                value = self._elemental.value(each, scatter.operands[2], at)
                combine(self._elemental, each, scatter.attributes["computation"], [total], [value], [kind])
            hit.line(cpp("{} = {};", target, hit.stored(kind, total)))

    def _target(self, scope: Scope, scatter: HloInstruction, indices: Indices) -> tuple[list[Code], list[Index | Code]]:
        """(the conditions under which an update falls on an element, that element's place in the operand)."""
        _, starts, updates = self.module.operands(scatter)
        numbers, dims = scatter.attributes, scatter.dims
        vector, window_dims = numbers["index_vector_dim"], numbers["update_window_dims"]
        batching = dict(zip(numbers["input_batching_dims"], numbers["scatter_indices_batching_dims"], strict=True))
        batch = [index for at, index in enumerate(indices) if at not in window_dims]
        windows = iter(window_dims)
        conditions: list[Code] = []
        place: list[Index | Code] = []
        for at, dim in enumerate(dims):
            if at in batching:
                column = batching[at]
                place.append(batch[column - (column > vector)])
                continue
            own = None if at in numbers["inserted_window_dims"] else next(windows)
            inside, size = (number(0), 1) if own is None else (indices[own], updates.dims[own])
            if at not in numbers["scatter_dims_to_operand_dims"]:
                place.append(inside)
                continue
            component = numbers["scatter_dims_to_operand_dims"].index(at)
            value = self._elemental.value(scope, starts.name, component_place(starts, vector, batch, component))
            start = signed_start(scope, type_of(starts), value)
            # A window that does not fit into the operand is dropped whole.
            conditions += [cpp("{} >= 0", start), cpp("{} <= {}", start, dim - size)]
            moved = cpp("({}){}", scope.function.index_type, start)
            place.append(moved if size == 1 else cpp("{} + {}", moved, scope.index(inside)))
        return conditions, place

    def _element(self, scope: Scope, scatter: HloInstruction, home: Global, coordinates: Indices) -> Code:
        """An element of the result, which is written."""
        self.pointers[home.buffer] = True
        return cpp("{}[{}]", hole(home.buffer), scope.index(linear(coordinates, scatter.dims)))

    def _apply(self, scope: Scope, scatter: HloInstruction, target: Code, value: Code) -> None:
        """`target = computation(target, value)`, for all threads at once."""
        kind, computation = type_of(scatter), scatter.attributes["computation"]
        simple = computation.simple
        if scatter.attributes.get("unique", False):
            total = scope.declare(kind, "total", semantics.loaded(kind, target))
            (result,) = self._elemental.applied(scope, computation, [total, value], [kind, kind])
            scope.line(cpp("{} = {};", target, scope.stored(kind, result)))
        elif simple == "add" and kind.name in _ADDED:
            scope.line(_called("atomicAdd", _ADDED[kind.name], target, value))
        elif simple in _INTEGERS and kind.integral and kind.bits >= 32:
            scope.line(_called(_INTEGERS[simple], kind.value, target, value))
        else:
            self._swapped(scope, scatter, target, value)

    def _swapped(self, scope: Scope, scatter: HloInstruction, target: Code, value: Code) -> None:
        kind = type_of(scatter)
        bits = TYPES[f"u{kind.bits}"]
        whole = kind.unsigned
        seen, old, word = (scope.function.fresh(each) for each in ("seen", "old", "word"))
        scope.line(cpp("{}* const {} = reinterpret_cast<{}*>(&{});", whole, word, whole, target))
        with scope.block(cpp("for ({} {} = 0, {} = 1; {} != {};)", whole, seen, old, seen, old)) as again:
            again.line(cpp("{} = {};", old, seen))
            functions = scope.function.functions
            total = again.mutable(kind, "total", semantics.bitcast_convert(functions, bits, kind, old))
            combine(self._elemental, again, scatter.attributes["computation"], [total], [value], [kind])
            next_ = semantics.bitcast_convert(functions, kind, bits, total)
            again.line(cpp("{} = atomicCAS({}, {}, ({}){});", seen, word, old, whole, next_))


def _coordinates(scope: Scope, scatter: HloInstruction, place: Sequence[Index | Code]) -> Indices:
    """The place of an element, behind the conditions that there is one."""
    return tuple(
        scope.variable("row", each, dim) if isinstance(each, Code) else each
        for each, dim in zip(place, scatter.dims, strict=True)
    )


def _differ(one: Sequence[Index | Code], other: Sequence[Index | Code]) -> Code:
    """Whether two updates fall on different elements."""
    named = [
        cpp("{} != {}", here, there)
        for here, there in zip(one, other, strict=True)
        if isinstance(here, Code) and isinstance(there, Code)
    ]
    return joined(" || ", named)


def _called(function: str, kind: str, target: Code, value: Code) -> Code:
    return cpp("{}(reinterpret_cast<{}*>(&{}), ({}){});", function, kind, target, kind, value)
