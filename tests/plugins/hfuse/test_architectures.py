"""A text that asks for `__CUDA_ARCH__` is read for each; what the readings say becomes one."""

from __future__ import annotations

from typing import Any

import pytest

from fusiond_hfuse.frontend import kernel_parser
from fusiond_hfuse.frontend.source_kernel import Edit, Parsed

PLAIN = Parsed(
    entry="k",
    parameters=(),
    edits=(),
    uses_dynamic_shared=False,
    static_shared_bytes=0,
    barriers=0,
    launch_bound=None,
    rejections=(),
)


@pytest.mark.parametrize(
    "change",
    [
        {"uses_dynamic_shared": True},
        {"static_shared_bytes": 64},
        {"static_shared_bytes": None},
        {"moved_bytes": 4096},
        {"alignment": 128},
        {"barriers": 2},
        {"launch_bound": 256},
        {"resident_blocks": 3},
        {"counted": True},
        {"drains": True},
        {"by_warps": True},
        {"leaves": True},
        {"overloads": ("max",)},
        {"edits": (Edit(start=7, end=9, text="x"),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_one_architecture_needs_holds_for_the_kernel(change: dict[str, Any]) -> None:
    other = PLAIN.replaced(**change)
    assert kernel_parser._merged([PLAIN, other], "k") == other
    assert kernel_parser._merged([other, PLAIN], "k") == other


def test_the_least_launch_bound_counts() -> None:
    readings = [PLAIN.replaced(launch_bound=bound) for bound in (512, None, 128)]
    assert kernel_parser._merged(readings, "k").launch_bound == 128


def test_a_place_that_is_rewritten_in_two_ways_is_refused() -> None:
    one, other = (PLAIN.replaced(edits=(Edit(start=7, end=9, text=text),)) for text in "xy")
    (refused,) = kernel_parser._merged([one, other], "k").rejections
    assert (refused.rule, refused.nodes) == ("architecture", ("k",))
