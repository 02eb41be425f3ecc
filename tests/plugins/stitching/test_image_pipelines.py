"""Pipelines of images: what mincut makes of a module is what XLA gives, at odd sizes and all borders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

from fusiond.requests import jobs, planning
from fusiond.requests.registry import Registry

from . import oracle
from .cases import rand
from .running import Runner
from .test_windows import PIXELS, PLANES, detected, filtered, most, sums

pytestmark = pytest.mark.usefixtures("without_facts")

BLUR = np.outer([1, 2, 1], [1, 2, 1]).astype(np.float32) / 16
MEANS = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
WEIGHTS = np.array([0.299, 0.587, 0.114], np.float32)[:, None, None]
LONG = np.hanning(9)[None, 1:-1].astype(np.float32)


def blurred(x: Any, taps: Any = BLUR, padding: Any = "SAME", strides: Any = (1, 1), **more: Any) -> Any:
    shape = x.shape
    planes = x.reshape((-1, 1, *shape[-2:]))
    found = filtered(planes, jnp.asarray(taps)[None, None], strides, padding, PLANES, **more)
    return found.reshape((*shape[:-2], *found.shape[-2:]))


def bordered(x: Any, mode: str) -> Any:
    """OpenCV's and kornia's way: the border first, then the window inside of it."""
    padded = jnp.pad(x, ((2, 2), (2, 2)), mode=mode)
    return blurred(jnp.tanh(blurred(padded, padding="VALID")), padding="VALID") - x


def by_channels(x: Any) -> Any:
    taps = jnp.tile(jnp.asarray(BLUR)[:, :, None, None], (1, 1, 1, 3))
    return jnp.clip(2 * x - filtered(x[None], taps, (1, 1), "SAME", PIXELS, 3)[0], 0, 1)


def pooled(x: Any) -> Any:
    low = -most(-x, (3, 3), (1, 1), "SAME")
    return most(x, (5, 3), (1, 1), "SAME") - low + sums(x, (1, 5), (1, 1), "SAME") / 5


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "corners": (detected, (rand(37, 53),)),
    "planes": (lambda x: jnp.sqrt(jnp.abs(blurred(blurred(x)))) + x, (rand(2, 3, 19, 33),)),
    "channels": (by_channels, (rand(21, 30, 3),)),
    "channels, turned": (
        lambda x: jnp.clip(x + x - blurred(x.transpose(2, 0, 1)).transpose(1, 2, 0), 0, 1), (rand(21, 30, 3),),
    ),
    "mirror": (lambda x: bordered(x, "reflect"), (rand(23, 41),)),
    "reflect": (lambda x: bordered(x, "symmetric"), (rand(23, 41),)),
    "edge": (lambda x: bordered(x, "edge"), (rand(23, 41),)),
    "separable": (lambda x: blurred(blurred(x, LONG), LONG.T) * 2, (rand(40, 35),)),
    "pooled": (pooled, (rand(31, 29),)),
    "halved": (lambda x: jnp.exp(blurred(x, strides=(2, 2), padding="VALID")), (rand(33, 47),)),
    "dilated": (lambda x: blurred(jnp.exp(x), rhs_dilation=(2, 3)) + 1, (rand(28, 36),)),
    "uneven": (lambda x: blurred(x, BLUR[:2], ((1, 0), (3, -1))) * 3, (rand(28, 36),)),
    "slices": (lambda x: x[1:-1, 2:] + x[1:-1, :-2] - 2 * x[2:, 1:-1], (rand(28, 36),)),
    "turned": (lambda x: blurred(x)[::-1] + x[:, ::-1], (rand(19, 12),)),
    "turned inside": (lambda x: blurred(bordered(x * 2, "reflect")[:, ::-1])[::-1] + 1, (rand(23, 31),)),
    "rolled": (lambda x: jnp.roll(x, (2, -21), (0, 1)) - blurred(x), (rand(25, 40),)),
    "places": (lambda x: blurred(x) + jnp.arange(12.0) - jnp.arange(40.0)[:, None], (rand(40, 12),)),
    "rows in a row": (lambda x: (blurred(x).reshape(3, -1) - 0.5).reshape(x.shape) * 2, (rand(3, 19, 33),)),
    "numbers of channels": (
        lambda x: (blurred(jnp.clip(x * 1.2, 0, 1)[..., ::-1]) - MEANS) / (2 * MEANS), (rand(2, 3, 19, 33),),
    ),
    "mixed channels": (
        lambda x: blurred(0.7 * x + 0.3 * jnp.sum(x * WEIGHTS, 1, keepdims=True)) - MEANS, (rand(2, 3, 19, 33),),
    ),
    "of channels one": (lambda x: jnp.max(x, 1) - blurred(x[:, 1]), (rand(2, 3, 19, 33),)),
    "given taps": (lambda x, taps: blurred(x, taps) + x, (rand(21, 17), rand(5, 3))),
    "halves": (lambda x: jnp.clip(blurred(x.astype(jnp.float32)).astype(jnp.float16) * x, 0, 1),
               (rand(21, 17).astype(np.float16),)),
    "bytes": (lambda x: blurred(x.astype(jnp.float32) / 255) > 0.5, (rand(21, 17).astype(np.uint8) + 7,)),
    "two images": (lambda x, y: jnp.where(blurred(x) > y, jnp.maximum(x, y), 0.0), (rand(18, 27), rand(18, 27))),
}  # fmt: skip


def images(function: Callable[..., Any], inputs: Any, tmp_path: Path, real: Registry) -> Any:
    (tmp_path / "module.hlo").write_text(oracle.lowered(function, *inputs))
    (job,) = jobs.read(tmp_path / "job.yaml", "strategy: stitching\nmodule: ./module.hlo\n")
    return planning.plan(real, job, arch="sm_90").programs.get("seed:images")


@pytest.mark.slow
@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_pipeline_gives_what_xla_gives(name: str, tmp_path: Path, real: Registry, runner: Runner) -> None:
    function, inputs = FUNCTIONS[name]
    program = images(function, inputs, tmp_path, real)
    assert program is not None
    assert len(program.steps) == 1
    got = runner.run(program, {f"in_{at}": each for at, each in enumerate(inputs)})["out_0"]
    wanted = np.asarray(jax.jit(function)(*inputs))
    loose = wanted.dtype == np.float16
    np.testing.assert_allclose(
        got.reshape(wanted.shape), wanted, rtol=1e-3 if loose else 2e-5, atol=1e-3 if loose else 2e-6
    )


@pytest.mark.slow
def test_what_is_no_number_goes_on_as_it_does_in_xla(tmp_path: Path, real: Registry, runner: Runner) -> None:
    def function(x: Any) -> Any:
        ring = most(jnp.maximum(x, 0), (3, 3), (1, 1), "SAME")
        return jnp.clip(-most(-ring, (1, 3), (1, 1), "SAME") - jnp.minimum(x, 0.5), -1, 1)

    x = rand(17, 26)
    x[3, 5] = x[0, 0] = np.nan
    program = images(function, (x,), tmp_path, real)
    wanted = np.asarray(jax.jit(function)(x))
    assert 20 < np.isnan(wanted).sum() < 60
    np.testing.assert_array_equal(runner.run(program, {"in_0": x})["out_0"].reshape(x.shape), wanted)


@pytest.mark.slow
def test_a_border_is_scipys(tmp_path: Path, real: Registry, runner: Runner) -> None:
    x = rand(17, 26)
    program = images(lambda x: blurred(jnp.pad(x, 1, mode="reflect"), padding="VALID") * 2, (x,), tmp_path, real)
    wanted = 2 * scipy.ndimage.correlate(x, BLUR, mode="mirror")
    np.testing.assert_allclose(runner.run(program, {"in_0": x})["out_0"].reshape(x.shape), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.cumsum(blurred(x), 0), lambda x: blurred(x).sum(), lambda x: jnp.sin(x) * 2,
        lambda x: blurred(x).astype(jnp.bfloat16) + x.astype(jnp.bfloat16), lambda x: blurred(x) + jnp.sort(x, 0),
    ],
)  # fmt: skip
def test_what_is_none_is_left(function: Callable[..., Any], tmp_path: Path, real: Registry) -> None:
    assert images(function, (rand(40, 12),), tmp_path, real) is None
