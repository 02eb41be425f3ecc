"""XLA's own executable beside ours: everything but the GPU, with XLA's compiler for the processor, and a made-up
profile of a GPU that jax's own reader reads."""

import json
import math

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="XLA comes with jax")

from benchmarks.stitching import beside, modules, xla  # noqa: E402
from benchmarks.stitching.beside import Round  # noqa: E402
from benchmarks.stitching.xla import Profile  # noqa: E402
from fusiond_stitching.analysis import planner  # noqa: E402
from fusiond_stitching.codegen import emit  # noqa: E402
from fusiond_stitching.frontend import fills  # noqa: E402
from tests.plugins.stitching.policies import LIMITS, POLICIES  # noqa: E402
from tests.plugins.stitching.running import Runner  # noqa: E402

COMPILED = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[8,8]{1,0})->f32[8,8]{1,0}}

%fused_add (p: f32[8,8], q: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
  %q = f32[8,8]{1,0} parameter(1)
  ROOT %add.3 = f32[8,8]{1,0} add(%p, %q)
}

%gemm_fusion_dot (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  ROOT %dot.7 = f32[8,8]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%command_buffer (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0} parameter(0)
  %cublas-gemm.1 = (f32[8,8]{1,0}, /*index=1*/s8[33]{0}) custom-call(%x, %x), custom_call_target="__cublas$gemm"
  %got = f32[8,8]{1,0} get-tuple-element(%cublas-gemm.1), index=0
  ROOT %loop_add_fusion.2 = f32[8,8]{1,0} fusion(%got, %x), kind=kLoop, calls=%fused_add
}

ENTRY %main (arg: f32[8,8]) -> f32[8,8] {
  %arg = f32[8,8]{1,0} parameter(0)
  %call = f32[8,8]{1,0} call(%arg), to_apply=%command_buffer
  %copy.1 = f32[8,8]{0,1} copy(%call)
  ROOT %gemm_fusion.9 = f32[8,8]{1,0} fusion(%copy.1), kind=kCustom, calls=%gemm_fusion_dot
}
"""


def test_whose_an_instruction_is():
    found = xla.portions(COMPILED)
    assert {name: found[name] for name in ("cublas_gemm_1", "gemm_fusion_9")} == dict.fromkeys(
        ("cublas_gemm_1", "gemm_fusion_9"), "library"
    )
    assert {name: found[name] for name in ("loop_add_fusion_2", "copy_1")} == dict.fromkeys(
        ("loop_add_fusion_2", "copy_1"), "fusable"
    )
    assert not {"arg", "call", "got"} & set(found)


def gpu(*lines):
    """A profile as CUPTI's collector in XLA writes it: planes of devices, a line for each stream, and what is derived.
    `lines`: (name of the line, [(kernel, instruction, microseconds)])."""
    names = sorted({name for _, events in lines for name, _, _ in events})
    operations = sorted({operation for _, events in lines for _, operation, _ in events})
    text = ['planes { id: 1 name: "/device:GPU:0"']
    for number, (line, events) in enumerate(lines):
        text.append(f'lines {{ id: {number} name: "{line}"')
        for kernel, operation, us in events:
            stat = f"stats {{ metadata_id: 1 ref_value: {operations.index(operation) + 10} }}" if operation else ""
            text.append(f"events {{ metadata_id: {names.index(kernel) + 1} duration_ps: {int(us * 1e6)} {stat} }}")
        text.append("}")
    for number, name in enumerate(names):
        text.append(f'event_metadata {{ key: {number + 1} value {{ id: {number + 1} name: "{name}" }} }}')
    text.append('stat_metadata { key: 1 value { id: 1 name: "hlo_op" } }')
    for number, name in enumerate(operations):
        text.append(f'stat_metadata {{ key: {number + 10} value {{ id: {number + 10} name: "{name}" }} }}')
    text.append("}")
    text.append('planes { id: 2 name: "/host:CPU" lines { id: 9 name: "python" events { metadata_id: 1 } } }')
    data = jax.profiler.ProfileData
    return data.from_serialized_xspace(data.text_proto_to_serialized_xspace("\n".join(text)))


def test_a_gpus_profile_is_parted_into_fusable_and_library():
    """By the instruction that the profiler names, inside a CUDA graph by the kernel's name; two calls."""
    calls = [
        ("loop_add_fusion_2", "call", 3.0), ("ampere_sgemm_32x32_nn", "call", 10.0),
        ("MemcpyD2D", "copy.1", 1.0), ("gemm_fusion_9", "gemm_fusion.9", 20.0),
        ("void splitKreduce_kernel<32, 16>", "", 2.0), ("MemsetD32", "", 0.5),
    ]  # fmt: skip
    data = gpu(("Stream #17(Compute,MemcpyD2D)", calls), ("Stream #18(Compute)", calls), ("XLA Ops", calls))
    found = xla.profile(xla.events(data, xla.PLATFORMS["cuda"]), xla.portions(COMPILED), 2)
    assert found == Profile(fusable_us=4.5, library_us=32.0, fusable=3, library=3)
    assert found.whole_us == 36.5


