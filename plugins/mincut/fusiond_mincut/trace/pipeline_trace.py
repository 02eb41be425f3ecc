"""The state of a pipeline while it is traced."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fusiond_mincut.frontend import areas, borders, graph, syntax
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import Expr, TypeProblem
from fusiond_mincut.frontend.graph import Area, Border, ImageKernel, PipelineImage
from fusiond_mincut.trace.pixels import Number


@dataclass(slots=True)
class PipelineTrace:
    """Images and kernels in the order in which they were made, and the names that the current stage gave to values."""

    dtype: str  #: Of images that do not say their own; so is `channels`
    channels: int
    width: int
    height: int
    images: dict[str, PipelineImage] = field(default_factory=dict)
    kernels: list[ImageKernel] = field(default_factory=list)
    lets: list[tuple[str, Expr]] = field(default_factory=list)

    def add(self, kernel: ImageKernel) -> None:
        self.images[kernel.name] = kernel.image
        self.kernels.append(kernel)

    def free_name(self, name: str) -> str:
        """The name, with the first number behind it that makes it one of its own."""
        number = 1
        while (chosen := name if number == 1 else f"{name}{number}") in self.images:
            number += 1
        return chosen


_active: list[PipelineTrace] = []  #: The last one is current: the function of a pipeline may trace another


def current() -> PipelineTrace | None:
    return _active[-1] if _active else None


@contextmanager
def tracing(trace: PipelineTrace) -> Iterator[None]:
    """Stages that are called inside add their kernels to this trace."""
    _active.append(trace)
    try:
        yield
    finally:
        _active.pop()


# --- names, dtypes, sizes and borders; TypeProblem says what is wrong with one ---------------------------

Size = tuple[int | str, int | str]
BorderMode = str | tuple[str, Number]  #: A mode, or ("constant", value)


def check_name(name: str) -> None:
    problem = syntax.name_problem(name) if isinstance(name, str) else f"{name!r} is not a name"
    if problem is not None:
        raise TypeProblem(problem)


def area_of(size: Size, width: int, height: int) -> Area | None:
    scope = syntax.BodyScope(images={})
    sides = (areas.checked(syntax.parse(str(side), scope), width, height) for side in size)
    return areas.of(*sides)


def checked_dtype(dtype: str) -> str:
    if dtype not in tree.DTYPES:
        raise TypeProblem(f"an image holds {', '.join(tree.DTYPES)}, not {dtype!r}")
    return dtype


def checked_channels(channels: int) -> int:
    if channels not in range(1, len(syntax.CHANNELS) + 1):
        raise TypeProblem(f"{channels!r} channels; an image has 1 to {len(syntax.CHANNELS)}")
    return channels


def check_sides(width: int, height: int, channels: int) -> None:
    for side in (width, height):
        if type(side) is not int or not 1 <= side <= graph.WIDEST_IMAGE:
            raise TypeProblem(
                f"an image of {width!r} x {height!r}; expected whole numbers from 1 to {graph.WIDEST_IMAGE}"
            )
    if width * height * channels >= 2**31:
        raise TypeProblem(
            f"an image of {width} x {height} x {channels} has 2^31 elements or more; indices have 32 bits"
        )


def border_of(given: BorderMode, image: PipelineImage) -> Border:
    mode, value = (given, 0) if isinstance(given, str) else given
    if mode not in borders.MODES:
        raise TypeProblem(f"border is {mode!r}; it can be {', '.join(borders.MODES)}")
    return Border(mode=mode, value=tree.const(value, image.dtype).value if mode == "constant" else 0)
