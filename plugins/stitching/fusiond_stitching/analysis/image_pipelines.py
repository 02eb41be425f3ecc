"""A module that is a pipeline of images, as a document for the strategy that takes pipelines (`Others.taking`).

    k = reduce(window(image) * taps)         -->   k: {pattern: local, mask, border, body: "sum(taps, image)"}
    k = reduce(window(image))                -->   ... "sum(ones, image)", "largest(ones, image)", "smallest(...)"
    y = f(k, image, slice(image))            -->   y: {let: {...}, body: "..."}, with shifted pixels where slices say so

Stencils of stencils are one kernel there, with rows in registers, where a plan of ours stores what lies between. Images
are f32, all planes of a batch or of channels alike (one launch, with planes along the grid's z) or interleaved (up to
four channels of a pixel). Borders are what pads or concatenations put round an image: constants, edges, mirrors.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fusiond.composition import MADE
from fusiond.keys import text_key
from fusiond.model import Job, Rejection, frozen
from fusiond.program import Launch, Pointer, Program, Role
from fusiond.program.formulas import replaced
from fusiond.strategy import Answers, Asked, Others
from fusiond_stitching.analysis import image_borders, image_values
from fusiond_stitching.analysis.image_borders import View
from fusiond_stitching.frontend.graph import HloInstruction, HloModule

MOST_KERNELS, MOST_REACH, MOST_CHANNELS = 24, 15, 4
_ENTRY = re.compile(r'extern "C" __global__ void (?:__\w+__\([^)]*\) )*(?P<name>\w+)\((?P<parameters>[^)]*)\)\s*\{')
_FOLDS = {"add": "sum", "maximum": "largest", "minimum": "smallest"}
_VIEWS = ("slice", "reverse", "concatenate", "pad")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePipeline:
    """A question to the other strategy, and over how many planes its kernels go."""

    asked: Asked
    planes: int

    def program(self, module: HloModule, plain: Program, answers: Answers) -> Program | Rejection:
        """Its answer in the place of a program of ours, whose buffers it reads and writes."""
        found = self.asked.program(answers)
        if isinstance(found, Rejection):
            return found
        ends = [each for each in plain.buffers if each.role is not Role.SCRATCH]
        if {each.name for each in found.buffers} != {each.name for each in ends}:
            return Rejection(rule="images", nodes=(module.name,), detail="it is more than one kernel there")
        sources, steps = found.sources, found.launches
        if self.planes > 1:
            sizes = {each.name: each.elements // self.planes for each in ends}
            sources = tuple(dataclasses.replace(each, text=_shifted(each.text, steps, sizes)) for each in sources)
            steps = tuple(dataclasses.replace(each, grid=(*each.grid[:2], self.planes)) for each in steps)
        return dataclasses.replace(
            found,
            name=module.name,
            buffers=tuple(ends),
            sources=sources,
            steps=replaced(steps, int),
            sizes=(),
            fixed=(),
        )


def _shifted(text: str, launches: Sequence[Launch], sizes: Mapping[str, int]) -> str:
    """Each entry's pointers at the plane of its block."""
    given = {each.entry: each.arguments for each in launches}

    def entry(match: re.Match[str]) -> str:
        names = [each.split()[-1].lstrip("*&") for each in match["parameters"].split(",")]
        moves = [
            f"\n    {name} += (size_t)blockIdx.z * {sizes[each.buffer]};"
            for name, each in zip(names, given.get(match["name"], ()), strict=False)
            if isinstance(each, Pointer)
        ]
        return match[0] + "".join(moves)

    return _ENTRY.sub(entry, text)


def asked(module: HloModule, job: Job, others: Others | None) -> ImagePipeline | None:
    """What another strategy can be asked of a module; None where it is no pipeline, or nobody takes them."""
    taker = others.taking("pipeline") if others is not None else None
    if others is None or taker is None or module.foreign or module.launches:
        return None
    for interleaved in (False, True):
        writer = _Document(module, interleaved=interleaved)
        try:
            text = json.dumps(writer.document())
        except image_values.NoPipeline:
            continue
        strategy, key = taker
        name = f"{text_key(text)[:16]}.yaml"
        files = {f"{Path(job.path).parent.resolve()}/{MADE}/{name}": text}
        request = {key: f"./{MADE}/{name}", "block": list(writer.kernels), "accuracy": "relaxed"}
        own = dataclasses.replace(job, strategy=strategy, request=frozen(request), lines=frozen(), sizes=frozen(),
                                  files=frozen(files), accept_constant=True)  # fmt: skip
        found = others.ask(own)
        return None if isinstance(found, str) else ImagePipeline(asked=found, planes=writer.planes)
    return None


