"""The benchmark of stitching: its modules are HLO that XLA takes, its figures are those of plans, its page is made of
what is kept."""

import json

import pytest

from benchmarks.stitching import __main__ as command
from benchmarks.stitching import generate, measure, modules, page, static
from fusiond.requests.planning import target_for_arch
from fusiond_stitching.frontend import hlo, importer


def silent(line: str) -> None:
    del line


@pytest.mark.parametrize("size", [1, 100, 1000])
def test_generated_modules_have_the_size_asked_for(size):
    raw = hlo.parse(generate.module(size), "generated.hlo")
    assert size <= len(raw.computations[raw.entry].instructions) <= size + 50
    module = importer.module(raw)
    assert 0.7 * size <= len(module.instructions)
    assert not module.foreign


def test_generated_modules_are_what_xla_takes():
    """XLA's own parser and compiler for the processor, from jaxlib."""
    jaxlib = pytest.importorskip("jaxlib._hlo", reason="XLA's parser comes with jax")
    text = generate.module(100)
    proto = jaxlib.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    module = importer.read(text, "generated.hlo")
    assert len(jaxlib.XlaComputation(proto).program_shape().parameter_shapes()) == len(module.parameters)


@pytest.mark.slow
def test_the_kept_figures_are_those_of_the_plans_today():
    """What is kept for sm_90 says what the planner does: recompute it with `python -m benchmarks.stitching --arch`."""
    (kept,) = [run for run in command.kept() if run["evidence"] == "static" and run["device"]["arch"] == "sm_90"]
    found = {each["module"]: each for each in kept["modules"]}
    assert sorted(found) == list(modules.names())
    for name in modules.names():
        row = static._row(name, target_for_arch("sm_90").limits, silent)
        for plan in modules.PLANS:
            mine, theirs = row["plans"][plan], found[name]["plans"][plan]
            assert {key: mine[key] for key in ("kernels", "bytes")} == {
                key: theirs[key] for key in ("kernels", "bytes")
            }, (name, plan)
        assert row["ideal_bytes"] == found[name]["ideal_bytes"]


def test_the_goals_for_kernels_are_met_by_what_is_kept():
    """Never more kernels than XLA today; 0.7 of them in the mean when packed, 0.45 with grid barriers."""
    (kept,) = [run for run in command.kept() if run["evidence"] == "static"]
    assert [each["module"] for each in kept["modules"]] == list(modules.names())
    for plan, goal in (("packed", 0.7), ("barriers", 0.45)):
        ratios = static.ratios(kept["modules"], plan)
        assert max(ratios) <= 1.0
        assert static.geometric_mean(ratios) <= goal


def times(fusable_us, whole_us):
    return {"fusable_us": fusable_us, "whole_us": whole_us}


def test_the_papers_formula():
    row = {
        "plans": {
            "unfused": times(100.0, 150.0), "xla_rules": times(50.0, 100.0), "paper": times(40.0, 90.0),
            "packed": times(25.0, 75.0), "barriers": {"problem": "refused", "fusable_us": 1.0},
        },
    }  # fmt: skip
    found = measure.gains(row)
    assert found["best"] == "packed"
    over = found["over_unfused"]
    assert over["fusable_ratio"] == pytest.approx(2 / 3, abs=1e-4)
    assert over["fusion_speedup"] == pytest.approx(4.0)
    assert over["end_to_end"] == pytest.approx(2.0)
    assert over["predicted_end_to_end"] == pytest.approx(1.5)
    assert found["over_xla_rules"]["fusion_speedup"] == pytest.approx(2.0)
    assert measure.gains({"plans": {"unfused": times(1.0, 2.0), "packed": {"problem": "refused"}}}) == {}


def run_of(evidence):
    (kept,) = [run for run in command.kept() if run["evidence"] == "static"]
    row = {"module": "lr_step", "plans": {"unfused": times(15.0, 20.0), "packed": times(3.0, 8.0)}}
    row |= measure.gains(row)
    device = {"name": "cuda:0", "model": "NVIDIA H200", "arch": "sm_90"}
    return {**kept, "evidence": evidence, "device": device, "driver": "580.1", "measured": [row]}


def test_the_page_has_what_was_measured_and_never_what_was_emulated():
    kept = list(command.kept())
    plain = page.render(kept)
    assert "Not yet measured" in plain
    assert page.render([*kept, run_of("emulated")]) == plain
    measured = page.render([*kept, run_of("measured")])
    assert "Not yet measured" not in measured
    assert "| lr_step | 15.0 |  |  | 3.0 |  | packed | 0.750 | 5.000 | 2.500 | 1.600 |" in measured


def test_the_page_is_what_is_kept():
    measured = [run for run in command.kept() if run["evidence"] != "emulated"]
    assert page.PAGE.read_text(encoding="utf-8") == page.render(measured)


@pytest.mark.slow
def test_a_run_on_the_processor(tmp_path):
    assert command.main(["--device", "cpu", "--quick", "--only", "lr_step", "--out", str(tmp_path)]) == 0
    (written,) = tmp_path.glob("stitching-*.json")
    run = json.loads(written.read_text())
    assert run["evidence"] == "emulated"
    (row,) = run["measured"]
    assert row["module"] == "lr_step"
    assert set(row["plans"]) == set(modules.PLANS)
    kernels = {"unfused": 31, "packed": 2, "barriers": 2}
    for name, plan in row["plans"].items():
        # A machine that is busy with other things may be too noisy for three samples; nothing else may go wrong.
        assert plan.get("problem", "too_noisy").startswith("too_noisy"), (name, plan)
        assert "problem" in plan or (plan["fusable_us"] > 0 and plan["whole_us"] > 0)
        assert plan.get("kernels", kernels.get(name)) == kernels.get(name, plan.get("kernels"))
