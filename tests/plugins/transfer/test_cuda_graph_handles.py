"""Captured CUDA graphs through the driver's API, over a stand-in of the driver that is compiled against NVIDIA's header
(`graph_driver.c`): what is read, which vectors the addresses come to, and the plan of what was filled in."""

from __future__ import annotations

import ctypes
import itertools
import random
import re
import struct
import subprocess
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import pytest

from fusiond.build import nvcc
from fusiond.errors import RequestError
from fusiond.inputs import documents
from fusiond_transfer.frontend.importing import graph_driver
from fusiond_transfer.python import from_cuda_graph

HOST, DEVICE, ARRAY, UNIFIED = 1, 2, 3, 4
EVENT_RECORD, FREE, CONDITIONAL, HOST_NODE = 7, 11, 13, 3
D, H, M = 0x7F0000000000, 0x550000000000, 0x7E0000000000
"""Where the device's memory, the host's and what is managed begin here."""


class Recorder:
    """Puts graphs together in the stand-in."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        for name in ("graph", "node", "kernel", "copy", "set", "allocation", "child"):
            getattr(self.library, f"test_{name}").restype = c_void_p
        self.library.test_forget()

    def graph(self) -> int:
        return int(self.library.test_graph())

    def memory(self, base: int, size: int, *, kind: int = DEVICE, managed: bool = False, ordinal: int = 0) -> None:
        self.library.test_memory(c_uint(kind), c_uint64(base), c_size_t(size), c_uint(managed), c_int(ordinal))

    def node(self, graph: int, kind: int, *after: int) -> int:
        return self._behind(graph, self.library.test_node(c_void_p(graph), c_int(kind)), after)

    def child(self, graph: int, child: int, *after: int) -> int:
        return self._behind(graph, self.library.test_child(c_void_p(graph), c_void_p(child)), after)

    def kernel(
        self, graph: int, name: str, arguments: str, *values: float, after: Sequence[int] = (), how: int = 0,
        shape: tuple[int, ...] = (4, 1, 1, 128, 1, 1, 0),
    ) -> int:  # fmt: skip
        """`arguments`: one letter of `struct` for each value, a blank between arguments: `Q Q i` has three, `QQ i` two,
        the first of which is a structure."""
        offsets, sizes, packed, at = [], [], b"", 0
        for letters in arguments.split():
            here = values[at : at + len(letters)]
            at += len(letters)
            text = struct.pack(letters, *here)
            packed += bytes(-len(packed) % max(struct.calcsize(each) for each in letters))
            offsets.append(len(packed))
            sizes.append(len(text))
            packed += text
        count = len(sizes)
        made = self.library.test_kernel(
            c_void_p(graph), c_char_p(name.encode()), (c_uint * 7)(*shape), c_size_t(count),
            (c_size_t * max(1, count))(*offsets), (c_size_t * max(1, count))(*sizes), packed, c_size_t(len(packed)),
            c_int(how),
        )  # fmt: skip
        return self._behind(graph, made, after)

    def copy(self, graph: int, source: tuple[int, int], target: tuple[int, int], size: int, *after: int) -> int:
        """Ends: (type, address)."""
        return self.box(graph, (*source, 0, 0, 0, 0, 0), (*target, 0, 0, 0, 0, 0), (size, 1, 1), *after)

    def box(
        self, graph: int, source: Sequence[int], target: Sequence[int], extent: tuple[int, int, int], *after: int
    ) -> int:
        ends = [(c_size_t * 7)(*each) for each in (source, target)]
        made = self.library.test_copy(c_void_p(graph), *ends, *map(c_size_t, extent))
        return self._behind(graph, made, after)

    def set(self, graph: int, target: int, value: int, element: int, width: int, *after: int, rows: int = 1) -> int:
        made = self.library.test_set(
            c_void_p(graph), c_uint64(target), c_uint(value), c_uint(element), c_size_t(width), c_size_t(rows),
            c_size_t(2 * width * element),
        )  # fmt: skip
        return self._behind(graph, made, after)

    def allocation(self, graph: int, address: int, size: int, *after: int) -> int:
        made = self.library.test_allocation(c_void_p(graph), c_uint64(address), c_size_t(size))
        return self._behind(graph, made, after)

    def edge(self, graph: int, one: int, other: int, port: int = 0) -> None:
        self.library.test_edge(c_void_p(graph), c_void_p(one), c_void_p(other), c_int(port))

    def _behind(self, graph: int, node: int, after: Sequence[int]) -> int:
        for each in after:
            self.edge(graph, each, node)
        return node


@pytest.fixture(scope="session")
def built(gxx_here: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The stand-in as a driver of some version: `13000`."""
    toolkit = nvcc.find()
    header = next((each for each in toolkit.root.glob("**/include/cuda.h")), None) if toolkit else None
    if header is None:
        pytest.skip(nvcc.missing() or "this nvcc came without cuda.h: pip install nvidia-cuda-crt nvidia-cuda-runtime")
    folder = tmp_path_factory.mktemp("graph_driver")

    def built(version: int) -> Path:
        library = folder / f"libcuda_{version}.so"
        if not library.exists():
            command = ["cc", "-shared", "-fPIC", f"-DDRIVER={version}", f"-I{header.parent}", "-o", str(library)]
            subprocess.run([*command, str(Path(__file__).with_name("graph_driver.c"))], check=True)
        return library

    return built


