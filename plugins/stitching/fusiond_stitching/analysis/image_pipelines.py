"""A module that is a pipeline of images, as a document for the strategy that takes pipelines (`Others.taking`).

    k = reduce(window(image) * taps)         -->   k: {pattern: local, mask, border, body: "sum(taps, image)"}
    k = reduce(window(image))                -->   ... "sum(ones, image)", "maximum(image[-1, 0], ...)"
    y = f(k, image, slice(image))            -->   y: {let: {...}, body: "..."}, with shifted pixels where slices say so

Stencils of stencils are one kernel there, with rows in registers, where a plan of ours stores what lies between. Each
result is followed up to the parameters, its elements by an index (`image_indices`): what it sees of another value
beside its own place is an image, with the border that pads and concatenations put round it. The planes of a batch are
alike (one launch, with planes along the grid's z); channels are planes too, or interleaved (up to four of a pixel), or,
where they mix or have numbers of their own, an image each. Small parameters are tables of numbers.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fusiond.model.keys import text_key
from fusiond.model.nouns import Job, Rejection, frozen
from fusiond.model.program import Launch, Pointer, Program, Role
from fusiond.model.program.formulas import replaced
from fusiond.strategy import Answers, Asked, Others
from fusiond.strategy.composition import MADE
from fusiond_stitching.analysis import image_indices, image_values
from fusiond_stitching.analysis.image_indices import Axis, Entry, Index, Seen, axes
from fusiond_stitching.analysis.image_values import DTYPES, NoPipeline
from fusiond_stitching.frontend.graph import HloInstruction, HloModule

MOST_KERNELS, MOST_REACH, MOST_CHANNELS, MOST_TERMS = 64, 15, 4, 16
PLANES, INTERLEAVED, SPLIT = MODES = ("planes", "interleaved", "split")  #: What channels are
_ENTRY = re.compile(r'extern "C" __global__ void (?:__\w+__\([^)]*\) )*(?P<name>\w+)\((?P<parameters>[^)]*)\)\s*\{')
_NEUTRAL = {"add": 0.0, "maximum": -math.inf, "minimum": math.inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferPart:
    """Where an image lies in a buffer, in elements."""

    buffer: str
    first: int
    plane: int  #: From one plane of the grid to the next; 0: the same for all


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePipeline:
    """A question to the other strategy; what its images are here, and over how many planes its kernels go."""

    asked: Asked
    images: Mapping[str, BufferPart]
    planes: int

    def program(self, module: HloModule, plain: Program, answers: Answers) -> Program | Rejection:
        """Its answer in the place of a program of ours, whose buffers it reads and writes."""
        found = self.asked.program(answers)
        if isinstance(found, Rejection):
            return found
        if {each.name for each in found.buffers} != {*self.images}:
            return Rejection(rule="images", nodes=(module.name,), detail="it is more than one kernel there")
        sources = [replace(each, text=self._moved(each.text, found.launches)) for each in found.sources]
        steps = [
            replace(
                each,
                grid=(*each.grid[:2], self.planes),
                arguments=tuple(Pointer(buffer=self.images[one.buffer].buffer) if isinstance(one, Pointer) else one
                                for one in each.arguments),
            )
            for each in found.launches
        ]  # fmt: skip
        ends = tuple(each for each in plain.buffers if each.role is not Role.SCRATCH)
        return replace(found, name=module.name, buffers=ends, sources=tuple(sources), steps=replaced(tuple(steps), int),
                       sizes=(), fixed=())  # fmt: skip

    def _moved(self, text: str, launches: Sequence[Launch]) -> str:
        """Each entry's pointers at their parts, in the plane of the block."""
        given = {each.entry: each.arguments for each in launches}

        def entry(match: re.Match[str]) -> str:
            moves = []
            for each, argument in zip(match["parameters"].split(","), given.get(match["name"], ()), strict=False):
                part = self.images[argument.buffer] if isinstance(argument, Pointer) else None
                if part is not None and (part.first or (part.plane and self.planes > 1)):
                    name = each.split()[-1].lstrip("*&")
                    moves.append(f"\n    {name} += {part.first} + (size_t)blockIdx.z * {part.plane};")
            return match[0] + "".join(moves)

        return _ENTRY.sub(entry, text)


