"""`fusiond init`: a kernel's YAML beside its source, and what is left to be filled in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fusiond.build import nvcc
from fusiond.model.nouns import Job
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry

Run = Callable[..., Any]
SOURCE = """\
// caf\xe9
__global__ void twice(float* out, const float* in, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}
void run(float* a, float* b, int n) { twice<<<(n + 255) / 256, 256>>>(a, b, n); }
"""
FILLED = {
    'sizes: {n: "?"}': "sizes: {n: 5000}", 'elements: "?"': "elements: n", 'shape: ["?"]': "shape: [256]",
    'grid: ["?"]': 'grid: ["ceil_div(n, 256)"]',
}  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "kernels" / "scale.cu"
    path.parent.mkdir()
    path.write_bytes(SOURCE.encode("latin-1"))
    return path


def test_from_a_file_to_a_plan(fusiond: Run, source: Path) -> None:
    said = fusiond("init", source)
    target = source.parent / "twice.yaml"
    assert said.status == 0, said.err
    assert said.out.splitlines() == [
        f"wrote {target}", 'to be filled in, where "?" stands:', "  line 6: sizes.n", "  line 8: arguments[0].elements",
        "  line 9: arguments[1].elements", "  line 11: block.shape[0]", "  line 12: grid[0]",
    ]  # fmt: skip
    job = source.parent / "job.yaml"
    job.write_text("strategy: hfuse\npair: [./twice.yaml, hist]\ndevice: cpu\nsizes: {hist.n: 3000}\n")
    refused = fusiond("plan", job)
    assert refused.status == 2
    assert 'twice.yaml:6: not filled in yet, and still "?": sizes.n, arguments[0].elements,' in refused.err
    text = target.read_text()
    for left, right in FILLED.items():
        text = text.replace(left, right)
    target.write_text(text)
    planned = fusiond("plan", job, "--json")
    assert planned.status == 0, planned.err
    assert json.loads(planned.out)["rejections"] == []


def test_nothing_is_overwritten_unasked(fusiond: Run, source: Path) -> None:
    target = source.parent / "mine.yaml"
    target.write_text("mine\n")
    said = fusiond("init", f"{source}:twice", "--output", target)
    assert (said.status, target.read_text()) == (2, "mine\n")
    assert f"--output: {target} is there already; --force overwrites it" in said.err
    forced = fusiond("init", f"{source}:twice", "--output", target, "--force", "--json")
    assert json.loads(forced.out) == {
        "wrote": str(target), "strategy": "hfuse",
        "unknown": ["sizes.n", "arguments[0].elements", "arguments[1].elements", "block.shape[0]", "grid[0]"],
    }  # fmt: skip
    assert "# Launched in scale.cu:7: twice<<<(n + 255) / 256, 256>>>(a, b, n)" in target.read_text()
    printed = fusiond("init", source, "--output", "-")
    assert printed.out == target.read_text()


def test_a_draft_elsewhere_finds_its_source_and_headers(fusiond: Run, tmp_path: Path, real: Registry) -> None:
    """From another folder, through a link, too: the kernel is read from there."""
    folder, other = tmp_path / "kernels" / "deep", tmp_path / "else where"
    (folder / "include").mkdir(parents=True)
    other.mkdir()
    (tmp_path / "link").symlink_to(other)
    (folder / "include" / "two.h").write_text("#define TWO 2\n")
    (folder / "scale.cu").write_text('#include "two.h"\n__global__ void scale(float* x) { x[threadIdx.x] *= TWO; }\n')
    target = tmp_path / "link" / "x.yaml"
    assert fusiond("init", folder / "scale.cu", "-I", folder / "include", "--output", target).status == 0
    drafted = yaml.safe_load(target.read_text())
    assert (drafted["source"], drafted["include"]) == ("../kernels/deep/scale.cu", ["../kernels/deep/include"])
    target.write_text(target.read_text().replace('"?"', "1"))
    job = Job(strategy="hfuse", request={"pair": [str(target), "hist"]}, sizes={}, path=str(tmp_path / "job.yaml"))
    read = prepare(real, job).workload.source_hashes
    assert {str(folder / "scale.cu"), str(folder / "include" / "two.h")} <= set(read)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{}/scale.cc"], "is not a file that a draft can be made from (.cu, .cuh, .ptx, .py)"),
        (["{}/gone.cu"], "there is no file"),
        (["{}/scale.cu:thrice"], "unknown kernel 'thrice'; did you mean 'twice'?"),
        (["{}/scale.cu", "--output", "/nowhere/x.yaml"],
         "/nowhere/x.yaml cannot be written: No such file or directory"),
        ([], "the following arguments are required"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(fusiond: Run, source: Path, words: list[str], says: str) -> None:
    said = fusiond("init", *(each.format(source.parent) for each in words))
    assert said.status == 2
    assert says in said.err
    assert said.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(nvcc.find() is None, reason="needs nvcc")
def test_what_only_a_compiler_reads_is_drafted(fusiond: Run, source: Path) -> None:
    """`clock_t` is in no file that libclang is shown."""
    kernel = source.with_name("ticks.cu")
    kernel.write_text("#include <ctime>\n__global__ void ticks(const clock_t* at, int n) { if (n) __trap(); }\n")
    found = yaml.safe_load(fusiond("init", kernel, "--output", "-").out)
    assert [(each["dtype"], each.get("role")) for each in found["arguments"]] == [("int64", "input"), ("int32", None)]