@pytest.fixture
def driver(built: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recorder]:
    def driver(version: int = 13000) -> Recorder:
        library = built(version)
        monkeypatch.setattr(graph_driver, "LIBRARY", str(library))
        return Recorder(library)

    return driver


def _read(text: str) -> Any:
    return documents.drafted(text, "draft")[0].plain()


def _note(text: str, name: str) -> str:
    """What stands behind a vector or a kernel."""
    (line,) = (each for each in text.splitlines() if re.search(rf'^  (- {{name: )?"{name}"[:,]', each))
    return line.partition("  # ")[2]


def test_a_step_is_drafted_filled_in_and_planned(
    driver: Callable[..., Recorder], parse: Callable[..., Any], analyse: Callable[..., Any]
) -> None:
    """Two vectors up, a kernel over parts of them, a host function, its result up again, a sum down."""
    make = driver()
    graph = make.graph()
    make.memory(D, 1 << 20)
    make.memory(H, 1 << 16, kind=HOST)
    a = make.copy(graph, (HOST, H), (DEVICE, D), 4096)
    b = make.copy(graph, (HOST, H + 4096), (DEVICE, D + 8192), 1024)
    blend = make.kernel(
        graph, "_Z5blendIfEvPKT_PS0_i", "Q Q Q i", D, D + 8192 + 512, D + 65536, 1024, after=(a, b),
        shape=(16, 10, 4, 128, 1, 1, 256),
    )  # fmt: skip
    down = make.copy(graph, (DEVICE, D + 65536), (HOST, H + 9000), 512, blend)
    host = make.node(graph, HOST_NODE, down)
    again = make.copy(graph, (HOST, H + 9000), (DEVICE, D + 70000), 512, host)
    total = make.kernel(graph, "total", "QQ i", D + 70000, D + 80000, 5, after=(again,), how=1)
    make.copy(graph, (DEVICE, D + 80000), (HOST, 0x1234), 4, total)
    text = from_cuda_graph(graph, "step")
    root = _read(text)
    assert root["graph"] == "step"
    assert (root["inputs"], root["outputs"]) == (["up", "up_2"], ["buffer", "buffer_2"])
    assert {name: each["elements"] for name, each in root["vectors"].items()} == {
        "up": 4096, "up_2": 1024, "buffer": 512, "up_3": 512, "buffer_2": 4,
    }  # fmt: skip
    assert [(each["name"], each["on"], each["reads"], each["writes"]) for each in root["kernels"]] == [
        ("blend", "device", "?", "?"), ("host", "host", "?", "?"), ("total", "device", "?", "?"),
    ]  # fmt: skip
    assert _note(text, "blend") == (
        "<<<{16,10,4}, 128, 256>>>; points to up, up_2[512:], buffer (used first here); "
        "behind the copy of up, the copy of up_2"
    )
    assert _note(text, "host") == "may read buffer, may write up_3; behind the copy of buffer"
    assert _note(text, "total") == "<<<4, 128>>>; points to up_3, buffer_2 (used first here); behind the copy of up_3"
    assert "made on the host, where buffer came" in _note(text, "up_3")
    with pytest.raises(RequestError, match=r'still "\?": kernels\[0\]\.reads'):
        parse(text)
    for filled in ('["up", "up_2[512:]"]', '["buffer"]', '["buffer"]', '["up_3"]', '["up_3"]', '["buffer_2"]'):
        text = re.sub(r'(reads|writes): "\?"', lambda found, filled=filled: f"{found[1]}: {filled}", text, count=1)
    report = analyse(text).report
    assert [(each["direction"], sorted(each["vectors"])) for each in report["schedule"]] == [
        ("up", ["up", "up_2[512:1024]"]), ("down", ["buffer"]), ("up", ["up_3"]), ("down", ["buffer_2"]),
    ]  # fmt: skip


