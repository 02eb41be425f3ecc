"""benchmarks/foreign: a program's launches are seen without a GPU, described for hfuse, fused and run both ways."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.foreign import captures, described, fusing, page
from benchmarks.foreign.captures import Capture
from fusiond.counting.kernels import CountLimits
from fusiond.cuda.limits import limits
from fusiond.errors import RequestError
from fusiond.registry import Registry
from fusiond.strategy import Target
from fusiond_hfuse import plugin

PROGRAM = r"""
#include <cstdio>
#include <vector>
struct Rows { float* data; int n; const float* second; };
__constant__ float factor[2];
__device__ int counted;
template <typename T> __global__ void scale(Rows rows, T* out, const T* tail, T bias) {
  extern __shared__ T kept[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  kept[threadIdx.x] = i < rows.n ? rows.data[i] * factor[1] + rows.second[i] : T(0);
  __syncthreads();
  if (i < rows.n) out[i] = kept[blockDim.x - 1 - threadIdx.x] + tail[i] + bias;
  if (i < rows.n) atomicAdd(&counted, 1);
}
__global__ void follow(int* const* rows, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) rows[blockIdx.x][i] += 100 * blockIdx.x + i;
}
__global__ void last(int* out, int n) {
  if (threadIdx.x < n) atomicExch(out + threadIdx.x, blockIdx.x);
}
int main(int argc, char** argv) {
  const int n = 1000;
  std::vector<float> host(2 * n);
  for (int i = 0; i < 2 * n; i++) host[i] = i % 37;
  float *data, *out;
  cudaMalloc(&data, 2 * n * sizeof(float));
  cudaMallocManaged(&out, n * sizeof(float));
  cudaMemcpyAsync(data, host.data(), 2 * n * sizeof(float), cudaMemcpyHostToDevice, 0);
  float twice[2] = {1, 2};
  cudaMemcpyToSymbol(factor, twice, sizeof twice);
  int zero = 7;
  cudaMemcpyToSymbol(counted, &zero, sizeof zero);
  Rows rows = {data, n, data + n};
  if (argc < 2) scale<<<8, 128, 512>>>(rows, out, (const float*)data + 500, 0.5f);
  int* lines[3];
  for (auto& each : lines) {
    cudaMalloc(&each, 256 * sizeof(int));
    cudaMemset(each, 1, 256 * sizeof(int));
  }
  int** table;
  cudaMalloc(&table, sizeof lines);
  cudaMemcpy(table, lines, sizeof lines, cudaMemcpyHostToDevice);
  if (argc == 2) follow<<<3, dim3(16, 2)>>>(table, 200);
  if (argc == 4) last<<<5, 64>>>(lines[0], 20);
  return cudaDeviceSynchronize() == cudaSuccess && cudaGetLastError() == cudaSuccess ? 0 : 1;
}
"""
SCALE, FOLLOW = "_Z5scaleIfEv4RowsPT_PKS1_S1_", "_Z6followPKPii"
pytestmark = pytest.mark.needs_nvcc


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> tuple[Path, Path]:
    """The program, and the folder with the stand-in for libcudart."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "program.cu").write_text(PROGRAM)
    command = ["nvcc", "-arch=compute_90", "-cudart", "shared", "-no-compress", "-o", "program", "program.cu"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "program", captures.built(folder)


@pytest.fixture(scope="module")
def corpus(program, tmp_path_factory) -> dict[str, Capture]:
    folder = tmp_path_factory.mktemp("corpus")
    captures.drawn([str(program[0])], program[1], folder / "1", seed=1)
    captures.drawn([str(program[0]), "follow"], program[1], folder / "2", seed=1)
    captures.drawn([str(program[0]), "the", "last", "one"], program[1], folder / "3", seed=1)
    return {each.name: each for each in captures.kept(folder)}


def test_a_launch_is_seen_with_what_its_parameters_hold(corpus):
    scale = corpus["k1"]
    assert scale.entry == SCALE
    assert (scale.grid, scale.block, scale.shared_bytes) == ((8, 1, 1), (128, 1, 1), 512)
    assert [each.size_bytes for each in scale.parameters] == [24, 8, 8, 4]
    rows, out, tail, bias = scale.parameters
    data = rows.references[0].allocation
    assert [(each.at, each.allocation, each.offset) for each in rows.references] == [(0, data, 0), (16, data, 4000)]
    assert struct.unpack_from("<i", rows.value, 8) == (1000,)
    assert [(each.allocation, each.offset) for each in tail.references] == [(data, 2000)]
    assert out.references[0].allocation != data
    assert struct.unpack("<f", bias.value) == (0.5,)


def test_memory_and_variables_are_kept_as_the_host_left_them(corpus):
    scale = corpus["k1"]
    held = scale.allocations[scale.parameters[0].references[0].allocation].contents().view(np.float32)
    np.testing.assert_array_equal(held, np.arange(2000, dtype=np.float32) % 37)
    assert {name: each.contents().tolist() for name, each in scale.variables.items()} == {
        "factor": list(struct.pack("<2f", 1, 2)),
        "counted": [7, 0, 0, 0],
    }


def test_addresses_in_memory_lead_to_allocations(corpus):
    follow = corpus["k2"]
    assert (follow.entry, follow.block) == (FOLLOW, (16, 2, 1))
    table = follow.allocations[follow.parameters[0].references[0].allocation]
    lines = [each.allocation for each in table.references]
    assert [each.at for each in table.references] == [0, 8, 16]
    assert len(set(lines)) == 3
    assert all(follow.allocations[each].contents().tolist() == [1] * 1024 for each in lines)


def test_a_program_that_launches_nothing_is_an_error(program, tmp_path):
    with pytest.raises(RequestError, match="it launches no kernel"):
        captures.drawn([str(program[0]), "neither", "of", "them", "four"], program[1], tmp_path / "x", seed=1)


def test_a_yaml_places_the_addresses_of_a_struct(corpus, tmp_path):
    text = described.write(corpus["k1"], tmp_path).read_text()
    assert '"0": {dtype: uint8, elements: 8000' in text
    assert '"8": {dtype: uint32, value: 1000}' in text
    assert '"16": {dtype: uint8, elements: 4000' in text
    assert 'name: p3, bytes: "0000003f"' in text
    assert json.loads(text.split("sizes: ")[1].splitlines()[0]) == {"grid_x": 8}
    assert "grid: ['grid_x', 1, 1]" in text
    np.testing.assert_array_equal(np.load(tmp_path / "k1.p0.16.npy").view(np.float32), np.arange(1000, 2000) % 37)


@pytest.mark.parametrize(
    ("grid", "blocks", "left"),
    [((8, 1, 1), 16, (8, 1, 1)), ((100, 3, 1), 16, (4, 3, 1)), ((3, 70, 9), 1, (1, 1, 1))],
)
def test_a_grid_is_halved_along_its_longest_axis(corpus, grid, blocks, left):
    assert captures.shrunk(dataclasses.replace(corpus["k1"], grid=grid), blocks).grid == left


@pytest.fixture(scope="module")
def registry() -> Registry:
    found = Registry()
    found.add(plugin, "hfuse")
    return found


@pytest.fixture
def silent(monkeypatch) -> None:
    target = Target(arch="sm_90", limits=limits("sm_90"), facts=lambda source: None)
    monkeypatch.setattr(fusing, "target_for_arch", lambda arch: target)


def test_a_pair_gives_the_same_memory_fused(registry, corpus, silent):
    pair = corpus["k1"], corpus["k2"]
    known = {each.name: {"float_atomics": [], "blocks": 16} for each in pair}
    ways = set()
    for seed in range(4):
        row = fusing.compared(registry, pair, known, seed)
        assert row["result"] == "equal", row
        ways.add(row["way_run"])
    assert len(ways) > 1


def test_the_interpreter_does_what_the_kernels_say(registry, corpus, silent, tmp_path):
    found = fusing.group(registry, [corpus["k1"], corpus["k2"]], tmp_path, fusing.target_for_arch("sm_90"))
    ran = fusing.Machine(found.captures).run(found.unfused(), CountLimits())
    x = np.arange(2000, dtype=np.float32) % 37
    kept = np.zeros(1024, np.float32)
    kept[:1000] = x[:1000] * 2 + x[1000:]
    wanted = (kept.reshape(8, 128)[:, ::-1].reshape(-1)[:1000] + x[500:1500] + np.float32(0.5)).astype(np.float32)
    out = corpus["k1"].parameters[1].references[0].allocation
    np.testing.assert_array_equal(ran.memory[f"a.{out}"].view(np.float32), wanted)
    assert ran.memory["a.counted"].view(np.int32).tolist() == [1007]


def test_a_kernel_that_never_ends_is_told(registry, corpus, silent, monkeypatch):
    assert fusing.alone(registry, corpus["k2"])["runs"]
    monkeypatch.setattr(fusing, "MOST", 10)
    row = fusing.alone(registry, corpus["k2"])
    assert (row["runs"], row["blocks"]) == (False, 1)
    assert "the limit of instructions" in row["why"]


def test_what_the_order_of_blocks_decides_is_told(registry, corpus, silent):
    """The last block that writes wins: block 4, or block 0 where they begin in the reverse order."""
    last = corpus["k3"]
    (allocation,) = last.allocations
    assert fusing.alone(registry, last)["by_order"] == [str(allocation)]
    assert fusing.alone(registry, corpus["k2"])["by_order"] == []


def test_memory_that_differs_is_told(registry, corpus, silent, monkeypatch):
    pair = corpus["k1"], corpus["k2"]
    known = {each.name: {"float_atomics": [], "blocks": 16} for each in pair}
    run, calls = fusing.Machine.run, []

    def spoilt(self, program, limits):
        ran = run(self, program, limits)
        calls.append(program)
        if len(calls) == 2:
            next(iter(ran.memory.values()))[3] ^= 1
        return ran

    monkeypatch.setattr(fusing.Machine, "run", spoilt)
    row = fusing.compared(registry, pair, known, 1)
    assert row["result"] == "differs"
    assert "1 bytes of" in row["why"]


def _dies(_registry: Registry, status: int) -> fusing.Row:
    os._exit(status)


def test_a_process_that_dies_is_a_row():
    assert fusing.apart(_dies, 3) == {"result": "fault", "why": "the process died"}


def test_sums_of_floats_and_clocks_are_found(corpus):
    text = corpus["k1"].ptx.read_text()
    assert fusing.nature(text, SCALE) == {"float_atomics": [], "clock": False}
    changed = text.replace(".add.s32", ".add.f32").replace(".add.u32", ".add.f32")
    changed = changed.replace("%tid.x", "%clock")
    assert fusing.nature(changed, SCALE) == {"float_atomics": ["f32"], "clock": True}


def test_the_page_counts_what_the_rows_say():
    run = {
        "command": "c", "date": "2026-11-28", "nvcc": "13", "seed": 1, "drawn": {}, "evidence": "static",
        "device": {"arch": "sm_90"},
        "members": [
            {"kernel": name, "member": name != "d", "runs": name != "c", "program": "p", "why": "an instruction"}
            | {"rule": "cluster", "detail": "why|not"}
            for name in "abcd"
        ],
        "pairs": [
            {"pair": ["a", "b"], "fused": True, "result": "equal", "ways": []},
            {"pair": ["a", "c"], "fused": True, "result": "differs", "why": "a.0", "way_run": "stride", "ways": []},
        ],
    }  # fmt: skip
    text = page.render([run])
    assert "| kernels that become members | 3 of 4 (75.0 %) | 95 % |" in text
    assert "| of these, fused: equal to the last bit | 1 of 2 (50.0 %) |  |" in text
    assert "| cluster | 1 | why/not |" in text
    assert "| c | p | why/not |" in text
    assert "| kernels that end in the interpreter by themselves | 2 of 3 (66.7 %) |  |" in text
    assert "| a + c | differs | stride | a.0 |" in text
