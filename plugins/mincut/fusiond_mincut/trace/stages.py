"""Stages: functions of pixels, each a kernel of the pipeline at every call."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fusiond_mincut.frontend import areas, graph, syntax
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import Expr, TypeProblem
from fusiond_mincut.frontend.graph import Area, Border, ImageKernel, PipelineImage, SamplingStep
from fusiond_mincut.trace import pipeline_trace
from fusiond_mincut.trace.pipeline_trace import (
    BorderMode,
    PipelineTrace,
    Size,
    area_of,
    border_of,
    check_name,
    checked_channels,
    checked_dtype,
)
from fusiond_mincut.trace.pixels import expression, pixel_of

Steps = int | Fraction | tuple[int | Fraction, int | Fraction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """An image while a pipeline is traced."""

    image: PipelineImage


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStage:
    """A kernel to be: each call with images makes one (`stage` says what the fields mean)."""

    body: Callable[..., Any]
    mask: tuple[int, int] | None
    border: BorderMode | Mapping[str, BorderMode] | None
    reduce: str | None
    dtype: str | None
    channels: int | None
    scan: str | None = None
    hysteresis: bool = False
    size: Size | None = None
    step: Steps | Mapping[str, Steps] = 1
    origin: tuple[int, int] = (0, 0)
    bins: Size = (256, 1)

    def __call__(self, *images: Handle, name: str | None = None) -> Handle:
        current = pipeline_trace.current()
        if current is None:
            raise TypeProblem(f"{self.body.__name__} is a stage; call it in a function that `traced` calls")
        chosen = name or current.free_name(self.body.__name__)
        if chosen in current.images:
            raise TypeProblem(f"two writers of {chosen!r}")
        check_name(chosen)
        self._check_call(chosen, images)
        self._check_itself()
        channels = checked_channels(current.channels if self.channels is None else self.channels)
        bodies = self._bodies(images, current)
        area, steps = self._places(images, bodies, current)
        kernel = ImageKernel(
            name=chosen,
            pattern=self._pattern,
            mask=self.mask or (1, 1),
            bodies=bodies,
            dtype=checked_dtype(self.dtype or current.dtype),
            channels=channels,
            borders=self._borders(images),
            area=area,
            steps=steps,
            reduction=self.reduce or self.scan,
            bins=(area_of(self.bins, current.width, current.height) or areas.WHOLE) if self._is_histogram else None,
        )
        _check_accesses(kernel)
        current.add(kernel)
        return Handle(image=kernel.image)

    def _check_call(self, name: str, images: Sequence[object]) -> None:
        if not all(isinstance(each, Handle) for each in images):
            raise TypeProblem(f"{name} is called with something that is not an image")
        try:
            inspect.signature(self.body).bind(*images)
        except TypeError as problem:
            raise TypeProblem(f"{name} is called with {len(images)} image(s): {problem}") from None

    def _check_itself(self) -> None:
        reductions = (*graph.REDUCTIONS, graph.HISTOGRAM)
        if self.reduce is not None and self.reduce not in reductions:
            raise TypeProblem(f"reduce is {self.reduce!r}; it can be {', '.join(reductions)}")
        if self.scan is not None and self.scan not in graph.AXES:
            raise TypeProblem(f"scan is {self.scan!r}; it can be {', '.join(graph.AXES)}")
        if self.mask is not None and (not isinstance(self.mask, tuple) or len(self.mask) != 2):
            raise TypeProblem(f"mask is {self.mask!r}; expected (width, height)")

    @property
    def _is_histogram(self) -> bool:
        return self.reduce == graph.HISTOGRAM

    @property
    def _pattern(self) -> str:
        if self.reduce is not None:
            return "global"
        if self.scan is not None or self.hysteresis:
            return "scan" if self.scan is not None else "hysteresis"
        return "local" if self.mask else "point"

    def _bodies(self, images: Sequence[Handle], current: PipelineTrace) -> tuple[Expr, ...]:
        """What the function computes, one tree for each channel or one for all; of a histogram the bin and the row."""
        current.lets.clear()
        found = self.body(*(pixel_of(each.image) for each in images))
        values = found if isinstance(found, tuple) else (found,)
        bodies = tuple(syntax.with_lets(expression(each), current.lets) for each in values)
        return (*bodies, tree.Const(0, "int32")) if self._is_histogram and len(bodies) == 1 else bodies

    def _places(
        self, images: Sequence[Handle], bodies: Iterable[Expr], current: PipelineTrace
    ) -> tuple[Area | None, dict[str, SamplingStep]]:
        pixels = {each.image for body in bodies for each in tree.accesses(body)}
        read = {each.image.name: each.image for each in images if each.image.name in pixels and not each.image.single}
        given = {handle.image.name: name for name, handle in zip(self._parameters, images, strict=False)}
        steps = {
            name: _step(self.step.get(given[name], 1) if isinstance(self.step, Mapping) else self.step, self.origin)
            for name in read
        }
        own = areas.derived(read, steps) if self.size is None else area_of(self.size, current.width, current.height)
        return own, {name: step for name, step in steps.items() if step != SamplingStep() or read[name].area != own}

    def _borders(self, images: Sequence[Handle]) -> dict[str, Border]:
        if self.border is None:
            return {}
        if not isinstance(self.border, Mapping):
            return {each.image.name: border_of(self.border, each.image) for each in images}
        names, given = self._parameters, self.border
        for each in given:
            if each not in names:
                raise TypeProblem(f"a border for {each!r}, which is not a parameter of {self.body.__name__}")
        found: dict[str, Border] = {}
        for parameter, handle in zip(names, images, strict=False):
            if parameter in given:
                border = border_of(given[parameter], handle.image)
                if found.setdefault(handle.image.name, border) != border:
                    raise TypeProblem(f"{self.body.__name__} reads {handle.image.name!r} with two borders; give one")
        return found

    @property
    def _parameters(self) -> list[str]:
        return list(inspect.signature(self.body).parameters)


def _step(given: Steps, origin: tuple[int, int]) -> SamplingStep:
    ratios = [Fraction(each) for each in (given if isinstance(given, tuple) else (given, given))]
    if any(not 0 < part <= areas.LONGEST_STEP for ratio in ratios for part in ratio.as_integer_ratio()):
        raise TypeProblem(f"step is {given!r}; expected a number up to {areas.LONGEST_STEP}, or a ratio of two")
    (across, by_across), (down, by_down) = (each.as_integer_ratio() for each in ratios)
    return SamplingStep(times=(across, down), by=(by_across, by_down), origin=origin)


def _check_accesses(kernel: ImageKernel) -> None:
    if kernel.channels == 1 and any(each.channel is None for each in kernel.accesses):
        raise TypeProblem(f"{kernel.name} computes one channel, and reads an image of three; say .r, .g or .b")
    for image in kernel.reads:
        if kernel.pattern == "local" and kernel.windowed(image) and image not in kernel.borders:
            raise TypeProblem(f"{kernel.name} reads outside {image!r} at its edges, and has no border for it")


def stage(
    *,
    mask: tuple[int, int] | None = None,
    border: BorderMode | Mapping[str, BorderMode] | None = None,
    reduce: str | None = None,
    dtype: str | None = None,
    channels: int | None = None,
    scan: str | None = None,
    hysteresis: bool = False,
    size: Size | None = None,
    step: Steps | Mapping[str, Steps] = 1,
    origin: tuple[int, int] = (0, 0),
    bins: Size = (256, 1),
) -> Callable[[Callable[..., Any]], TracedStage]:
    """A function of pixels as a kernel: local with a `mask` (width, height), global with `reduce` (sum, min, max,
    histogram), running sums with `scan` (x, y), `hysteresis`, else a point kernel.

    `border` is a mode, ("constant", value), or one for each parameter. The function returns the value of its pixel, or
    a tuple of one for each channel; of a histogram a bin, or a bin and a row of an image of `bins`.

    `size` is that of its image, in numbers or as `"width / 2"`. Pixel i reads round pixel i * step + origin of an
    image: a number or a Fraction, one for each axis, or one for each parameter."""

    def decorated(body: Callable[..., Any]) -> TracedStage:
        return TracedStage(
            body=body, mask=mask, border=border, reduce=reduce, dtype=dtype, channels=channels, scan=scan,
            hysteresis=hysteresis, size=size, step=step, origin=origin, bins=bins,
        )  # fmt: skip

    return decorated
