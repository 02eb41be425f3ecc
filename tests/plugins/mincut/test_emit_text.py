"""What is refused, what is counted, and how the text is laid out; nothing is compiled here, but for nvcc's part."""

import dataclasses
import re
from pathlib import Path

import pytest

from fusiond.build.nvcc import NvccFacts
from fusiond.model.nouns import Rejection
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program
from fusiond_mincut.analysis import blocks
from fusiond_mincut.codegen import emit, tiles
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.codegen.lowering import evaluations
from fusiond_mincut.frontend import borders
from fusiond_mincut.frontend.graph import Halo

from .running import APPLICATIONS, application, batched, emitted, pipeline, whole


@pytest.fixture(scope="module")
def harris():
    return application("harris", 2048, 2048)


def refused(given, params, **limits):
    found = emit.program(given, whole(given), {str(whole(given).blocks[0]): params}, **limits)
    assert isinstance(found, Rejection)
    assert found.nodes == whole(given).blocks[0].kernels
    return found.rule, found.detail


def test_refusals(harris):
    rule, detail = refused(harris, BlockParams(block_x=64, block_y=32))
    assert (rule, "64 x 32" in detail) == ("block_shape", True)
    assert refused(harris, BlockParams(block_x=0))[0] == "block_shape"
    assert refused(dataclasses.replace(harris, height=70000), BlockParams(block_x=32, block_y=1))[0] == "block_shape"
    assert refused(dataclasses.replace(harris, width=2**16, height=2**15), BlockParams())[0] == "image_size"
    needs = emit.shared_bytes(harris, whole(harris).blocks[0], BlockParams())
    rule, detail = refused(harris, BlockParams(), shared_limit_bytes=needs - 1)
    assert (rule, detail) == ("shared_memory", f"needs {needs} bytes of shared memory; a block may have {needs - 1}")
    assert isinstance(emit.program(harris, whole(harris), shared_limit_bytes=needs), Program)
    night = application("night", 64, 64)
    rule, detail = refused(night, BlockParams(local="recompute"))
    assert rule == "recompute"
    assert "10000" in detail


def test_a_border_that_recomputes_without_end_is_refused():
    """Each stage of a chain multiplies what a pixel at the border takes; in tiles that stay near, nothing does."""

    def of(mode, last):
        lines = []
        for number, before in enumerate(["src", "k0", "k1", "k2", "k3", "k4"]):
            body = " + ".join(f"{before}[{x}, {y}]" for x in (-1, 0, 1) for y in (-1, 0, 1))
            border = last if number == 5 else mode
            lines.append(
                f"  k{number}: {{pattern: local, mask: [3, 3], border: {border}, reads: [{before}], body: '{body}'}}"
            )
        head = ["pipeline: deep", "image: {width: 64, height: 64, dtype: int32}", "inputs: [src]", "outputs: [k5]"]
        return pipeline("\n".join([*head, "kernels:", *lines]))

    for mode in (*borders.MAPPED, "{constant: 1}"):
        assert isinstance(emit.program(of(mode, mode), whole(of(mode, mode))), Program)
        assert refused(of(mode, mode), BlockParams(local="recompute"))[0] == "recompute"
        assert isinstance(emit.program(of(mode, "repeat"), whole(of(mode, "repeat"))), Program)


@pytest.mark.slow
def test_stages_at_one_pixel_are_counted_once():
    """A ladder of diamonds: the ways through it double at each step."""
    names = ["src"]
    lines = []
    for number in range(40):
        left, right, join = f"l{number}", f"r{number}", f"j{number}"
        lines += [
            f"  {left}: {{pattern: point, reads: [{names[-1]}], body: '{names[-1]} + 1'}}",
            f"  {right}: {{pattern: point, reads: [{names[-1]}], body: '{names[-1]} * 2'}}",
            f"  {join}: {{pattern: point, reads: [{left}, {right}], body: '{left} - {right}'}}",
        ]
        names.append(join)
    head = ["pipeline: d", "image: {width: 8, height: 8, dtype: int32}", "inputs: [src]", "outputs: [j39]", "kernels:"]
    given = pipeline("\n".join([*head, *lines]))
    assert refused(given, BlockParams()) == ("block_size", "120 kernels in a block; at most 100")
    block = blocks.block(given, [each.name for each in given.kernels if int(each.name[1:]) < 33])
    assert evaluations(given, block)["j32"] == 99
    kernel = emit.block_kernel(given, block)
    assert isinstance(kernel, emit.CudaKernel)
    assert kernel.text.count("= j32_stage(") == 1


def test_halos_add_up_along_every_path(harris):
    block = whole(harris).blocks[0]
    assert tiles.halos(harris, block)["src"] == Halo(left=2, right=2, up=2, down=2)
    assert tiles.halos(harris, block)["sx"] == Halo(left=1, right=1, up=1, down=1)
    laid = tiles.layout(harris, block, 32, 8, "tile")
    assert [[[tile.name for tile in loop.tiles] for loop in loops] for loops in laid.rounds] == [[["sx", "sxy", "sy"]]]
    assert laid.shared_bytes == 3 * 34 * 10 * 4
    assert laid.reach == Halo(left=2, right=2, up=2, down=2)