def asked(module: HloModule, job: Job, others: Others | None) -> ImagePipeline | None:
    """What another strategy can be asked of a module; None where it is no pipeline, or nobody takes them."""
    taker = others.taking("pipeline") if others is not None else None
    if others is None or taker is None or module.foreign or module.launches:
        return None
    for mode in MODES:
        document = _Document(module, mode=mode)
        try:
            text = json.dumps(document.written())
        except NoPipeline:
            continue
        strategy, key = taker
        name = f"{text_key(text)[:16]}.yaml"
        files = {f"{Path(job.path).parent.resolve()}/{MADE}/{name}": text}
        request = {key: f"./{MADE}/{name}", "block": list(document.kernels), "accuracy": "relaxed"}
        own = dataclasses.replace(job, strategy=strategy, request=frozen(request), lines=frozen(), sizes=frozen(),
                                  files=frozen(files), accept_constant=True)  # fmt: skip
        found = others.ask(own)
        if not isinstance(found, str):
            return ImagePipeline(asked=found, images=document.images, planes=document.planes)
    return None


def _suffix(index: Index, value: HloInstruction) -> str:
    """Of a name: which part of a value it is."""
    given = [
        (each,) if isinstance(each, int) else each for each, size in zip(index, value.dims, strict=True) if size > 1
    ]
    fixed = (axis if isinstance(axis, int) else axis.stride for each in given for axis in each
             if isinstance(axis, int) or axis.role == "n")  # fmt: skip
    return "".join(f"_{each}" for each in fixed)


def _all_along(dimension: int, size: int, fixed: Mapping[int, int]) -> Entry:
    """Of a fold."""
    whole = (Axis(role=f"k{dimension}", size=size, at=np.arange(size)),)
    return fixed.get(dimension, 0 if size == 1 else whole)


def _coordinate(value: HloInstruction, index: Index, stays: bool) -> str:
    (axis,) = axes((index[value.attributes["dimension"]],)) or (None,)
    if axis is None or axis.role not in ("h", "w") or not stays or axis.at[0] != 0:
        raise NoPipeline
    text = "y" if axis.role == "h" else "x"
    return text if value.dtype == "s32" else f"float({text})"


def _in_order(taps: Any, ordered: list[str], roles: Mapping[str, str]) -> Any:
    """Down, then across; `ordered`: the roles of what they are given along."""
    for place, role in enumerate(("h", "w")):
        if roles[role] not in ordered:  # of one tap, or the same for all
            taps, ordered = np.expand_dims(taps, place), [*ordered[:place], roles[role], *ordered[place:]]
    if set(ordered) != {*roles.values()} or len(ordered) != 2:
        raise NoPipeline
    return taps if ordered == [roles["h"], roles["w"]] else taps.T


@dataclass(slots=True)
class _Kernel:
    at: Mapping[str, Any]  #: Of h and w: its own places
    reads: dict[str, Any] = field(default_factory=dict)  #: Image -> border; None: any
    steps: dict[str, Any] = field(default_factory=dict)
    let: dict[str, str] = field(default_factory=dict)
    reach: list[int] = field(default_factory=lambda: [0, 0])

    @property
    def size(self) -> list[int]:
        return [len(self.at["w"]), len(self.at["h"])]

    def stays(self, found: Seen) -> bool:
        """Whether a value is seen at the kernel's own pixel alone."""
        along = {axis.role: axis for axis in axes(found.index) if axis.role in ("h", "w")}
        return found.outside is None and all(np.array_equal(axis.at, self.at[role]) for role, axis in along.items())


