"""A kernel of PTX, from any compiler, with the facts that decide how it can be fused.

Nothing is run and nothing is assumed of who wrote it. What stands here is read by `codegen/ptx_side.py`, which
rewrites the names that a module shares, the registers and barriers that belong to a block, the places of shared memory.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.language.expressions import Expression
from fusiond.model.nouns import Rejection
from fusiond.model.ptx import parser, rewrite
from fusiond.model.ptx.tree import SIZES, Function, Instruction, Module, Variable, instructions
from fusiond_hfuse.frontend import arguments, ptx_divergence
from fusiond_hfuse.frontend.source_kernel import (
    BlockShapes,
    KernelArgument,
    KernelParameter,
    Parsed,
    PtxText,
    SourceKernel,
    StructMember,
)

_SEEN = ("tid", "ntid", "ctaid", "nctaid", "warpid", "nwarpid")
"""Special registers that say where a thread is in its block, and the block in its grid."""
_GRID_BARRIER = ("%envreg1", "%envreg2")
"""The halves of an address: where the blocks of a cooperative launch count who has come."""
_REFUSED = {
    "%envreg": "reads what the driver tells a launch",
    **{f"%{n}clusterid.{axis}": "reads which of all clusters it is in" for n in ("", "n") for axis in "xyz"},
    **dict.fromkeys(("%total_smem_size", "%aggr_smem_size"), "reads how much shared memory the whole block has"),
    "%dynamic_smem_size": "reads how much dynamic shared memory the whole block has",
    "%reserved_smem": "reads where the system's shared memory lies",
    **{f"%{each}": f"reads all of %{each} at once" for each in ("tid", "ctaid", "ntid", "nctaid")},
}
_WHOLE_WARPGROUPS = ("wgmma", "setmaxnreg", "tcgen05")
_OF_A_BLOCK = (
    ("barrier.cluster", "cluster", "waits for whole blocks"),
    ("setmaxnreg", "registers", "divides the registers of a block that is all its own"),
    ("tcgen05.alloc", "tensor_memory", "takes tensor memory for a block that is all its own"),
)
_NOTABLE = {"bar", "barrier", "call", "cp", "exit", *_WHOLE_WARPGROUPS, *ptx_divergence.MEETINGS}
_ALIGNED_1024 = ("wgmma", "tcgen05", "cp.async.bulk.tensor")
BIG_ALIGNMENT = 1024
"""What swizzled tiles of tensor copies and of warpgroup products count on (PTX ISA, "Swizzling Modes")."""


@functools.lru_cache(maxsize=64)  # a kernel stands in many pairs
def read(text: str, entry: str, name: str, where: str) -> tuple[PtxText, Parsed]:
    """A kernel of a PTX text. PtxError for what is not PTX, RequestError where it has no such kernel; what cannot be
    fused is a Rejection in the result."""
    found = _found(parser.parse(text), text, entry, where)
    return found, _parsed(found, name)


def of_ptx(kernel: SourceKernel, text: str, entry: str) -> SourceKernel:
    """A kernel with its PTX, which its YAML agrees with. RequestError where it does not, PtxError for what is none."""
    ptx, parsed = read(text, entry, kernel.name, kernel.where("entry"))
    required = ptx.limits.get("reqntid")
    shape = kernel.block.shapes[0]
    if required is not None and (*required, 1, 1)[:3] != shape:
        said = f"the block is {shape}, and the kernel says .reqntid {required}"
        raise RequestError(said, where=kernel.where("block"))
    checked_variables(kernel.variables, ptx)
    if parsed.uses_dynamic_shared and "shared" not in kernel.keys:
        said = f"{ptx.entry.name} has a shared array without a length, so the key 'shared' must give its bytes"
        raise RequestError(said, where=kernel.path)
    parsed = dataclasses.replace(parsed, rejections=(*parsed.rejections, *_unset(kernel, ptx)))
    matched = arguments.matched(kernel.arguments, parsed.parameters, kernel.keys["arguments"])
    return dataclasses.replace(
        kernel, ptx=ptx, instance=ptx.entry.name, parsed=parsed,
        arguments=tuple(_checked(*each) for each in matched),
        block=BlockShapes(shapes=(shape,)) if required is not None else kernel.block,
        moved=moved(ptx, parsed),
    )  # fmt: skip


def _unset(kernel: SourceKernel, ptx: PtxText) -> Iterator[Rejection]:
    """Variables without a value: of a run alone nobody knows what they hold, and of two the second finds what the first
    has left."""
    given = {each.symbol for each in kernel.variables}
    for each in ptx.variables:
        if each.space in ("const", "global") and each.elements and not each.initial and each.name not in given:
            detail = f"{kernel.path}: the variable {each.name} has no value but the host's; say it under `constants:`"
            yield Rejection(rule="symbol", nodes=(kernel.name,), detail=detail)


def moved(ptx: PtxText, parsed: Parsed) -> Parsed | None:
    """The kernel with its static shared arrays at the beginning of the dynamic one; None where it has none."""
    places = static_places(ptx)
    if not places or parsed.rejections:
        return None
    alignment = max(parsed.alignment, *(each.alignment for each, _ in places))
    end = max(place + each.size_bytes for each, place in places)
    return dataclasses.replace(
        parsed, uses_dynamic_shared=True, static_shared_bytes=0, alignment=alignment,
        moved_bytes=-(-end // alignment) * alignment,
    )  # fmt: skip


def static_places(ptx: PtxText) -> list[tuple[Variable, int]]:
    """Static shared arrays of the module and of the kernel, and where each lies when they are in the dynamic one."""
    places, end = [], 0
    for each in _static_arrays(ptx):
        end = -(-end // each.alignment) * each.alignment
        places.append((each, end))
        end += each.size_bytes
    return places


def _found(module: Module, text: str, entry: str, where: str) -> PtxText:
    kernels = module.entries
    if entry not in kernels:
        raise UnknownName("kernel of the source", entry, set(kernels) or {"none"}, where=where)
    if module.address_size != 64:
        raise RequestError(f"its .address_size is {module.address_size}; expected 64", where=where)
    kernel = kernels[entry]
    functions, variables, words = rewrite.reached(module, kernel)
    notable = {
        each.name: tuple(one for one in _instructions(each) if one.opcode.partition(".")[0] in _NOTABLE)
        for each in (kernel, *functions)
    }
    ids: set[int] = set()
    for function in (kernel, *functions):
        numbers = barrier_numbers(function, notable[function.name])
        ids |= {numbers.get(barrier_id(each), -1) for each in notable[function.name] if is_block_barrier(each)}
    return PtxText(
        text=text,
        module=module,
        entry=kernel,
        functions=functions,
        variables=variables,
        words=words,
        notable=notable,
        barriers=tuple(sorted(ids)),
    )


def _instructions(function: Function) -> list[Instruction]:
    return instructions(function.body) if function.body is not None else []


def is_block_barrier(instruction: Instruction) -> bool:
    """`bar.sync 0`, `barrier.cta.red.and.pred ...`, and no `bar.warp.sync`."""
    words = instruction.opcode.split(".")
    return words[0] in ("bar", "barrier") and "warp" not in words and "cluster" not in words


def barrier_id(instruction: Instruction) -> str:
    """The operand that names a barrier: behind the result, where it is a reduction."""
    if ".red" not in instruction.opcode:
        return instruction.text.split(",")[0].strip()
    return instruction.text.split(",")[1].strip()


def barrier_numbers(function: Function, notable: Iterable[Instruction]) -> dict[str, int]:
    """What the barriers of a function are named by -> their numbers: those of registers that are written once, with a
    number."""
    named = {barrier_id(each) for each in notable if is_block_barrier(each)}
    found = {each: int(each) for each in named if each.isdigit()}
    if named == found.keys():
        return found
    writes: dict[str, list[str]] = {}
    for each in _instructions(function):
        first, _, rest = each.text.partition(",")
        if first in named and (each.base not in ("bar", "barrier") or ".red" in each.opcode):
            writes.setdefault(first, []).append(rest.strip() if each.base == "mov" and not each.guard else "")
    return found | {name: int(each[0]) for name, each in writes.items() if len(each) == 1 and each[0].isdigit()}


def _some_see(ptx: PtxText) -> bool:
    """Whether some function sees the block: its threads, its shared memory's beginning, its barriers."""
    return any(
        any(word[0] == "%" and word[1:].partition(".")[0] in _SEEN for word in ptx.words[each.name])
        or ptx.words[each.name] & ptx.dynamic
        or any(map(is_block_barrier, ptx.notable[each.name]))
        for each in ptx.functions
    )


