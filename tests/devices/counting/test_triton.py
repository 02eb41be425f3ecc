"""Kernels that Triton wrote, run from their PTX, against NumPy: softmax, products of matrices, attention, ..."""

from typing import Any

import numpy as np
import pytest

from fusiond.devices.counting import layout
from fusiond.devices.counting.kernels import CountedShape, LoadedPtx
from fusiond.devices.counting.library import Cache, CountingLibrary
from fusiond.devices.counting.model import H100
from fusiond.devices.counting.sampling import LaunchCounts
from fusiond.devices.counting.tensor_map import tensor_map
from tests.ptx_data.cases import Case, cases

CASES = cases()


def launched(library: CountingLibrary, case: Case, values: dict[str, Any]) -> tuple[LaunchCounts, dict[str, Any]]:
    """What it counted, and the outputs."""
    held = {name: layout.aligned(each.nbytes) for name, each in values.items() if isinstance(each, np.ndarray)}
    for name, room in held.items():
        room[:] = values[name].reshape(-1).view(np.uint8)
    scratch = layout.aligned(max(case.scratch_bytes * int(np.prod(case.grid)), 1))
    packed = []
    for each in case.arguments:
        if "shape" in each:
            packed.append(address(held[each["name"]]))
        elif "tensor_map" in each:
            array = values[each["tensor_map"]]
            rows, columns = array.shape
            begin = int(held[each["tensor_map"]].ctypes.data)
            packed.append(tensor_map(begin, "float16", array.shape, each["box"], swizzle=128))
            packed += [np.int32(rows).tobytes(), np.int32(columns).tobytes()]
            packed += [np.int64(columns).tobytes(), np.int64(1).tobytes()]
        else:
            packed.append(values[each["name"]].tobytes())
    packed += [address(scratch)] * 2
    shape = CountedShape(grid=case.grid, block=case.block, shared_bytes=case.shared_bytes)
    cache = Cache(library, H100.l2_bytes)
    result = LoadedPtx(case.text, library).launch(case.entry, shape, packed, [*held.values(), scratch], cache, H100)
    cache.close()
    return result, {name: room.view(values[name].dtype).reshape(values[name].shape) for name, room in held.items()}


def address(room: Any) -> bytes:
    return int(room.ctypes.data).to_bytes(8, "little")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_numpy_does(counting: CountingLibrary, name: str) -> None:
    case = CASES[name]
    values = case.values()
    result, outputs = launched(counting, case, values)
    assert result.failed is None
    case.check(values, outputs)