class _Document:
    def __init__(self, module: HloModule, *, mode: str) -> None:
        self.module, self.mode = module, mode
        self.shared: set[str] = set()
        """Values that are seen beside their own place: they are images for whoever reads them."""

    def written(self) -> dict[str, Any]:
        for _ in range(3):
            known = set(self.shared)
            found = self._document()
            if known == self.shared:
                break
        return found

    def _document(self) -> dict[str, Any]:
        self.planes = self.channels = 0
        self.kernels: dict[str, dict[str, Any]] = {}
        self.images: dict[str, BufferPart] = {}
        self._inputs: dict[str, dict[str, Any]] = {}
        self._masks: dict[str, Any] = {}
        self._made: dict[Any, str] = {}  #: (value, its index) -> its image
        for name in self.module.outputs:
            for index in self._whole(self.module[name]):
                self._image(name, index, result=True)
        if not any(each["pattern"] == "local" for each in self.kernels.values()):
            raise NoPipeline
        first = next(iter(self.kernels.values()))["size"]
        return {
            "pipeline": "images",
            "image": {"width": first[0], "height": first[1], "dtype": "float32", "channels": max(1, self.channels)},
            "inputs": list(self._inputs.values()),
            "outputs": [each for each, part in self.images.items() if part.buffer.startswith("out")],
            "masks": self._masks, "kernels": self.kernels,
        }  # fmt: skip

    def _whole(self, value: HloInstruction) -> list[Index]:
        """A result's elements: for each channel, where each is an image."""
        shape = [size for size in value.dims if size > 1]
        given = [size for name in self.module.parameters[:1] for size in self.module[name].dims if size > 1]
        if self.mode != INTERLEAVED and shape and shape[-1] == math.prod(given[-2:]):
            shape[-1:] = given[-2:]  # rows one after the other
        if len(shape) < 2 + (self.mode != PLANES):
            raise NoPipeline
        planes, image = shape[: -2 - (self.mode != PLANES)], shape[-2 - (self.mode == INTERLEAVED) :]
        count, channels = math.prod(planes), shape[-1] if self.mode == INTERLEAVED else 0
        split = math.prod(shape[-3:-2]) if self.mode == SPLIT else 1
        known = self.planes == 0 or (self.planes, self.channels) == (count, channels)
        if max(split, channels) > MOST_CHANNELS or not known:
            raise NoPipeline
        self.planes, self.channels = count, channels
        index: list[Entry] = []
        for at, size in enumerate(planes):
            index.append((Axis(role="p", size=size, stride=math.prod(planes[at + 1 :])),))
        index += [(Axis(role=role, size=size, at=None if role == "c" else np.arange(size)),)
                  for role, size in zip("hwc", image, strict=False)]  # fmt: skip
        if self.mode != SPLIT:
            return [image_indices.reshaped(tuple(index), shape, value.dims)]
        return [
            image_indices.reshaped((*index[:-2], channel, *index[-2:]), shape, value.dims) for channel in range(split)
        ]

    def _part(self, value: HloInstruction, index: Index) -> BufferPart:
        """Where an image of a parameter or a result lies. Rows, then planes, have to follow each other."""
        strides = [math.prod(value.dims[at + 1 :]) for at in range(len(value.dims))]
        first, planes, plane, pixel = 0, 1, 0, max(1, self.channels)
        wanted = {"w": pixel, "c": 1}
        wanted["h"] = pixel * math.prod(axis.size for axis in axes(index) if axis.role == "w")
        for entry, stride in reversed([*zip(index, strides, strict=True)]):
            if isinstance(entry, int):
                first += entry * stride
                continue
            for axis in reversed(entry):
                if axis.role == "n":
                    first += axis.stride * stride
                elif axis.role == "p":
                    plane = plane or stride
                    if axis.stride != planes or stride != plane * planes:
                        raise NoPipeline
                    planes *= axis.size
                elif wanted[axis.role] != stride:
                    raise NoPipeline
                stride *= axis.size
        roles = [axis.role for axis in axes(index) if axis.role not in ("p", "n")]
        if sorted(roles) != ["c", "h", "w"][not self.channels :] or planes not in (1, self.planes):
            raise NoPipeline
        return BufferPart(buffer=self.module.buffer_of(value.name), first=first, plane=plane)

    # --- images ---

    def _image(self, name: str, index: Index, flipped: str = "", *, result: bool = False) -> str:
        """All of a value as an image, turned round along some axes: an input, or what a kernel makes."""
        value = self.module[name]
        key = name, flipped, image_indices.mapped(index, lambda axis: (axis.role, axis.size, axis.stride))
        if key in self._made:
            return self._made[key]
        if value.dtype not in DTYPES or len(self.kernels) >= MOST_KERNELS:
            raise NoPipeline
        ways = {role: slice(None, None, -1 if role in flipped else 1) for role in "hw"}
        index = image_indices.mapped(
            index, lambda axis: replace(axis, at=np.arange(axis.size)[ways[axis.role]], taps="")
            if axis.role in ways else axis
        )  # fmt: skip
        kernel = _Kernel(at={axis.role: axis.at for axis in axes(index) if axis.role in ways})
        channel = _suffix(index, value)
        if value.opcode == "parameter":
            label = self._named(channel, self._part(value, index))
            self._inputs[label] = {"name": label, "size": kernel.size, "dtype": DTYPES[value.dtype]}
            if flipped:
                kernel.reads[label] = None
                x, y = "width - 1 - x" if "w" in flipped else "x", "height - 1 - y" if "h" in flipped else "y"
                body, label = f"at({label}, {x}, {y})", f"{label}_{flipped}"
                self.kernels[label] = self._kernel(value, kernel, body)
        elif value.opcode == "constant" or "h" not in kernel.at or "w" not in kernel.at:
            raise NoPipeline
        else:
            label = f"k{self.module.number[name]}{channel}{flipped and '_' + flipped}"
            if result:
                label = self._named(channel, self._part(value, index))
            body = self._text(Seen(name=name, index=index), kernel, root=True)
            if label in self.kernels:
                raise NoPipeline
            self.kernels[label] = self._kernel(value, kernel, body)
        self._made[key] = label
        return label

    def _named(self, suffix: str, part: BufferPart) -> str:
        """The image that is a part of a buffer."""
        if self.images.setdefault(label := f"{part.buffer}{suffix}", part) != part:
            raise NoPipeline
        return label

    def _kernel(self, value: HloInstruction, kernel: _Kernel, body: str) -> dict[str, Any]:
        local = any(kernel.reach) or kernel.steps
        found: dict[str, Any] = {"pattern": "local" if local else "point", "reads": list(kernel.reads), "body": body,
                                 "size": kernel.size, "dtype": DTYPES[value.dtype]}  # fmt: skip
        if kernel.let:
            found["let"] = kernel.let
        if local:
            found["mask"] = [2 * each + 1 for each in reversed(kernel.reach)]
            found["border"] = {name: border or "clamp" for name, border in kernel.reads.items()}
        if kernel.steps:
            found["step"] = kernel.steps
        return found

    # --- expressions ---

    def _text(self, of: Seen, kernel: _Kernel, *, root: bool = False) -> str:
        """The text of a value at the kernel's own pixel."""
        module = self.module
        found = image_indices.seen(module, of.name, of.index, lambda each: self._stops(each, of.name if root else ""))
        value = module[found.name]
        number = self._numbers(found)
        if number is not None and number.ndim == 0:
            return image_values.literal(float(number), value.dtype)
        stays, mine = kernel.stays(found), root and found.name == of.name
        if value.opcode == "parameter" and not axes(found.index):
            return self._entry(value, found.index, kernel)
        if value.opcode == "iota":
            return _coordinate(value, found.index, stays)
        if value.opcode == "parameter" or (self._stops(found.name, "") and not mine) or not stays:
            return self._pixel(found, kernel)
        if value.opcode == "reduce":
            return self._fold(found, kernel, {}, alone=mine) or self._pixel(found, kernel)
        if not value.elementwise:
            raise NoPipeline
        label = f"v{module.number[found.name]}{_suffix(found.index, value)}"
        if label not in kernel.let:
            given = [self._text(Seen(name=each, index=found.index if module[each].dims else ()), kernel)
                     for each in value.operands]  # fmt: skip
            kernel.let[label] = image_values.applied(value, module[value.operands[-1]].dtype, given)
        return label

    def _stops(self, name: str, root: str) -> bool:
        return name != root and (name in self.module.is_output or name in self.shared)

    def _numbers(self, found: Seen) -> Any:
        """A constant's elements: a number, or those of taps; None where they are not known."""
        value = self.module[found.name]
        if value.opcode == "convert" and value.dtype in ("f32", "f16"):
            inner = image_indices.seen(self.module, value.operands[0], found.index, lambda each: False)
            return None if found.outside is not None or value.dtype == "f16" else self._numbers(inner)
        if value.opcode != "constant" or found.outside is not None:
            return None
        numbers: Any = np.array(value.attributes["values"], np.float64).reshape(value.dims)
        for at, entry in reversed([*enumerate(found.index)]):
            if isinstance(entry, tuple) and not (len(entry) == 1 and entry[0].role[0] == "k"):
                if not (numbers == numbers.take([0], at)).all():
                    raise NoPipeline
                entry = 0
            numbers = numbers.take(entry if isinstance(entry, int) else entry[0].at, at)
        return numbers

    def _entry(self, value: HloInstruction, index: Index, kernel: _Kernel) -> str:
        """An element of a small parameter."""
        table = self._named("_numbers", BufferPart(buffer=self.module.buffer_of(value.name), first=0, plane=0))
        if value.dtype not in DTYPES:
            raise NoPipeline
        self._inputs[table] = {"name": table, "size": [value.elements, 1], "dtype": DTYPES[value.dtype], "channels": 1}
        kernel.reads.setdefault(table, None)
        place = np.ravel_multi_index(index, value.dims) if index else 0  # type: ignore[arg-type]
        return f"lookup({table}, {place})"

    def _pixel(self, found: Seen, kernel: _Kernel) -> str:
        """A value at one place."""
        where = image_indices.placed(found.index, found.outside)
        shift = [where.offsets[role][0] for role in ("w", "h")]
        far = max(map(abs, shift)) > MOST_REACH
        image = self._read(found, where, kernel, shift if far else [0, 0], [0, 0] if far else shift)
        return image if far or shift == [0, 0] else f"{image}[{shift[0]}, {shift[1]}]"

    def _read(
        self, found: Seen, where: image_indices.Placed, kernel: _Kernel, origin: list[int], reach: list[int]
    ) -> str:
        image = self._image(found.name, found.index, where.flipped)
        sizes = {axis.role: axis.size for axis in axes(found.index)}
        step = [where.steps[role] for role in ("w", "h")]
        if self.module[found.name].opcode != "parameter" and (any(origin) or any(reach) or step != [1, 1]):
            self.shared.add(found.name)
        border = kernel.reads.get(image) or where.border
        moved = {"step": step, "origin": origin}
        plain = {"step": [1, 1], "origin": [0, 0]}
        if where.border not in (None, border) or (image in kernel.reads and kernel.steps.get(image, plain) != moved):
            raise NoPipeline
        kernel.reads[image] = border
        if moved != plain or kernel.size != [sizes["w"], sizes["h"]]:
            kernel.steps[image] = moved
        kernel.reach = [max(kernel.reach[0], abs(reach[1])), max(kernel.reach[1], abs(reach[0]))]
        if max(kernel.reach) > MOST_REACH:
            raise NoPipeline
        return image

    # --- folds ---

    def _fold(self, found: Seen, kernel: _Kernel, fixed: dict[int, int], *, alone: bool) -> str | None:
        """A fold over a window's pixels, each times its tap, or over a few elements. None: of a window, where it is not
        the kernel's own value (`alone`)."""
        value = self.module[found.name]
        kind = self._folded_by(value)
        dims, rest = self.module[value.operands[0]].dims, iter(found.index)
        index = tuple(
            _all_along(at, size, fixed) if at in value.attributes["dimensions"] else next(rest)
            for at, size in enumerate(dims)
        )
        sides = self._sides(Seen(name=value.operands[0], index=index), kind)
        window = next((each for each in sides if each.taps), None)
        taps = window.taps if window is not None else ()
        loose = [at for at in value.attributes["dimensions"] if isinstance(index[at], tuple) and f"k{at}" not in taps]
        if window is not None and not alone:
            return None
        if loose:
            if dims[loose[0]] > MOST_TERMS:
                raise NoPipeline
            terms = [self._fold(found, kernel, fixed | {loose[0]: each}, alone=alone) for each in range(dims[loose[0]])]
            text = self._joined(kind, [each for each in terms if each is not None])
        elif window is None:
            return self._text(Seen(name=value.operands[0], index=index), kernel)
        else:
            text = self._windowed(window, [each for each in sides if each is not window], kind, kernel)
        return f"half({text})" if value.dtype == "f16" else text

    def _sides(self, of: Seen, kind: str) -> list[Seen]:
        """What is folded: a value, or the factors of a product that is added up."""

        def seen(name: str, index: Index) -> Seen:
            return image_indices.seen(self.module, name, index, lambda each: self._stops(each, ""))

        inner = seen(of.name, of.index)
        if kind == "add" and self.module[inner.name].opcode == "multiply" and not self._stops(inner.name, ""):
            return [seen(each, inner.index) for each in self.module[inner.name].operands]
        return [inner]

    def _folded_by(self, value: HloInstruction) -> str:
        kind, start = value.attributes["computation"].simple, self.module[value.operands[1]]
        if kind not in _NEUTRAL or value.dtype not in ("f32", "f16") or len(value.operands) != 2:
            raise NoPipeline
        neutral = _NEUTRAL[kind], np.clip(_NEUTRAL[kind], -65504, 65504)
        if start.opcode != "constant" or float(start.attributes["values"][0]) not in neutral:
            raise NoPipeline
        return str(kind)

    @staticmethod
    def _joined(kind: str, terms: Sequence[str]) -> str:
        return f"({' + '.join(terms)})" if kind == "add" else image_values.extreme(kind, terms)

    def _windowed(self, window: Seen, weights: Sequence[Seen], kind: str, kernel: _Kernel) -> str:
        where = image_indices.placed(window.index, window.outside, kind)
        roles = {axis.role: axis.taps for axis in axes(window.index) if axis.role in ("h", "w")}
        down, across = (where.offsets[role] for role in ("h", "w"))
        reach = [max(map(abs, each)) for each in (across, down)]
        image = self._read(window, where, kernel, [0, 0], reach)
        if kind != "add":
            return self._joined(kind, [f"{image}[{dx}, {dy}]" for dy in down for dx in across])
        taps: Any = np.ones(())
        if weights:
            (side,) = weights
            taps = self._numbers(side)
            if taps is None:
                return self._weighed(side, image, roles, where, kernel)
            taps = _in_order(taps, [axis.role for axis in axes(side.index) if axis.role[0] == "k"], roles)
        taps = np.broadcast_to(taps, (len(down), len(across)))
        mask: list[list[float | None]] = [[None] * (2 * reach[0] + 1) for _ in range(2 * reach[1] + 1)]
        for (row, dy), (column, dx) in itertools.product(enumerate(down), enumerate(across)):
            mask[dy + reach[1]][dx + reach[0]] = float(taps[row, column])
        label = next((each for each, cells in self._masks.items() if cells == mask), f"m{len(self._masks)}")
        self._masks[label] = mask
        return f"sum({label}, {image})"

    def _weighed(
        self, side: Seen, image: str, roles: Mapping[str, str], where: image_indices.Placed, kernel: _Kernel
    ) -> str:
        """With taps that are a parameter's elements."""
        if self.module[side.name].opcode != "parameter" or side.outside is not None:
            raise NoPipeline
        rows = []
        for row, dy in enumerate(where.offsets["h"]):
            terms = []
            for column, dx in enumerate(where.offsets["w"]):
                at = {roles["h"]: row, roles["w"]: column}
                index = tuple(
                    int(each[0].at[at[each[0].role]]) if isinstance(each, tuple) and each[0].role in at else each
                    for each in side.index
                )
                if axes(index):
                    raise NoPipeline
                terms.append(f"{image}[{dx}, {dy}] * {self._entry(self.module[side.name], index, kernel)}")
            rows.append(self._joined("add", terms))
        return self._joined("add", rows)
