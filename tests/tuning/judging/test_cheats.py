"""The referee and kernels that cheat, in every way that is known: each is wrong, and `problem` says why. Honest second
forms of the same kernels are right."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fusiond.build import nvcc
from fusiond.requests.registry import Registry
from tests.tuning.judging import table
from tests.tuning.judging.rulings import asked
from tests.tuning.judging.table import CHEATED, CHEATS, HONEST, Cheat

WAYS = (
    "left from the last run", "computed once", "tail", "odd size", "constant output", "input mutated",
    "precision lowered", "out of bounds", "race", "hang", "child kernel", "inputs recognised", "address",
    "never written",
)  # fmt: skip


LATER = {"rowsum-no_barrier-ptx": "a race within one warp, in PTX"}
"""What the referee does not catch yet, or does not say as it should, and why."""


FIRST = {each.way: each for each in reversed(CHEATED)}
"""Way -> its first cheat, which is always run; of the others a sample is."""


def _cheats(first: bool) -> list[Cheat]:
    return [each for each in CHEATED if (FIRST[each.way] is each) is first]


@pytest.mark.needs_nvcc
@pytest.mark.sampled(8)
@pytest.mark.parametrize("cheat", _cheats(first=False), ids=lambda cheat: cheat.title)
def test_a_cheat_is_wrong(cheat: Cheat, real: Registry, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if cheat.title in LATER:
        request.applymarker(pytest.mark.xfail(reason=LATER[cheat.title], strict=False))
    found = asked(real, cheat, tmp_path)
    assert not found.right
    assert found.speedup is None
    assert found.problem is not None
    assert "\n" not in found.problem
    for words in cheat.words:
        assert words in found.problem


@pytest.mark.needs_nvcc
@pytest.mark.sampled(10)
@pytest.mark.parametrize("cheat", HONEST, ids=lambda cheat: cheat.title)
def test_an_honest_second_form_is_right(cheat: Cheat, real: Registry, tmp_path: Path) -> None:
    found = asked(real, cheat, tmp_path)
    assert found.problem is None
    assert found.right


def _document(source: str, **changes: Any) -> Cheat:
    """A candidate of axpy whose arguments differ: `changes` are keys of the argument of that name."""
    given = yaml.safe_load(table.reference("axpy").read_text(encoding="utf-8"))["arguments"]
    made = [each | changes.get(each["name"], {}) for each in copy.deepcopy(given)]
    return Cheat(kernel="axpy", source=source, way="document", words=(), changes={"arguments": made})


DOCUMENTS = {
    "a tolerance": _document("zeros", out={"compare": {"rtol": 1e9, "atol": 1e9}}),
    "other inputs": _document("zeros", x={"fill": "zeros"}, y={"fill": "zeros"}),
    "no output": _document("nothing", out={"role": "scratch"}),
    "an output that is given": _document("nothing", out={"role": "inout", "fill": "zeros"}),
    "a scalar": _document("axpy", a={"value": 0.5}),
    "a size as a number": _document("whole_blocks", n={"value": 1024}),
    "even sizes": Cheat(kernel="axpy", source="whole_blocks", way="", words=(), changes={"odd": {"n": 512}}),
    "variables": Cheat(
        kernel="axpy", source="once", way="", words=(),
        changes={"constants": [{"symbol": "launched", "dtype": "int32", "elements": 1, "role": "scratch"}]},
    ),
}  # fmt: skip


@pytest.mark.needs_nvcc
@pytest.mark.sampled(2)
@pytest.mark.parametrize("title", DOCUMENTS)
def test_what_a_candidates_document_says_changes_nothing(title: str, real: Registry, tmp_path: Path) -> None:
    assert not asked(real, DOCUMENTS[title], tmp_path).right


@pytest.mark.needs_nvcc
@pytest.mark.parametrize(("source", "status"), [("honest_strides", 0), ("zeros", 1), ("not there", 2)])
def test_the_command_ends_as_the_verdict_is(source: str, status: int, tmp_path: Path) -> None:
    known = {each.source: each for each in (*CHEATED, *HONEST) if each.kernel == "axpy"}
    path = table.written(known[source], tmp_path) if source in known else tmp_path / "none.yaml"
    command = [sys.executable, "-m", "fusiond", "judge", str(table.reference("axpy")), str(path)]
    done = subprocess.run([*command, "--device", "cpu", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    said = json.loads(done.stdout)
    if status < 2:
        assert said["right"] is (status == 0)
        assert set(said) >= {"right", "problem", "speedup", "ci95", "evidence", "registers", "spill_bytes", "occupancy",
                             "counted", "hints", "reference", "candidate", "seeds"}  # fmt: skip
        assert said["evidence"] in ("emulated", "counted")
    else:
        assert "none.yaml" in said["error"]["problem"] + said["error"]["where"]


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("name", ["child", "child_by_name"])
def test_a_child_kernel_in_ptx_is_named(name: str, real: Registry, tmp_path: Path) -> None:
    """nvcc takes a launch from the device where it is told that something is linked later."""
    compiler = nvcc.find()
    assert compiler is not None
    source, out = CHEATS / "axpy" / f"{name}.cu", tmp_path / f"{name}.ptx"
    command = [str(compiler.nvcc), "-arch=sm_90", "-rdc=true", "-ptx", "-o", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    changes = {"source": out.name, "entry": "_Z4axpyPKfS0_Pffi"}
    found = asked(real, Cheat(kernel="axpy", source=name, way="", words=(), changes=changes), tmp_path)
    assert not found.right
    assert "child kernel" in (found.problem or "")


def test_every_way_has_a_cheat_and_every_file_is_used() -> None:
    assert {each.way for each in CHEATED} == set(WAYS)
    used = {(each.kernel, each.source) for each in (*CHEATED, *HONEST)}
    assert used == {(path.parent.name, path.stem) for path in CHEATS.glob("*/*.cu")}
    titles = [each.title for each in CHEATED]
    assert len(set(titles)) == len(titles)
