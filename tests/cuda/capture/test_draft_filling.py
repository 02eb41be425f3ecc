"""`fusiond init FILE --from DIR`: what the source does not say, the capture does."""

from pathlib import Path

import pytest
import yaml

from fusiond.cli import main
from fusiond.model.program import Bytes
from fusiond.requests import jobs, planning
from fusiond.requests.isolation import registry as plugins
from tests.cuda.capture.conftest import Program, X, Y, Z

SOURCE = """
struct Rows { float* data; int n; double scale; };
__constant__ float weights[16];
__global__ void scale(float* x, const float* y, int n, float a)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = a * y[i] * weights[i & 15];
}
__global__ void rows(Rows r, const int* at)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < r.n) r.data[i] = at[i] * r.scale;
}
"""


@pytest.fixture
def folder(program: Program, tmp_path: Path) -> str:
    (tmp_path / "k.cu").write_text(SOURCE)
    program.launch_scale(X, Y, 1000)
    program.launch_rows(Z, Z, 500)
    return str(program.writer.close())


def test_nothing_is_left_to_fill_in(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kernel in ("scale", "rows"):
        assert main(["init", f"{tmp_path}/k.cu:{kernel}", "--from", folder]) == 0
        assert "to be filled in" not in capsys.readouterr().out
    scale, rows = (yaml.safe_load((tmp_path / f"{each}.yaml").read_text()) for each in ("scale", "rows"))
    assert [each["name"] for each in scale["arguments"]] == ["x", "y", "n", "a"]
    assert [each.get("elements") for each in scale["arguments"][:2]] == [1000, 1000]
    assert scale["constants"][0]["fill"] == {"uniform": [0, 1]}
    assert rows["arguments"][1] == {"name": "at", "part_of": "r.0"}
    (tmp_path / "job.yaml").write_text("strategy: hfuse\npair: [./scale.yaml, ./rows.yaml]\n")
    (job,) = jobs.read(tmp_path / "job.yaml")
    found = planning.plan(plugins.load(), job)
    assert not found.refused
    assert "form" not in str(found.analysis.report), "it stays C++"
    (given,) = (each for step in found.programs["reference"].launches for each in step.arguments
                if isinstance(each, Bytes))  # fmt: skip
    assert given.filled(lambda name: 7)[:16] == bytes([7, 0, 0, 0, 0, 0, 0, 0, 0xF4, 1, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF])


def test_of_ptx(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k.ptx").write_bytes(Path(__file__).with_name("kernels.ptx").read_bytes())
    assert main(["init", f"{tmp_path}/k.ptx:scale", "--from", folder, "--output", "-"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["grid"] == [8]


def test_a_kernel_that_was_not_launched(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.cu").write_text("__global__ void other(int* x) { *x = 1; }")
    assert main(["init", f"{tmp_path}/other.cu", "--from", folder]) == 2
    assert "the capture has no other; it has rows, scale" in capsys.readouterr().err
