"""Compiles the kernels of kernels.py to PTX with Triton 3.9, and writes index.json. Needs no GPU:

python -m venv triton && triton/bin/pip install triton==3.9.0 && triton/bin/python tests/ptx_data/make.py
"""

# mypy: ignore-errors
from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"

import kernels
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = Path(__file__).parent
VERSION = 87
"""Of the PTX: one that the toolkit of CUDA 12.9 and later assembles; `newest` is what Triton writes by itself."""
TYPES = {
    "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int32": "i32", "int8": "i8", "float8_e4m3fn": "fp8e4nv",
}  # fmt: skip


def array(name, dtype, *shape, role="input", low=-1.0, high=1.0):
    return {"name": name, "dtype": dtype, "shape": list(shape), "role": role, "low": low, "high": high}


def scalar(name, dtype, value):
    return {"name": name, "dtype": dtype, "value": value}


def descriptor(of, *box):
    """A tensor map of an array; Triton's parameters behind it are shape and strides."""
    return {"name": f"map_{of}", "tensor_map": of, "box": list(box)}


def of_gemm(a, c, m, n, k, **more):
    drawn = {"low": -8, "high": 8} if a == "int8" else {}
    return [
        array("a", a, m, k, **drawn), array("b", a, k, n, **drawn), array("c", c, m, n, role="output"),
        scalar("M", "int32", m), scalar("N", "int32", n), scalar("K", "int32", k),
    ]  # fmt: skip


ROWS, COLUMNS = 24, 1000
VECTOR = 5000
ROW = [array("x", "float32", ROWS, COLUMNS, low=-3.0, high=3.0), array("y", "float32", ROWS, COLUMNS, role="output")]
NORM = [ROW[0], array("weight", "float32", COLUMNS), array("bias", "float32", COLUMNS), ROW[1],
        scalar("n", "int32", COLUMNS), scalar("epsilon", "float32", 1e-5)]  # fmt: skip
DROPOUT = [array("x", "float32", VECTOR), array("y", "float32", VECTOR, role="output"), scalar("n", "int32", VECTOR),
           scalar("p", "float32", 0.3), scalar("seed", "int32", 1234)]  # fmt: skip
CUMSUM = [array("x", "int32", ROWS, COLUMNS, low=-9, high=9), array("y", "int32", ROWS, COLUMNS, role="output"),
          scalar("n", "int32", COLUMNS)]  # fmt: skip
HISTOGRAM = [array("x", "int32", VECTOR, low=0, high=63), array("y", "int32", 64, role="output"),
             scalar("n", "int32", VECTOR)]  # fmt: skip
HEADS, TOKENS, WIDTH = 2, 150, 64
ATTENTION = [*(array(each, "float16", HEADS, TOKENS, WIDTH) for each in "qkv"),
             array("o", "float16", HEADS, TOKENS, WIDTH, role="output"),
             scalar("n", "int32", TOKENS), scalar("scale", "float32", 0.125)]  # fmt: skip
MAPPED = [descriptor("a", 64, 64), descriptor("b", 64, 64), descriptor("c", 64, 64), scalar("K", "int32", 192)]


def tiles(m, n, k, total=None):
    return {"BM": m, "BN": n, "BK": k, **({"ACC": total} if total else {})}


