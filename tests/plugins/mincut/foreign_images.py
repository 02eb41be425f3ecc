"""Pipelines with sizes that change, tables, computed coordinates and boundaries, each beside what OpenCV makes of the
same image (see foreign.py)."""

from collections.abc import Mapping

import cv2
import numpy as np

from .foreign import GAUSS5, SOBEL_X, SOBEL_Y, Array, foreign


@foreign(f"""\
image: {{width: 97, height: 61, dtype: uint8}}
inputs: [src]
outputs: [edges]
masks: {{gx: {SOBEL_X}, gy: {SOBEL_Y}}}
kernels:
  dx: {{pattern: local, mask: [3, 3], border: clamp, reads: [src], dtype: int32, body: "sum(gx, src)"}}
  dy: {{pattern: local, mask: [3, 3], border: clamp, reads: [src], dtype: int32, body: "sum(gy, src)"}}
  m: {{pattern: point, reads: [dx, dy], dtype: int32, body: "abs(dx) + abs(dy)"}}
  thin:
    pattern: local
    mask: [3, 3]
    border: {{m: {{constant: 0}}}}
    reads: [m, dx, dy]
    dtype: int32
    let: {{low: "abs(dx) * 13573", high: "low + (abs(dx) << 16)", up: "abs(dy) << 15"}}
    body: >-
      up < low ? (m > m[-1, 0] && m >= m[1, 0] ? m : 0)
      : up > high ? (m > m[0, -1] && m >= m[0, 1] ? m : 0)
      : (dx ^ dy) < 0 ? (m > m[1, -1] && m > m[-1, 1] ? m : 0) : (m > m[-1, -1] && m > m[1, 1] ? m : 0)
  linked: {{pattern: hysteresis, reads: [thin], body: "(thin > 300) + (thin > 700)"}}
  edges: {{pattern: point, reads: [linked], body: "linked * 255"}}
""")
def opencv_canny(images: Mapping[str, Array]) -> Mapping[str, Array]:
    return {"edges": cv2.Canny(images["src"], 300, 700)}


@foreign(
    f"""\
image: {{width: 97, height: 61, dtype: float32}}
inputs: [src]
outputs: [detail]
masks: {{gauss: {(GAUSS5 / 256).tolist()}}}
kernels:
  half: {{pattern: local, mask: [5, 5], step: 2, border: mirror, reads: [src], body: "sum(gauss, src)"}}
  wide:
    pattern: local
    mask: [3, 1]
    size: ["2 * ((width + 1) / 2)", "(height + 1) / 2"]
    step: [1/2, 1]
    border: mirror
    reads: [half]
    body: "x & 1 ? (half + half[1, 0]) * 0.5f : (half[-1, 0] + 6.0f * half + half[1, 0]) * 0.125f"
  detail:
    pattern: local
    mask: [1, 3]
    size: [width, height]
    step: {{wide: [1, 1/2]}}
    border: {{wide: mirror}}
    reads: [src, wide]
    body: "src - (y & 1 ? (wide + wide[0, 1]) * 0.5f : (wide[0, -1] + 6.0f * wide + wide[0, 1]) * 0.125f)"
""",
    frame=4,
    tolerance=1e-5,
)
def laplacian_pyramid(images: Mapping[str, Array]) -> Mapping[str, Array]:
    src = images["src"]
    height, width = src.shape
    return {"detail": src - cv2.pyrUp(cv2.pyrDown(src))[:height, :width]}


@foreign(
    """\
image: {width: 97, height: 61, dtype: float32}
inputs: [src, mx, my]
outputs: [bent]
kernels:
  px: {pattern: point, reads: [mx], body: "float(x) + mx * 9.0f - 4.0f"}
  py: {pattern: point, reads: [my], body: "float(y) + my * 9.0f - 4.0f"}
  bent:
    pattern: point
    reads: [src, px, py]
    border: {src: mirror}
    let: {ix: "int(floor(px))", iy: "int(floor(py))", fx: "px - floor(px)", fy: "py - floor(py)"}
    body: >-
      (at(src, ix, iy) * (1.0f - fx) + at(src, ix + 1, iy) * fx) * (1.0f - fy)
      + (at(src, ix, iy + 1) * (1.0f - fx) + at(src, ix + 1, iy + 1) * fx) * fy
""",
    tolerance=0.04,  # OpenCV's weights are multiples of 1/32
)
def remapped(images: Mapping[str, Array]) -> Mapping[str, Array]:
    rows, columns = np.indices(images["src"].shape, np.float32)
    where = columns + images["mx"] * 9 - 4, rows + images["my"] * 9 - 4
    return {"bent": cv2.remap(images["src"], *where, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)}


