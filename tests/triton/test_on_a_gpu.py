"""Kernels in Triton on a GPU: their PTX as fusiond launches it, against NumPy; two of them as one launch."""

from pathlib import Path

import numpy as np
import pytest

from fusiond.devices.cuda.provider import CudaProvider
from fusiond.requests.planning import target_of
from fusiond.requests.registry import Registry
from fusiond.strategy import NO_ANSWERS
from tests.devices.cuda.test_on_a_gpu import run
from tests.triton.members import EVERY, TritonMember
from tests.triton.test_members import SEED, alone, analysed, check, drawn, emitted, needs_triton, points, yaml_of

pytestmark = [pytest.mark.needs_gpu, needs_triton]


@pytest.mark.parametrize("member", EVERY, ids=lambda each: each.kernel)
def test_values(member: TritonMember, real: Registry, tmp_path: Path) -> None:
    program = emitted(real, found := alone(real, member, tmp_path), points(real, found)[0])
    done, arrays = run(program, tmp_path, "--seed", str(SEED))
    assert done.returncode == 0, done.stderr
    for name, right in member.expected(drawn(program), **member.sizes).items():
        check(member, name, arrays[name], right)


def test_two_in_one_launch(real: Registry, tmp_path: Path) -> None:
    first, second = (next(each for each in EVERY if each.kernel == name) for name in ("softmax", "matmul"))
    for each in (first, second):
        yaml_of(each, tmp_path)
    provider = CudaProvider()
    target = target_of(provider, provider.devices()[0])
    text = "strategy: hfuse\npair: [./softmax.yaml, ./matmul.yaml]\n"
    found = analysed(real, text, tmp_path, target)
    strategy = real.strategies["hfuse"]
    given = strategy.baselines(found)[0]
    _, apart = run(given.emit(next(given.space.points())), tmp_path / "apart", "--seed", str(SEED))
    for number, (_, config) in enumerate(strategy.seeds(found, strategy.space(found, NO_ANSWERS), NO_ANSWERS)):
        done, fused = run(emitted(real, found, config), tmp_path / f"fused{number}", "--seed", str(SEED))
        assert done.returncode == 0, done.stderr
        for name, right in apart.items():
            np.testing.assert_array_equal(fused[name], right, err_msg=f"{name}, {config}")
