"""Copies that go on by themselves, mbarriers and tensor maps, against NumPy; waits that nobody ends are deadlocks."""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond.devices.counting import layout
from fusiond.devices.counting.kernels import CountedShape, LoadedPtx
from fusiond.devices.counting.library import Cache, CountingLibrary
from fusiond.devices.counting.model import H100
from fusiond.devices.counting.sampling import LaunchCounts
from fusiond.devices.counting.tensor_map import tensor_map

from .conftest import Bench, Ran

Array = NDArray[Any]
HEAD = """
.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(PARAMETERS)
{
    .reg .pred %p<8>;
    .reg .b32 %r<32>;
    .reg .b64 %q<32>;
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, smem;
"""


def kernel(body: str, parameters: int = 2) -> str:
    names = [f".param .u64 p{k}" for k in range(parameters)]
    loads = [f"ld.param.u64 %q{k}, [p{k}];" for k in range(parameters)]
    return "\n".join([HEAD.replace("PARAMETERS", ", ".join(names)), *loads, body, "ret;\n}"])


def run(library: CountingLibrary, body: str, arrays: list[Array], threads: int = 32, shared: int = 4096) -> Ran:
    bench = Bench(kernel(body, len(arrays)), library)
    return bench.run("k", arrays, block=(threads,), shared_bytes=shared)


# --- mbarriers ----------------------------------------------------------------------------------------------

RING = """
    // Warp 0 puts numbers into a ring of two places, warp 1 takes them out: full at 64 and 72, empty at 80 and 88.
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $READY;
    mbarrier.init.shared::cta.b64 [%r1+64], 32;
    mbarrier.init.shared::cta.b64 [%r1+72], 32;
    mbarrier.init.shared::cta.b64 [%r1+80], 32;
    mbarrier.init.shared::cta.b64 [%r1+88], 32;
$READY:
    bar.sync 0;
    mov.u32 %r2, 0;
    mov.u32 %r9, 0;
    setp.ge.u32 %p1, %r0, 32;
    and.b32 %r3, %r0, 31;
$LOOP:
    and.b32 %r4, %r2, 1;
    shr.u32 %r5, %r2, 1;
    and.b32 %r5, %r5, 1;
    mad.lo.u32 %r6, %r4, 8, %r1;
    mad.lo.u32 %r7, %r4, 128, %r1;
    mad.lo.u32 %r7, %r3, 4, %r7;
    @%p1 bra $TAKE;
    xor.b32 %r8, %r5, 1;
$EMPTY:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r6+80], %r8;
    @!%p2 bra $EMPTY;
    mad.lo.u32 %r10, %r2, 100, %r3;
    st.shared.u32 [%r7+512], %r10;
    mbarrier.arrive.shared::cta.b64 %q5, [%r6+64];
    bra $NEXT;
$TAKE:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r6+64], %r5;
    @!%p2 bra $TAKE;
    ld.shared.u32 %r10, [%r7+512];
    mad.lo.u32 %r9, %r9, 3, %r10;
    mbarrier.arrive.shared::cta.b64 %q5, [%r6+80];
$NEXT:
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p3, %r2, ROUNDS;
    @%p3 bra $LOOP;
    mad.wide.u32 %q0, %r0, 4, %q0;
    st.global.u32 [%q0], %r9;
"""


def test_a_ring_between_two_warps(counting: CountingLibrary) -> None:
    ran = run(counting, RING.replace("ROUNDS", "9"), [np.zeros(64, np.uint32)], 64)
    assert ran.result.failed is None
    expected = np.zeros(32, np.int64)
    for k in range(9):
        expected = expected * 3 + 100 * k + np.arange(32)
    assert ran.arrays[0][32:].tolist() == (expected % 2**32).tolist()


