"""Barriers that some lanes of a warp never come to: the dead are not waited for, the living are."""

import numpy as np
import pytest

from fusiond.devices.counting.library import CountingLibrary
from fusiond.devices.counting.model import H100

from .conftest import Bench, Ran

PTX = """
.version 9.0
.target sm_90
.address_size 64

.visible .entry kernel(.param .u64 kernel_param_0, .param .u32 kernel_param_1)
{
    .reg .pred %p<3>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [kernel_param_0];
    ld.param.u32 %r1, [kernel_param_1];
    mov.u32 %r2, %tid.x;
    setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra $GO_ON;
    OTHERS
$GO_ON:
    and.b32 %r3, %r2, 1;
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra $EVEN;
    ODD
$EVEN:
    bar.sync 0;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r2;
$END:
    ret;
}
"""


def kernel(counting: CountingLibrary, others: str, odd: str) -> Bench:
    return Bench(PTX.replace("OTHERS", others).replace("ODD", odd), counting)


@pytest.mark.slow
@pytest.mark.parametrize(("odd", "left"), [("bra $EVEN;", [*range(40)]), ("ret;", [*range(0, 40, 2)])])
@pytest.mark.parametrize("others", ["ret;", "bra $END;"])
def test_lanes_that_end_are_not_waited_for(counting: CountingLibrary, others: str, odd: str, left: list[int]) -> None:
    """Those that go on are taken first, and come to the barrier while the others have yet to end; twice, where the odd
    ones of them leave too. Compilers let all end at one place."""
    ran = kernel(counting, others, odd).run("kernel", [np.full(64, 99, np.uint32), np.uint32(40)], block=(64,))
    assert ran.result.failed is None
    assert list(np.flatnonzero(ran.arrays[0] != 99)) == left
    rows = zip(ran.result.counts, ran.result.code.sources, strict=True)
    (barrier,) = [counts for counts, source in rows if source.opcode == "bar.sync"]
    assert (barrier["warps"], barrier["lanes"]) == (2, len(left))


@pytest.mark.parametrize("others", ["bar.sync 0;\n    ret;", "bar.sync 1;\n    bra $EVEN;"])
def test_lanes_that_wait_elsewhere_are(counting: CountingLibrary, others: str) -> None:
    ran = kernel(counting, others, "bra $EVEN;").run("kernel", [np.zeros(64, np.uint32), np.uint32(40)], block=(64,))
    assert "not all lanes of a warp reach together" in (ran.result.failed or "")


PARTS = """
.version 9.0
.target sm_90
.address_size 64

.visible .entry kernel(.param .u64 kernel_param_0)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<6>;
    .shared .align 4 .b8 held[512];
    ld.param.u64 %rd1, [kernel_param_0];
    mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 31;
    setp.lt.u32 %p1, %r2, 16;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd2, %rd3;
    mov.b64 %rd5, held;
    shl.b32 %r3, %r1, 2;
    mov.b32 %r4, held;
    add.s32 %r5, %r4, %r3;
    BODY
    st.global.u32 [%rd4], %r9;
    ret;
}
"""


def parts(counting: CountingLibrary, body: str, threads: int = 64) -> Ran:
    return Bench(PARTS.replace("BODY", body), counting).run("kernel", [np.zeros(threads, np.uint32)], block=(threads,))


def warps_at(ran: Ran, opcode: str) -> list[tuple[int, int]]:
    rows = zip(ran.result.counts, ran.result.code.sources, strict=True)
    return [(counts["warps"], counts["lanes"]) for counts, source in rows if source.opcode == opcode]


def test_halves_of_warps_wait_at_barriers_of_their_own(counting: CountingLibrary) -> None:
    """The first halves of two warps hand values over at barrier 1, the second halves at barrier 2: 32 threads each.
    What they do behind it, they do together again."""
    ran = parts(
        counting,
        """st.shared.u32 [%r5], %r1;
    @%p1 bra $LOW;
    barrier.sync 2, 32;
    bra $BOTH;
$LOW:
    barrier.sync 1, 32;
$BOTH:
    xor.b32 %r6, %r3, 128;
    add.s32 %r7, %r4, %r6;
    ld.shared.u32 %r9, [%r7];""",
    )
    assert ran.result.failed is None
    assert list(ran.arrays[0]) == [each ^ 32 for each in range(64)]
    assert warps_at(ran, "barrier.sync") == [(2, 32), (2, 32)]
    assert warps_at(ran, "ld.shared.u32") == [(2, 64)]