def test_gains_are_medians_over_rounds():
    rounds = [
        Round(ours_us=ours, theirs=Profile(fusable_us=theirs, library_us=30.0, fusable=7, library=2))
        for ours, theirs in ((10.0, 20.0), (10.0, 10.0), (10.0, 90.0))
    ]
    assert beside.gains(rounds) == {"fusion_speedup": 2.0, "interval": [1.0, 9.0], "end_to_end": 1.25}
    found = beside.times(rounds)
    assert {name: found[name] for name in ("fusable_us", "library_us", "whole_us", "kernels", "library_calls")} == {
        "fusable_us": 20.0, "library_us": 30.0, "whole_us": 50.0, "kernels": 7, "library_calls": 2,
    }  # fmt: skip
    nothing = Round(ours_us=1.0, theirs=Profile(fusable_us=0.0, library_us=30.0, fusable=0, library=2))
    assert beside.gains([nothing]) == {}


@pytest.fixture(scope="module")
def processor():
    return xla.opened("cpu")


def ours(name):
    """Our plan with barriers, and its Program with inputs as the catalogue's."""
    module = modules.module(name)
    planned = planner.plan(module, POLICIES["grid"], LIMITS)
    return module, emit.program(module, planned.plan, fills=fills.read(module, None, None), name=name)


@pytest.mark.slow
def test_xlas_results_are_ours_and_a_wrong_one_is_found(processor, scheduler_library, shared_cache, monkeypatch):
    """The whole way on the processor: text, executable, arguments, outputs; ours on the cpu device. (All eight modules
    have this comparison among the tests of the strategy.)"""
    monkeypatch.setenv("FUSIOND_CACHE", str(shared_cache))
    runner = Runner(shared_cache)
    module, program = ours("lr_step")
    executable = processor.compile((modules.FOLDER / "lr_step.hlo").read_text())
    inputs = beside.inputs(module, program, 0)
    outputs = executable.outputs(executable.given(inputs))
    names = {module.buffer_of(each): array for each, array in zip(module.parameters, inputs, strict=True)}
    right = runner.run(program, names)
    assert beside.difference(module, program, right, outputs) <= beside.CLOSE["cpu"]
    assert beside.difference(module, program, right, outputs[:-1]) == math.inf
    outputs[1] = np.where(np.arange(outputs[1].shape[1]) == 3, outputs[1] + 1, outputs[1])
    assert beside.difference(module, program, right, outputs) > 0.1
    outputs[1] = np.full_like(outputs[1], np.nan)
    assert beside.difference(module, program, right, outputs) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nmt_attn", "speech_fwd", "w2v_step"])
def test_a_module_of_the_catalogue_in_xla(processor, name):
    """Compiled, run on what our programs compute on, profiled: dots are libraries', everything else is not."""
    module, program = ours(name)
    executable = processor.compile((modules.FOLDER / f"{name}.hlo").read_text())
    arguments = executable.given(beside.inputs(module, program, 0))
    outputs = executable.outputs(arguments)
    assert [each.shape for each in outputs] == [module[each].dims for each in module.outputs]
    assert all(np.isfinite(each).all() for each in outputs)
    found = executable.profile(arguments, 2)
    assert min(found.fusable_us, found.library_us) > 0
    assert 0 < found.library <= 2 * sum(1 for each in module.instructions if module.library(each))
    assert executable.call_us(arguments, 2) > 0


class Measured:
    """A Measurer whose samples say 10 us."""

    def sample(self, program, against, plan, references):
        return type("Measurement", (), {"time_us": 10.0})()


def test_a_row_beside_xla(processor, tmp_path):
    """Everything of a module's row but the device: ours is said to take 10 us, its outputs are XLA's own."""
    module, program = ours("nmt_fig3")
    executable = processor.compile((modules.FOLDER / "nmt_fig3.hlo").read_text())
    outputs = executable.outputs(executable.given(beside.inputs(module, program, 0)))
    kept = {module.buffer_of(each): array.reshape(-1) for each, array in zip(module.outputs, outputs, strict=True)}
    np.savez(tmp_path / "0.npz", **kept)
    references = type("References", (), {"of": ((0, str(tmp_path / "0.npz")),)})()
    row = beside.row(processor, Measured(), "nmt_fig3", program, references, quick=True)
    assert row["xla"]["difference"] == 0.0
    assert [each["ours_us"] for each in row["xla"]["rounds"]] == [10.0, 10.0]
    assert row["over_xla"]["fusion_speedup"] == pytest.approx(
        math.sqrt(math.prod(each["fusable_us"] / 10 for each in row["xla"]["rounds"])), rel=1e-2
    )
    json.dumps(row)
    np.savez(tmp_path / "0.npz", **{name: array + 1 for name, array in kept.items()})
    wrong = beside.row(processor, Measured(), "nmt_fig3", program, references, quick=True)
    assert "from ours" in wrong["xla"]["problem"]
    assert "over_xla" not in wrong
