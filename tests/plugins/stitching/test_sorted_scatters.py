"""Scatters whose updates are sorted first: bit by bit what one after the other gives, in any plan."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Analysis, Workload
from fusiond.requests.planning import prepare
from fusiond.strategy import Target
from fusiond_stitching.analysis import forms, planner, traffic, verify
from fusiond_stitching.frontend import importer, scatter_updates, sorted_scatters
from fusiond_stitching.strategy import Stitching

from .checking import Batch
from .jobs import H100, job, registry
from .policies import LIMITS
from .test_scatter_updates import CASES, RULES, WIDE, WILD, normal, scatter_text

RANDOM = np.random.default_rng(23)
AT = RANDOM.integers(-2, 42, 700).astype(np.int32)


def last(x: Any, at: Any, u: Any) -> Any:
    return x.at[at].set(u)


MORE = {
    "last": (last, (normal(12, 5), WILD, normal(8, 5))),
    "long runs": (lambda x, at, u: x.at[at].add(u, mode="drop"), (normal(40, 3), AT, normal(700, 3))),
    "numbers": (lambda x, at, u: x.at[at].add(u), (normal(40), AT, normal(700))),
    "two indices": (lambda x, at, u: x.at[at[0], 1, at[1]].multiply(u),
                    (normal(9, 3, 8), RANDOM.integers(0, 8, (2, 30)).astype(np.int32), normal(30))),
    "narrow indices": (lambda x, at, u: x.at[at].add(u), (normal(90, 2), RANDOM.integers(-128, 128, 90).astype(np.int8),
                                                          normal(90, 2))),
}  # fmt: skip
INTEGERS = ("integers", "words", "unsigned", "long")
"""Their sums are the same in any order."""
ALL = {**{name: case for name, case in CASES.items() if name not in ("kept", "flags", "windows")}, **WIDE, **MORE}


def batch(name: str) -> Batch:
    function, inputs = ALL[name]
    group = "wide" if name in WIDE else "scatter"
    found = Batch.one(group, name, function, inputs)
    return dataclasses.replace(found, module=scatter_updates.rewritten(found.module, deterministic=True))


@pytest.mark.parametrize("how", ["pairs", "digits"])
@pytest.mark.parametrize("rules", ["blocks", *(pytest.param(each, marks=pytest.mark.slow) for each in ("none", "xla"))])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.sampled(26)
def test_sorted_updates_give_what_xla_gives(
    name: str, rules: str, how: str, runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_scatters, "FEW", 4096 if how == "pairs" else 0)
    found = batch(name)
    scatters = [each for each in found.module.instructions if each.opcode == "scatter"]
    assert all(each.name in found.module.in_place for each in scatters)
    assert any(each.attributes.get("sorted", False) for each in scatters) == (name not in INTEGERS)
    plan = planner.plan(found.module, RULES[rules], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    found.check(runner, plan)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [32, 256])
@pytest.mark.parametrize("name", ["numbers", "long runs"])
def test_the_bits_are_those_of_one_after_the_other(name: str, threads: int, runner: Any) -> None:
    found = batch(name)
    x, at, u = found.inputs
    wanted = np.array(x)
    at = np.where(at < 0, at + 40, at)  # as jax reads a negative index
    inside = (at >= 0) & (at < 40)
    np.add.at(wanted, at[inside], u[inside])
    plan = planner.plan(found.module, dataclasses.replace(RULES["blocks"], threads=threads), LIMITS).plan
    (got,) = runner.run(found.program(plan), found.given()).values()
    assert got.reshape(wanted.shape).tobytes() == wanted.tobytes()


@pytest.mark.slow
@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", range(40))
def test_random_scatters(seed: int, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against NumPy, update by update: operands, batches and windows of any number of dimensions."""
    choose = np.random.default_rng(seed)
    monkeypatch.setattr(sorted_scatters, "FEW", 0 if seed % 2 else 4096)
    named, plain = int(choose.integers(1, 3)), int(choose.integers(0, 3))
    dims = tuple(int(each) for each in choose.integers(1, 7, named + plain))
    count = tuple(int(each) for each in choose.integers(1, 12, int(choose.integers(1, 3))))
    at = choose.integers(-1, 8, (*count, named)).astype(np.int32)
    u = choose.normal(size=(*count, *dims[named:])).astype(np.float32)
    x = choose.normal(size=dims).astype(np.float32)
    numbers = jax.lax.ScatterDimensionNumbers(
        tuple(range(len(count), len(count) + plain)), tuple(range(named)), tuple(range(named))
    )
    function = lambda x, at, u: jax.lax.scatter_add(x, at, u, numbers, mode="drop")  # noqa: E731
    found = Batch.one("scatter", str(seed), function, (x, at, u))
    found = dataclasses.replace(found, module=scatter_updates.rewritten(found.module, deterministic=True))
    wanted = np.array(x)
    for one, value in zip(at.reshape(-1, named), u.reshape(-1, *dims[named:]), strict=True):
        if all(0 <= each < dim for each, dim in zip(one, dims, strict=False)):
            wanted[tuple(one)] += value
    plan = planner.plan(found.module, RULES[("blocks", "xla", "stages")[seed % 3]], LIMITS).plan
    assert verify.problems(found.module, plan) == ()
    (got,) = runner.run(found.program(plan), found.given()).values()
    assert got.reshape(dims).tobytes() == wanted.tobytes()