def test_lanes_of_one_warp_wait_for_one_another(counting: CountingLibrary) -> None:
    """Lane 0 waits for what the others of its warp arrive at later, as Volta and its successors allow."""
    body = """
    setp.ne.u32 %p0, %r0, 0;
    @!%p0 mbarrier.init.shared::cta.b64 [%r1], 31;
    bar.sync 0;
    @%p0 bra $OTHERS;
$WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra $WAIT;
    ld.shared.u32 %r9, [%r1+64];
    bra $END;
$OTHERS:
    st.shared.u32 [%r1+64], 77;
    mbarrier.arrive.shared::cta.b64 %q5, [%r1];
    mov.u32 %r9, 5;
$END:
    mad.wide.u32 %q0, %r0, 4, %q0;
    st.global.u32 [%q0], %r9;
"""
    ran = run(counting, body, [np.zeros(32, np.uint32)])
    assert ran.result.failed is None
    assert ran.arrays[0].tolist() == [77, *[5] * 31]


@pytest.mark.parametrize("wait", ["try_wait.parity", "test_wait.parity"])
def test_a_wait_that_nobody_ends_is_a_deadlock(counting: CountingLibrary, wait: str) -> None:
    body = f"""
    setp.ne.u32 %p0, %r0, 0;
    @!%p0 mbarrier.init.shared::cta.b64 [%r1], 65;
    bar.sync 0;
    mbarrier.arrive.shared::cta.b64 %q5, [%r1];
$WAIT:
    mbarrier.{wait}.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra $WAIT;
"""
    ran = run(counting, body, [np.zeros(32, np.uint32)], 64)
    assert "deadlock: 32 lanes of warp 0 wait for a phase of an mbarrier" in (ran.result.failed or "")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("mbarrier.arrive.shared::cta.b64 %q5, [%r1];", "not initialised"),
        ("mbarrier.init.shared::cta.b64 [%r1], 0;", "an mbarrier of 0 arrivals"),
        ("mbarrier.init.shared::cta.b64 [%r1+4], 1;", "not aligned"),
        ("mbarrier.init.shared::cta.b64 [%r1], 4; mbarrier.arrive.shared::cta.b64 %q5, [%r1], 5;", "more arrivals"),
        ("mbarrier.init.b64 [%q0], 1;", "not in shared memory"),
    ],
)
def test_mbarriers_that_are_misused(counting: CountingLibrary, body: str, said: str) -> None:
    ran = run(counting, "setp.ne.u32 %p0, %r0, 0; @%p0 bra $END;\n" + body + "\n$END:", [np.zeros(32, np.uint32)])
    assert said in (ran.result.failed or "")


def test_phases_states_and_bytes(counting: CountingLibrary) -> None:
    """What is pending, whether phases have ended, and that bytes are waited for."""
    body = """
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $END;
    mbarrier.init.shared::cta.b64 [%r1], 3;
    mbarrier.arrive.noComplete.shared::cta.b64 %q5, [%r1], 2;
    mbarrier.pending_count.b64 %r9, %q5;
    st.global.u32 [%q0], %r9;
    mbarrier.arrive.expect_tx.shared::cta.b64 %q6, [%r1], 24;
    mbarrier.pending_count.b64 %r9, %q6;
    st.global.u32 [%q0+4], %r9;
    mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %q6;
    selp.u32 %r9, 1, 0, %p1;
    st.global.u32 [%q0+8], %r9;
    mbarrier.complete_tx.shared::cta.b64 [%r1], 16;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r1+64], {%r0, 7}, [%r1];
    mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %q6;
    selp.u32 %r9, 1, 0, %p1;
    st.global.u32 [%q0+12], %r9;
    mbarrier.arrive_drop.shared::cta.b64 %q7, [%r1];
    mbarrier.arrive.shared::cta.b64 %q7, [%r1], 2;
    mbarrier.arrive.shared::cta.b64 %q7, [%r1], 1;
    mbarrier.pending_count.b64 %r9, %q7;
    st.global.u32 [%q0+16], %r9;
    ld.shared.u32 %r9, [%r1+68];
    st.global.u32 [%q0+20], %r9;
$END:
"""
    ran = run(counting, body, [np.zeros(6, np.uint32)])
    assert ran.result.failed is None
    assert ran.arrays[0].tolist() == [3, 1, 0, 1, 2, 7]


