"""Kernels that Triton compiled, fused with each other, against NumPy."""

import numpy as np
import pytest

from fusiond.devices.counting import run
from fusiond.model.gpu.limits import limits
from fusiond.model.nouns import Config, Rejection
from fusiond.model.ptx import parser
from fusiond.requests import jobs
from fusiond.strategy import Target
from tests.ptx_data.cases import cases as known_cases

KNOWN = known_cases()
PAIRS = [
    ("softmax_sm_80", "layer_norm_sm_80"), ("gemm_f16_sm_80", "softmax_sm_80"), ("gemm_f16_sm_90", "softmax_sm_90"),
    ("attention_sm_80", "cumsum_sm_80"), ("gemm_descriptor_sm_90", "histogram_sm_80"),
    ("gemm_fp8_sm_90", "gemm_bf16_sm_90"),
]  # fmt: skip
WAYS = [
    {"level": "warp", "map": "pad", "order": "ab"},
    {"level": "warp", "map": "pad", "order": "ba"},
    {"level": "warp", "map": "stride", "blocks": 1, "order": "ab"},
    {"level": "block", "assign": "interleaved", "order": "ab"},
    {"level": "block", "assign": "multiprocessor", "order": "ba"},
]
pytestmark = pytest.mark.slow


def yaml_of(case, folder) -> str:
    """Writes a case's PTX, its drawn arrays and its YAML; what a job calls it."""
    (folder / f"{case.name}.ptx").write_text(case.text)
    values = case.values()
    lines = [f"kernel: {case.name}", f"source: {case.name}.ptx", f"entry: {case.entry}", "arguments:"]
    for each in case.arguments:
        name, dtype = each["name"], each["dtype"]
        if "value" in each:
            value = values[name] if dtype.startswith("int") else format(values[name], ".8f")
            lines.append(f"  - {{name: {name}, dtype: {dtype}, value: {value}}}")
            continue
        given = values[name]
        if each["role"] == "output":
            more = "role: inout, fill: zeros" if case.reference == "histogram" else "role: output"
        else:
            bits = given if given.dtype.isbuiltin == 1 else given.view(f"u{given.dtype.itemsize}")
            np.save(folder / f"{case.name}.{name}.npy", bits.ravel())
            more = f"role: {each['role']}, fill: {{file: {case.name}.{name}.npy}}"
        lines.append(f"  - {{name: {name}, dtype: {dtype}, elements: {given.size}, {more}}}")
    more = len(parser.parse(case.text).entries[case.entry].parameters) - len(case.arguments)
    if case.scratch_bytes:
        blocks = int(np.prod(case.grid))
        lines.append(f"  - {{name: scratch, dtype: uint8, elements: {case.scratch_bytes * blocks}, role: scratch}}")
        more -= 1
    lines += [f"  - {{name: unread{k}, dtype: uint64, value: 0}}" for k in range(more)]
    lines += [f"block: {{shape: {list(case.block)}}}", f"grid: {list(case.grid)}", f"shared: {case.shared_bytes}"]
    (folder / f"{case.name}.yaml").write_text("\n".join([*lines, ""]))
    return f"./{case.name}.yaml"


def computed(program):
    counted = run.count(program, budget=None)
    assert counted.broke is None, counted.broke
    assert not any(row.failed for row in counted.rows), [row.failed for row in counted.rows]
    return counted.outputs


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_triton_kernels_fuse_and_compute_what_numpy_computes(first, second, registry, strategy, tmp_path):
    cases = [KNOWN[first], KNOWN[second]]
    listed = ", ".join(yaml_of(case, tmp_path) for case in cases)
    (job,) = jobs.read(tmp_path / "job.yaml", f"strategy: hfuse\npair: [{listed}]\n")
    target = Target(arch="sm_90", limits=limits("sm_90"), facts=lambda source: None)
    analysis = strategy.analyse(strategy.parse(job, jobs.JobInputs(registry, job)), target)
    assert analysis.rejections == ()
    by_letter = dict(zip("ab", sorted(cases, key=lambda case: case.name), strict=True))
    threads = {f"threads.{letter}": int(np.prod(case.block)) for letter, case in by_letter.items()}
    known = {each.name for each in strategy.space(analysis, {}).parameters}
    tried = 0
    for way in WAYS:
        more = {name: 1 for name in known if name.startswith("virtual.")} if way["level"] == "block" else {}
        more |= {"taker": "none"} if "taker" in known and way["level"] == "warp" else {}
        config = Config.of({"kind": "horizontal", "cap": "none", **threads, **way, **more})
        program = strategy.emit(analysis, config, {})
        if isinstance(program, Rejection):
            assert program.rule == "not_in_space", program
            continue
        outputs = computed(program)
        for letter, case in by_letter.items():
            drawn = case.values()
            own = {name[2:]: each for name, each in outputs.items() if name[0] == letter}
            case.check(drawn, {name: each.view(drawn[name].dtype) for name, each in own.items() if name in drawn})
        tried += 1
    assert tried >= 3
