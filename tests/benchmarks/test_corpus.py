"""The corpus: the page is what is kept, and XLA's bytes by operands on modules made by hand. (What its functions
compute is compared in tests/plugins/stitching/test_corpus.py.)"""

import contextlib
import json
from typing import Any

import pytest

pytest.importorskip("jax", reason="needs jax")

from benchmarks.corpus import __main__ as corpus
from benchmarks.corpus import functions, xla
from benchmarks.corpus.dims import REAL
from fusiond.requests.planning import target_for_arch
from fusiond_stitching.analysis import traffic
from fusiond_stitching.frontend import importer


@pytest.fixture
def kept() -> Any:
    return json.loads(corpus.KEPT.read_text(encoding="utf-8"))


def test_the_page_is_what_is_kept(kept: Any) -> None:
    assert list(kept["functions"]) == list(functions.FUNCTIONS)
    assert corpus.PAGE.read_text(encoding="utf-8") == corpus.page(kept)


def test_every_function_is_planned_and_proved(kept: Any) -> None:
    assert len(kept["functions"]) >= 50
    for name, found in kept["functions"].items():
        assert found["problems"] == [], name
        assert found["plan_secs"] < 5, name


def test_the_kept_figures_are_those_of_the_plans_today(kept: Any) -> None:
    """Where they are not, count the functions again: `python -m benchmarks.corpus --only NAME`."""
    limits = target_for_arch("sm_90").limits
    planned = 0
    for name, found in kept["functions"].items():
        with contextlib.suppress(ModuleNotFoundError):  # flax, optax and equinox
            module, plan = corpus.first_plan(importer.read(functions.text(name, REAL), name), limits)
            wanted = found["kernels"], found["planned_bytes"]
            assert (len(plan.plan.kernels), traffic.moved(module, plan.plan)) == wanted, name
            planned += 1
    assert planned > 30


# --- XLA's side -----------------------------------------------------------------------------------------


def module(entry: str, *computations: str) -> str:
    lines = "\n".join(f"  {line.strip()}" for line in entry.strip().splitlines())
    return "\n\n".join(["HloModule m", *computations, f"ENTRY %main {{\n{lines}\n}}"]) + "\n"


FUSED = "%fused {\n  %p0 = f32[8,4]{1,0} parameter(0)\n  %p1 = f32[100,4]{1,0} parameter(1)\n%s\n}"


ADDED = "%add {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %c = f32[] add(%a, %b)\n}"
ROW = 4 * 4
SCATTERED = (
    "  %at = s32[8,1] constant({{0},{1},{2},{3},{4},{5},{6},{7}})\n"
    "  ROOT %r = f32[100,4] scatter(%p1, %at, %p0), update_window_dims={1}, inserted_window_dims={0}, "
    "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%add"
)


@pytest.mark.parametrize(
    ("what", "body", "shape", "wanted"),
    [
        ("an operand that is not used", "  ROOT %r = f32[8,4] add(%p0, %p0)", "f32[8,4]", 16 * ROW),
        ("what is cut out of an operand",
         "  %g = f32[8,4] slice(%p1), slice={[0:8], [0:4]}\n  ROOT %r = f32[8,4] add(%p0, %g)", "f32[8,4]", 24 * ROW),
        (
            "what is cut out, and all of it",
            "  %g = f32[8,4] slice(%p1), slice={[0:8], [0:4]}\n  %n = f32[100,4] negate(%p1)\n"
            "  ROOT %r = (f32[8,4], f32[100,4]) tuple(%g, %n)",
            "(f32[8,4], f32[100,4])",
            (100 + 8 + 100) * ROW,
        ),
        ("an update in place",
         "  %z = s32[] constant(0)\n  ROOT %r = f32[100,4] dynamic-update-slice(%p1, %p0, %z, %z)", "f32[100,4]",
         16 * ROW),
        ("a scatter in place reads what it changes", SCATTERED, "f32[100,4]", 24 * ROW),
    ],
)  # fmt: skip
def test_a_fusion_moves_what_it_addresses(what: str, body: str, shape: str, wanted: int) -> None:
    entry = f"""
        %x = f32[8,4] parameter(0)
        %t = f32[100,4] parameter(1)
        ROOT %f = {shape} fusion(%x, %t), kind=kLoop, calls=%fused
    """
    found = xla.counted(module(entry, ADDED, FUSED.replace("%s", body)))
    assert (found.kernels, found.calls, found.operand_bytes) == (1, 0, wanted), what


def test_what_is_launched_and_by_whom() -> None:
    entry = """
        %x = f32[8,8] parameter(0)
        %zero = f32[] constant(0)
        %d = f32[8,8] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        %b = f32[64] bitcast(%d)
        %s = f32[] reduce(%b, %zero), dimensions={0}, to_apply=%add
        %e = f32[8,8] add(%d, %d)
        ROOT %r = (f32[], f32[8,8]) tuple(%s, %e)
    """
    found = xla.counted(module(entry, ADDED))
    # The sum reads 64 floats and its init value, and writes one; the addition reads its operand once.
    assert (found.kernels, found.calls, found.operand_bytes) == (2, 1, (64 + 1 + 1 + 64 + 64) * 4)
