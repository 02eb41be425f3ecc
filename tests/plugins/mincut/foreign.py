"""Pipelines that others use, as files of the strategy, each beside what SciPy, OpenCV or NumPy make of the same image.

FOREIGN[name] -> Foreign: the text, and a function of the inputs (arrays of shape (height, width[, channels])) that
gives the outputs by name. Pixels within `frame` of the edge are left out of the comparison where the oracle has another
border.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    name: str
    text: str
    oracle: Callable[[Mapping[str, Array]], Mapping[str, Array]]
    frame: int = 0
    tolerance: float = 0.0  #: Relative and absolute; 0: bit for bit
    off: float = 0.0  #: The part of the pixels that may differ: where a float comes close to a threshold


FOREIGN: dict[str, Foreign] = {}


def foreign(text: str, *, frame: int = 0, tolerance: float = 0.0, off: float = 0.0) -> Callable[[Any], Any]:
    """Registers an oracle: its name is the pipeline's, the text lacks only the first line."""

    def register(oracle: Callable[[Mapping[str, Array]], Mapping[str, Array]]) -> Any:
        name = oracle.__name__
        FOREIGN[name] = Foreign(
            name=name, text=f"pipeline: {name}\n{text}", oracle=oracle, frame=frame, tolerance=tolerance, off=off
        )
        return oracle

    return register


def gauss(size: int, sigma: float) -> Array:
    at = np.arange(size) - size // 2
    line = np.exp(-(at**2) / (2 * sigma**2))
    return np.asarray(np.outer(line, line) / line.sum() ** 2, np.float32)


def _rows(mask: Array) -> str:
    return str([[float(f"{value:.9g}") for value in row] for row in mask])


def _ones(width: int, height: int) -> str:
    return str([[1] * width] * height)


def _int(image: Array) -> Array:
    return image.astype(np.int32)


def _correlate(image: Array, mask: Any, mode: str = "nearest") -> Array:
    return np.asarray(ndimage.correlate(image, np.asarray(mask), mode=mode))


def _toward_zero(value: Array, by: int) -> Array:
    return np.asarray(np.sign(value) * (np.abs(value) // by))


SOBEL_X = [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]
SOBEL_Y = [[-1, -2, -1], [0, 0, 0], [1, 2, 1]]
GAUSS5 = np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1])


@foreign(f"""\
image: {{width: 97, height: 61, dtype: uint8}}
inputs: [src]
outputs: [marked]
masks: {{blur: {GAUSS5.tolist()}, gx: {SOBEL_X}, gy: {SOBEL_Y}}}
kernels:
  smooth: {{pattern: local, mask: [5, 5], border: clamp, reads: [src], dtype: int32, body: "sum(blur, src) / 256"}}
  dx: {{pattern: local, mask: [3, 3], border: clamp, reads: [smooth], dtype: int32, body: "sum(gx, smooth)"}}
  dy: {{pattern: local, mask: [3, 3], border: clamp, reads: [smooth], dtype: int32, body: "sum(gy, smooth)"}}
  size: {{pattern: point, reads: [dx, dy], dtype: int32, body: "abs(dx) + abs(dy)"}}
  thin:
    pattern: local
    mask: [3, 3]
    border: clamp
    reads: [size, dx, dy]
    dtype: int32
    let: {{flat: "abs(dy) * 2 < abs(dx)", steep: "abs(dx) * 2 < abs(dy)", falls: "(dx > 0) == (dy > 0)"}}
    body: >-
      size >= (flat ? size[-1, 0] : steep ? size[0, -1] : falls ? size[-1, -1] : size[1, -1])
      && size >= (flat ? size[1, 0] : steep ? size[0, 1] : falls ? size[1, 1] : size[-1, 1]) ? size : 0
  marked: {{pattern: point, reads: [thin], body: "thin > 120 ? 255 : thin > 60 ? 128 : 0"}}
""")
def canny(images: Mapping[str, Array]) -> Mapping[str, Array]:
    smooth = _correlate(_int(images["src"]), GAUSS5) // 256
    dx, dy = _correlate(smooth, SOBEL_X), _correlate(smooth, SOBEL_Y)
    size = np.abs(dx) + np.abs(dy)
    seen = {
        (x, y): np.pad(size, 1, mode="edge")[1 + y : 1 + y + size.shape[0], 1 + x : 1 + x + size.shape[1]]
        for x, y in itertools.product((-1, 0, 1), repeat=2)
    }
    flat, steep, falls = np.abs(dy) * 2 < np.abs(dx), np.abs(dx) * 2 < np.abs(dy), (dx > 0) == (dy > 0)
    choose = [flat, steep, falls]
    one = np.select(choose, [seen[-1, 0], seen[0, -1], seen[-1, -1]], seen[1, -1])
    two = np.select(choose, [seen[1, 0], seen[0, 1], seen[1, 1]], seen[-1, 1])
    thin = np.where((size >= one) & (size >= two), size, 0)
    return {"marked": np.select([thin > 120, thin > 60], [255, 128], 0).astype(np.uint8)}


