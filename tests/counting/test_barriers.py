"""Barriers that some lanes of a warp never come to: the dead are not waited for, the living are."""

from __future__ import annotations

import numpy as np
import pytest

from fusiond.counting.library import Library

from .conftest import Bench

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


def kernel(counting: Library, others: str, odd: str) -> Bench:
    return Bench(PTX.replace("OTHERS", others).replace("ODD", odd), counting)


@pytest.mark.parametrize(("odd", "left"), [("bra $EVEN;", [*range(40)]), ("ret;", [*range(0, 40, 2)])])
@pytest.mark.parametrize("others", ["ret;", "bra $END;"])
def test_lanes_that_end_are_not_waited_for(counting: Library, others: str, odd: str, left: list[int]) -> None:
    """Those that go on are taken first, and come to the barrier while the others have yet to end; twice, where the odd
    ones of them leave too. Compilers let all end at one place."""
    ran = kernel(counting, others, odd).run("kernel", [np.full(64, 99, np.uint32), np.uint32(40)], block=(64,))
    assert ran.result.failed is None
    assert list(np.flatnonzero(ran.arrays[0] != 99)) == left
    rows = zip(ran.result.counts, ran.result.code.sources, strict=True)
    (barrier,) = [counts for counts, source in rows if source.opcode == "bar.sync"]
    assert (barrier["warps"], barrier["lanes"]) == (2, len(left))


@pytest.mark.parametrize("others", ["bar.sync 0;\n    ret;", "bar.sync 1;\n    bra $EVEN;"])
def test_lanes_that_wait_elsewhere_are(counting: Library, others: str) -> None:
    ran = kernel(counting, others, "bra $EVEN;").run("kernel", [np.zeros(64, np.uint32), np.uint32(40)], block=(64,))
    assert "not all lanes of a warp reach together" in (ran.result.failed or "")