def test_a_million_updates_are_linear_work() -> None:
    def summed(nodes: Any, source: Any, target: Any) -> Any:
        return jax.ops.segment_sum(nodes[source], target, nodes.shape[0])

    nodes, edges = jax.ShapeDtypeStruct((100_000, 128), np.float32), jax.ShapeDtypeStruct((1_000_000,), np.int32)
    module = importer.read(jax.jit(summed).lower(nodes, edges, edges).as_text(dialect="hlo"), "summed")
    shaped = forms.forms(module, 132, deterministic=True)()
    plan = planner.plan(shaped, RULES["blocks"], LIMITS).plan
    assert verify.problems(shaped, plan) == ()
    assert traffic.moved(shaped, plan) < 2.5 * traffic.moved(
        forms.forms(module, 132)(), planner.plan(forms.forms(module, 132)(), RULES["blocks"], LIMITS).plan
    )
    most = max(math.prod(each.dims) for each in shaped.instructions)
    assert most <= 512 * 1_000_000


# --- asked for ------------------------------------------------------------------------------------------


def workload(folder: Path, text: str, said: str) -> Workload[Any]:
    (folder / "m.hlo").write_text(text)
    return prepare(registry(), job(f"module: ./m.hlo\n{said}", str(folder / "job.yaml"))).workload


def analysed(folder: Path, text: str, said: str) -> Analysis[Any, Any]:
    return Stitching().analyse(
        workload(folder, text, said), Target(arch="sm_90", limits=H100, facts=lambda source: None)
    )


def test_a_job_asks_for_it(tmp_path: Path) -> None:
    text = scatter_text("add", rows=64)
    plain, asked = (analysed(tmp_path, text, said) for said in ("", "deterministic: true"))
    assert plain.workload.key != asked.workload.key
    for each, wanted in ((plain, False), (asked, True)):
        for module in (each.payload.module(), each.payload.plain()):
            assert module["y"].attributes.get("sorted", False) == wanted
    assert workload(tmp_path, text, "deterministic: false").key == plain.workload.key


def test_overlapping_windows_are_refused_in_a_line(tmp_path: Path) -> None:
    text = scatter_text("add").replace("inserted_window_dims={0}", "inserted_window_dims={}")
    text = text.replace("update_window_dims={1}", "update_window_dims={1,2}")
    text = text.replace("u = f32[8192,4096]", "u = f32[8192,2,4096]")
    workload(tmp_path, text, "")
    with pytest.raises(RequestError, match=r"windows of scatter 'y' overlap"):
        workload(tmp_path, text, "deterministic: true")


# --- broken on purpose ----------------------------------------------------------------------------------
