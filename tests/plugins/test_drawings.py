"""Pictures of answers, held to the programs that are emitted for the same config."""

import re
from collections.abc import Iterator
from pathlib import Path

from fusiond.model.drawing import Drawing, DrawnGraph, LaneDrawing
from fusiond.model.program import Copy, Launch, Program
from fusiond.requests import jobs
from fusiond.requests.planning import choose_device, prepare, target_of
from fusiond.requests.registry import Registry

JOBS = Path(__file__).parents[2] / "configs" / "jobs"


def drawn(real: Registry, job: str) -> Iterator[tuple[str, Program, tuple[Drawing, ...]]]:
    """(seed, program, pictures) of a job that comes with fusiond."""
    path = JOBS / job
    prepared = prepare(real, jobs.read(str(path), path.read_text())[0])
    strategy = prepared.strategy
    analysis = strategy.analyse(prepared.workload, target_of(*choose_device(real, "cpu")))
    for name, config in strategy.seeds(analysis, strategy.space(analysis, {}), {}):
        program = strategy.emit(analysis, config, {})
        if isinstance(program, Program):
            yield name, program, strategy.drawings(analysis, config, {})


def test_threads_and_blocks_of_a_fused_launch(real: Registry) -> None:
    seen = set()
    for name, program, (threads, blocks) in drawn(real, "hist-maxpool.yaml"):
        seen.add(name)
        (launch,) = program.launches
        assert isinstance(threads, LaneDrawing)
        assert isinstance(blocks, LaneDrawing)
        assert [each.name for each in threads.lanes] == ["a: hist", "b: maxpool"]
        assert max(span.end for lane in threads.lanes for span in lane.spans) == launch.block[0]
        assert max(span.end for lane in blocks.lanes for span in lane.spans) == launch.grid[0]
        spans = [span for lane in threads.lanes for span in lane.spans]
        if name in ("paper_even_split", "given_blocks", "stride"):
            assert spans[0].end == spans[1].start
        of_hist = re.search(r"barrier (\d+)", spans[0].text)
        waits = set(re.findall(r"FUSIOND_BARRIER\((\d+), ", program.sources[0].text))
        assert of_hist is None if "block_" in name else of_hist is not None
        assert of_hist is None or of_hist[1] in waits, name
    assert {"vertical", "block_sequential", "block_ticket", "block_virtual", "stride"} <= seen


def test_a_pipeline_has_a_group_for_each_launch(real: Registry) -> None:
    for name, program, (picture,) in drawn(real, "mincut-harris.yaml"):
        assert isinstance(picture, DrawnGraph)
        groups = {each.group for each in picture.nodes} - {-1}
        assert len(groups) == len(program.launches), name
        assert f"cut into {len(groups)} kernel" in picture.title
        kernels = [each for each in picture.nodes if each.group >= 0]
        assert {each.name for each in kernels} == {"dx", "dy", "sx", "sy", "sxy", "gx", "gy", "gxy", "hc"}


def test_a_module_has_a_group_for_each_kernel(real: Registry) -> None:
    for name, program, (picture,) in drawn(real, "stitching-lr.yaml"):
        assert isinstance(picture, DrawnGraph)
        groups = {each.group for each in picture.nodes} - {-1}
        launched = [each for each in program.steps if isinstance(each, Launch) and each.counted]
        assert len(groups) == len(launched), name
        outside = {each.text.partition(" ")[0] for each in picture.nodes if each.group < 0}
        assert outside <= {"parameter", "dot"}


def test_a_time_line_has_a_span_for_each_message(real: Registry) -> None:
    for name, program, (picture,) in drawn(real, "transfer-fig2.yaml"):
        if name == "batch":
            continue
        assert isinstance(picture, LaneDrawing)
        lanes = {each.name: each.spans for each in picture.lanes}
        messages = [*lanes["uploads, before"], *lanes["downloads, behind"]]
        assert len(messages) == sum(isinstance(each, Copy) and each.counted for each in program.steps), name
        assert [each.text for each in lanes["device"]] == ["k0", "k2", "k3", "k4"]
        assert [each.text for each in lanes["host"]] == ["k1"]
