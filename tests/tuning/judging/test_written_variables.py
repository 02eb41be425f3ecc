"""Which variables a kernel can remember something in, of what nvcc makes of it."""

import pytest

from fusiond.model.program import Buffer, Launch, Pointer, Program, Role, Source
from fusiond.tuning.judging.written_variables import written_variables

TEXTS = {
    "none": ("", "y[i] = x[i];", []),
    "a text for an assertion": ("#include <cassert>\n", "assert(x[i] < 2.0f); y[i] = x[i];", []),
    "printf": ("#include <cstdio>\n", 'if (x[i] > 2.0f) printf("%f", x[i]); y[i] = x[i];', []),
    "a table": ("__device__ float table[4] = {1, 2, 3, 4};\n", "y[i] = table[i % 4];", []),
    "a constant": ("__constant__ float table[4] = {1, 2, 3, 4};\n", "y[i] = table[i % 4];", []),
    "a number": ("__device__ float memo = 1;\n", "memo = x[0]; y[i] = memo;", ["memo"]),
    "an element": ("__device__ float memo[64];\n", "y[i] = memo[i % 64]; memo[(i + 1) % 64] = x[i];", ["memo"]),
    "a counter": ("__device__ unsigned count;\n", "y[i] = atomicAdd(&count, 1);", ["count"]),
    "an unused one": ("__device__ unsigned count;\n__global__ void other() { ++count; }\n", "y[i] = x[i];", []),
    "in a function": ("__device__ float memo;\n__device__ __noinline__ void keep(float* to, float v) { *to = v; }\n",
                      "keep(&memo, x[i]); y[i] = memo;", ["memo"]),
    "in a namespace": ("namespace { __device__ float memo; }\n", "memo = x[i]; y[i] = memo;", ["memo"]),
    "two": ("__device__ float a, b;\n", "(x[i] > 0 ? a : b) = 1; y[i] = a + b;", ["a", "b"]),
}  # fmt: skip


def program(head: str, body: str, symbols: tuple[str, ...] = ()) -> Program:
    text = f"{head}__global__ void k(const float* x, float* y) {{ const int i = threadIdx.x; {body} }}\n"
    buffers = [
        Buffer(name=name, dtype="float32", elements=64, role=role)
        for name, role in (("x", Role.INPUT), ("y", Role.OUTPUT))
    ]
    return Program(
        name="k",
        buffers=tuple(buffers),
        sources=(Source(name="s", text=text, entries=("k",), symbols=symbols),),
        steps=(
            Launch(name="a", source="s", entry="k", grid=(1, 1, 1), block=(64, 1, 1), shared_bytes=0,
                   arguments=(Pointer(buffer="x"), Pointer(buffer="y"))),
        ),
    )  # fmt: skip


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("title", TEXTS)
def test_what_is_written_is_named(title: str) -> None:
    head, body, expected = TEXTS[title]
    found = list(written_variables(program(head, body)))
    assert found == expected


@pytest.mark.needs_nvcc
def test_what_the_program_restores_is_none() -> None:
    head, body, _ = TEXTS["a number"]
    assert list(written_variables(program(head, body, ("memo",)))) == []
