"""What stitched functions would move to and from memory at the sizes of models, counted for a GPU that is not here:
`python -m benchmarks.stitching.traffic [--only NAME ...] [--gpu h100]`.

Each function of `FUNCTIONS` is lowered by jax, planned as the first seed plans it and with its rows in shared memory
(`rows: shared`), and both programs are counted (docs/counting.md): bytes of DRAM and sectors of the second-level cache.
The least is what all inputs read once and all outputs written once come to. Nothing is measured on a GPU. The run is
written after each function, and goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import runs
from benchmarks.counting import summed
from benchmarks.pages import DOCS, table
from benchmarks.stitching.sized import backward, cross_entropy
from fusiond.cli.counts import size
from fusiond.counting import apart
from fusiond.counting.model import GPUS, gpu_named
from fusiond.model import Config, DeviceLimits
from fusiond.program import Program
from fusiond.requests.planning import target_for_arch
from fusiond_stitching import space
from fusiond_stitching.analysis import forms, planner, traffic
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import fills, importer

PLANS = ("packed", "packed_shared")
F32, BF16, S32 = jnp.float32, jnp.bfloat16, jnp.int32


def layer_norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(F32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def batch_norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    mean = x.mean((0, 1, 2))
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean((0, 1, 2)) + 1e-5) * scale + shift


def causal(scores: jax.Array) -> jax.Array:
    side = scores.shape[-1]
    masked = jnp.where(jnp.tril(jnp.ones((side, side), bool)), scores.astype(F32) * 0.088, -jnp.inf)
    return jax.nn.softmax(masked, -1).astype(scores.dtype)


def adam(parameter: jax.Array, gradient: jax.Array, first: jax.Array, second: jax.Array) -> Any:
    first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient * gradient
    return parameter - 1e-3 * first / (jnp.sqrt(second) + 1e-8), first, second


def smoothed(logits: jax.Array, labels: jax.Array) -> jax.Array:
    wanted = jax.nn.one_hot(labels, logits.shape[-1]) * 0.9 + 0.1 / logits.shape[-1]
    return -(wanted * jax.nn.log_softmax(logits, -1)).sum(-1).mean()


def gumbel(key: jax.Array, logits: jax.Array) -> jax.Array:
    return jnp.argmax(logits + jax.random.gumbel(key, logits.shape), -1)


def quantised(x: jax.Array) -> Any:
    scale = jnp.abs(x).max(-1, keepdims=True) / 127
    return jnp.round(x / scale).astype(jnp.int8), scale[:, 0]


def embedding(table: jax.Array, tokens: jax.Array, given: jax.Array) -> jax.Array:
    return jax.vjp(lambda table: table[tokens], table)[1](given)[0]


def messages(nodes: jax.Array, source: jax.Array, target: jax.Array, weights: jax.Array) -> jax.Array:
    return jax.ops.segment_sum(nodes[source] * weights[:, None], target, nodes.shape[0])


def dispatched(x: jax.Array, slots: jax.Array) -> jax.Array:
    return jnp.zeros((8 * 1280, x.shape[1]), x.dtype).at[slots].add(x, mode="drop")


def _of(*dims: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


ROWS, WIDE, SCALE = _of(16384, 4096), _of(16384, 4096, dtype=BF16), _of(4096)
TOKENS, EDGES = _of(4, 2048, dtype=S32), _of(1_000_000, dtype=S32)
LOGITS, LABELS, IMAGE = _of(512, 128256), _of(512, dtype=S32), _of(64, 56, 56, 64)
FUNCTIONS: Mapping[str, tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]] = {
    "softmax": (jax.nn.softmax, (ROWS,)),
    "layer norm": (layer_norm, (ROWS, SCALE, SCALE)),
    "layer norm, backward": (backward(lambda x, scale: layer_norm(x, scale, scale)), (ROWS, SCALE, ROWS)),
    "RMS norm, bf16": (rms_norm, (WIDE, _of(4096, dtype=BF16))),
    "RMS norm, bf16, backward": (backward(rms_norm), (WIDE, _of(4096, dtype=BF16), WIDE)),
    "batch norm, NHWC": (batch_norm, (IMAGE, _of(64), _of(64))),
    "causal softmax, bf16": (causal, (_of(1, 16, 2048, 2048, dtype=BF16),)),
    "softmax of 128256 logits": (jax.nn.softmax, (LOGITS,)),
    "cross-entropy": (cross_entropy, (LOGITS, LABELS)),
    "cross-entropy, gradient": (jax.grad(cross_entropy), (LOGITS, LABELS)),
    "cross-entropy, smoothed": (smoothed, (LOGITS, LABELS)),
    "Gumbel sampling": (gumbel, (_of(2, dtype=jnp.uint32), _of(256, 128256))),
    "Adam": (adam, (_of(8192, 4096),) * 4),
    "GELU, bf16": (jax.nn.gelu, (_of(8192, 8192, dtype=BF16),)),
    "SwiGLU, bf16": (lambda a, b: jax.nn.silu(a) * b, (_of(4096, 14336, dtype=BF16),) * 2),
    "int8 by rows": (quantised, (ROWS,)),
    "embedding, gradient": (embedding, (_of(32000, 4096), TOKENS, _of(4, 2048, 4096))),
    "graph messages": (messages, (_of(100_000, 128), EDGES, EDGES, _of(1_000_000))),
    "experts, bf16": (dispatched, (_of(8192, 4096, dtype=BF16), _of(8192, dtype=S32))),
    "sums of columns": (lambda x: x.sum(0), (_of(32768, 2048),)),
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stitching.traffic", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--gpu", default="h100", help=f"one of {', '.join(GPUS)}; default: h100")
    given = parser.parse_args(argv)
    gpu = gpu_named(given.gpu)
    command = "python -m benchmarks.stitching.traffic" + ("" if given.gpu == "h100" else f" --gpu {given.gpu}")
    run = runs.new("stitching-traffic", "Long et al., 2018", command, "static", {"name": gpu.name, "arch": gpu.arch})
    where = runs.RESULTS / "static" / f"stitching-traffic-{gpu.name}.json"
    run["functions"] = json.loads(where.read_text(encoding="utf-8"))["functions"] if where.is_file() else {}
    limits = target_for_arch(gpu.arch).limits
    for name, (function, shapes) in FUNCTIONS.items():
        if (given.only and name not in given.only) or (name in run["functions"] and not given.only):
            continue
        text = str(jax.jit(function).lower(*shapes).as_text(dialect="hlo"))
        run["functions"][name] = counted(text, name, gpu.name, limits)
        run["functions"] = {each: run["functions"][each] for each in FUNCTIONS if each in run["functions"]}
        runs.write(where, run)
        sys.stdout.write(f"{name}: {run['functions'][name]}\n")
    DOCS.joinpath("results-stitching-sizes.md").write_text(page(run), encoding="utf-8")
    return 0


def counted(text: str, name: str, gpu: str, limits: DeviceLimits) -> dict[str, Any]:
    """The figures of both plans, and the least."""
    asked = importer.read(text, name)
    found = forms.forms(asked, limits.multiprocessors)
    module = found(forms.SPLIT, (*found.scatters, forms.UPDATES)[0])
    programs: dict[str, Program] = {}
    offered = space.offered(limits, dots="library", large=True, scatters=found.scatters)
    for label, config in space.seeds(limits, offered, dots="library", large=True, scatters=found.scatters):
        if label in PLANS:
            plan = planner.plan(module, space.policy(Config.of(config), limits, dots="library"), limits)
            held = {asked.buffer_of(each): fills.default(asked, each) for each in asked.parameters}
            program = emit.program(module, plan.plan, fills=held, name=label)
            assert isinstance(program, Program), program
            programs[label] = program
    # What a scatter finds in the second-level cache depends on all that went before: nothing to be sampled.
    rows = apart.counted(programs, model=gpu, whole=bool(module.in_place))
    figures = {label: summed([row for row in rows if row["program"] == label]) for label in programs}
    return {"plans": figures, "least_bytes": traffic.ideal_bytes(asked)}


def page(run: Mapping[str, Any]) -> str:
    """docs/results-stitching-sizes.md."""
    head = ("function", "kernels", "DRAM", "least", "x least", "rows in shared memory")
    lines, ratios = [], []
    for name, found in run["functions"].items():
        first, shared = (found["plans"][label] for label in PLANS)
        if first["failed"]:
            lines.append((name, "", first["failed"], "", "", ""))
            continue
        least = found["least_bytes"]
        ratios.append(first["dram_bytes"] / least)
        other = shared["failed"] or f"{shared['dram_bytes'] / least:.2f}"
        lines.append((name, str(first["launches"]), size(first["dram_bytes"]), size(least), f"{ratios[-1]:.2f}", other))
    mean = math.exp(statistics.fmean(math.log(each) for each in ratios)) if ratios else 0.0
    return "\n".join([
        "# Stitching at the sizes of models, counted",
        "",
        f"Bytes that the first seed would move to and from the memory of an {run['device']['name'].upper()}, beside",
        "the least (all inputs read once, all outputs written once) and beside the same with rows in shared memory",
        "(`rows: shared`). Counted without a GPU ([counting.md](counting.md)), large launches by samples; nothing is",
        f"measured. Geometric mean: {mean:.2f} times the least.",
        "",
        f"Made by `{run['command']}` on {run['date'][:10]}; not yet measured on a GPU.",
        "",
        table(head, lines),
        *stencils(),
        "",
    ])  # fmt: skip


def stencils() -> list[str]:
    """Image functions, as benchmarks/stencils.py has counted them; nothing where it has not."""
    where = runs.RESULTS / "static" / "stencils-h100.json"
    if not where.is_file():
        return []
    run = json.loads(where.read_text(encoding="utf-8"))
    head = ("function", "way", "launches", "bytes over the least", "instructions a pixel")
    columns = {each: (*head, f"{each}: launches", f"{each}: bytes over the least") for each in ("XLA", "Inductor")}
    return [
        "## Image functions of small convolutions",
        "",
        "Written in JAX as kornia has them, at 2048 x 2048 pixels of f32 (blur, unsharp mask and augmentation with",
        "three planes); ours counted, SASS instructions of a pixel of a plane. XLA's launches are those that its GPU",
        "compiler makes, cuDNN's calls among them; each reads its operands and writes its results once.",
        "",
        f"Made by `{run['command']}` on {run['date'][:10]}; not yet measured on a GPU.",
        "",
        table(columns["XLA"], run["rows"]),
        "kornia's own functions through `torch.compile`, at 2048 x 2048 (the batch: 8 x 3 x 512 x 512).",
        "*Augmentation* is brightness, contrast, saturation, a flip, a blur and a normalisation. Inductor's launches",
        "are the nodes of its schedule for the processor (there is no GPU where this is made), convolutions that it",
        "calls among them; the bytes are those that it says they access. Some of its nodes compute a filter's taps.",
        "",
        table(columns["Inductor"], run["torch"]),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