def test_lanes_arrive_at_one_barrier_from_two_places(counting: CountingLibrary) -> None:
    """Each thread arrives by itself, and a shuffle behind the barrier waits for all."""
    ran = parts(
        counting,
        """mov.u32 %r8, 7;
    @%p1 bra $LOW;
    barrier.sync 0;
    mov.u32 %r8, %r1;
    bra $BOTH;
$LOW:
    barrier.sync 0;
    add.s32 %r8, %r1, 1000;
$BOTH:
    shfl.sync.bfly.b32 %r9, %r8, 16, 31, -1;""",
    )
    assert ran.result.failed is None
    assert list(ran.arrays[0]) == [(each ^ 16) + (1000 if (each ^ 16) % 32 < 16 else 0) for each in range(64)]
    assert warps_at(ran, "shfl.sync.bfly.b32") == [(2, 64)]


LATE = """mov.u32 %r8, 0;
    mov.u32 %r9, 0;
    and.b32 %r10, %r1, 1;
    setp.eq.u32 %p2, %r10, 1;
    @!%p1 bra $BOTH;
    barrier.sync 1, 64;
$BOTH:
    @%p2 bra $ODD;
    add.s32 %r8, %r1, 1000;
    bra $JOIN;
$ODD:
    shfl.sync.bfly.b32 %r8, %r1, 16, 31, 0xAAAAAAAA;
$JOIN:
    TOGETHER
    shfl.sync.bfly.b32 %r9, %r8, 16, 31, -1;"""


@pytest.mark.parametrize("together", ["", "bar.sync 0;"])
def test_lanes_that_meet_inside_of_a_branch_meet_behind_it(counting: CountingLibrary, together: str) -> None:
    """The second halves of four warps do not wait, and take the branch before the first halves do. Its odd lanes need
    each other inside of it, and all lanes do behind it."""
    ran = parts(counting, LATE.replace("TOGETHER", together), threads=128)
    assert ran.result.failed is None
    threads = np.arange(128)
    inside = np.where(threads % 2, threads ^ 16, threads + 1000)
    assert list(ran.arrays[0]) == list(inside[threads ^ 16])
    assert warps_at(ran, "shfl.sync.bfly.b32") == [(4, 64), (4, 128)]


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_loop_that_parts_in_each_iteration_takes_linear_time(counting: CountingLibrary) -> None:
    """It would take minutes if strands that have joined again were looked at ever after."""
    ran = parts(
        counting,
        """mov.u32 %r8, 0;
$AGAIN:
    @!%p1 bra $BOTH;
    barrier.sync 1, 64;
$BOTH:
    shfl.sync.bfly.b32 %r9, %r8, 16, 31, -1;
    add.s32 %r8, %r8, 1;
    setp.lt.u32 %p2, %r8, 20000;
    @%p2 bra $AGAIN;""",
        threads=128,
    )
    assert ran.result.failed is None
    assert warps_at(ran, "shfl.sync.bfly.b32") == [(4 * 20000, 128 * 20000)]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("@%p1 barrier.sync 1, 64;\n    @!%p1 barrier.sync 2, 64;\n    mov.u32 %r9, 0;",
         "deadlock: 16 lanes of warp 0 wait at barrier 2, 16 lanes of warp 1 wait at barrier 2, 16 lanes of warp 0"),
        ("@%p1 bra $LOW;\n    barrier.sync 1, 64;\n$LOW:\n    shfl.sync.bfly.b32 %r9, %r1, 16, 31, -1;",
         "wait for other lanes of it"),
        ("@%p1 bar.sync 0;\n    mov.u32 %r9, 0;", "not all lanes of a warp reach together"),
    ],
)  # fmt: skip
def test_what_can_never_complete_says_who_waits_where(counting: CountingLibrary, body: str, says: str) -> None:
    assert says in (parts(counting, body).result.failed or "")


WHERE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry where(.param .u64 out)
{
	.reg .b32 %r<4>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %smid;
	mov.u32 %r3, %nsmid;
	mul.wide.u32 %rd2, %r1, 8;
	add.s64 %rd3, %rd1, %rd2;
	st.global.v2.u32 [%rd3], {%r2, %r3};
	ret;
}
"""


def test_blocks_are_dealt_out_to_the_multiprocessors(counting: CountingLibrary) -> None:
    """As far as they run together; whoever comes later takes the place that is free."""
    ran = Bench(WHERE, counting).run("where", [np.zeros((400, 2), np.uint32)], grid=(400,))
    assert ran.result.failed is None
    at, count = ran.arrays[0].T
    np.testing.assert_array_equal(count, H100.multiprocessors)
    np.testing.assert_array_equal(at, np.arange(400) % H100.multiprocessors)
