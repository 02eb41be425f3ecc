"""The benchmark of image pipelines: its peers give what the pipelines give, its page is made of its files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.mincut import __main__ as bench
from benchmarks.mincut import halide_peer, measure, page, paper, peers, planning
from fusiond.inputs import documents
from fusiond.model import Config, Measurement, Outcome, Purpose, Trial
from fusiond.program import Pointer, Scalar, problems
from fusiond_mincut.analysis import partition
from fusiond_mincut.analysis.benefit import PAPER
from fusiond_mincut.codegen import block_configs
from fusiond_mincut.frontend import parser
from fusiond_mincut.plugin import PIPELINES
from tests.plugins.mincut import oracle

SIZES = {"width": 37, "height": 23}


def small(name: str):
    path = PIPELINES / f"{name}.yaml"
    return parser.read(documents.parse(path.read_text(), str(path)), SIZES)


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("name", paper.APPLICATIONS)
def test_jax_computes_the_same_images(name: str) -> None:
    pytest.importorskip("jax", reason="needs JAX as the peer")
    pipeline = small(name)
    given = peers.inputs(pipeline)
    expected = oracle.run(pipeline, given)
    found = peers.Jax(pipeline)(given)
    for output in pipeline.outputs:
        one, two = np.asarray(found[output]), expected[output]
        assert one.dtype == two.dtype
        if one.dtype == np.float32:
            assert np.allclose(one, two, rtol=1e-4)
        else:  # XLA contracts products and sums: a float just at a threshold, or just below a whole number, may flip
            assert np.mean(np.abs(one.astype(int) - two.astype(int)) > 1) == 0
            assert np.mean(one != two) < 0.005


def test_opencv_computes_nearly_the_same_images() -> None:
    pytest.importorskip("cv2", reason="needs OpenCV as the peer")
    functions = peers.opencv()
    pipeline = small("sobel")
    given = peers.inputs(pipeline)
    found = np.asarray(functions["sobel"](given["src"][:, :, 0].astype(np.float32)))
    assert np.abs(found - oracle.run(pipeline, given)["magnitude"][:, :, 0]).max() < 1.01  # an int32 is truncated
    for name, function in functions.items():
        function(peers.inputs(small(name))["src"][:, :, 0].astype(np.float32))


@pytest.mark.slow
def test_generated_pipelines_are_what_they_say() -> None:
    for shape, make in planning.SHAPES.items():
        pipeline = parser.read(documents.parse(make(40), f"{shape}.yaml"))
        assert len(pipeline.kernels) == 40
    row = planning.measured("chain", 10)
    assert (row["kernels"], row["edges"]) == (10, 9)
    assert row["optimum"] >= row["benefit"] > 0


def trial(role: str, origin: str, time_us: float, **config: str) -> Trial:
    measurement = Measurement(span_us=(time_us,), clock="device", purpose=Purpose.SEARCH)
    return Trial(
        sequence=0, config=Config.of(config), role=role, origin=origin, outcome=Outcome.MEASURED, ratio=1.0,
        time_us=time_us, measurement=measurement,
    )  # fmt: skip


def test_methods_are_read_off_the_trials() -> None:
    pipeline = small("unsharp")
    whole = str(partition.planned(pipeline, PAPER).partition)
    apart = "gauss|sharp|ratio|unsharp"
    report = {"operations": dict.fromkeys("abcd"), "basic": apart, "partition": whole, "optimum": {"partition": whole}}
    trials = [
        trial("baseline:sequential", "given", 100.0),
        trial("baseline:graph", "tuned", 80.0),
        trial("candidate", "seed:algorithm1", 40.0, partition=whole, shapes=block_configs.DEFAULT),
        trial("candidate", "grid", 25.0, partition=whole, shapes="32x4*1 tile"),
        trial("candidate", "seed:unfused", 100.0, partition=apart, shapes=block_configs.DEFAULT),
    ]
    found = measure.methods(trials, measure.partitions(report, trials))
    assert (found["given_us"], found["fastest_unfused_us"]) == (100.0, 80.0)
    assert found["algorithm1"]["over_given"] == 2.5
    assert found["algorithm1"]["best_over_given"] == 4.0
    assert found["basic"]["over_given"] == found["unfused"]["over_given"] == 1.0


def test_the_page_is_made_of_the_kept_files() -> None:
    assert page.PAGE.read_text() == page.render(bench.kept())


def test_emulated_times_are_on_no_page() -> None:
    run = {"date": "2026-01-01", "evidence": "emulated", "device": {"model": "x"}, "applications": []}
    assert "Not yet measured on a GPU" in page.render([run])


def test_a_measured_run_stands_beside_the_paper() -> None:
    methods = {
        "algorithm1": {"partition": "a|b", "over_given": 1.31, "best_over_given": 1.52},
        "basic": {"over_given": 1.11},
    }
    sums = [{"partition": "a+b", "blocks_us": 10.0}, {"partition": "a|b", "blocks_us": 12.5}]
    rivals = [{"name": "CuPy", "problem": "not installed"}, {"name": "JAX", "ratio": 3.5, "clock": "wall"}]
    answer = {"verdict": "fuse", "speedup": 1.234, "ci95": [1.2, 1.3], "baseline": "graph"}
    run = {
        "date": "2026-01-01T00:00:00", "evidence": "measured", "device": {"model": "X100"}, "command": "c",
        "machine": {"cores": 1, "processor": "p"},
        "applications": [{"application": "harris", "answer": answer, "methods": methods, "sums": sums,
                          "rivals": rivals},
                         {"application": "sobel", "problem": "lost"}],
    }  # fmt: skip
    text = page.render([run])
    assert (
        "| harris | fuse | 1.234 | 1.200 to 1.300 | graph | 3.50 (JAX, wall clock) "
        "| 1.11 | 1.31 |  |  | 1.52 | 25.0 | 1.04 / 1.27 / 1.09 |" in text
    )
    assert "| sobel | lost |" in text
    assert "- CuPy (harris): not installed" in text


def test_what_is_asked_wrongly_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert bench.main(["--only", "haris"]) == 2
    assert "unknown application 'haris'" in capsys.readouterr().err
    assert bench.main(["--device", "cpu", "--quick", "--out", str(bench.RESULTS / "x")]) == 2
    assert "emulated times are not results" in capsys.readouterr().err


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_an_application_from_the_command_to_the_file(tmp_path: Path, gxx_here: None) -> None:
    assert bench.main(["--device", "cpu", "--quick", "--only", "enhance", "--out", str(tmp_path)]) == 0
    (kept,) = tmp_path.glob("mincut-*.json")
    (row,) = json.loads(kept.read_text())["applications"]
    assert row["evidence"] == "emulated"
    assert row["methods"]["algorithm1"]["partition"] == "mean+gain+corrected"
    assert row["methods"]["algorithm1"]["default_us"] > 0
    assert [each["name"] for each in row["rivals"]] == ["CuPy", "torch.compile", "JAX"]
    assert {each["problem"] for each in row["rivals"]} == {"rivals are measured on a GPU"}
    assert row["answer"]["verdict"] in ("fuse", "keep", "undecided")


# --- Halide ---------------------------------------------------------------------------------------------

LOG = """\
buffer 1 3404 out
buffer 2 3404 in
buffer 3 20000 own
run first_kernel 2 3 1 32 8 1 64 b2 s25000000 b3
run second_kernel 1 1 1 64 1 1 0 b3 sfeff b1
"""


def test_what_halide_launches_is_a_program(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(LOG)
    (tmp_path / "kernels.ptx").write_text("// PTX")
    program = halide_peer._launched(small("sobel"), tmp_path)
    assert not problems(program)
    assert [(each.name, each.role.value, each.elements) for each in program.buffers] == [
        ("magnitude", "output", 851), ("src", "input", 851), ("scratch3", "scratch", 20000),
    ]  # fmt: skip
    first, second = program.launches
    assert (first.grid, first.block, first.shared_bytes) == ((2, 3, 1), (32, 8, 1), 64)
    assert first.arguments == (Pointer(buffer="src"), Scalar(dtype="int32", value=37), Pointer(buffer="scratch3"))
    assert second.arguments[1] == Scalar(dtype="int16", value=-2)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", halide_peer.SCHEDULES)
def test_halide_computes_the_same_pixels(schedule: str) -> None:
    pytest.importorskip("halide", reason="needs Halide as the peer: pip install 'fusiond[peers]'")
    pipeline = dataclasses.replace(small("sobel"), width=160, height=128)
    found = halide_peer.compiled(pipeline, schedule)
    wanted = oracle.run(pipeline, peers.inputs(pipeline))["magnitude"]
    assert halide_peer.equal(pipeline, np.asarray(found.outputs["magnitude"]), wanted) == 1.0
    assert all(row.ptx_instructions for row in found.rows)


def test_what_halide_does_not_take_says_so() -> None:
    pytest.importorskip("halide", reason="needs Halide as the peer: pip install 'fusiond[peers]'")
    text = "pipeline: p\nimage: {width: 8, height: 8, dtype: int32}\ninputs: [a]\noutputs: [b]\nkernels:\n"
    given = parser.read(documents.parse(text + "  b: {pattern: scan, reads: [a], body: a}\n", "p.yaml"))
    with pytest.raises(halide_peer.Unable, match="b is not a plain stencil"):
        halide_peer.compiled(given, halide_peer.TILES)
