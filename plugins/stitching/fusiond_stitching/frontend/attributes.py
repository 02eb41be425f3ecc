"""The attributes of an instruction, from their texts (graph.py lists them by opcode)."""

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
    match raw.opcode:
        case "constant":
            return {"values": hlo.literal(raw)}
        case "iota":
            return {"dimension": raw.integer("iota_dimension")}
        case "broadcast" | "transpose" | "reverse":
            return {"dimensions": raw.integers("dimensions")}
        case "compare":
            return {"direction": _direction(raw), "total": raw.attributes.get("type", "").strip() == "TOTALORDER"}
        case "reduce-precision":
            return {name: raw.integer(name) for name in ("exponent_bits", "mantissa_bits")}
        case "slice":
            return _columns(raw.slices(), "starts", "limits", "strides")
        case "pad":
            return _columns(raw.padding(), "low", "high", "interior")
        case "concatenate":
            dimensions = raw.integers("dimensions")
            if len(dimensions) != 1:
                raise raw.fail(f"dimensions={list(dimensions)}; expected one")
            return {"dimension": dimensions[0]}
        case "reduce":
            dimensions = tuple(sorted(raw.integers("dimensions")))
            return {"dimensions": dimensions, "computation": computation(), "result": result}
        case "dot":
            names = [f"{side}_{kind}" for kind in ("batch", "contracting") for side in ("lhs", "rhs")]
            return {name: raw.integers(f"{name}_dims", missing=()) for name in names}
        case "gather":
            return _indexing(raw)
        case "scatter":
            return {**_indexing(raw), "computation": computation()}
        case "window":
            return windows.attributes_of(raw)
        case "dynamic-slice":
            return {"sizes": raw.integers("dynamic_slice_sizes")}
    return {}


def _direction(raw: Raw) -> str:
    direction = raw.text("direction").strip()
    if direction not in DIRECTIONS:
        raise raw.fail(f"direction={direction}; it can be {', '.join(DIRECTIONS)}")
    return direction


def _indexing(raw: Raw) -> dict[str, Any]:
    if raw.opcode == "gather":
        return {
            **_lists(raw, "offset_dims", "collapsed_slice_dims", "start_index_map"),
            "index_vector_dim": raw.integer("index_vector_dim"),
            **_lists(raw, "slice_sizes"),
            **_lists(raw, "operand_batching_dims", "start_indices_batching_dims", missing=()),
        }
    return {
        **_lists(raw, "update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims"),
        "index_vector_dim": raw.integer("index_vector_dim"),
        **_lists(raw, "input_batching_dims", "scatter_indices_batching_dims", missing=()),
        **({"unique": True} if raw.flag("unique_indices") else {}),
    }


def _lists(raw: Raw, *names: str, missing: tuple[int, ...] | None = None) -> dict[str, tuple[int, ...]]:
    return {name: raw.integers(name, missing=missing) for name in names}


def _columns(rows: tuple[tuple[int, int, int], ...], *names: str) -> dict[str, tuple[int, ...]]:
    """By dimension -> by name."""
    return {name: tuple(each[at] for each in rows) for at, name in enumerate(names)}