# --- copies -------------------------------------------------------------------------------------------------


def test_asynchronous_copies_fill_up_with_zeros(counting: CountingLibrary) -> None:
    """16 bytes a lane; of lane l the first l % 17, and nothing where it is to be ignored."""
    body = """
    mad.lo.u32 %r2, %r0, 16, %r1;
    mad.wide.u32 %q2, %r0, 16, %q0;
    mad.wide.u32 %q3, %r0, 16, %q1;
    rem.u32 %r3, %r0, 17;
    setp.lt.u32 %p1, %r0, 4;
    @!%p1 cp.async.cg.shared.global.L2::128B [%r2], [%q2], 16, %r3;
    @%p1 cp.async.cg.shared.global [%r2], [%q2], 16, %p1;
    cp.async.commit_group;
    cp.async.wait_group 0;
    ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r2];
    st.global.v4.b32 [%q3], {%r4, %r5, %r6, %r7};
"""
    given = np.random.default_rng(1).integers(1, 256, (32, 16)).astype(np.uint8)
    ran = run(counting, body, [given, np.ones((32, 16), np.uint8)])
    assert ran.result.failed is None
    kept = [lane % 17 if lane >= 4 else 0 for lane in range(32)]
    expected = np.array([[*given[k, : kept[k]], *[0] * (16 - kept[k])] for k in range(32)])
    assert np.array_equal(ran.arrays[1], expected)
    rows = zip(ran.result.counts, ran.result.code.sources, strict=True)
    (first, second) = [counts for counts, source in rows if source.opcode.startswith("cp.async.cg")]
    assert (first["read_bytes"], first["wavefronts"], second["read_bytes"]) == (16 * 27, 4, 0)  # lane 17 reads nothing


BULK = """
    setp.ne.u32 %p0, %r0, 0;
    @!%p0 mbarrier.init.shared::cta.b64 [%r1], 1;
    bar.sync 0;
    @%p0 bra $WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 %q5, [%r1], 480;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+128], [%q0], 480, [%r1];
$WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra $WAIT;
    mad.lo.u32 %r2, %r0, 4, %r1;
    ld.shared.u32 %r3, [%r2+128];
    add.u32 %r3, %r3, 1;
    st.shared.u32 [%r2+128], %r3;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @%p0 bra $END;
    STORE
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
$END:
"""
STORES = {
    "plain": ("cp.async.bulk.global.shared::cta.bulk_group [%q1], [%r1+128], 480;", lambda a, b: b),
    "added": ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%q1], [%r1+128], 480;", lambda a, b: a + b),
    "least": ("cp.reduce.async.bulk.global.shared::cta.bulk_group.min.s32 [%q1], [%r1+128], 480;", np.minimum),
}


@pytest.mark.parametrize("way", STORES)
def test_bulk_copies(counting: CountingLibrary, way: str) -> None:
    opcode, function = STORES[way]
    given, held = np.arange(120, dtype=np.int32), np.full(120, 60, np.int32)
    ran = run(counting, BULK.replace("STORE", opcode), [given, held], 120)
    assert ran.result.failed is None
    assert ran.arrays[1].tolist() == function(held, given + 1).tolist()
    kind = "write" if way == "plain" else "atomic"
    assert (ran.sums["read_sectors"], ran.sums[f"{kind}_sectors"], ran.sums[f"{kind}_bytes"]) == (15, 15, 480)


# --- tensor maps --------------------------------------------------------------------------------------------