def test_layouts_are_nvidias(driver: Callable[..., Recorder], built: Callable[[int], Path], tmp_path: Path) -> None:
    """Sizes and offsets of the structures, as the compiler has them."""
    include = next(iter(nvcc.find().root.glob("**/include/cuda.h"))).parent  # type: ignore[union-attr]
    built(13000)
    wanted = {
        "CUDA_KERNEL_NODE_PARAMS": (graph_driver.KernelParams, {"kernel_params": "kernelParams", "ctx": "ctx"}),
        "CUDA_MEMCPY3D": (graph_driver.CopyParams, {"source_device": "srcDevice", "target_type": "dstMemoryType",
                                                    "depth": "Depth"}),
        "CUDA_MEMSET_NODE_PARAMS": (graph_driver.MemsetParams, {"element_bytes": "elementSize", "height": "height"}),
        "CUDA_MEM_ALLOC_NODE_PARAMS": (graph_driver.AllocationParams, {"size": "bytesize", "address": "dptr"}),
        "CUgraphEdgeData": (graph_driver.EdgeData, {"type": "type"}),
    }  # fmt: skip
    asked = [f"sizeof({name})" for name in wanted]
    asked += [f"offsetof({name}, {field})" for name, (_, fields) in wanted.items() for field in fields.values()]
    source = tmp_path / "layout.c"
    lines = "".join(f'printf("%zu\\n", {each});' for each in asked)
    source.write_text(f"#include <cuda.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{{lines}}}\n")
    subprocess.run(["cc", f"-I{include}", str(source), "-o", str(tmp_path / "layout")], check=True)
    said = [int(each) for each in subprocess.check_output([str(tmp_path / "layout")], text=True).split()]
    mine = [ctypes.sizeof(kind) for kind, _ in wanted.values()]
    mine += [getattr(kind, field).offset for kind, fields in wanted.values() for field in fields]
    assert mine == said


def test_child_graphs_are_laid_open(driver: Callable[..., Recorder]) -> None:
    """a -> (one, two -> three) -> b: b waits for what is last in the child."""
    make = driver()
    inner, graph = make.graph(), make.graph()
    make.memory(D, 64)
    make.kernel(inner, "one", "Q", D)
    two = make.kernel(inner, "two", "Q", D)
    make.kernel(inner, "three", "Q", D, after=(two,))
    a = make.kernel(graph, "a", "Q", D)
    child = make.child(graph, inner, a)
    empty = make.child(graph, make.graph(), child)
    make.kernel(graph, "b", "Q", D, after=(empty,))
    text = from_cuda_graph(graph)
    assert [each["name"] for each in _read(text)["kernels"]] == ["a", "one", "two", "three", "b"]
    behind = {name: _note(text, name).partition("behind ")[2] for name in ("one", "two", "three", "b")}
    assert behind == {"one": "a", "two": "a", "three": "two", "b": "one, three"}


def test_copies_on_one_side_and_memsets_are_kernels_with_formulas(
    driver: Callable[..., Recorder], analyse: Callable[..., Any]
) -> None:
    make = driver()
    graph = make.graph()
    make.memory(D, 4096)
    up = make.copy(graph, (HOST, H), (DEVICE, D), 256)
    over = make.copy(graph, (DEVICE, D + 64), (DEVICE, D + 1024), 64, up)
    zero = make.set(graph, D + 2048, 0, 4, 16)
    ones = make.set(graph, D + 3000, 0x01010101, 4, 4)
    odd = make.set(graph, D + 3500, 0x3F800000, 4, 4)
    rows = make.box(
        graph, (DEVICE, D, 8, 2, 0, 32, 0), (DEVICE, D + 2048, 0, 0, 0, 8, 0), (8, 4, 1), over, zero
    )  # fmt: skip
    for offset, size, *after in ((1024, 64, over), (2048, 64, rows), (3000, 16, ones), (3500, 16, odd)):
        make.copy(graph, (DEVICE, D + offset), (HOST, H + offset), size, *after)
    text = from_cuda_graph(graph, "copies")
    kernels = {each["name"]: each for each in _read(text)["kernels"]}
    found = {name: (each["reads"], each["writes"], each.get("body")) for name, each in kernels.items()}
    assert found == {
        "copy_on_device": (["up[64:128]"], ["made"], {"made": "up"}),
        "memset": ([], ["made_2"], {"made_2": "0"}),
        "memset_2": ([], ["made_3"], {"made_3": "1"}),
        "memset_3": ([], ["made_4"], "?"),
        # four rows of 8 bytes from row 2, byte 8 on: bytes 72 to 175
        "copy_on_device_2": (["up[72:176]"], ["made_2[:32]"], "?"),
    }
    assert "32 bytes in rows" in _note(text, "copy_on_device_2")
    text = text.replace('writes: ["made_4"], body: "?"', 'writes: ["made_4"]')
    text = re.sub(r'  - {name: "copy_on_device_2".*\n', "", text)
    assert analyse(text).report["transfers"] == 5  # of up only the part that is read


