"""The loop of examples/ that asks a command for candidates and has them judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
SOURCE = """\
#define PER 4
__global__ void twice(const float* x, float* y, int n) {
#pragma unroll 2
    for (int j = 0; j < PER; ++j) {
        const int i = (blockIdx.x * PER + j) * blockDim.x + threadIdx.x;
        if (i < n) y[i] = 2.0f * x[i];
    }
}
"""
KERNEL = """\
kernel: twice
source: twice.cu
entry: twice
sizes: {n: 1000}
odd: {n: 617}
arguments:
  - {name: x, dtype: float32, elements: n, role: input, fill: {normal: [0, 1]}}
  - {name: y, dtype: float32, elements: n, role: output}
  - {name: n, dtype: int32, value: n}
block: {shape: [128]}
grid: ["ceil_div(n, 4 * block.x)"]
"""


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    (tmp_path / "twice.cu").write_text(SOURCE)
    (tmp_path / "twice.yaml").write_text(KERNEL)
    return tmp_path / "twice.yaml"


def loop(reference: Path, command: str, *more: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(EXAMPLES / "judge_loop.py"), str(reference), "--candidates", command]
    return subprocess.run([*script, "--device", "cpu", *more], capture_output=True, text=True, check=False)


def ask(**question: object) -> str:
    command = [sys.executable, str(EXAMPLES / "mutate_block.py")]
    asked = json.dumps({"reference": KERNEL, "source": SOURCE, "verdicts": [], **question})
    return subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_three_candidates_are_judged(reference: Path) -> None:
    done = loop(reference, f"{sys.executable} {EXAMPLES / 'mutate_block.py'}", "--budget", "3")
    assert done.returncode == 0, done.stderr
    *lines, best = done.stdout.splitlines()
    assert [each.partition(" ")[0] for each in lines] == ["1", "2", "3"]
    right = [each for each in lines if each.endswith("x")]
    wrong = [each for each in lines if "y: " in each]
    assert len(right) + len(wrong) == 3
    assert best.startswith(f"best: {reference.parent}/twice_" if right else "best: the reference")
    sources = {path.read_text() for path in reference.parent.glob("twice_*.cu")}
    assert len(sources) == 3


@pytest.mark.slow
def test_what_is_no_kernel_is_told_to_the_command(reference: Path) -> None:
    generator = reference.parent / "generator.py"
    generator.write_text(
        "import json, sys\n"
        "verdicts = json.load(sys.stdin)['verdicts']\n"
        "open('told.json', 'w').write(json.dumps(verdicts))\n"
        "print('int main() {')\n"
    )
    script = [sys.executable, str(EXAMPLES / "judge_loop.py"), str(reference), "--device", "cpu", "--budget", "2"]
    script += ["--candidates", f"{sys.executable} {generator}"]
    done = subprocess.run(script, capture_output=True, text=True, cwd=reference.parent, check=False)
    assert done.stdout.splitlines()[-1] == "best: the reference"
    (told,) = json.loads((reference.parent / "told.json").read_text())
    assert told["right"] is False
    assert told["problem"]
    assert told["source"] == "int main() {\n"


def test_a_command_that_fails_ends_the_loop(reference: Path) -> None:
    done = loop(reference, "false")
    assert done.returncode == 1
    assert done.stderr == "false ended with status 1\n"