def tensor(
    library: CountingLibrary, array: Array, box: tuple[int, ...], at: tuple[int, ...], **more: Any
) -> tuple[LaunchCounts, Array, Array]:
    """Reads a box into shared memory and stores it 1 element further along each dimension; shared memory, and the array
    that was stored to."""
    rank, size = array.ndim, array.itemsize
    into, whole = (layout.aligned(array.nbytes) for _ in range(2))
    whole[:] = array.reshape(-1).view(np.uint8)
    steps = more.get("element_strides", (1,) * rank)
    bytes_ = size * int(np.prod([-(-extent // step) for extent, step in zip(box, steps, strict=True)]))
    image = layout.aligned(bytes_)
    coordinates = [", ".join(str(each + k) for each in reversed(at)) for k in range(2)]
    parameters = ".param .align 64 .b8 p0[128], .param .align 64 .b8 p1[128], .param .u64 p2"
    body = f"""
    mov.b64 %q2, p0; cvta.param.u64 %q0, %q2; mov.b64 %q3, p1; cvta.param.u64 %q1, %q3; ld.param.u64 %q4, [p2];
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $WAIT;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    prefetch.tensormap [%q0];
    mbarrier.arrive.expect_tx.shared::cta.b64 %q5, [%r1], {bytes_};
    cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r1+1024], [%q0, {{{coordinates[0]}}}], [%r1];
$WAIT:
    bar.sync 0;
$AGAIN:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra $AGAIN;
    @%p0 bra $END;
    cp.async.bulk.global.shared::cta.bulk_group [%q4], [%r1+1024], {bytes_};
    cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [%q1, {{{coordinates[1]}}}], [%r1+1024];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
$END:
"""
    text = HEAD.replace("PARAMETERS", parameters) + body + "ret;\n}"
    name = more.pop("name", array.dtype.name)
    maps = [tensor_map(int(each.ctypes.data), name, array.shape, box, **more) for each in (whole, into)]
    unit, cache = LoadedPtx(text, library), Cache(library, H100.l2_bytes)
    shape = CountedShape(grid=(1, 1, 1), block=(32, 1, 1), shared_bytes=1024 + bytes_)
    given = [*maps, int(image.ctypes.data).to_bytes(8, "little")]
    result = unit.launch("k", shape, given, [whole, into, image], cache, H100)
    cache.close()
    return result, image.view(array.dtype), into.view(array.dtype).reshape(array.shape)


def boxed(array: Array, box: tuple[int, ...], at: tuple[int, ...], outside: Any) -> Array:
    found = np.full(box, outside, array.dtype)
    for place in itertools.product(*(range(each) for each in box)):
        where = tuple(a + p for a, p in zip(at, place, strict=True))
        if all(0 <= w < extent for w, extent in zip(where, array.shape, strict=True)):
            found[place] = array[where]
    return found


def swizzled(rows: Array, swizzle: int) -> Array:
    """Chunks of 16 bytes of each row change places by the row's number (CuTe's Swizzle<B,4,3>)."""
    raw = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).reshape(-1, 16)
    mask = swizzle // 16 - 1
    chunk = np.arange(len(raw))
    found = np.empty_like(raw)
    found[chunk ^ (chunk >> 3 & mask)] = raw
    return found.reshape(-1).view(rows.dtype)


TENSORS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Any, int]] = [
    ((100,), (64,), (70,), np.float32, 0), ((40, 64), (16, 32), (-3, 40), np.float32, 128),
    ((40, 64), (16, 32), (30, -5), np.float16, 64), ((33, 32), (8, 16), (29, 9), np.uint16, 32),
    ((3, 7, 16), (2, 4, 16), (2, 5, 3), np.float16, 0), ((2, 3, 5, 16), (1, 2, 3, 8), (1, 2, 4, 12), np.int32, 0),
    ((2, 2, 3, 4, 16), (2, 1, 2, 3, 16), (-1, 1, 2, 2, 0), np.uint8, 0),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", TENSORS, ids=lambda case: f"{len(case[0])}d-{np.dtype(case[3])}-{case[4]}")
def test_boxes_of_tensors(counting: CountingLibrary, case: tuple[Any, ...]) -> None:
    shape, box, at, dtype, swizzle = case
    array = np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)
    result, image, stored = tensor(counting, array, box, at, swizzle=swizzle)
    assert result.failed is None
    part = boxed(array, box, at, 0)
    assert image.tolist() == (swizzled(part, swizzle) if swizzle else part.reshape(-1)).tolist()
    expected = np.zeros_like(array)
    for place in itertools.product(*(range(each) for each in box)):
        where = tuple(a + p + 1 for a, p in zip(at, place, strict=True))
        if all(0 <= w < extent for w, extent in zip(where, shape, strict=True)):
            expected[where] = part[place]
    assert np.array_equal(stored, expected)


def test_what_is_outside_may_be_no_number(counting: CountingLibrary) -> None:
    array = np.ones((8, 16), np.float32)
    result, image, _ = tensor(counting, array, (8, 16), (4, 8), nan=True)
    assert result.failed is None
    assert np.array_equal(np.isnan(image.reshape(8, 16)), np.isnan(boxed(array, (8, 16), (4, 8), np.nan)))


def test_every_second_element(counting: CountingLibrary) -> None:
    array = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    result, image, _ = tensor(counting, array, (4, 32), (2, 0), element_strides=(2, 1))
    assert result.failed is None
    assert image[:64].tolist() == array[2:6:2].reshape(-1).tolist()


def test_the_traffic_of_a_box_is_that_of_its_rows(counting: CountingLibrary) -> None:
    array = np.zeros((64, 64), np.float32)
    result, _, _ = tensor(counting, array, (16, 32), (60, 4))
    rows = zip(result.counts, result.code.sources, strict=True)
    (counts,) = [counts for counts, source in rows if source.opcode.startswith("cp.async.bulk.tensor.2d.shared")]
    assert counts["read_bytes"] == 4 * 32 * 4
    assert counts["read_sectors"] == 4 * 5  # 128 bytes from byte 16 on
    assert counts["wavefronts"] == 16


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"box": (16, 300)}, "1 to 256"), ({"box": (16, 3)}, "rows of 16 bytes"), ({"address": 8}, "multiples of 16"),
        ({"swizzle": 64}, "do not fit"), ({"shape": (4, 5)}, "multiples of 16"), ({"box": (4,)}, "a box of as many"),
    ],
)  # fmt: skip
def test_maps_that_the_driver_would_refuse(more: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"address": 256, "shape": (64, 64), "box": (16, 32), "swizzle": 0, **more}
    with pytest.raises(ValueError, match=said):
        tensor_map(given["address"], "float32", given["shape"], given["box"], swizzle=given["swizzle"])