NEAR, FAR = gauss(5, 1.0), gauss(9, 1.6)


@foreign(f"""\
image: {{width: 97, height: 61, dtype: float32}}
inputs: [src]
outputs: [difference]
masks: {{near: {_rows(NEAR)}, far: {_rows(FAR)}}}
kernels:
  narrow: {{pattern: local, mask: [5, 5], border: mirror, reads: [src], body: "sum(near, src)"}}
  broad: {{pattern: local, mask: [9, 9], border: mirror, reads: [src], body: "sum(far, src)"}}
  difference: {{pattern: point, reads: [narrow, broad], body: "narrow - broad"}}
""", tolerance=1e-5)  # fmt: skip
def dog(images: Mapping[str, Array]) -> Mapping[str, Array]:
    image = images["src"]
    return {"difference": cv2.filter2D(image, -1, NEAR) - cv2.filter2D(image, -1, FAR)}


@foreign(f"""\
image: {{width: 97, height: 61, dtype: float32}}
inputs: [src]
outputs: [smooth]
masks: {{near: {_rows(gauss(5, 1.5))}}}
kernels:
  smooth:
    pattern: local
    mask: [5, 5]
    border: mirror
    reads: [src]
    let: {{centre: src}}
    body: >-
      sum(near, src * exp(-8.0f * ((src - centre) * (src - centre))))
      / sum(near, exp(-8.0f * ((src - centre) * (src - centre))))
""", tolerance=1e-5)  # fmt: skip
def bilateral(images: Mapping[str, Array]) -> Mapping[str, Array]:
    image, near = images["src"].astype(np.float64), gauss(5, 1.5)
    padded = np.pad(image, 2, mode="reflect")
    total = weights = np.zeros_like(image)
    for y, x in itertools.product(range(5), repeat=2):
        seen = padded[y : y + image.shape[0], x : x + image.shape[1]]
        weight = near[y, x] * np.exp(-8 * (seen - image) ** 2)
        total, weights = total + weight * seen, weights + weight
    return {"smooth": (total / weights).astype(np.float32)}


def _means(names: Mapping[str, str], radius: int) -> str:
    size = 2 * radius + 1
    return "".join(
        f"  {name}: {{pattern: local, mask: [{size}, {size}], border: reflect, reads: [{read}],"
        f' body: "sum(box, {read}) * {1 / size**2:.9g}f"}}\n'
        for name, read in names.items()
    )


@foreign(f"""\
image: {{width: 97, height: 61, dtype: float32}}
inputs: [guide, src]
outputs: [filtered]
masks: {{box: {_ones(5, 5)}}}
kernels:
  ii: {{pattern: point, reads: [guide], body: "guide * guide"}}
  ip: {{pattern: point, reads: [guide, src], body: "guide * src"}}
{_means({"mean_i": "guide", "mean_p": "src", "corr_i": "ii", "corr_ip": "ip"}, 2)}
  a: {{pattern: point, reads: [mean_i, mean_p, corr_i, corr_ip],
    body: "(corr_ip - mean_i * mean_p) / (corr_i - mean_i * mean_i + 0.01f)"}}
  b: {{pattern: point, reads: [a, mean_i, mean_p], body: "mean_p - a * mean_i"}}
{_means({"mean_a": "a", "mean_b": "b"}, 2)}
  filtered: {{pattern: point, reads: [mean_a, mean_b, guide], body: "mean_a * guide + mean_b"}}
""", tolerance=2e-3)  # fmt: skip
def guided(images: Mapping[str, Array]) -> Mapping[str, Array]:
    guide, src = images["guide"].astype(np.float64), images["src"].astype(np.float64)

    def mean(image: Array) -> Array:
        return np.asarray(ndimage.uniform_filter(image, 5, mode="reflect"))

    mean_i, mean_p = mean(guide), mean(src)
    a = (mean(guide * src) - mean_i * mean_p) / (mean(guide * guide) - mean_i**2 + 0.01)
    b = mean_p - a * mean_i
    return {"filtered": (mean(a) * guide + mean(b)).astype(np.float32)}


