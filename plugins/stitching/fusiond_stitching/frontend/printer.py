"""A graph as HLO text: the inverse of `hlo` and `importer`.

    HloModule NAME

    apply0 { ... }                 what reduces and scatters apply, equal ones once
    ENTRY main { parameters, instructions in order, ROOT tuple of the outputs }

Reading the text again gives the same module: equal names, order and attributes (`importer.digest`). The results of a
variadic reduce are instructions of their own in the graph, called `NAME.0`, `NAME.1`; here they are one instruction
NAME again, and what is taken out of its tuple.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

from fusiond_stitching.frontend import windows
from fusiond_stitching.frontend.graph import KNOWN, Computation, HloInstruction, HloModule

_LISTS = {
    **dict.fromkeys(("broadcast", "transpose", "reverse", "reduce"), ("dimensions",)),
    "gather": (
        "offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
        "start_indices_batching_dims", "slice_sizes",
    ),
    "scatter": (
        "update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "input_batching_dims",
        "scatter_indices_batching_dims",
    ),
}  # fmt: skip
"""Attributes that are lists, under the names that they have in the text."""
_DOT = {f"{side}_{kind}": f"{side}_{kind}_dims" for side in ("lhs", "rhs") for kind in ("batch", "contracting")}


def written(module: HloModule, name: str | None = None) -> str:
    """The text of a module, called `name`. ValueError for what no text can say: an instruction that this strategy does
    not know, or a result of a variadic reduce that is not called so."""
    return _Writer(module).text(name or module.name)


class _Writer:
    def __init__(self, module: HloModule) -> None:
        self.module = module
        self.computations: dict[str, str] = {}  # text without its name -> name

    def text(self, name: str) -> str:
        entry = list(self._entry())
        head = [f"HloModule {name}", ""]
        for body, called in self.computations.items():
            head += [f"{called} {{", body, "}", ""]
        return "\n".join([*head, "ENTRY main {", *entry, "}", ""])

    def _entry(self) -> Iterator[str]:
        module = self.module
        several: set[str] = set()
        for each in module.instructions:
            if each.name in module.foreign or each.opcode not in KNOWN:
                raise ValueError(f"{each.opcode} {each.name!r} is left to a library")
            operands = module.operands(each)
            if each.opcode == "reduce" and len(operands) > 2:
                base = _base(each)
                if base not in several:
                    several.add(base)
                    dims = ",".join(map(str, each.dims))
                    shapes = ", ".join(f"{one.dtype}[{dims}]" for one in operands[: len(operands) // 2])
                    yield f"  {base} = ({shapes}) {self._call(each)}"
                yield f"  {each.name} = {each.shape} get-tuple-element({base}), index={each.attributes['result']}"
            else:
                yield f"  {each.name} = {each.shape} {self._call(each)}"
        names = {*module.by_name, *several}
        candidates = itertools.chain(["results"], (f"results.{number}" for number in itertools.count(2)))
        root = next(each for each in candidates if each not in names)
        outputs = [module[each] for each in module.outputs]
        yield f"  ROOT {root} = {_tuple(outputs)} tuple({', '.join(module.outputs)})"

    def _call(self, instruction: HloInstruction) -> str:
        """From the opcode on."""
        operands = ", ".join(instruction.operands)
        if instruction.opcode == "parameter":
            operands = str(instruction.attributes["number"])
        if instruction.opcode == "constant":
            operands = _literal(instruction)
        attributes = [f"{name}={text}" for name, text in _attributes(instruction)]
        if instruction.opcode == "window":
            return f'custom-call({operands}), custom_call_target="{windows.TARGET}", {", ".join(attributes)}'
        if "computation" in instruction.attributes:
            attributes.append(f"to_apply={self._computation(instruction.attributes['computation'])}")
        return ", ".join([f"{instruction.opcode}({operands})", *attributes])

    def _computation(self, computation: Computation) -> str:
        """The name under which a computation stands in the text."""
        inner = {each.name: each for each in (*computation.parameters, *computation.instructions)}
        number = {name: f"a{place}" for place, name in enumerate(inner)}
        alone = len(computation.results) == 1
        lines = []
        for name, each in inner.items():
            root = "ROOT " if alone and name == computation.results[0] else ""
            call = self._call(each.becoming(each.opcode, *(number[one] for one in each.operands), **each.attributes))
            lines.append(f"  {root}{number[name]} = {each.shape} {call}")
        if not alone:
            names = ", ".join(number[name] for name in computation.results)
            lines.append(f"  ROOT results = {_tuple([inner[name] for name in computation.results])} tuple({names})")
        return self.computations.setdefault("\n".join(lines), f"apply{len(self.computations)}")


def _base(reduce: HloInstruction) -> str:
    base, dot, place = reduce.name.rpartition(".")
    if not dot or place != str(reduce.attributes["result"]):
        raise ValueError(
            f"{reduce.name!r} is result {reduce.attributes['result']} of a reduce, but its name does not say so"
        )
    return base


# --- shapes, attributes, values -------------------------------------------------------------------------


def _tuple(instructions: Sequence[HloInstruction]) -> str:
    return f"({', '.join(each.shape for each in instructions)})"


def _list(values: Sequence[int]) -> str:
    return f"{{{','.join(map(str, values))}}}"


def _attributes(instruction: HloInstruction) -> Iterator[tuple[str, str]]:
    opcode, given = instruction.opcode, instruction.attributes
    for name in _LISTS.get(opcode, ()):
        yield name, _list(given[name])
    if opcode == "iota":
        yield "iota_dimension", str(given["dimension"])
    elif opcode == "concatenate":
        yield "dimensions", _list((given["dimension"],))
    elif opcode == "slice":
        rows = zip(given["starts"], given["limits"], given["strides"], strict=True)
        yield "slice", f"{{{', '.join('[' + ':'.join(map(str, row)) + ']' for row in rows)}}}"
    elif opcode == "pad":
        rows = zip(given["low"], given["high"], given["interior"], strict=True)
        yield "padding", "x".join("_".join(map(str, row)) for row in rows)
    elif opcode == "window":
        yield "window", windows.written(given)
    elif opcode == "compare":
        yield "direction", given["direction"]
        if given["total"]:
            yield "type", "TOTALORDER"
    elif opcode == "dot":
        for name, said in _DOT.items():
            yield said, _list(given[name])
    elif opcode in ("gather", "scatter"):
        yield "index_vector_dim", str(given["index_vector_dim"])
        if given.get("unique", False):
            yield "unique_indices", "true"
    elif opcode == "dynamic-slice":
        yield "dynamic_slice_sizes", _list(given["sizes"])
    elif opcode == "reduce-precision":
        yield from ((name, str(given[name])) for name in ("exponent_bits", "mantissa_bits"))


def _literal(constant: HloInstruction) -> str:
    values = constant.attributes["values"]
    return _nested(constant.dims, [repr(each).lower() if isinstance(each, bool) else repr(each) for each in values])


def _nested(dims: Sequence[int], values: Sequence[str]) -> str:
    """Values in braces, a pair for each dimension."""
    if not dims:
        return values[0]
    run = math.prod(dims[1:])
    return f"{{{', '.join(_nested(dims[1:], values[at * run : (at + 1) * run]) for at in range(dims[0]))}}}"