def test_storage_that_is_used_again_is_another_vector(driver: Callable[..., Recorder]) -> None:
    """What is uploaded over the whole of a vector, or allocated there, begins another one."""
    make = driver()
    graph = make.graph()
    made = make.allocation(graph, D, 512)
    one = make.copy(graph, (HOST, H), (DEVICE, D), 512, made)
    used = make.kernel(graph, "first", "Q", D + 16, after=(one,))
    two = make.copy(graph, (HOST, H + 512), (DEVICE, D), 512, used)
    used = make.kernel(graph, "second", "Q", D, after=(two,))
    three = make.copy(graph, (HOST, H + 1024), (DEVICE, D + 128), 64, used)
    used = make.kernel(graph, "third", "Q", D + 128, after=(three,))
    freed = make.node(graph, FREE, used)
    again = make.allocation(graph, D, 256, freed)
    make.kernel(graph, "fourth", "Q Q", D, D + 255, after=(again,))
    text = from_cuda_graph(graph)
    root = _read(text)
    assert {name: each["elements"] for name, each in root["vectors"].items()} == {"up": 512, "up_2": 512, "buffer": 256}
    assert root["inputs"] == ["up", "up_2"]
    said = [re.search(r"points to ([^;]*)", _note(text, name))[1] for name in ("first", "second", "third", "fourth")]  # type: ignore[index]
    assert said == ["up[16:]", "up_2", "up_2[128:]", "buffer (used first here), buffer[255:]"]
    assert "up [128:192]" in _note(text, "up_2")


def test_what_is_known_of_lengths_and_memory(driver: Callable[..., Recorder]) -> None:
    make = driver()
    graph = make.graph()
    make.memory(D, 1000)
    make.memory(D + 4096, 640, ordinal=1)
    make.memory(M, 300, managed=True)
    make.memory(H, 200, kind=HOST)
    make.kernel(graph, "k", "Q Q Q Q Q i Q", D, D + 400, D + 4096, M, H, 7, 12345)
    text = from_cuda_graph(graph)
    vectors = _read(text)["vectors"]
    assert [each["elements"] for each in vectors.values()] == ["?", "?", 640, 300, 200]
    assert "at most 400 bytes" in _note(text, "buffer")
    assert "at most 600 bytes" in _note(text, "buffer_2")
    assert "all of its allocation, on device 1" in _note(text, "buffer_3")
    assert "managed memory" in _note(text, "buffer_4")
    assert "pinned memory of the host (`memory: mapped`)" in _note(text, "buffer_5")
    assert "# Memory of several devices is used (0, 1)" in text


def test_arguments_in_one_buffer_and_in_structures(driver: Callable[..., Recorder]) -> None:
    """A number is not a pointer; those of a structure are found in it."""
    make = driver()
    graph = make.graph()
    make.memory(D, 64)
    make.memory(D + 128, 64)
    make.kernel(graph, "packed", "Q i Q", D, 3, D + 128, how=2)
    make.kernel(graph, "structured", "i iiQd", 1, 2, 3, D + 128, 0.5)
    make.kernel(graph, "plain", "d", 2.5)
    text = from_cuda_graph(graph)
    assert "points to buffer (used first here), buffer_2 (used first here)" in _note(text, "packed")
    assert "points to buffer_2" in _note(text, "structured")
    assert "points to nothing" in _note(text, "plain")