def test_what_is_no_map_is_not_read_as_one(counting: CountingLibrary) -> None:
    body = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%q0, {0, 0}], [%r1];"
    ran = run(counting, body, [np.full(32, 0xFFFFFFFF, np.uint32)])
    assert "a tensor map that is not one of fusiond.devices.counting.tensor_map" in (ran.result.failed or "")


# --- clusters -----------------------------------------------------------------------------------------------


CLUSTER = """
    // Block 1 sends 64 bytes to those in MASK; all tell block 3 that they have begun, and what they are by st.async.
    mov.u32 %r10, %cluster_ctarank;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $READY;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    mbarrier.init.shared::cta.b64 [%r1+8], ARRIVALS;
    mbarrier.arrive.expect_tx.shared::cta.b64 %q5, [%r1], 64;
$READY:
    barrier.cluster.arrive;
    barrier.cluster.wait;
    @%p0 bra $WAIT;
    mapa.shared::cluster.u32 %r11, %r1, 3;
    setp.eq.u32 %p3, %r10, 3;
    @%p3 mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r11+8], 16;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r11+8];
    mad.lo.u32 %r12, %r10, 4, %r11;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r12+32], %r10, [%r11+8];
    setp.ne.u32 %p1, %r10, 1;
    @%p1 bra $WAIT;
    mov.u16 %h0, MASK;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r1+128], [%q0], 64, [%r1], %h0;
$WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0;
    @!%p2 bra $WAIT;
    setp.ne.u32 %p1, %r10, 3;
    @%p1 bra $STORE;
$TOLD:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+8], 0;
    @!%p2 bra $TOLD;
$STORE:
    shr.u32 %r13, %r10, 1;
    mad.lo.u32 %r2, %r0, 4, %r1;
    ld.shared.u32 %r3, [%r2+128];
    @%p1 bra $PLAIN;
    and.b32 %r4, %r0, 3;
    mad.lo.u32 %r4, %r4, 4, %r1;
    ld.shared.u32 %r4, [%r4+32];
    mad.lo.u32 %r3, %r4, 1000, %r3;
$PLAIN:
    mad.lo.u32 %r5, %r10, 16, %r0;
    mul.wide.u32 %q6, %r5, 4;
    add.u64 %q6, %q1, %q6;
    st.global.u32 [%q6], %r3;
"""