# --- what follows for fusion ----------------------------------------------------------------------------


def _parsed(ptx: PtxText, name: str) -> Parsed:
    entry, limits = ptx.entry, ptx.limits
    alignment = max([16, *(each.alignment for each in ptx.variables if each.name in ptx.dynamic)])
    if any(each.opcode.startswith(_ALIGNED_1024) for each in _notable(ptx)):
        alignment = max(alignment, BIG_ALIGNMENT)
    leaving, by_warps = _leaving(ptx)
    beside = [*_refused(name, _only_by_blocks(ptx)), *_early(ptx, name, leaving)]
    bound = limits.get("reqntid", limits.get("maxntid"))
    return Parsed(
        entry=entry.name,
        parameters=tuple(map(_parameter, entry.parameters)),
        uses_dynamic_shared=bool(ptx.dynamic),
        static_shared_bytes=sum(each.size_bytes for each in _static_arrays(ptx)),
        launch_bound=math.prod(bound) if bound else None,
        rejections=tuple(dict.fromkeys(_refused(name, _refusals(ptx)))),
        resident_blocks=limits.get("minnctapersm", (0,))[0],
        alignment=alignment,
        drains=leaving.drains and not beside,
        beside=tuple(dict.fromkeys(beside)),
        by_warps=by_warps,
        parts=leaving.leaves,
        barrier_ids=max(len(ptx.barriers), 1),
        warpgroups=any(each.base in _WHOLE_WARPGROUPS for each in _notable(ptx)),
        cluster=limits.get("reqnctapercluster", (1,))[0],
        cooperative=any(not words.isdisjoint(_GRID_BARRIER) for words in ptx.words.values()),
    )