@foreign("""\
image: {width: 97, height: 61, dtype: uint8}
inputs: [src]
outputs: [flat]
kernels:
  counts: {pattern: global, reduce: {histogram: [256, 1]}, reads: [src], dtype: int32, body: src}
  up_to: {pattern: scan, axis: x, reads: [counts], dtype: int32, body: counts}
  least: {pattern: global, reduce: min, reads: [src], dtype: int32, body: src}
  flat:
    pattern: point
    reads: [src, up_to, least]
    let: {below: "lookup(up_to, least)", scale: "255.0f / float(width * height - below)"}
    body: "below == width * height ? src : clamp(int(rint(float(lookup(up_to, src) - below) * scale)), 0, 255)"
""")
def equalised(images: Mapping[str, Array]) -> Mapping[str, Array]:
    return {"flat": cv2.equalizeHist(images["src"])}


@foreign(
    """\
image: {width: 97, height: 61, dtype: float32}
inputs: [src]
outputs: [down]
kernels:
  across: {pattern: scan, axis: x, reads: [src], body: src}
  down: {pattern: scan, axis: y, reads: [across], body: across}
""",
    tolerance=1e-4,
)
def integral_image(images: Mapping[str, Array]) -> Mapping[str, Array]:
    return {"down": cv2.integral(images["src"], sdepth=cv2.CV_64F)[1:, 1:]}


@foreign(
    """\
image: {width: 97, height: 61, dtype: uint8}
inputs: [src]
outputs: [out]
parameters: {clip: {value: 2.0, runtime: true}}
kernels:
  padded:
    pattern: point
    size: ["width + 8 - width % 8", "height + 8 - height % 8"]
    border: mirror
    reads: [src]
    body: src
  counts:
    pattern: global
    reduce: {histogram: [256, 64]}
    reads: [padded]
    dtype: int32
    body: padded
    row: "y / (height / 8) * 8 + x / (width / 8)"
  pixels: {pattern: global, reduce: sum, reads: [padded], dtype: int32, body: "1 + padded * 0"}
  limit:
    pattern: point
    size: [1, 1]
    reads: [pixels]
    dtype: int32
    body: "max(int(clip * float(pixels / 64) / 256.0f), 1)"
  over:
    pattern: scan
    reads: [counts, limit]
    dtype: int32
    body: "max(counts - lookup(limit, 0), 0)"
  even:
    pattern: point
    reads: [counts, over, limit]
    dtype: int32
    let: {spread: "at(over, 255, y)", rest: "spread % 256", stride: "rest == 0 ? 256 : max(256 / rest, 1)"}
    body: "min(counts, lookup(limit, 0)) + spread / 256 + (rest > 0 && x % stride == 0 && x / stride < rest)"
  sums: {pattern: scan, axis: x, reads: [even], dtype: int32, body: even}
  tables:
    pattern: point
    reads: [sums, pixels]
    body: "clamp(int(rint(float(sums) * (255.0f / float(pixels / 64)))), 0, 255)"
  out:
    pattern: point
    reads: [src, tables]
    let:
      fx: "float(x) * (1.0f / float(width / 8 + 1)) - 0.5f"
      fy: "float(y) * (1.0f / float(height / 8 + 1)) - 0.5f"
      ax: "fx - floor(fx)"
      ay: "fy - floor(fy)"
      west: "max(int(floor(fx)), 0)"
      east: "min(int(floor(fx)) + 1, 7)"
      north: "max(int(floor(fy)), 0) * 8"
      south: "min(int(floor(fy)) + 1, 7) * 8"
    body: >-
      clamp(int(rint(
      (float(at(tables, src, north + west)) * (1.0f - ax) + float(at(tables, src, north + east)) * ax) * (1.0f - ay)
      + (float(at(tables, src, south + west)) * (1.0f - ax) + float(at(tables, src, south + east)) * ax) * ay)), 0, 255)
""",
    off=0.002,
)
def clahe(images: Mapping[str, Array]) -> Mapping[str, Array]:
    assert images["src"].shape[1] % 8 != 0  # else OpenCV adds no rows and columns, here always 1 to 8
    return {"out": cv2.createCLAHE(clipLimit=2.0, tileGridSize=(8, 8)).apply(images["src"])}
