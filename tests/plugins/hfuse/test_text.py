"""The fused text: stable, clean under nvcc, and with nothing of the block's own in its PTX."""

import re
import subprocess

import pytest

from fusiond.model.nouns import Config
from fusiond.model.program import Program, problems
from fusiond_hfuse.codegen import verify

from .conftest import STRICT, assembled

HORIZONTAL = Config.of({"kind": "horizontal", "threads.a": 512, "threads.b": 256, "order": "ba"})


def test_the_text_of_the_first_pair(analyse, strategy, golden):
    program = strategy.emit(analyse("hist", "maxpool"), HORIZONTAL, {})
    golden("hist-maxpool.cu", program.sources[0].text)
    assert problems(program) == ()


def test_the_text_does_not_depend_on_sizes(analyse, strategy):
    texts = {
        strategy.emit(analyse("hist", "maxpool", sizes=sizes), HORIZONTAL, {}).sources[0].text
        for sizes in ({"hist.n": 7}, {"hist.n": 7_000_000, "maxpool.channels": 3})
    }
    assert len(texts) == 1


ENTRY = ".version 8.0\n.target sm_90\n.visible .entry k(\n)\n{\n\tmov.u32 \t%r1, %tid.x;\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("\tbar.sync \t0;", "the block's own barrier 0"), ("\tbarrier.sync \t0;", "barrier"),
        ("\tbar.red.popc.u32 \t%r1, 0, %p1;", ""), ("\tbar.sync \t%r4, 256;", "register"),
        ("\tbar.sync \t7, 256;", "belongs to no side"), ("\tmov.u32 \t%r2, %ntid.x;", "the fused block's size"),
        ("\tmov.u32 \t%r2, %tid.y;", "one-dimensional"), ("\tmov.u32 \t%r2, %ctaid.z;", "one-dimensional"),
        ("\tmov.u32 \t%r2, %nctaid.x;", "the fused grid's size"),
    ],
)  # fmt: skip
def test_the_lint_finds_a_leak(line, said):
    found = verify.lint(ENTRY + line + "\n\tret;\n}\n")
    assert found
    assert said in found[0]


def test_the_lint_is_silent_on_partial_barriers():
    good = ENTRY + "\tbar.sync \t1, 512;\n\tbar.sync 2, 256; // bar.sync 0;\n\tmov.u32 %r2, %ctaid.x;\n\tret;\n}\n"
    assert verify.lint(good) == ()
    assert verify.lint("nothing") != ()


SIDES = {"kind": "horizontal", "order": "ab", "threads.a": 512, "threads.b": 256}
OF_THREE = {"groups": "a+b+c", "kind": "horizontal", "order": "given"}
THREADS_OF_THREE = {"threads.a": 256, "threads.b": 512, "threads.c": 128}
SHAPES = {
    "padded": (2, {**SIDES, "level": "warp", "map": "pad"}),
    "vertical": (2, {"kind": "vertical", "threads": 384, "order": "ab"}),
    "sequential": (2, {**SIDES, "level": "block", "assign": "sequential"}),
    "interleaved": (2, {**SIDES, "level": "block", "assign": "interleaved"}),
    "ticket": (2, {**SIDES, "level": "block", "assign": "ticket"}),
    "stride": (2, {**SIDES, "level": "warp", "map": "stride", "blocks": 1}),
    "three": (3, {**OF_THREE, **THREADS_OF_THREE, "level": "warp", "map": "pad"}),
    "three strided": (3, {**OF_THREE, **THREADS_OF_THREE, "level": "warp", "map": "stride", "blocks": 1}),
    "three by tickets": (3, {**OF_THREE, **THREADS_OF_THREE, "level": "block", "assign": "ticket"}),
    "three, vertical": (3, {"groups": "a+b+c", "kind": "vertical", "threads": 256, "order": "given"}),
}  # fmt: skip
"""Every way to write the fused kernel."""


