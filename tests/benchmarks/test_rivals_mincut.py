"""Image pipelines in array frameworks: what they compute, and how they stand in for a Program."""

from typing import Any

import numpy as np
import pytest

from benchmarks.mincut import images, paper
from benchmarks.rivals import mincut
from benchmarks.rivals.called import Called
from benchmarks.rivals.frameworks import NumPy, Torch
from fusiond.model.inputs.fills import fill
from fusiond.model.program import Buffer, Launch, Program, Role, Source
from tests.plugins.mincut import oracle

WIDTH, HEIGHT = 37, 23


def small(name: str) -> Any:
    return mincut.pipeline(name, WIDTH, HEIGHT)


def inputs(pipeline: Any) -> dict[str, np.ndarray]:
    """What the pipeline's inputs hold in a measured run: (height, width, channels) each."""
    found = {}
    for image in pipeline.inputs:
        elements = image.elements(pipeline.width, pipeline.height)
        buffer = Buffer(name=image.name, dtype=image.dtype, elements=elements, role=Role.INPUT, fill=image.fill)
        found[image.name] = fill(buffer, 0).reshape(pipeline.height, pipeline.width, image.channels)
    return found


@pytest.mark.parametrize("name", paper.APPLICATIONS)
def test_an_array_module_computes_the_same_images_to_the_bit(name: str) -> None:
    pipeline = small(name)
    given = inputs(pipeline)
    with np.errstate(all="ignore"):
        found = images.Images(pipeline, images.Names(np))(given)
    expected = oracle.run(pipeline, given)
    for output in pipeline.outputs:
        assert found[output].dtype == expected[output].dtype
        assert np.array_equal(found[output], expected[output], equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", paper.APPLICATIONS)
def test_pytorch_computes_the_same_images(name: str) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch as the rival: pip install torch")
    pipeline = small(name)
    given = inputs(pipeline)
    names = images.TorchNames(torch, "cpu")
    found = images.Images(pipeline, names)({key: torch.from_numpy(np.array(each)) for key, each in given.items()})
    expected = oracle.run(pipeline, given)
    for output in pipeline.outputs:
        one, two = found[output].numpy(), expected[output]
        assert one.dtype == two.dtype
        assert np.allclose(one, two, rtol=1e-6)


LEFT = np.array([7, -7, 7, -7, -(2**31), 5, 0], np.int32)
RIGHT = np.array([2, 2, -2, -2, 3, 1, -9], np.int32)


def frameworks() -> list[Any]:
    found = [images.Names(np)]
    for module, make in (("jax", images.JaxNames), ("torch", lambda torch: images.TorchNames(torch, "cpu"))):
        try:
            found.append(make(__import__(module)))
        except ImportError:
            continue
    return found


def test_integers_divide_towards_zero_in_every_module() -> None:
    for names in frameworks():
        left, right = (names.module.asarray(each) for each in (LEFT, RIGHT))
        assert np.asarray(names.divided(left, right)).tolist() == [3, -3, -3, 3, -715827882, 5, 0]
        assert np.asarray(names.remainder(left, right)).tolist() == [1, -1, 1, -1, -2, 0, 0]


def stand_in(name: str) -> Program:
    """A Program with an application's buffers; its launch is never looked at."""
    of = small(name)
    buffers = [
        Buffer(name=each.name, dtype=each.dtype, elements=each.elements(WIDTH, HEIGHT), role=Role.INPUT, fill=each.fill)
        for each in of.inputs
    ]
    for output in of.outputs:
        image = of.images[output]
        buffers.append(Buffer(name=output, dtype=image.dtype, elements=image.elements(WIDTH, HEIGHT), role=Role.OUTPUT))
    step = Launch(name="k", source="k", entry="k", grid=(1, 1, 1), block=(32, 1, 1), arguments=())
    return Program(
        name=name, buffers=tuple(buffers), sources=(Source(name="k", text="", entries=("k",)),), steps=(step,)
    )


def outputs(gpu: Any, name: str, framework: Any, function: Any) -> dict[str, np.ndarray]:
    """What a rival leaves in the buffers of our Program."""
    program = stand_in(name)
    loaded = Called(gpu.cuda, gpu.executor.spans, program, framework, mincut.flat(small(name), function))
    for image, data in inputs(small(name)).items():
        loaded.write(image, data.reshape(-1))
    with np.errstate(all="ignore"):
        loaded.run(seed=0, checked=False)
        assert loaded.sample_us(2) > 0
    return {each.name: loaded.read(each.name) for each in program.buffers if each.role.compared}


def test_a_pipeline_takes_and_makes_the_buffers_of_our_program(gpu: Any) -> None:
    found = outputs(gpu, "sobel", NumPy(), images.Images(small("sobel"), images.Names(np)))
    expected = oracle.run(small("sobel"), inputs(small("sobel")))
    assert np.array_equal(found["magnitude"], expected["magnitude"].reshape(-1))


@pytest.mark.slow
def test_torch_compile_as_a_rival(gpu: Any) -> None:
    pytest.importorskip("torch", reason="needs PyTorch as the rival: pip install torch")
    found = outputs(gpu, "sobel", *mincut.compiled(small("sobel"), Torch("cpu")))
    expected = oracle.run(small("sobel"), inputs(small("sobel")))
    assert np.mean(found["magnitude"] != expected["magnitude"].reshape(-1)) <= mincut.CLOSE