def clustered(library: CountingLibrary, mask: int, arrivals: int = 4) -> Ran:
    body = CLUSTER.replace("MASK", str(mask)).replace("ARRIVALS", str(arrivals))
    text = kernel(".reg .b16 %h0;" + body).replace(
        "(.param .u64 p0, .param .u64 p1)", "(.param .u64 p0, .param .u64 p1)\n.reqnctapercluster 4"
    )
    given = np.arange(16, dtype=np.int32)
    return Bench(text, library).run("k", [given, np.zeros((4, 16), np.int32)], grid=(4,), block=(16,), shared_bytes=256)


def test_what_blocks_of_a_cluster_tell_each_other(counting: CountingLibrary) -> None:
    ran = clustered(counting, 0b1111)
    assert ran.result.failed is None
    wanted = np.tile(np.arange(16), (4, 1))
    wanted[3] += np.arange(16) % 4 * 1000
    assert ran.arrays[1].tolist() == wanted.tolist()
    assert ran.sums["read_sectors"] == 2  # by block 1, once


def test_what_a_cluster_may_not_do(counting: CountingLibrary) -> None:
    assert "deadlock" in (clustered(counting, 0b1011).result.failed or "")  # nobody sends to block 2
    assert "deadlock" in (clustered(counting, 0b1111, 5).result.failed or "")
    assert "a copy to block 4 of a cluster of 4" in (clustered(counting, 0b11111).result.failed or "")
    text = kernel("mapa.shared::cluster.u32 %r2, %r1, 1;", 1)
    ran = Bench(text, counting).run("k", [np.zeros(32, np.uint32)], shared_bytes=64)
    assert "an address in block 1 of a cluster of 1" in (ran.result.failed or "")


# --- branches by number -------------------------------------------------------------------------------------


def test_a_branch_by_number(counting: CountingLibrary) -> None:
    body = """
    and.b32 %r2, %r0, 3;
$TABLE: .branchtargets $A, $B, $C, $A;
    brx.idx %r2, $TABLE;
$A:
    mov.u32 %r3, 10;
    bra.uni $END;
$B:
    mov.u32 %r3, 20;
    bra.uni $END;
$C:
    mov.u32 %r3, 30;
$END:
    mad.wide.u32 %q0, %r0, 4, %q0;
    st.global.u32 [%q0], %r3;
"""
    ran = run(counting, body, [np.zeros(32, np.uint32)])
    assert ran.result.failed is None
    assert ran.arrays[0].tolist() == [10, 20, 30, 10] * 8
    rows = zip(ran.result.counts, ran.result.code.sources, strict=True)
    assert [int(counts["warps"]) for counts, source in rows if source.opcode == "st.global.u32"] == [1]