@pytest.mark.parametrize("shape", ["interleaved", "three strided"])
def test_the_text_of_other_shapes(analyse, strategy, golden, shape):
    """The kernel alone: what stands before it is as in the first pair's."""
    count, values = SHAPES[shape]
    text = strategy.emit(analyse(*["hist", "maxpool", "hist"][:count]), Config.of(values), {}).sources[0].text
    golden(f"{shape.replace(' ', '-')}.cu", text[text.index("// One arena") :])


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.sampled(6)
def test_nvcc_compiles_every_shape_without_a_word(analyse, strategy, tmp_path, arch, shape):
    count, values = SHAPES[shape]
    program = strategy.emit(analyse(*["hist", "maxpool", "hist"][:count]), Config.of(values), {})
    assert isinstance(program, Program), program
    ptx, said = assembled(program.sources[0], tmp_path, arch, *STRICT)
    assert strategy.inspect(program, {"fused": ptx}) is None
    assert "0 bytes spill stores" in said
    used = max(int(number) for number in re.findall(r"used (\d+) barriers", said))
    own = {"sequential": 1, "interleaved": 1, "ticket": 2, "three by tickets": 2}.get(shape, count)
    assert used <= own + 1  # sides that share no block share a barrier; 0 is counted too


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("names", [("tiles", "reverse"), ("sums", "sums"), ("early", "tiles")], ids="-".join)
@pytest.mark.sampled(6)
def test_nvcc_compiles_what_the_catalogue_lacks(analyse, strategy, tmp_path, zoo, names):
    """Namespaces, templates, macros, headers, lambdas, launch bounds, helpers that see the block."""
    analysis = analyse(*(zoo[name] for name in names))
    for name, config in strategy.seeds(analysis, strategy.space(analysis, {}), {}):
        program = strategy.emit(analysis, config, {})
        assert isinstance(program, Program), (name, program)
        ptx, _ = assembled(program.sources[0], tmp_path, "sm_90", *STRICT)
        assert strategy.inspect(program, {"fused": ptx}) is None


LEAKY = """\
template <typename T> __device__ T leak(T value) { return value + threadIdx.x; }
__global__ void k(int* out, int n) { out[threadIdx.x] = leak(n); }
"""


ROWS = """\
template <typename T> __global__ void k(T* out, int n)
{
    extern __shared__ volatile T rows[][8];
    rows[threadIdx.x / 8][threadIdx.x % 8] = n;
    __syncthreads();
    out[threadIdx.x] = rows[0][0];
}
"""
ROWS_YAML = """\
kernel: k
source: k.cu
entry: k
instance: "k<int>"
sizes: {n: 64}
arguments:
  - {name: out, dtype: int32, elements: n, role: output}
  - {name: n, dtype: int32, value: n}
block: {shape: [64]}
grid: [1]
shared: 4 * n
"""


@pytest.mark.needs_nvcc
def test_a_dynamic_array_of_arrays(analyse, strategy, kernel_file, tmp_path):
    """The cpu device cannot run such a kernel by itself; for a GPU it is a pointer like any other."""
    analysis = analyse(kernel_file("k", ROWS, ROWS_YAML), "hist")
    config = Config.of({"kind": "horizontal", "threads.a": 512, "threads.b": 64, "order": "ab"})
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program), program
    assert "using fusiond_rows = volatile T[8];" in program.sources[0].text
    assert strategy.inspect(program, {"fused": assembled(program.sources[0], tmp_path, "sm_90", *STRICT)[0]}) is None


@pytest.mark.needs_nvcc
def test_a_use_that_was_not_found_does_not_compile(analyse, strategy, kernel_file, tmp_path):
    """The namespace poisons the built-in names: take the shadows from a helper, and nvcc says so."""
    yaml = (
        "kernel: k\nsource: k.cu\nentry: k\nsizes: {n: 64}\narguments:\n"
        "  - {name: out, dtype: int32, elements: n, role: output}\n  - {name: n, dtype: int32, value: n}\n"
        "block: {shape: [64]}\ngrid: [1]\n"
    )
    analysis = analyse(kernel_file("k", LEAKY, yaml), "hist")
    config = Config.of({"kind": "horizontal", "threads.a": 512, "threads.b": 64, "order": "ab"})
    program = strategy.emit(analysis, config, {})
    assembled(program.sources[0], tmp_path, "sm_90", *STRICT)
    bare = program.sources[0].text.replace("leak(FUSIOND_SHADOWS, T value)", "leak(T value)")
    bare = bare.replace("leak(FUSIOND_PASSED, n)", "leak(n)")
    (tmp_path / "bare.cu").write_text(bare)
    done = subprocess.run(
        ["nvcc", "-arch=sm_90", "-ptx", str(tmp_path / "bare.cu"), "-o", str(tmp_path / "bare.ptx")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "incomplete" in done.stderr