WIDE = {"BLOCK": 1024}
SOFTMAX = [*ROW, scalar("n", "int32", COLUMNS)]
DESCRIBED = of_gemm("float16", "float16", 112, 104, 192)
# Name: kernel, architecture, warps, grid, arguments, constants, relative tolerance, stages.
ALL = {
    "softmax_sm_80": ("softmax", 80, 4, (ROWS,), SOFTMAX, WIDE, 1e-5, 1),
    "softmax_sm_90": ("softmax", 90, 4, (ROWS,), SOFTMAX, WIDE, 1e-5, 1),
    "softmax_newest": ("softmax", 90, 8, (ROWS,), SOFTMAX, WIDE, 1e-5, 1),
    "softmax_sm_100": ("softmax", 100, 4, (ROWS,), SOFTMAX, WIDE, 1e-5, 1),
    "layer_norm_sm_80": ("layer_norm", 80, 4, (ROWS,), NORM, WIDE, 1e-5, 1),
    "layer_norm_sm_90": ("layer_norm", 90, 8, (ROWS,), NORM, WIDE, 1e-5, 1),
    "dropout_sm_80": ("dropout", 80, 4, (5,), DROPOUT, WIDE, 1e-6, 1),
    "cumsum_sm_80": ("cumsum", 80, 4, (ROWS,), CUMSUM, WIDE, 0.0, 1),
    "histogram_sm_80": ("histogram", 80, 4, (5,), HISTOGRAM, {**WIDE, "BINS": 64}, 0.0, 1),
    "gemm_f16_sm_80": (
        "gemm", 80, 4, (2, 2), of_gemm("float16", "float16", 112, 104, 128), tiles(64, 64, 32, "float32"), 2e-3, 3),
    "gemm_bf16_sm_80": (
        "gemm", 80, 4, (2, 2), of_gemm("bfloat16", "float32", 112, 104, 128), tiles(64, 64, 32, "float32"), 1e-5, 2),
    "gemm_tf32_sm_80": (
        "gemm", 80, 4, (2, 2), of_gemm("float32", "float32", 112, 104, 128), tiles(64, 64, 32, "float32"), 2e-3, 2),
    "gemm_s8_sm_80": (
        "gemm", 80, 4, (2, 2), of_gemm("int8", "int32", 112, 112, 128), tiles(64, 64, 32, "int32"), 0.0, 2),
    "gemm_split_sm_80": (
        "gemm_split", 80, 4, (2, 2, 4), of_gemm("float16", "float32", 128, 128, 128), tiles(64, 64, 32), 1e-5, 1),
    "gemm_f16_sm_90": ("gemm", 90, 4, (2, 2), DESCRIBED, tiles(64, 64, 64, "float32"), 2e-3, 3),
    "gemm_bf16_sm_90": (
        "gemm", 90, 8, (1, 1), of_gemm("bfloat16", "bfloat16", 112, 104, 128), tiles(128, 128, 32, "float32"), 1e-2, 2),
    "gemm_fp8_sm_90": (
        "gemm", 90, 4, (2, 2), of_gemm("float8_e4m3fn", "float16", 112, 112, 192), tiles(64, 64, 64, "float32"), 2e-3, 2
    ),
    "gemm_descriptor_sm_90": ("gemm_descriptor", 90, 4, (2, 2), DESCRIBED, tiles(64, 64, 64), 2e-3, 2),
    "gemm_host_descriptor_sm_90": ("gemm_host_descriptor", 90, 4, (2, 2), MAPPED, tiles(64, 64, 64), 2e-3, 3),
    "attention_sm_80": ("attention", 80, 4, (3, HEADS), ATTENTION, {"BM": 64, "BN": 32, "D": WIDTH}, 4e-3, 2),
    "attention_sm_90": ("attention", 90, 4, (3, HEADS), ATTENTION, {"BM": 64, "BN": 64, "D": WIDTH}, 4e-3, 2),
}  # fmt: skip


def signature(arguments, constants):
    found, attributes = {}, {}
    for k, each in enumerate(arguments):
        if "tensor_map" in each:
            height, width = each["box"]
            found[each["name"]] = f"tensordesc<fp16[{height}, {width}]>"
        elif "shape" in each:
            found[each["name"]] = "*" + TYPES[each["dtype"]]
            attributes[k,] = [["tt.divisibility", 16]]
        else:
            found[each["name"]] = TYPES[each["dtype"]]
            if each["dtype"] == "int32" and each["value"] % 16 == 0:
                attributes[k,] = [["tt.divisibility", 16]]
    return {**found, **dict.fromkeys(constants, "constexpr")}, attributes


def cleaned(text):
    """Without what says where it was compiled."""
    text = re.sub(r"^\s*(\.loc\b|\.file\b|//).*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\.section\s[^{]*\{.*?\}", "", text, flags=re.DOTALL)


def kept(name, text):
    (HERE / f"{name}.ptx.gz").write_bytes(gzip.compress(cleaned(text).encode(), 9, mtime=0))


def main():
    if shutil.which("nvcc"):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "compiled.ptx"
            subprocess.run(["nvcc", "-arch=sm_90", "-std=c++17", "-ptx", HERE / "compiled.cu", "-o", out], check=True)
            kept("compiled", out.read_text())
    entries = []
    for name, (kernel, arch, warps, grid, arguments, constants, tolerance, stages) in ALL.items():
        function = getattr(kernels, kernel)
        words, attributes = signature(arguments, constants)
        given = {k: getattr(triton.language, v) if isinstance(v, str) else v for k, v in constants.items()}
        names = list(words)
        version = None if name.endswith("newest") else VERSION
        # Triton names its parameters as the function does.
        words = dict(zip(function.arg_names, (words[each] for each in names), strict=True))
        made = triton.compile(
            ASTSource(fn=function, signature=words, constexprs=given, attrs=attributes),
            target=GPUTarget("cuda", arch, 32),
            options={"num_warps": warps, "num_stages": stages, "ptx_version": version},
        )
        kept(name, made.asm["ptx"])
        scratch = made.metadata.global_scratch_size
        entries.append({
            "name": name, "entry": made.metadata.name, "grid": [*grid, 1, 1][:3], "block": [32 * warps, 1, 1],
            "shared_bytes": made.metadata.shared, "scratch_bytes": scratch, "arguments": arguments,
            "reference": kernel, "tolerance": tolerance,
        })  # fmt: skip
        print(name, made.metadata.shared, scratch, len(made.asm["ptx"]), (HERE / f"{name}.ptx.gz").stat().st_size)
    (HERE / "index.json").write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