def test_a_local_stage_that_several_loops_need_has_a_tile():
    given = pipeline(
        "pipeline: p\nimage: {width: 64, height: 64, dtype: uint8}\ninputs: [src]\noutputs: [join]\n"
        "masks: {box: [[1, 1, 1], [1, 1, 1], [1, 1, 1]]}\nkernels:\n"
        '  a: {pattern: local, mask: [3, 3], border: clamp, reads: [src], body: "sum(box, src) / 9"}\n'
        '  b: {pattern: point, reads: [a], body: "a * a"}\n'
        '  join: {pattern: local, mask: [3, 3], border: clamp, reads: [a, b], body: "sum(box, b) / 9 + a"}\n'
    )
    laid = tiles.layout(given, whole(given).blocks[0], 32, 8, "tile")
    assert [[[tile.name for tile in loop.tiles] for loop in loops] for loops in laid.rounds] == [[["a", "b"]]]


@pytest.mark.parametrize("local", ["tile", "recompute"])
def test_the_interior_pays_nothing_for_borders(harris, local):
    kernel = emit.block_kernel(harris, whole(harris).blocks[0], BlockParams(local=local))
    interior = re.search(r"void interior\(.*?\n}\n", kernel.text, re.DOTALL)[0]
    border = re.search(r"void border\(.*?\n}\n", kernel.text, re.DOTALL)[0]
    for mark in ("_index", "_at(", "_near(", "if (", "?"):
        assert mark not in interior
    assert "clamp_index" in border


def test_the_text_is_the_same_for_every_size(harris):
    small = dataclasses.replace(harris, width=5, height=3)
    for part in ("unfused", "whole"):
        cut = blocks.unfused if part == "unfused" else whole
        texts = [[each.text for each in emitted(given, cut(given)).sources] for given in (harris, small)]
        assert texts[0] == texts[1]


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.sampled(4)
def test_nvcc_takes_the_catalogue_and_spills_nothing(arch):
    programs = []
    for name in APPLICATIONS:
        given = application(name, 2048, 2048)
        parts = [(blocks.unfused(given), BlockParams()), (whole(given), BlockParams())]
        if name != "night":
            parts.append((whole(given), BlockParams(local="recompute", pixels=2)))
        if name == "harris":
            parts.append((whole(given), BlockParams(local="mixed", pixels=4)))
        programs += [emitted(given, part, params) for part, params in parts]
    given = pipeline(
        "pipeline: r\nimage: {width: 64, height: 64, dtype: float32, channels: 3}\ninputs: [src]\noutputs: [out]\n"
        'kernels:\n  all: {pattern: global, reduce: max, reads: [src], body: "src"}\n'
        '  out: {pattern: local, mask: [3, 3], border: repeat, reads: [src, all], body: "src[1, 1] / all"}\n'
    )
    programs.append(emitted(given, blocks.unfused(given)))
    (source,) = {each.sources for each in batched(programs)}.pop()
    facts = NvccFacts(arch)(dataclasses.replace(source, flags=emit.FLAGS["strict"]))
    assert not isinstance(facts, BuildFailed), facts
    assert len(facts) == len(source.entries) > 35
    for entry, found in facts.items():
        assert (found.spill_store_bytes, found.spill_load_bytes, found.stack_bytes) == (0, 0, 0), entry
        assert found.registers <= 80, (entry, found.registers)


# --- what is written, for people ------------------------------------------------------------------------

SQUARED = """
pipeline: squared
image: {width: 2048, height: 2048, dtype: int32}
inputs: [dx]
outputs: [gx]
masks: {gauss: [[1, 2, 1], [2, 4, 2], [1, 2, 1]]}
kernels:
  sx: {pattern: point, reads: [dx], body: "dx * dx"}
  gx: {pattern: local, mask: [3, 3], border: clamp, reads: [sx], body: "sum(gauss, sx) / 16"}
"""
DOCS = (Path(__file__).parents[3] / "docs" / "mincut-kernels.md").read_text()


def test_the_documentation_shows_what_is_written():
    (shown,) = re.findall(r"^```cuda\n(.*?)^```$", DOCS, re.MULTILINE | re.DOTALL)
    given = pipeline(SQUARED)
    text = emit.block_kernel(given, whole(given).blocks[0], BlockParams(local="tile")).text
    for part in shown.split("...\n"):
        assert part.strip("\n") in text


def test_every_refusal_is_documented():
    rules = set(re.findall(r'no\(\s*"(\w+)"', Path(emit.__file__).read_text()))
    assert rules == {"block_shape", "image_size", "block_size", "shared_memory", "recompute", "strip"}
    assert rules == set(re.findall(r"^\| `(\w+)` \|", DOCS.partition("## What is refused")[2], re.MULTILINE))
