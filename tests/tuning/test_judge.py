"""How fast a candidate is, where something is measured: on a processor that says it is a GPU."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.errors import RequestError
from fusiond.model.nouns import DeviceInfo
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.tuning import judge
from fusiond.tuning.judge import Ruling

YAML = """\
kernel: {name}
source: {name}.cu
entry: work
sizes: {{n: 4096}}
odd: {{n: 1001}}
arguments:
  - {{name: x, dtype: float32, elements: n, role: input, fill: {{uniform: [0.5, 1]}}}}
  - {{name: y, dtype: float32, elements: n, role: output}}
  - {{name: n, dtype: int32, value: n}}
block: {{shape: [128]}}
grid: ["ceil_div(n, block.x)"]
"""
SOURCE = """\
__global__ void work(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    for (int k = 0; k < 40 * WORK; ++k) v = sqrtf(v);
    y[i] = x[i] + 0.0f * v WRONG;
}
"""


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, short_measuring: None) -> None:
    """Each device says that its times are measured."""
    real = judge.choose_device

    def chosen(*given: Any, **named: Any) -> tuple[Any, DeviceInfo]:
        provider, info = real(*given, **named)
        return provider, dataclasses.replace(info, evidence="measured", uuid="judged")

    monkeypatch.setattr(judge, "choose_device", chosen)
    for name in ("_SEARCH", "_FINAL"):  # three times the work is seen in few samples
        monkeypatch.setattr(judge, name, dataclasses.replace(getattr(judge, name), warm_up_secs=0.0, budget_secs=0.1))
    monkeypatch.setenv("FUSIOND_LOCKS", "test_judge")
    assert CpuProvider().devices()


def ruling(registry: Registry, folder: Path, works: str, *, trials: int = 1, wrong: str = "") -> Ruling:
    """Of a kernel that takes so many rounds where the reference takes 32."""
    for name, defines, text in (
        ("slow", "{WORK: 32}", SOURCE.replace("WRONG", "")),
        ("fast", f"{{WORK: {works}}}", SOURCE.replace("WRONG", wrong)),
    ):
        (folder / f"{name}.yaml").write_text(YAML.format(name=name) + f"defines: {defines}\n")
        (folder / f"{name}.cu").write_text(text)
    paths = (str(folder / f"{name}.yaml") for name in ("slow", "fast"))
    keys = dict(judge.implementations(registry, *paths))
    (job,) = jobs.read(folder / "judge.yaml", json.dumps({**keys, "device": "cpu"}))
    return judge.judge(registry, job, trials=trials, without=("counted", "bounds", "races"))


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
class TestMeasured:
    def test_the_fastest_of_several_configs_is_taken(self, real: Registry, tmp_path: Path) -> None:
        found = ruling(real, tmp_path, "[32, 4, 16]", trials=3)
        assert found.right, found
        assert found.config["fast.WORK"] == 4
        assert found.evidence == "measured"
        assert found.speedup is not None
        assert found.ci95 is not None
        assert found.ci95[0] <= found.speedup <= found.ci95[1]
        assert found.speedup > 1.5

    def test_a_config_that_is_wrong_is_not_taken(self, real: Registry, tmp_path: Path) -> None:
        found = ruling(real, tmp_path, "[32, 4, 16]", trials=3, wrong="+ (WORK == 4 ? 0.25f : 0.0f)")
        assert found.right, found
        assert found.config["fast.WORK"] == 16

    def test_a_config_that_is_wrong_at_odd_sizes_is_wrong(self, real: Registry, tmp_path: Path) -> None:
        found = ruling(real, tmp_path, "[32, 4]", trials=2, wrong="+ (WORK == 4 && n == 1001 ? 0.25f : 0.0f)")
        assert not found.right
        assert found.problem is not None
        assert "n=1001" in found.problem


def test_what_is_asked_about_must_be_comparable(real: Registry, tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text(YAML.format(name="slow") + "defines: {WORK: 1}\n")
    (tmp_path / "slow.cu").write_text(SOURCE.replace("WRONG", ""))
    keys = dict(judge.implementations(real, str(tmp_path / "slow.yaml"), "hist"))
    (job,) = jobs.read(tmp_path / "judge.yaml", json.dumps({**keys, "device": "cpu"}))
    with pytest.raises(RequestError, match="which the reference has not"):
        judge.judge(real, job)
