"""The attributes of an instruction, from their texts (graph.py lists them by opcode)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusiond_stitching.frontend import hlo, windows
from fusiond_stitching.frontend.graph import Computation
from fusiond_stitching.frontend.hlo import Raw

DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


def number(raw: Raw) -> int:
    """Which parameter this is. RequestError for any other instruction."""
    if raw.opcode != "parameter" or not raw.payload.strip().isdigit():
        raise raw.fail(f"{raw.payload.strip()[:40]!r} is not a parameter's number")
    return int(raw.payload)


def attributes_of(raw: Raw, computation: Callable[[], Computation], result: int = 0) -> dict[str, Any]:
    """What an opcode's attributes say, whether or not they fit the shapes. RequestError for one that is missing, or
    says nothing that can be understood. `computation` reads what a reduce or a scatter applies."""
    opcode = raw.opcode
    if opcode == "constant":
        return {"values": hlo.literal(raw)}
    if opcode == "iota":
        return {"dimension": raw.integer("iota_dimension")}
    if opcode in ("broadcast", "transpose", "reverse"):
        return {"dimensions": raw.integers("dimensions")}
    if opcode == "compare":
        direction = raw.text("direction").strip()
        if direction not in DIRECTIONS:
            raise raw.fail(f"direction={direction}; it can be {', '.join(DIRECTIONS)}")
        return {"direction": direction, "total": raw.attributes.get("type", "").strip() == "TOTALORDER"}
    if opcode == "reduce-precision":
        return {"exponent_bits": raw.integer("exponent_bits"), "mantissa_bits": raw.integer("mantissa_bits")}
    if opcode == "slice":
        starts, limits, strides = _columns(raw.slices())
        return {"starts": starts, "limits": limits, "strides": strides}
    if opcode == "pad":
        low, high, interior = _columns(raw.padding())
        return {"low": low, "high": high, "interior": interior}
    if opcode == "concatenate":
        dimensions = raw.integers("dimensions")
        if len(dimensions) != 1:
            raise raw.fail(f"dimensions={list(dimensions)}; expected one")
        return {"dimension": dimensions[0]}
    if opcode == "reduce":
        dimensions = tuple(sorted(raw.integers("dimensions")))
        return {"dimensions": dimensions, "computation": computation(), "result": result}
    if opcode == "dot":
        return {
            "lhs_batch": raw.integers("lhs_batch_dims", missing=()),
            "rhs_batch": raw.integers("rhs_batch_dims", missing=()),
            "lhs_contracting": raw.integers("lhs_contracting_dims", missing=()),
            "rhs_contracting": raw.integers("rhs_contracting_dims", missing=()),
        }
    if opcode == "gather":
        return _gather(raw)
    if opcode == "scatter":
        return {**_scatter(raw), "computation": computation()}
    if opcode == "window":
        return windows.attributes_of(raw)
    if opcode == "dynamic-slice":
        return {"sizes": raw.integers("dynamic_slice_sizes")}
    return {}


def _columns(rows: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    first, second, third = (tuple(each[at] for each in rows) for at in range(3))
    return first, second, third


def _gather(raw: Raw) -> dict[str, Any]:
    return {
        "offset_dims": raw.integers("offset_dims"),
        "collapsed_slice_dims": raw.integers("collapsed_slice_dims"),
        "start_index_map": raw.integers("start_index_map"),
        "index_vector_dim": raw.integer("index_vector_dim"),
        "slice_sizes": raw.integers("slice_sizes"),
        "operand_batching_dims": raw.integers("operand_batching_dims", missing=()),
        "start_indices_batching_dims": raw.integers("start_indices_batching_dims", missing=()),
    }


def _scatter(raw: Raw) -> dict[str, Any]:
    return {
        "update_window_dims": raw.integers("update_window_dims"),
        "inserted_window_dims": raw.integers("inserted_window_dims"),
        "scatter_dims_to_operand_dims": raw.integers("scatter_dims_to_operand_dims"),
        "index_vector_dim": raw.integer("index_vector_dim"),
        "input_batching_dims": raw.integers("input_batching_dims", missing=()),
        "scatter_indices_batching_dims": raw.integers("scatter_indices_batching_dims", missing=()),
        **({"unique": True} if raw.flag("unique_indices") else {}),
    }