def test_unified_addresses_arrays_and_what_is_left_out(driver: Callable[..., Recorder]) -> None:
    make = driver()
    graph = make.graph()
    make.memory(D, 64)
    make.memory(H, 64, kind=HOST)
    one = make.copy(graph, (UNIFIED, H), (UNIFIED, D), 64)
    make.copy(graph, (UNIFIED, D), (UNIFIED, 0x1000), 64, one)  # pageable: the driver does not know it
    make.copy(graph, (ARRAY, 0x77), (DEVICE, D), 64)
    make.node(graph, EVENT_RECORD)
    make.node(graph, CONDITIONAL)
    make.node(graph, 99)
    text = from_cuda_graph(graph)
    root = _read(text)
    assert (root["inputs"], root["outputs"], root["kernels"]) == (["up"], ["up"], [])
    assert "Not taken over: copy_of_an_array (memcpy), event_record (event_record), conditional" in text
    assert "(of type 99)" in text


@pytest.mark.parametrize(
    ("version", "named", "said"),
    [(13000, True, "points to up"), (12030, True, "this driver does not say"), (12000, False, "does not say")],
)
def test_older_drivers_say_less(version: int, named: bool, said: str, driver: Callable[..., Recorder]) -> None:
    make = driver(version)
    graph = make.graph()
    make.memory(D, 64)
    up = make.copy(graph, (HOST, H), (DEVICE, D), 64)
    make.kernel(graph, "scale", "Q i", D, 3, after=(up,))
    text = from_cuda_graph(graph)
    (kernel,) = _read(text)["kernels"]
    assert kernel["name"] == ("scale" if named else "kernel")
    assert said in text
    assert ("does not name kernels" in text) == (not named)


def test_edges_with_ports_are_read(driver: Callable[..., Recorder]) -> None:
    """A driver from 12.3 on answers the older question with CUDA_ERROR_LOSSY_QUERY where edges carry data."""
    make = driver()
    graph = make.graph()
    make.memory(D, 64)
    one, other = make.kernel(graph, "one", "Q", D), make.kernel(graph, "other", "Q", D)
    make.edge(graph, other, one, port=1)
    assert [each["name"] for each in _read(from_cuda_graph(graph))["kernels"]] == ["other", "one"]


class CUgraph(ctypes.c_void_p):
    def __int__(self) -> int:
        return self.value or 0


class CUgraphExec:
    pass


class TorchGraph:
    def __init__(self, kept: int | None) -> None:
        self._kept = kept

    def raw_cuda_graph(self) -> int:
        if self._kept is None:
            raise RuntimeError("You cannot access the raw cudaGraph_t instance unless keep_graph=True\nmore")
        return self._kept


class Holder:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


