"""What files say of data is read in one place: every strategy takes the same fills, and refuses with the same words."""

from pathlib import Path

import numpy as np
import pytest

from fusiond.model.errors import RequestError
from fusiond.model.inputs import documents, values
from fusiond.model.inputs.fills import fill
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.outcomes import JobState
from fusiond.model.program import EQUAL, Buffer, Compare, Fill, Role, default_compare
from fusiond.requests import jobs
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from tests.conftest import run_job

CUDA = 'extern "C" __global__ void copy(const {ctype}* x, {ctype}* y, int n) {{ y[threadIdx.x] = x[threadIdx.x]; }}\n'
FILES = {
    "hfuse": {
        "job.yaml": "strategy: hfuse\npair: [./copy.yaml, ./copy.yaml]\n",
        "copy.yaml": """kernel: copy
source: copy.cu
entry: copy
sizes: {{n: 64}}
arguments:
  - {{name: x, dtype: {dtype}, elements: n, role: input, fill: {fill}}}
  - {{name: y, dtype: {dtype}, elements: n, role: output}}
  - {{name: n, dtype: int32, value: n}}
block: {{shape: [64]}}
grid: [1]
""",
        "copy.cu": CUDA,
    },
    "transfer": {
        "job.yaml": "strategy: transfer\ngraph: ./copy.yaml\n",
        "copy.yaml": """graph: copy
sizes: {{elements: 64}}
dtype: {dtype}
inputs: [x]
outputs: [y]
vectors: {{x: {{fill: {fill}}}}}
kernels:
  - {{name: k, on: device, reads: [x], writes: [y], body: x}}
""",
    },
    "mincut": {
        "job.yaml": "strategy: mincut\npipeline: ./copy.yaml\n",
        "copy.yaml": """pipeline: copy
image: {{width: 8, height: 8, dtype: {dtype}}}
inputs: [{{name: x, fill: {fill}}}]
outputs: [y]
kernels: {{y: {{pattern: point, reads: [x], body: x}}}}
""",
    },
    "stitching": {
        "job.yaml": "strategy: stitching\nmodule: ./copy.hlo\ninputs: {{in_0: {fill}}}\n",
        "copy.hlo": """HloModule copy

ENTRY main {{
  x = {hlo}[64] parameter(0)
  ROOT y = {hlo}[64] negate(x)
}}
""",
    },
}
BAD = [
    ("int32", "{normal: [0, -1]}", "normal fills floats; for int32 there is integers: [low, high]"),
    ("float32", "{normal: [0, -1]}", "is -1; a standard deviation is not negative"),
    ("float32", "{uniform: [0, .inf]}", "is inf; it must be from -1e+300 to 1e+300"),
    ("float32", "{uniform: [0, .nan]}", "is nan; it must be from -1e+300 to 1e+300"),
    ("int32", "{uniform: [0, 1]}", "uniform fills floats; for int32 there is integers: [low, high]"),
    ("float32", "{uniform: [1, 0]}", "the first number is above the second: 1 > 0"),
    ("int32", "{integers: [5, 4]}", "the first number is above the second: 5 > 4"),
    ("int32", "{integers: [0, 4294967296]}", "is 4294967296; it must be from -2147483648 to 2147483647"),
    ("int32", "{integers: [0.5, 1]}", "is 0.5; a whole number is wanted"),
    ("int32", "{constant: 0.5}", "is 0.5; a whole number is wanted"),
    ("float32", "{constant: .inf}", "is inf; it must be from -1e+300 to 1e+300"),
    ("float32", "{uniform: 1}", "is 1; a list is wanted"),
    ("float32", "{uniform: [1]}", "expected two numbers, such as [0, 1]"),
    ("float32", "{uniform: [0, 1], iota: 1}", "unknown key 'iota'; did you mean"),
    ("float32", "{}", "expected one kind of fill, such as {uniform: [0, 1]}"),
    ("float32", "noise", "is 'noise'; it can be zeros, iota"),
    ("float32", "{noise: [0, 1]}", "unknown key 'noise'"),
    ("float32", "{file: none.npy}", "none.npy"),
    ("float32", "7", "is 7; a mapping is wanted"),
]


def written(folder: Path, strategy: str, dtype: str, given: str) -> Path:
    """A job that copies an input with this fill."""
    names = {
        "dtype": dtype, "fill": given, "ctype": DTYPES[dtype].cuda, "hlo": {"int32": "s32", "float32": "f32"}[dtype],
    }  # fmt: skip
    for name, text in FILES[strategy].items():
        (folder / name).write_text(text.format(**names))
    return folder / "job.yaml"


