"""A planned kernel as the text of a `__global__` function.

One block program alone stands in the kernel itself. Several each become a device function: those of one phase share the
blocks out among themselves by block number, two phases are separated by a barrier across the grid.
"""

from collections.abc import Collection
from dataclasses import dataclass

from fusiond.model.codegen.code import Code, call, cpp, filled, hole, joined
from fusiond.model.codegen.statements import Statements, indented
from fusiond_stitching.analysis.plan import BlockProgram, Phase, StitchedKernel
from fusiond_stitching.codegen.block_scans import BlockScans
from fusiond_stitching.codegen.loop_nests import LoopNests, index_type
from fusiond_stitching.codegen.reduction import BARRIER
from fusiond_stitching.codegen.row_sweeps import RowSweeps
from fusiond_stitching.codegen.scans import Scans
from fusiond_stitching.codegen.scatter_updates import Updates
from fusiond_stitching.codegen.scope import GeneratedFunction, Scope, SourceUnit
from fusiond_stitching.codegen.semantics import TYPES
from fusiond_stitching.codegen.tiles import Tiles
from fusiond_stitching.frontend.graph import HloModule

_ENTRY = hole("entry")
_ARENA = Code("extern __shared__ __align__(16) unsigned char arena[];")
_GRID_BARRIER = Code("cooperative_groups::this_grid().sync();").needing("cooperative_groups.h")


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel's text, with holes for its name and its buffers. `buffers`: its arguments in order, all of them
    pointers."""

    text: str
    code: str  #: The same without comments
    buffers: tuple[str, ...]
    headers: frozenset[str]

    @property
    def key(self) -> str:
        """Equal where the code is, whatever the buffers are called."""
        place = {name: f"@{number}" for number, name in enumerate(self.buffers)}
        return filled(self.code, lambda each: place.get(each, each))

    def named(self, entry: str) -> str:
        """The text of the kernel under that name."""
        return filled(self.text, lambda each: entry if each == "entry" else each)


@dataclass(frozen=True, slots=True)
class _KernelBody:
    """A block program as statements, and the buffers that it uses, in the order of its arguments: name -> whether it
    writes it."""

    program: BlockProgram
    statements: Statements
    pointers: dict[str, bool]


def kernel_text(module: HloModule, kernel: StitchedKernel, unit: SourceUnit, available: Collection[str]) -> KernelText:
    """A kernel's text; `available`: the instructions whose values are in their buffers when it begins. Raises
    NoCode for what cannot be written."""
    known = set(available)
    whole = index_type(unit.most_elements, kernel.programs)
    phases: list[tuple[Phase, list[_KernelBody]]] = []
    for phase in kernel.phases:
        bodies = []
        for program in phase.programs:
            scope = Scope(GeneratedFunction(unit, index_type=whole))
            pointers: dict[str, bool] = {}
            writer = _writer(module, program)
            writer(module, program, kernel.threads, set(known), pointers).write(scope, "block")
            ordered = sorted(pointers, key=module.argument_order.__getitem__)
            bodies.append(_KernelBody(program, scope.body, {name: pointers[name] for name in ordered}))
        known |= {result.instruction for each in phase.programs for result in each.results if result.stored}
        phases.append((phase, bodies))
    all_bodies = [body for _, bodies in phases for body in bodies]
    writes: dict[str, bool] = {}
    for body in all_bodies:
        for name, written in body.pointers.items():
            writes[name] = writes.get(name, False) or written
    names = sorted(writes, key=module.argument_order.__getitem__)
    parameters = {name: _parameter(module, name, writes=writes[name]) for name in names}
    main = _alone(kernel, all_bodies[0], whole) if len(all_bodies) == 1 else _several(kernel, phases, whole)
    signature = cpp(
        'extern "C" __global__ void __launch_bounds__({}) {}({})',
        kernel.threads, _ENTRY, joined(", ", (parameters[each] for each in names)),
    )  # fmt: skip
    functions = [(f"{kernel.name}: {_shape(kernel)}", signature, main)]
    if len(all_bodies) > 1:
        own = [_function(kernel, number, place, body, parameters, whole)
               for number, (_, bodies) in enumerate(phases) for place, body in enumerate(bodies)]  # fmt: skip
        functions = [*own, *functions]
    needs = frozenset[str]().union(*(signature.headers | body.headers for _, signature, body in functions))
    texts = [_printed(functions, comments=comments) for comments in (True, False)]
    return KernelText(texts[0], texts[1], tuple(names), needs)


def _writer(module: HloModule, program: BlockProgram) -> type[LoopNests] | type[RowSweeps]:
    if program.rows is not None:
        return RowSweeps
    if program.tile is not None:
        return Tiles
    if program.scan:
        return BlockScans if module[program.root].attributes["loop"].by_block else Scans
    return Updates if program.updates else LoopNests


def _printed(functions: list[tuple[str, Code, Statements]], *, comments: bool) -> str:
    """Each function with a comment above it; a line between two."""
    texts = []
    for comment, signature, body in functions:
        lines = [signature, "{", *(line.rstrip() for line in indented(body.printed(comments=comments))), "}", ""]
        texts.append("\n".join([f"// {comment}", *lines] if comments else lines))
    return "\n".join(texts)


def _function(
    kernel: StitchedKernel, number: int, place: int, body: _KernelBody, parameters: dict[str, Code], whole: str
) -> tuple[str, Code, Statements]:
    program = body.program
    own = [f"const {whole} block", *(["unsigned char* arena"] if kernel.shared_bytes else [])]
    signature = cpp(
        "__device__ __forceinline__ void {}({})",
        _name(number, place), joined(", ", [*own, *(parameters[each] for each in body.pointers)]),
    )  # fmt: skip
    comment = f"{program.name}: {program.blocks} blocks, root {program.root}, {program.schedule}"
    return comment, signature, body.statements.used()


def _name(number: int, place: int) -> Code:
    return cpp("{}_{}_{}", _ENTRY, number, place)


def _alone(kernel: StitchedKernel, body: _KernelBody, whole: str) -> Statements:
    found = Statements()
    if kernel.shared_bytes:
        found.line(_ARENA)
    found.declare(whole, "block", Code("blockIdx.x" if body.program.blocks > 1 else "0"))
    found.items += body.statements.items
    return found.used()


def _several(kernel: StitchedKernel, phases: list[tuple[Phase, list[_KernelBody]]], whole: str) -> Statements:
    """The blocks of each phase go to its programs by their numbers."""
    found = Statements()
    if kernel.shared_bytes:
        found.line(_ARENA)
    for number, (phase, bodies) in enumerate(phases):
        if number:
            found.lines(Code(""), _GRID_BARRIER, Code(""))
        found.comment(f"phase {number}: {phase.blocks} blocks")
        guard = f"if (blockIdx.x < {phase.blocks})" if phase.blocks < kernel.grid else ""
        if phase.blocks <= kernel.grid:
            inner = found.block(guard)
            inner.line(cpp("const {} block = blockIdx.x;", whole))
        else:
            head = f"for ({whole} block = blockIdx.x; block < {phase.blocks}; block += {kernel.grid})"
            inner = found.block(head)
        first = 0
        for place, body in enumerate(bodies):
            block = f"block - {first}" if first else "block"
            arena = ["arena"] if kernel.shared_bytes else []
            done = call(_name(number, place), block, *arena, *map(hole, body.pointers))
            first += body.program.blocks
            condition = "" if place == len(bodies) - 1 else f"if (block < {first}) "
            inner.line(cpp("{}{}{};", "else " if place else "", condition, done))
        if phase.blocks > kernel.grid and any(body.program.shared_bytes for body in bodies):
            inner.line(cpp("{}  // before the next round uses the arena again", BARRIER))
    return found


def _parameter(module: HloModule, buffer: str, *, writes: bool) -> Code:
    kind = TYPES[module[module.buffers[buffer]].dtype]
    template = "{}* {}" if writes else "const {}* __restrict__ {}"
    return cpp(template, kind.memory, hole(buffer)).needing(*kind.headers)


def _shape(kernel: StitchedKernel) -> str:
    programs = sum(1 for _ in kernel.programs)
    parts = [f"{kernel.grid} blocks of {kernel.threads} threads"]
    if kernel.shared_bytes:
        parts.append(f"{kernel.shared_bytes} bytes of shared memory")
    if programs > 1:
        parts.append(f"{programs} block programs in {len(kernel.phases)} phase{'s' if kernel.cooperative else ''}")
    return ", ".join(parts)