def _notable(ptx: PtxText) -> Iterator[Instruction]:
    return itertools.chain.from_iterable(ptx.notable.values())


def _static_arrays(ptx: PtxText) -> list[Variable]:
    """Shared arrays with a length: of the module, and of the kernel and the functions that it calls."""
    bodies = (each.body for each in (ptx.entry, *ptx.functions) if each.body is not None)
    inner = itertools.chain.from_iterable(map(rewrite.variables_in, bodies))
    return [each for each in (*ptx.variables, *inner) if each.space == "shared" and each.name not in ptx.dynamic]


def _early(ptx: PtxText, name: str, leaving: ptx_divergence.Leaving) -> Iterator[Rejection]:
    why = ""
    if leaving.drains and leaving.beside:
        why = f"others of their warp meet in `{leaving.beside}`"
    elif leaving.drains and any(not _plain(each) for each in _notable(ptx) if is_block_barrier(each)):
        why = "others wait at barriers that are counted or have numbers of their own"
    if why:
        detail = f"{name}: some threads may leave before a barrier while {why}; it can be fused block by block only"
        yield Rejection(rule="return_before_barrier", nodes=(name,), detail=detail)


def _plain(barrier: Instruction) -> bool:
    """`bar.sync 0;`"""
    return ".red" not in barrier.opcode and ".sync" in barrier.opcode and barrier.text == "0"


def _leaving(ptx: PtxText) -> tuple[ptx_divergence.Leaving, bool]:
    """How threads leave before others, and whether that counts on the rows of a block being whole warps."""
    waits: set[str] = set()
    meets: dict[str, str] = {}
    for name, notable in ptx.notable.items():
        for each in notable:
            if is_block_barrier(each):
                waits.add(name)
            elif each.base in ptx_divergence.MEETINGS or each.opcode.startswith("bar.warp"):
                meets[name] = each.opcode
    if not waits and not meets:
        return ptx_divergence.Leaving(), False
    assert ptx.entry.body is not None
    found = ptx_divergence.leaving(ptx.entry.body, rows_are_warps=True, waits=waits, meets=meets)
    if not any("%tid.y" in words or "%tid.z" in words for words in ptx.words.values()):
        return found, False
    return found, ptx_divergence.leaving(ptx.entry.body, rows_are_warps=False, waits=waits, meets=meets) != found


_Refusal = tuple[str, int, str]  #: Rule, line, reason


def _refused(name: str, found: Iterable[_Refusal]) -> Iterator[Rejection]:
    for rule, line, why in found:
        yield Rejection(rule=rule, nodes=(name,), detail=f"{name}, PTX line {line}: {why}")


def _refusals(ptx: PtxText) -> Iterator[_Refusal]:
    """What no fused kernel can have, whatever the blocks."""
    cluster = ptx.limits.get("reqnctapercluster", ())
    if any(each != 1 for each in cluster[1:]) or ("explicitcluster" in ptx.limits and not cluster):
        said = f"its clusters are {cluster or 'not in the PTX'}; those of .reqnctapercluster along x are fused"
        yield "cluster", ptx.entry.line, said
    for variable in ptx.variables:
        if variable.type in ("texref", "surfref", "samplerref"):
            yield "texture", variable.line, f"{variable.name} is a texture reference; a texture object can be fused"
    for function in (ptx.entry, *ptx.functions):
        yield from _refusals_in(ptx, function)


def _refusals_in(ptx: PtxText, function: Function) -> Iterator[_Refusal]:
    if any(each.space == "reg" for each in (*function.parameters, *function.returns)):
        yield "function", function.line, f"{function.name} is handed registers, not parameters"
    named = {
        word: _REFUSED.get(word) or _REFUSED.get(word.rstrip("0123456789"))
        for word in ptx.words[function.name].difference(_GRID_BARRIER)
    }
    for each in _instructions(function) if any(named.values()) else ():
        for word in each.words:
            if problem := named.get(word):
                yield "leak", each.line, f"{word} {problem}"
    for each in ptx.notable[function.name]:
        if function is not ptx.entry and each.base == "exit":
            yield "function", each.line, f"{function.name} ends the thread past what fusion puts at the end"
        if each.base == "call" and rewrite.call_target(each).startswith("%") and _some_see(ptx):
            yield "function", each.line, "it calls by a pointer, and some function sees the block"