@dataclass(slots=True)
class _Kernel:
    reads: dict[str, str | dict[str, float]] = field(default_factory=dict)
    """Image -> border."""
    steps: dict[str, Any] = field(default_factory=dict)
    let: dict[str, str] = field(default_factory=dict)
    reach: list[int] = field(default_factory=lambda: [0, 0])


class _Document:
    def __init__(self, module: HloModule, *, interleaved: bool) -> None:
        self.module = module
        self.interleaved = interleaved
        self.planes = 0
        self.channels = 0
        self.kernels: dict[str, dict[str, Any]] = {}
        self._masks: dict[str, Any] = {}
        self._roles: dict[str, tuple[str, ...]] = {}
        self._made: dict[str, str] = {}
        """Value -> its image."""

    def document(self) -> dict[str, Any]:
        module = self.module
        images = [module[each] for each in (*module.parameters, *module.outputs)]
        if len({(each.dtype, image_values.sides(each)[:-3]) for each in images}) > 1 or images[0].dtype != "f32":
            raise image_values.NoPipeline
        for each in module.parameters:
            self._made[each] = module.buffer_of(each)
            self._enter(module[each])
        for one in module.instructions:  # what is read beside its own pixel is an image, whoever else reads it
            shown = one.opcode in _VIEWS and any(module[user].elementwise for user in module.users[one.name])
            if (shown or one.opcode == "window") and image_values.numbers(module, one.name) is None:
                self._view(one.name if shown else one.operands[0])
        for each in module.outputs:
            self._image(each)
        first = module[module.parameters[0]]
        height, width = self._size(first)
        if not self._masks and not any(each.get("mask", [1, 1]) != [1, 1] for each in self.kernels.values()):
            raise image_values.NoPipeline
        inputs = [{"name": module.buffer_of(each), **self._sized(module[each])} for each in module.parameters]
        return {
            "pipeline": "images", "image": {"width": width, "height": height, "dtype": "float32",
                                            "channels": self.channels},
            "inputs": inputs, "outputs": [module.buffer_of(each) for each in module.outputs],
            "masks": self._masks, "kernels": self.kernels,
        }  # fmt: skip

    # --- dimensions ---

    def _enter(self, image: HloInstruction) -> None:
        """The roles of an input's or a result's dimensions: planes or channels, height, width."""
        sides = image_values.sides(image)
        rest = len(sides) - 2
        roles = ("h", "w", "c") if self.interleaved else (*(f"p{at}" for at in range(rest)), "h", "w")
        if len(sides) < 2 or (self.interleaved and (len(sides) != 3 or sides[-1] > MOST_CHANNELS)):
            raise image_values.NoPipeline
        planes = 1 if self.interleaved else math.prod(sides[:rest])
        channels = sides[-1] if self.interleaved else 1
        if self.planes and (self.planes, self.channels) != (planes, channels):
            raise image_values.NoPipeline
        self.planes, self.channels = planes, channels
        self._roles[image.name] = roles

    def _size(self, value: HloInstruction) -> tuple[int, int]:
        at = dict(zip(self._roles[value.name], image_values.sides(value), strict=True))
        return at["h"], at["w"]

    def _of(self, name: str) -> tuple[str, ...]:
        """The role of each dimension of more than one element."""
        if name not in self._roles:
            each = self.module[name]
            self._roles[name] = self._derived(each, image_values.sides(each))
        return self._roles[name]

    def _derived(self, each: HloInstruction, sides: tuple[int, ...]) -> tuple[str, ...]:
        if not each.operands or each.opcode == "broadcast":
            raise image_values.NoPipeline
        source = max((self.module[operand] for operand in each.operands), key=lambda operand: operand.elements)
        if each.elementwise:
            images = [each for each in each.operands if image_values.numbers(self.module, each) is None]
            found = {self._of(operand) for operand in images if image_values.sides(self.module[operand]) == sides}
            if len(found) != 1:
                raise image_values.NoPipeline
            return found.pop()
        known = self._of(source.name)
        if each.opcode == "transpose":
            roles = image_values.spread(known, source.dims)
            return tuple(
                role for at in each.attributes["dimensions"] if (role := roles[at]) is not None
            )  # fmt: skip
        if each.opcode == "reduce":
            return known[: len(sides)]
        if each.opcode in _VIEWS and len(sides) == len(known):
            return known
        if each.opcode == "reshape":
            tail = image_values.behind_planes(known)
            if image_values.sides(source)[-len(tail) :] == sides[-len(tail) :]:
                return (*(f"p{at}" for at in range(len(sides) - len(tail))), *tail)
        if each.opcode == "window":
            roles = [*image_values.spread(known, source.dims)]
            taps = [roles[at] for at, size in enumerate(each.attributes["sizes"]) if size != 1]
            if not {*taps} <= {"h", "w"}:
                raise image_values.NoPipeline
            return (*(role for role, dim in zip(roles, each.dims, strict=False) if dim > 1 and role),
                    *(f"k{role}" for role in taps))  # fmt: skip
        raise image_values.NoPipeline

    # --- kernels ---

    def _image(self, name: str) -> str:
        """A value as an image: an input, or what a kernel makes."""
        name = self._bare(name)
        if name in self._made:
            return self._made[name]
        value = self.module[name]
        if value.dtype != "f32" or len(self.kernels) >= MOST_KERNELS:
            raise image_values.NoPipeline
        named = self.module.buffer_of(name) if name in self.module.is_output else f"k{self.module.number[name]}"
        roles = self._of(name)
        if name in self.module.is_output:
            self._roles.pop(name)
            self._enter(value)
        if self._of(name) != roles or not {"h", "w"} <= {*image_values.behind_planes(roles)}:
            raise image_values.NoPipeline
        kernel = _Kernel()
        body = self._windowed(value, kernel) if value.opcode == "reduce" else self._expression(name, kernel, value)
        self.kernels[named] = self._written(value, kernel, body)
        self._made[name] = named
        return named

    def _written(self, value: HloInstruction, kernel: _Kernel, body: str) -> dict[str, Any]:
        local = any(kernel.reach) or kernel.steps
        found: dict[str, Any] = {"pattern": "local" if local else "point", "reads": list(kernel.reads), "body": body}
        if kernel.let:
            found["let"] = kernel.let
        if local:
            found["mask"] = [2 * each + 1 for each in reversed(kernel.reach)]
            found["border"] = {name: border for name, border in kernel.reads.items() if border}
        if kernel.steps:
            found |= {"step": kernel.steps, "size": ["width", "height"]}
        return found | self._sized(value)

    def _sized(self, image: HloInstruction) -> dict[str, Any]:
        """Of an image whose size is not the first one's."""
        height, width = self._size(image)
        return (
            {} if (height, width) == self._size(self.module[self.module.parameters[0]]) else {"size": [width, height]}
        )

    def _bare(self, name: str) -> str:
        """What is the same pixel for pixel: behind reshapes and transposes."""
        while name not in self._made and name not in self.module.is_output:
            each = self.module[name]
            if (
                each.opcode not in ("reshape", "transpose", "copy")
                or image_values.numbers(self.module, name) is not None
            ):
                return name
            self._of(name)
            name = each.operands[0]
        return name

    def _windowed(self, value: HloInstruction, kernel: _Kernel) -> str:
        """A fold over a window's pixels, each times its tap."""
        module, kind = self.module, value.attributes["computation"].simple
        source = module[self._bare(value.operands[0])]
        taps: Any = None
        if source.opcode == "multiply" and kind == "add":
            sides = [self._bare(each) for each in source.operands]
            windows = [each for each in sides if module[each].opcode == "window"]
            if len(windows) != 1:
                raise image_values.NoPipeline
            weights = module[next(each for each in sides if each != windows[0])]
            source = module[windows[0]]
            taps = self._taps(weights, source)
        if source.opcode != "window" or kind not in _FOLDS or len(value.operands) != 2:
            raise image_values.NoPipeline
        given, roles = (
            source.attributes,
            image_values.spread(self._of(source.operands[0]), module[source.operands[0]].dims),
        )
        at = {role: place for place, role in enumerate(roles) if role in ("h", "w")}
        if any(given["interior"]) or len(at) != 2:
            raise image_values.NoPipeline
        wanted = [role[1:] for role in self._of(source.name) if role[0] == "k"]
        grid = np.ones([given["sizes"][at[role]] for role in wanted]) if taps is None else taps
        grid = grid if wanted == ["h", "w"] else grid.T if wanted == ["w", "h"] else grid.reshape(
            (-1, 1) if wanted == ["h"] else (1, -1))  # fmt: skip
        view = self._view(source.operands[0])
        first = {}
        for role in ("h", "w"):
            place = at[role]
            count, step, dilation, low = (
                (source.dims[place], given["strides"][place], given["dilation"][place], given["low"][place])
            )  # fmt: skip
            grown = np.arange(count)[:, None] * step + np.arange(given["sizes"][place])[None] * dilation - low
            first[role] = (step, dilation, grown)
        outside = module[source.operands[1]]
        if outside.opcode != "constant":
            raise image_values.NoPipeline
        edge = float(outside.attributes["values"][0])
        indices = {role: each[2] for role, each in first.items()}
        border, starts = image_borders.border(view, self._area(view.image), indices, edge, kind)
        name = self._read(view, border, kernel)
        steps = [first[role][0] for role in ("w", "h")]
        if steps != [1, 1] or self._size(value) != self._area(view.image):
            kernel.steps[name] = {"step": steps, "origin": [0, 0]}
        offsets = {role: [starts[role] + k * first[role][1] for k in range(first[role][2].shape[1])] for role in first}
        reach = [max(abs(each) for each in offsets[role]) for role in ("h", "w")]
        if max(reach) > MOST_REACH:
            raise image_values.NoPipeline
        kernel.reach = reach
        mask: list[list[float | None]] = [[None] * (2 * reach[1] + 1) for _ in range(2 * reach[0] + 1)]
        for row, dy in enumerate(offsets["h"]):
            for column, dx in enumerate(offsets["w"]):
                mask[dy + reach[0]][dx + reach[1]] = float(grid[row, column])
        label = f"m{len(self._masks)}"
        known = next((each for each, cells in self._masks.items() if cells == mask), label)
        self._masks[known] = mask
        start = module[value.operands[1]]
        base = float(start.attributes["values"][0]) if start.opcode == "constant" else math.nan
        neutral = {"add": 0.0, "maximum": -math.inf, "minimum": math.inf}[str(kind)]
        if base != neutral:
            raise image_values.NoPipeline
        return f"{_FOLDS[str(kind)]}({known}, {name})"

    def _taps(self, weights: HloInstruction, window: HloInstruction) -> Any:
        """A filter's numbers, by the window's own dimensions; the same for all planes."""
        found = image_values.numbers(self.module, weights.name)
        roles = self._of(window.name)
        if weights.opcode != "broadcast" or found is None or len(image_values.sides(weights)) != len(roles):
            raise image_values.NoPipeline
        values, spread = found
        order = [at for at, dim in enumerate(weights.dims) if dim > 1]
        whole = values.reshape(
            [dim if at in spread else 1 for at, dim in enumerate(weights.dims)]
        ).reshape([dim if at in spread else 1 for at, dim in enumerate(weights.dims) if at in order])  # fmt: skip
        for at, role in enumerate(roles):
            if role[0] != "k":
                if not (whole == whole.take([0], at)).all():
                    raise image_values.NoPipeline
                whole = whole.take([0], at)
        counted = [weights.dims[each] for each, role in zip(order, roles, strict=True) if role[0] == "k"]
        plain = whole.reshape([whole.shape[at] for at, role in enumerate(roles) if role[0] == "k"])
        return np.broadcast_to(plain, counted)

    def _area(self, image: str) -> tuple[int, int]:
        return self._size(self.module[next(name for name, made in self._made.items() if made == image)])

    # --- views and borders ---

    def _view(self, name: str) -> View:
        """A value as an image with its indices moved."""
        each = self.module[name]
        mine = name in self._made or name in self.module.is_output
        if mine or each.opcode not in (*_VIEWS, "reshape", "transpose", "broadcast"):
            image, roles = self._image(name), image_values.spread(self._of(name), each.dims)
            height, width = self._size(each)
            return View(image, {"h": np.arange(height), "w": np.arange(width)}, roles)
        views = [self._view(operand) for operand in each.operands[: None if each.opcode == "concatenate" else 1]]
        first, given = views[0], each.attributes
        found = View(first.image, dict(first.maps), list(first.roles), first.outside)
        missing = [role for role in ("h", "w") if role not in first.roles]
        if each.opcode == "transpose":
            found.roles = [first.roles[at] for at in given["dimensions"]]
        elif each.opcode == "reshape":
            source, sides = self.module[each.operands[0]], image_values.sides(each)
            tail = image_values.behind_planes(
                [role for role, dim in zip(first.roles, source.dims, strict=True) if role and dim > 1]
            )
            if image_values.sides(source)[-len(tail) :] != sides[-len(tail) :]:
                raise image_values.NoPipeline
            planes = [f"p{at}" for at in range(len(sides) - len(tail))]
            found.roles = image_values.spread((*planes, *tail), each.dims)
        elif each.opcode == "broadcast":  # of a row or a column: the edge of an image
            new = [at for at, dim in enumerate(each.dims) if at not in given["dimensions"] and dim > 1]
            if len(new) != 1 or len(missing) != 1 or len(found.maps[missing[0]]) != 1:
                raise image_values.NoPipeline
            found.maps[missing[0]] = np.repeat(found.maps[missing[0]], each.dims[new[0]])
            own = dict(zip(given["dimensions"], first.roles, strict=True))
            found.roles = [missing[0] if at == new[0] else own.get(at) for at in range(len(each.dims))]
        elif each.opcode == "concatenate":
            place = given["dimension"]
            along = next((view.roles[place] for view in views if view.roles[place] is not None), (*missing, None)[0])
            other = {"h": "w", "w": "h"}.get(str(along), "")
            if not other or any(view.image != first.image or not np.array_equal(view.maps[other], first.maps[other])
                                for view in views):  # fmt: skip
                raise image_values.NoPipeline
            found.maps[str(along)] = np.concatenate([view.maps[str(along)] for view in views])
            found.roles[place] = along
        else:
            for at, role in enumerate(first.roles):
                self._moved(found, each, at, role)
        return found

    def _moved(self, found: View, each: HloInstruction, at: int, role: str | None) -> None:
        """What a slice, a reverse or a pad does along one dimension."""
        given, size, cut = each.attributes, self.module[each.operands[0]].dims[at], slice(None)
        low, high = (given["low"][at], given["high"][at]) if each.opcode == "pad" else (0, 0)
        if each.opcode == "slice":
            cut = slice(given["starts"][at], given["limits"][at], given["strides"][at])
        elif each.opcode == "reverse" and at in given["dimensions"]:
            cut = slice(None, None, -1)
        same = cut in (slice(None), slice(0, size, 1)) and (low, high) == (0, 0)
        if role not in found.maps:
            if not same and size > 1:
                raise image_values.NoPipeline
            return
        found.maps[role] = found.maps[role][cut]
        if (low, high) != (0, 0):
            value = self.module[each.operands[1]]
            if given["interior"][at] or min(low, high) < 0 or value.opcode != "constant":
                raise image_values.NoPipeline
            found.outside = float(value.attributes["values"][0])
            found.maps[role] = np.concatenate([np.full(low, -1), found.maps[role], np.full(high, -1)])

    def _read(self, view: View, border: str | dict[str, float], kernel: _Kernel) -> str:
        known = kernel.reads.setdefault(view.image, border)
        if known != border:
            raise image_values.NoPipeline
        return view.image

    # --- expressions ---

    def _expression(self, name: str, kernel: _Kernel, root: HloInstruction) -> str:
        """The text of a value at the kernel's own pixel."""
        name = self._bare(name) if name != root.name else name
        value = self.module[name]
        constant = image_values.constant(self.module, name)
        if constant is not None:
            return image_values.literal(constant[0], value.dtype)
        if name != root.name and (name in self._made or name in self.module.is_output or value.opcode == "reduce"):
            return self._pixel(self._view(name), kernel, root)
        if value.opcode in _VIEWS:
            return self._pixel(self._view(name), kernel, root)
        if value.opcode in ("reshape", "transpose") and name == root.name:
            return self._expression(value.operands[0], kernel, root)
        if not value.elementwise or value.dtype not in ("f32", "pred"):
            raise image_values.NoPipeline
        label = f"v{self.module.number[name]}"
        if label not in kernel.let:
            if {*image_values.behind_planes(self._of(name))} != {*image_values.behind_planes(self._of(root.name))}:
                raise image_values.NoPipeline
            given = [self._expression(each, kernel, root) for each in value.operands]
            kernel.let[label] = image_values.applied(value, given)
        return label

    def _pixel(self, view: View, kernel: _Kernel, root: HloInstruction) -> str:
        height, width = self._size(root)
        if (len(view.maps["h"]), len(view.maps["w"])) != (height, width):
            raise image_values.NoPipeline
        indices = {"h": np.arange(height)[:, None], "w": np.arange(width)[:, None]}
        border, starts = image_borders.border(view, self._area(view.image), indices, 0.0, None)
        shift = (starts["w"], starts["h"])
        same = self._area(view.image) == (height, width)
        if border == "clamp" and view.image in kernel.reads:
            border = kernel.reads[view.image]
        if kernel.reads.get(view.image) == "clamp":
            kernel.reads[view.image] = border
        self._read(view, border, kernel)
        if not same:
            kernel.steps[view.image] = {"step": [1, 1], "origin": [0, 0]}
        kernel.reach = [max(kernel.reach[0], abs(shift[1])), max(kernel.reach[1], abs(shift[0]))]
        if max(kernel.reach) > MOST_REACH:
            raise image_values.NoPipeline
        return f"{view.image}[{shift[0]}, {shift[1]}]" if shift != (0, 0) else view.image