def test_every_library_s_object(driver: Callable[..., Recorder]) -> None:
    make = driver()
    graph = make.graph()
    make.kernel(graph, "only", "i", 1)
    wanted = from_cuda_graph(graph)
    objects = [CUgraph(graph), c_void_p(graph), TorchGraph(graph), Holder(graph=graph), Holder(handle=CUgraph(graph)),
               Holder(graph=c_void_p(graph)), Holder(graph_definition=Holder(handle=CUgraph(graph)))]  # fmt: skip
    for each in objects:
        assert from_cuda_graph(each) == wanted


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        ("step", "is str; expected a CUDA graph"),
        (None, "is NoneType; expected"),
        (True, "is bool; expected"),
        (0, "is the handle 0; expected"),
        (-4, "is the handle -4"),
        (CUgraphExec(), "is an executable graph; expected the CUgraph"),
        (Holder(handle=CUgraphExec()), "is an executable graph"),
        (TorchGraph(None), r"torch keeps the graph of a CUDAGraph\(keep_graph=True\) only \(You cannot"),
    ],
)
def test_what_is_not_a_graph_is_refused_in_one_line(graph: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        from_cuda_graph(graph, "mine")
    assert str(caught.value).startswith("mine: ")
    assert "\n" not in str(caught.value)


def test_machines_that_cannot_read_graphs(
    driver: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    make = driver(11080)
    with pytest.raises(RequestError, match=r"too old: it has no cuGraphKernelNodeGetParams_v2; CUDA 12\.0 or later"):
        from_cuda_graph(make.graph())
    make = driver()
    memory = ctypes.create_string_buffer(64)
    with pytest.raises(RequestError, match=r"cuGraphGetNodes failed \(CUDA_ERROR_INVALID_VALUE\); is it a graph"):
        from_cuda_graph(ctypes.addressof(memory))
    monkeypatch.setattr(graph_driver, "MOST_NODES", 3)
    graph = make.graph()
    inner = make.graph()
    for each in (graph, graph, inner, inner):
        make.kernel(each, "k", "i", 1)
    make.child(graph, inner)
    with pytest.raises(RequestError, match="more than 3 nodes"):
        from_cuda_graph(graph)
    monkeypatch.setattr(graph_driver, "LIBRARY", "libnowhere.so.1")
    with pytest.raises(RequestError, match=r"no NVIDIA driver: libnowhere\.so\.1 cannot be loaded"):
        from_cuda_graph(graph)


def test_a_cycle_is_refused(driver: Callable[..., Recorder]) -> None:
    make = driver()
    graph = make.graph()
    one = make.kernel(graph, "one", "i", 1)
    make.edge(graph, make.kernel(graph, "other", "i", 1, after=(one,)), one)
    with pytest.raises(RequestError, match="form a cycle"):
        from_cuda_graph(graph)


@pytest.mark.parametrize("seed", range(20))
def test_regions_that_overlap_are_one_vector(seed: int, driver: Callable[..., Recorder]) -> None:
    """Copies down only: the vectors are the connected runs of bytes, and every part is where its address is."""
    draw = random.Random(seed)
    make = driver()
    graph = make.graph()
    regions = [(start := draw.randrange(0, 400), start + draw.randrange(1, 60)) for _ in range(draw.randrange(1, 12))]
    node: tuple[int, ...] = ()
    for start, end in regions:
        node = (make.copy(graph, (DEVICE, D + start), (HOST, H), end - start, *node),)
    touched = sorted({byte for start, end in regions for byte in range(start, end)})
    # Two bytes side by side are of one vector only where one region has both.
    joined = {(byte, byte + 1) for start, end in regions for byte in range(start, end - 1)}
    runs = [[touched[0]]]
    for one, other in itertools.pairwise(touched):
        if (one, other) in joined:
            runs[-1].append(other)
        else:
            runs.append([other])
    text = from_cuda_graph(graph)
    vectors = _read(text)["vectors"]
    found = {}
    for name, each in vectors.items():
        at = int(_note(text, name).partition(",")[0], 16) - D
        found[name] = (at, at + each["elements"])
    assert sorted(found.values()) == [(run[0], run[-1] + 1) for run in runs]
    parts = [
        (at + int(first or 0), at + int(last) if last else end)
        for name, (at, end) in found.items()
        for first, last in re.findall(r"down \[(\d*):(\d*)\]", _note(text, name))
    ]
    assert sorted(set(parts)) == sorted({each for each in regions if each not in found.values()})


@pytest.mark.parametrize("seed", range(20))
def test_every_operand_is_where_its_address_is(seed: int, driver: Callable[..., Recorder]) -> None:
    """Random uploads, memsets, kernels and downloads: the vectors that a kernel is said to point to, and their parts,
    give its pointers again, and lie in their vectors."""
    draw = random.Random(seed)
    make = driver()
    graph = make.graph()
    make.memory(D, 4096)
    node: tuple[int, ...] = ()
    wanted = {}
    for number in range(24):
        start = 16 * draw.randrange(200)
        size = 16 * draw.randrange(1, 30)
        match draw.randrange(4):
            case 0:
                node = (make.copy(graph, (HOST, H + start), (DEVICE, D + start), size, *node),)
            case 1:
                node = (make.copy(graph, (DEVICE, D + start), (HOST, H + start), size, *node),)
            case 2:
                node = (make.set(graph, D + start, 0, 1, size, *node),)
            case _:
                pointers = draw.sample(range(D, D + 4096, 16), 3)
                node = (make.kernel(graph, f"k{number}", "Q Q Q", *pointers, after=node),)
                wanted[f"k{number}"] = pointers
    text = from_cuda_graph(graph)
    vectors = _read(text)["vectors"]
    at = {name: int(_note(text, name).partition(",")[0], 16) for name in vectors}
    for name, pointers in wanted.items():
        (said,) = re.findall(r"points to ([^;]*)", _note(text, name))
        operands = re.findall(r"(\w+)(?:\[(\d*):\])?(?: \(used first here\))?(?:, |$)", said)
        assert [at[vector] + int(offset or 0) for vector, offset in operands] == pointers
        for vector, offset in operands:
            assert vectors[vector]["elements"] == "?" or int(offset or 0) < vectors[vector]["elements"]