def _diffusion(times: int) -> str:
    before, kernels = "src", []
    for number in range(times):
        name = f"k{number}"
        steps = [f"({before}[{x}, {y}] - {before})" for x, y in ((0, -1), (0, 1), (1, 0), (-1, 0))]
        flow = " + ".join(f"exp(-4.0f * ({step} * {step})) * {step}" for step in steps)
        kernels.append(f"  {name}: {{pattern: local, mask: [3, 3], border: clamp, reads: [{before}],"
                       f' body: "{before} + 0.2f * ({flow})"}}\n')  # fmt: skip
        before = name
    return (f"image: {{width: 97, height: 61, dtype: float32}}\ninputs: [src]\noutputs: [{before}]\n"
            f"kernels:\n{''.join(kernels)}")  # fmt: skip


@foreign(_diffusion(5), tolerance=1e-5)
def perona_malik(images: Mapping[str, Array]) -> Mapping[str, Array]:
    image = images["src"].astype(np.float64)
    for _ in range(5):
        around = [_correlate(image, mask) for mask in (
            [[0, 1, 0], [0, -1, 0], [0, 0, 0]], [[0, 0, 0], [0, -1, 0], [0, 1, 0]],
            [[0, 0, 0], [0, -1, 1], [0, 0, 0]], [[0, 0, 0], [1, -1, 0], [0, 0, 0]])]  # fmt: skip
        image = image + 0.2 * sum(np.exp(-4 * each**2) * each for each in around)
    return {"k4": image.astype(np.float32)}


@foreign("""\
image: {width: 97, height: 61, dtype: int32}
inputs: [src]
outputs: [mixed]
masks: {cross: [[0, 1, 0], [1, -4, 1], [0, 1, 0]], row: [[1, 2, 3, 2, 1]], column: [[1], [0], [-1]]}
kernels:
  rough: {pattern: local, mask: [3, 3], border: reflect, reads: [src], body: "sum(cross, src)"}
  wide: {pattern: local, mask: [5, 1], border: mirror, reads: [rough], body: "sum(row, rough)"}
  tall: {pattern: local, mask: [1, 3], border: repeat, reads: [src], body: "sum(column, src)"}
  mixed: {pattern: point, reads: [wide, tall], body: "wide * 3 - tall"}
""")
def mixed_stencils(images: Mapping[str, Array]) -> Mapping[str, Array]:
    image = images["src"]
    rough = _correlate(image, [[0, 1, 0], [1, -4, 1], [0, 1, 0]], "reflect")
    wide = _correlate(rough, [[1, 2, 3, 2, 1]], "mirror")
    return {"mixed": wide * 3 - _correlate(image, [[1], [0], [-1]], "grid-wrap")}


@foreign(f"""\
image: {{width: 97, height: 61, dtype: uint8, channels: 3}}
inputs: [raw]
outputs: [shown]
masks: {{box: {_ones(3, 3)}}}
kernels:
  balanced: {{pattern: point, reads: [raw], dtype: int32,
    body: {{r: "(raw.r - 8) * 3 / 2", g: "raw.g - 8", b: "(raw.b - 8) * 5 / 4"}}}}
  colour: {{pattern: point, reads: [balanced], dtype: int32, body: {{
    r: "(balanced.r * 410 - balanced.g * 120 - balanced.b * 34) / 256",
    g: "(balanced.g * 360 - balanced.r * 60 - balanced.b * 44) / 256",
    b: "(balanced.b * 400 - balanced.r * 24 - balanced.g * 120) / 256"}}}}
  light: {{pattern: point, channels: 1, reads: [colour], dtype: int32,
    body: "(colour.r * 77 + colour.g * 150 + colour.b * 29) / 256"}}
  soft: {{pattern: local, mask: [3, 3], border: clamp, channels: 1, reads: [light], dtype: int32,
    body: "sum(box, light) / 9"}}
  shown: {{pattern: point, reads: [colour, light, soft], body: "clamp(colour + (light - soft) * 2, 0, 255)"}}
""")
def isp(images: Mapping[str, Array]) -> Mapping[str, Array]:
    raw = _int(images["raw"])
    r, g, b = _toward_zero((raw[..., 0] - 8) * 3, 2), raw[..., 1] - 8, _toward_zero((raw[..., 2] - 8) * 5, 4)
    colour = np.stack([_toward_zero(r * 410 - g * 120 - b * 34, 256), _toward_zero(g * 360 - r * 60 - b * 44, 256),
                       _toward_zero(b * 400 - r * 24 - g * 120, 256)], axis=-1)  # fmt: skip
    light = _toward_zero(colour @ np.array([77, 150, 29]), 256)
    soft = _toward_zero(_correlate(light, np.ones((3, 3), np.int64)), 9)
    return {"shown": np.clip(colour + ((light - soft) * 2)[..., None], 0, 255).astype(np.uint8)}


