"""Faults put into the reading of kernels in Triton: each must be found by the tests beside this one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest.outcomes import Failed

from fusiond.model.errors import RequestError
from fusiond.requests.registry import Registry
from fusiond_hfuse.frontend import python_slice, triton_draft, triton_kernel
from fusiond_hfuse.frontend.arguments import given_kernel
from fusiond_hfuse.frontend.fusion_group import FusionSlot
from tests.triton import test_members as members
from tests.triton.members import EVERY

ATTENTION = next(each for each in EVERY if each.kernel == "attention")
ways, found, uses = triton_kernel._ways, triton_kernel._arguments, triton_draft._uses
SPECIALISED = members.test_arguments_are_specialised_as_by_a_launch
Check = Callable[[Registry, Path], None]


def all_alike(*arguments: Any) -> Any:
    """Numbers that are neither 1 nor divisible by 16."""
    return tuple((kind, 17 if kind == "number" else None) for kind, _ in found(*arguments))


def drafted(real: Registry, _: Path) -> None:
    """Which parameters of a draft are addresses, and which of them are written, is as the member says."""
    arguments = members.drafted(real, members.HERE / "kernels.py", ATTENTION.kernel)["arguments"]
    found = {each["name"]: each.get("role") for each in arguments}
    for given in ATTENTION.document["arguments"]:
        role = found[given["name"]]
        assert (role is None) == ("value" in given), given["name"]
        assert (role in ("output", "inout")) == (given.get("role") in ("output", "inout")), given["name"]
    assert len(found) == len(ATTENTION.document["arguments"])


EACH_WAY = members.test_each_way_is_compiled_by_itself
KEYS = members.test_helpers_and_constants_of_the_file_are_part_of_the_key
MUTANTS: dict[str, tuple[object, str, object, Check]] = {
    "the first way for all": (FusionSlot, "at", lambda self, *_: self, EACH_WAY),
    "every second way": (triton_kernel, "_ways", lambda *each: list(ways(*each))[::2], EACH_WAY),
    "numbers of no kind": (triton_kernel, "_arguments", all_alike, SPECIALISED),
    "sizes that are not compiled in": (triton_kernel, "_compiled_sizes", lambda *_: frozenset(), SPECIALISED),
    "helpers left out": (python_slice, "_names", lambda _: (), KEYS),
    "a key without the source": (triton_kernel, "given_kernel", lambda *each: given_kernel(*each[:3], ""), KEYS),
    "memory of helpers not followed": (
        triton_draft, "_uses", lambda function, _, within: uses(function, {}, within), drafted),
    "all memory read": (
        triton_draft, "last_name", lambda node: python_slice.last_name(node).replace("store", "load"), drafted),
}  # fmt: skip


@members.needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_it_is_found(mutant: str, real: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, instead, check = MUTANTS[mutant]
    monkeypatch.setattr(where, name, instead)
    with pytest.raises((AssertionError, KeyError, RequestError, ValueError, Failed)):
        check(real, tmp_path)
