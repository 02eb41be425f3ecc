"""Functions of images, called once to see which stages they call: the pipelines that they are."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fusiond.model.program import Fill
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend import graph
from fusiond_mincut.frontend.expr import TypeProblem
from fusiond_mincut.frontend.graph import Pipeline, PipelineImage
from fusiond_mincut.trace.pipeline_trace import (
    PipelineTrace,
    Size,
    area_of,
    check_name,
    check_sides,
    checked_channels,
    checked_dtype,
    tracing,
)
from fusiond_mincut.trace.pixels import Number
from fusiond_mincut.trace.stages import Handle


def traced(
    function: Callable[..., Any],
    *,
    width: int,
    height: int,
    dtype: str = "int32",
    channels: int = 1,
    sizes: Mapping[str, Size] | None = None,
    parameters: Mapping[str, Number] | None = None,
    pitched: bool = False,
) -> Pipeline:
    """The pipeline that a function of images describes. TypeProblem, in one line, when it does not describe one.

    `sizes`: of parameters that have other sizes than width and height. `parameters`: those that are not images but
    single numbers of the launch, with the values that they are measured with. `pitched`: rows of inputs and outputs may
    lie apart."""
    checked_dtype(dtype)
    check_sides(width, height, checked_channels(channels))
    trace = PipelineTrace(dtype=dtype, channels=channels, width=width, height=height)
    inputs = _inputs(function, trace, sizes or {}, parameters or {})
    trace.images |= {each.name: each for each in inputs}
    with tracing(trace):
        found = function(*(Handle(image=each) for each in inputs))
    outputs = found if isinstance(found, tuple) else (found,)
    if not all(isinstance(each, Handle) for each in outputs):
        raise TypeProblem("a pipeline returns one image, or a tuple of images: its outputs")
    for each in trace.kernels:
        check_sides(*each.image.sides(width, height), each.channels)
    by_name = {each.name: each for each in trace.kernels}
    order = graph.topological({each.name: each.reads for each in trace.kernels})
    pipeline = Pipeline(
        name=function.__name__ if graph.TITLE.fullmatch(function.__name__) else "traced",
        width=width,
        height=height,
        inputs=inputs,
        outputs=tuple(dict.fromkeys(each.image.name for each in outputs)),
        kernels=tuple(by_name[name] for name in order),
    )
    if pitched:
        pipeline = replace(pipeline, pitched=graph.rows(pipeline))
    broken = graph.problems(pipeline)
    if broken:
        raise TypeProblem(f"{broken[0][0]}: {broken[0][1]}")
    return pipeline


def _inputs(
    function: Callable[..., Any], trace: PipelineTrace, sizes: Mapping[str, Size], numbers: Mapping[str, Number]
) -> tuple[PipelineImage, ...]:
    """An image, or one number, for each parameter of the function."""
    names = inspect.signature(function).parameters
    for name in names:
        check_name(name)
    for name in (*numbers, *sizes):
        if name not in names:
            raise TypeProblem(f"{name!r} is not a parameter of {function.__name__}")
    return tuple(
        _number(name, numbers[name])
        if name in numbers
        else PipelineImage(
            name=name,
            dtype=trace.dtype,
            channels=trace.channels,
            fill=graph.FILLS[trace.dtype],
            area=area_of(sizes[name], trace.width, trace.height) if name in sizes else None,
        )
        for name in names
    )


def _number(name: str, value: Number) -> PipelineImage:
    dtype = "int32" if isinstance(value, int) else "float32"
    fill = Fill(kind="constant", low=tree.const(value, dtype).value)
    return PipelineImage(name=name, dtype=dtype, single=True, fill=fill)