@pytest.mark.parametrize("strategy", FILES)
@pytest.mark.parametrize(("dtype", "given", "says"), BAD)
def test_a_bad_fill_is_refused_alike_by_all(
    real: Registry, tmp_path: Path, strategy: str, dtype: str, given: str, says: str
) -> None:
    (job,) = jobs.read(written(tmp_path, strategy, dtype, given))
    with pytest.raises(RequestError) as caught:
        prepare(real, job)
    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    assert str(tmp_path) in message.partition(": ")[0]  # file and line


@pytest.mark.parametrize("strategy", FILES)
def test_a_file_of_data_is_part_of_the_question(real: Registry, tmp_path: Path, strategy: str) -> None:
    keys = set()
    for value in (1, 2, 2):
        np.save(tmp_path / "x.npy", np.full((8, 8) if strategy == "mincut" else 64, value, np.float32))
        (job,) = jobs.read(written(tmp_path, strategy, "float32", "{file: x.npy}"))
        keys.add(prepare(real, job).workload.key)
    assert len(keys) == 2


@pytest.mark.parametrize("strategy", FILES)
@pytest.mark.parametrize(
    "given", ["zeros", "iota", "{constant: 3}", "{integers: [-5, 5]}", "{uniform: [0, 1]}", "{normal: [0, 1]}"]
)
def test_a_good_fill_is_taken_alike_by_all(real: Registry, tmp_path: Path, strategy: str, given: str) -> None:
    (job,) = jobs.read(written(tmp_path, strategy, "float32", given))
    assert prepare(real, job).workload.strategy == strategy


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_taken_can_be_drawn(dtype: str) -> None:
    for text in ("zeros", "iota", "{constant: 1}", "{integers: [0, 1]}", "{uniform: [0, 1]}", "{normal: [0, 1]}"):
        node = documents.parse(f"fill: {text}", "x.yaml").mapping()["fill"]
        try:
            found = values.fill(node, dtype)
        except RequestError:
            assert not DTYPES[dtype].floating
            continue
        drawn = fill(Buffer(name="x", dtype=dtype, elements=9, role=Role.INPUT, fill=found), 0)
        assert drawn.size == 9


def test_bounds_of_whole_numbers_stay_exact() -> None:
    node = documents.parse("fill: {integers: [9007199254740993, 9007199254740995]}", "x.yaml").mapping()["fill"]
    assert values.fill(node, "int64") == Fill(kind="integers", low=2**53 + 1, high=2**53 + 3)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("equal", EQUAL),
        ("{rtol: 0.5}", Compare(kind="close", rtol=0.5)),
        ("{atol: 2}", Compare(kind="close", atol=2.0)),
    ],
)
def test_comparisons(text: str, found: Compare) -> None:
    node = documents.parse(f"compare: {text}", "x.yaml").mapping()["compare"]
    assert values.comparison(node, "float32") == found
    assert values.comparison(None, "float32") == default_compare("float32")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "expected rtol, atol or both"), ("near", "it can be equal"), ("{rtol: -1}", "must be from 0"),
        ("{ulp: 1}", "unknown key"),
    ],
)  # fmt: skip
def test_bad_comparisons(text: str, says: str) -> None:
    node = documents.parse(f"compare: {text}", "x.yaml").mapping()["compare"]
    with pytest.raises(RequestError, match=says):
        values.comparison(node, "float32")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{n: 0}", "must be from 1"), ("{min: 3}", "cannot be the name of a size"),
        ("{n-1: 3}", "cannot be the name"), ("{n: two}", "whole number"),
    ],
)  # fmt: skip
def test_bad_sizes(text: str, says: str) -> None:
    node = documents.parse(f"sizes: {text}", "x.yaml").mapping()["sizes"]
    with pytest.raises(RequestError, match=says):
        values.sizes(node)


@pytest.mark.slow
@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.usefixtures("gxx_here", "short_measuring")
def test_a_comparison_that_proves_nothing_is_refused_unless_the_job_says_so(
    real: Registry, tmp_path: Path, accepted: bool
) -> None:
    path = written(tmp_path, "transfer", "float32", "zeros")
    path.write_text(
        path.read_text() + f"accept_constant: {str(accepted).lower()}\nsearch: {{trials: 1}}\ndevice: cpu\n"
    )
    (job,) = jobs.read(path)
    with Store.open(tmp_path / "store.sqlite") as store:
        row, state = run_job(store, real, job)
        problem = store.job(row.id).problem
    if accepted:
        assert state is JobState.DONE, problem
    else:
        assert state is JobState.FAILED
        assert problem is not None
        assert "y is 0.0 in all of its 64 elements" in problem
        assert "accept_constant: true" in problem