# --- those that nobody here wrote -----------------------------------------------------------------------


def _median_of_nine() -> str:
    """By exchanges (Smith's network), as names of `let`."""
    network = [(1, 2), (4, 5), (7, 8), (0, 1), (3, 4), (6, 7), (1, 2), (4, 5), (7, 8), (0, 3), (5, 8), (4, 7), (3, 6),
               (1, 4), (2, 5), (4, 7), (4, 2), (6, 4), (4, 2)]  # fmt: skip
    names, lines = [f"src[{i % 3 - 1}, {i // 3 - 1}]" for i in range(9)], []
    for number, (low, high) in enumerate(network):
        both = f"({names[low]}, {names[high]})"
        lines += [f'      l{number}: "min{both}"', f'      h{number}: "max{both}"']
        names[low], names[high] = f"l{number}", f"h{number}"
    return "\n".join([*lines, f'    body: "{names[4]}"'])


@foreign(f"""\
image: {{width: 97, height: 61, dtype: uint8}}
inputs: [src]
outputs: [median]
kernels:
  median:
    pattern: local
    mask: [3, 3]
    border: clamp
    reads: [src]
    let:
{_median_of_nine()}
""")
def median(images: Mapping[str, Array]) -> Mapping[str, Array]:
    return {"median": cv2.medianBlur(images["src"], 3)}


_PRODUCTS = {"xx": "ix * ix", "yy": "iy * iy", "xy": "ix * iy", "xt": "ix * it", "yt": "iy * it"}


@foreign(f"""\
image: {{width: 97, height: 61, dtype: float32}}
inputs: [before, after]
outputs: [u, v]
masks: {{gx: {SOBEL_X}, gy: {SOBEL_Y}, box: {_ones(5, 5)}}}
kernels:
  ix: {{pattern: local, mask: [3, 3], border: clamp, reads: [before], body: "sum(gx, before) * 0.125f"}}
  iy: {{pattern: local, mask: [3, 3], border: clamp, reads: [before], body: "sum(gy, before) * 0.125f"}}
  it: {{pattern: point, reads: [before, after], body: "after - before"}}
{"".join(f"  {name}: {{pattern: point, reads: {sorted({text[:2], text[-2:]})}, body: '{text}'}}" + chr(10)
         for name, text in _PRODUCTS.items())}{_means({f"s{name}": name for name in _PRODUCTS}, 2)}
  det: {{pattern: point, reads: [sxx, syy, sxy], body: "sxx * syy - sxy * sxy + 0.0001f"}}
  u: {{pattern: point, reads: [sxt, syt, sxy, syy, det], body: "(sxy * syt - syy * sxt) / det"}}
  v: {{pattern: point, reads: [sxt, syt, sxy, sxx, det], body: "(sxy * sxt - sxx * syt) / det"}}
""", tolerance=2e-3)  # fmt: skip
def lucas_kanade(images: Mapping[str, Array]) -> Mapping[str, Array]:
    before, after = images["before"].astype(np.float64), images["after"].astype(np.float64)
    ix, iy, it = _correlate(before, SOBEL_X) / 8, _correlate(before, SOBEL_Y) / 8, after - before
    xx, yy, xy, xt, yt = (
        np.asarray(cv2.blur(each, (5, 5), borderType=cv2.BORDER_REFLECT))
        for each in (ix * ix, iy * iy, ix * iy, ix * it, iy * it)
    )
    det = xx * yy - xy * xy + 0.0001
    return {"u": ((xy * yt - yy * xt) / det).astype(np.float32), "v": ((xy * xt - xx * yt) / det).astype(np.float32)}


@foreign(f"""\
image: {{width: 97, height: 61, dtype: float32}}
inputs: [src]
outputs: [lit]
masks: {{wide: {_rows(gauss(21, 4.0))}}}
kernels:
  base: {{pattern: local, mask: [21, 21], border: mirror, reads: [src], body: "sum(wide, src)"}}
  lit: {{pattern: point, reads: [src, base], body: "clamp((src - base) * 1.5f + base * 0.8f, 0.0f, 1.0f)"}}
""", tolerance=1e-5)  # fmt: skip
def local_tone_mapping(images: Mapping[str, Array]) -> Mapping[str, Array]:
    image = images["src"].astype(np.float64)
    base = ndimage.correlate(image, gauss(21, 4.0).astype(np.float64), mode="mirror")
    return {"lit": np.clip((image - base) * 1.5 + base * 0.8, 0, 1).astype(np.float32)}