def _only_by_blocks(ptx: PtxText) -> Iterator[_Refusal]:
    """What cannot share a block with another kernel, and can have blocks of its own."""
    if -1 in ptx.barriers:
        line = next(each.line for each in _notable(ptx) if is_block_barrier(each))
        yield "block_barrier", line, "a barrier's number is in a register, so that no other kernel can have any"
    if ptx.limits.get("reqnctapercluster", (1,))[0] > 1:
        yield "cluster", ptx.entry.line, "its clusters have several blocks, which wait for all of each other"
    for each in _notable(ptx):
        for begin, rule, why in _OF_A_BLOCK:
            if each.opcode.startswith(begin):
                yield rule, each.line, f"{each.opcode} {why}"
                return


# --- parameters -----------------------------------------------------------------------------------------


def _parameter(declared: Variable) -> KernelParameter:
    """A parameter by its bytes: whether it is an address, and of what numbers, no PTX says."""
    size = SIZES[declared.type] * (declared.elements or 1)
    spelling = f".{declared.type}" + "".join(f"[{each}]" for each in declared.extents)
    return KernelParameter(
        name=declared.name,
        pointer=".ptr" in declared.attributes,
        dtype=None,
        spelling=spelling,
        target="",
        bytes=size,
        record=bool(declared.extents),
    )


def _checked(argument: KernelArgument, parameter: KernelParameter) -> KernelArgument:
    """An argument of the YAML's against its `.param`, by bytes."""
    name, where, bytes_ = argument.name, argument.where, parameter.bytes
    if argument.hex or argument.members:
        if argument.bytes == bytes_:
            return argument  # the declaration in C++ has said where its members are
        if argument.hex and len(argument.hex) != 2 * bytes_:
            raise RequestError(
                f"{name} has {len(argument.hex) // 2} bytes, the parameter {parameter.spelling} {bytes_}", where=where
            )
        return dataclasses.replace(argument, bytes=bytes_, members=_placed(argument, parameter))
    if argument.buffer is not None and (bytes_ != 8 or parameter.record):
        raise RequestError(f"{name} is a buffer, the parameter is {parameter.spelling}, no address", where=where)
    if argument.buffer is None and parameter.pointer:
        if not (isinstance(argument.value, Expression) and argument.value.text == "0"):
            raise RequestError(f"{name}: the parameter is an address; expected a buffer, or 0", where=where)
        return dataclasses.replace(argument, dtype="uint64")
    if argument.buffer is None and DTYPES[argument.dtype].bytes != bytes_:
        raise RequestError(
            f"{name} is {argument.dtype}, {DTYPES[argument.dtype].bytes} bytes; the parameter {parameter.spelling} "
            f"has {bytes_}",
            where=where,
        )
    return argument


def _placed(argument: KernelArgument, parameter: KernelParameter) -> tuple[StructMember, ...]:
    """The members of a struct by their places: `struct: {0: {dtype: float32, value: 1}, 8: ...}`."""
    found, end = [], 0
    for member in sorted(argument.members, key=lambda each: int(each.path) if each.path.isdigit() else -1):
        if not member.path.isdigit():
            raise member.fail(
                f"{argument.name}: {member.path!r} is not a number of bytes; PTX knows no names of members"
            )
        if member.dtype is None:
            raise member.fail(f"{argument.name}, {member.path}: the key 'dtype' is missing")
        size = 8 if member.target is not None else DTYPES[member.dtype].bytes
        if int(member.path) < end or int(member.path) + size > parameter.bytes:
            raise member.fail(
                f"{argument.name}: {size} bytes at {member.path} overlap the member before, or end behind "
                f"{parameter.bytes}"
            )
        end = int(member.path) + size
        found.append(dataclasses.replace(member, offset=int(member.path)))
    return tuple(found)


def checked_variables(variables: tuple[KernelArgument, ...], ptx: PtxText) -> None:
    """The YAML's constants against the module's variables. RequestError."""
    known = {each.name: each for each in ptx.module.variables if each.space in ("const", "global")}
    for each in variables:
        if each.symbol not in known:
            raise UnknownName("variable of the source", each.symbol, set(known) or {"none"}, where=each.where)
        if each.members:
            raise each.fail(f"{each.symbol}: a variable of PTX is given by its numbers, with dtype and elements")
