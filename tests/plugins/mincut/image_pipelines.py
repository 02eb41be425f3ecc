"""Pipelines with all that images can have (see test_images), and the ways in which each of them is computed."""

from fusiond_mincut.analysis import blocks, candidates
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.frontend.graph import Pipeline

from .running import pipeline

WAYS = (
    BlockParams(block_x=16, block_y=4, pixels=2),
    BlockParams(block_x=16, block_y=4, local="recompute"),
    BlockParams(block_x=32, block_y=2, pixels=8, local="rows", across=2),
)
SIZES = ((97, 61), (64, 40), (9, 70))

TEXTS = {
    "positions": """\
image: {width: 64, height: 48, dtype: float32, channels: 3}
inputs: [src]
outputs: [shaded, ramp]
kernels:
  shaded:
    pattern: local
    mask: [3, 3]
    border: mirror
    reads: [src]
    body: "src[1, 0] * float(x) - src[0, -1] * float(y + width)"
  ramp:
    pattern: point
    reads: [shaded]
    channels: 1
    dtype: int32
    body: "shaded.r > float(height) ? x * 3 - y : width - x"
""",
    "tables": """\
image: {width: 64, height: 48, dtype: uint8}
inputs: [src, {name: lut, size: [256, 1], channels: 1}]
outputs: [toned]
tables: {steps: [0, 3, 9, 27], curve: [0.5, 0.25, 2]}
kernels:
  near: {pattern: local, mask: [3, 1], border: clamp, reads: [src], dtype: int32, body: "src[-1, 0] + src[1, 0]"}
  toned:
    pattern: point
    reads: [near, lut]
    body: "lookup(lut, near / 2) + lookup(steps, near - 200) + int(lookup(curve, near) * 8.0f)"
""",
    "warp": """\
image: {width: 64, height: 48, dtype: float32, channels: 2}
inputs: [src, {name: field, channels: 2}]
outputs: [bent]
kernels:
  scaled: {pattern: point, reads: [field], body: "field * 6.0f"}
  bent:
    pattern: point
    reads: [src, scaled]
    border: {src: reflect}
    let: {ix: "x + int(floor(scaled.r)) - 3", iy: "y + int(scaled.g)", fx: "scaled.r - floor(scaled.r)"}
    body: "at(src, ix, iy) * (1.0f - fx) + at(src, ix + 1, iy) * fx"
""",
    "remap_constant": """\
image: {width: 64, height: 48, dtype: int16}
inputs: [src]
outputs: [bent, spread]
kernels:
  bent: {pattern: point, reads: [src], border: {constant: -7}, body: "at(src, y * 2 - 3, x / 2)"}
  spread: {pattern: local, mask: [3, 3], border: repeat, reads: [bent], body: "bent[1, 1] - bent[-1, 0]"}
""",
    "down_up": """\
image: {width: 64, height: 48, dtype: int32}
inputs: [src]
outputs: [detail]
masks: {gauss: [[1, 2, 1], [2, 4, 2], [1, 2, 1]]}
kernels:
  eased: {pattern: point, reads: [src], body: "src * 3 + x"}
  half: {pattern: local, mask: [3, 3], step: 2, border: mirror, reads: [eased], body: "sum(gauss, eased) / 16"}
  sharp: {pattern: point, reads: [half], body: "half * 2 - y"}
  detail:
    pattern: local
    mask: [3, 3]
    border: {src: clamp, sharp: {constant: 9}}
    size: [width, height]
    step: {sharp: 1/2}
    reads: [src, sharp]
    body: "src[1, 0] - sharp[0, 1] + sharp[-1, 0]"
""",
    "crop": """\
image: {width: 64, height: 48, dtype: float16, channels: 4}
inputs: [src]
outputs: [cut]
kernels:
  twice: {pattern: point, reads: [src], body: "src * 2.0f"}
  cut:
    pattern: local
    mask: [3, 3]
    size: ["max(width / 2, 1)", "height - 5"]
    step: {origin: [7, 3]}
    border: clamp
    reads: [twice]
    body: "(twice[1, 1] + twice[-1, 0]) * 0.5f"
""",
    "halves": """\
image: {width: 64, height: 48, dtype: float16}
inputs: [src]
outputs: [smooth, most, total]
kernels:
  smooth:
    pattern: local
    mask: [3, 3]
    border: reflect
    reads: [src]
    body: "(src[-1, 0] + src + src[1, 1]) / 3.0f"
  sharp:
    pattern: local
    mask: [3, 1]
    border: {constant: 0.25}
    reads: [smooth]
    body: "half(2.0f * smooth - smooth[1, 0])"
  most: {pattern: global, reduce: max, reads: [sharp], body: sharp}
  total: {pattern: point, reads: [sharp, most], body: "sharp / (most + 1.0f)"}
""",
    "runtime": """\
image: {width: 64, height: 48, dtype: int32}
inputs: [src]
outputs: [marked]
parameters: {limit: {value: 90, runtime: true}, gain: {value: 1.5, runtime: true}, fixed: 3}
kernels:
  near: {pattern: local, mask: [3, 3], border: clamp, reads: [src], body: "src[1, 0] + src[0, 1] - limit"}
  marked:
    pattern: local
    mask: [3, 3]
    border: clamp
    reads: [near]
    body: "int(float(near[-1, -1]) * gain) + near / fixed + limit"
""",
    "equalised": """\
image: {width: 64, height: 48, dtype: uint8}
inputs: [src]
outputs: [flat]
kernels:
  blurred: {pattern: local, mask: [3, 1], border: clamp, reads: [src], body: "(src[-1, 0] + src + src[1, 0]) / 3"}
  counts: {pattern: global, reduce: {histogram: [256, 1]}, reads: [blurred], dtype: int32, body: blurred}
  up_to: {pattern: scan, reads: [counts], dtype: int32, body: counts}
  flat: {pattern: point, reads: [blurred, up_to], body: "lookup(up_to, blurred) * 255 / (width * height)"}
""",
    "tiles_of_histograms": """\
image: {width: 64, height: 48, dtype: uint8}
inputs: [src]
outputs: [clipped, rows]
kernels:
  counts:
    pattern: global
    reduce: {histogram: [width, 6]}
    reads: [src]
    dtype: int32
    body: "src - 60"
    row: "(y * 2 / height) * 3 + x * 3 / width"
  clipped: {pattern: point, reads: [counts], dtype: int32, body: "min(counts, 2)"}
  rows: {pattern: scan, axis: y, reads: [clipped], dtype: int32, body: "clipped + 1"}
""",
    "edges": """\
image: {width: 64, height: 48, dtype: uint8}
inputs: [src]
outputs: [linked]
kernels:
  near:
    pattern: local
    mask: [3, 3]
    border: clamp
    reads: [src]
    dtype: int32
    body: "(src[-1, 0] + src + src[1, 0] + src[0, 1] + src[1, 1]) / 5"
  kept: {pattern: hysteresis, reads: [near], dtype: uint8, body: "(near > 128) + (near > 200)"}
  linked: {pattern: local, mask: [3, 1], border: clamp, reads: [kept], body: "kept * 200 + kept[1, 0]"}
""",
}


def given(name: str) -> Pipeline:
    return pipeline(f"pipeline: {name}\n{TEXTS[name]}", 64, 48)


def cuts(of: Pipeline) -> list[str]:
    """Unfused, every pair that can be fused, and the deepest blocks."""
    legal = candidates.general(of, 400).blocks
    chosen = [each for each in legal if len(each) == 2] + sorted(legal, key=len)[-2:]
    names = [each.name for each in of.kernels]
    groups = [[(name,) for name in names if name not in block] for block in chosen]
    found = [blocks.unfused(of)]
    found += [blocks.partition(of, [block, *rest]) for block, rest in zip(chosen, groups, strict=True)]
    return list(dict.fromkeys(map(str, found)))
