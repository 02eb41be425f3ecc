"""The strategy: its contract, what it refuses, and how many kernels it needs for the eight modules."""

from pathlib import Path

import pytest

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Job
from fusiond.model.program import Fill, Program
from fusiond.requests import jobs
from fusiond.requests.planning import plan, prepare, reference
from fusiond.requests.registry import Registry
from fusiond.strategy import Target
from fusiond.testing.strategies import StrategyContract
from fusiond_stitching.strategy import Stitching

from .jobs import H100, ODD, job, registry

pytestmark = pytest.mark.usefixtures("sorts_are_boundaries", "without_facts")

JOBS = sorted((Path(__file__).parents[3] / "configs" / "jobs").glob("stitching-*.yaml"))

SORTED = """HloModule sorted

less { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}

ENTRY main {
  x = f32[16] parameter(0)
  y = f32[16] exponential(x)
  z = f32[16] sort(y), dimensions={0}, to_apply=less
  ROOT w = f32[16] negate(z)
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("modules")
    (found / "odd.hlo").write_text(ODD)
    (found / "sorted.hlo").write_text(SORTED)
    return found


class TestStitching(StrategyContract):
    random_points = 2

    @pytest.fixture(autouse=True)
    def _folder(self, folder: Path) -> None:
        self.folder = folder

    def strategy(self) -> Stitching:
        return Stitching()

    def jobs(self) -> tuple[Job, ...]:
        return (job("module: ./odd.hlo\nprobes: 3\n", str(self.folder / "job.yaml")),)

    def registry(self) -> Registry:
        return registry()


@pytest.mark.slow
class TestModules(TestStitching):
    """The same over modules of the catalogue."""

    def jobs(self) -> tuple[Job, ...]:
        return (
            job("module: nmt_fig3\ndots: any\ninputs: {in_0: {normal: [0, 2]}}\n"),
            job("module: lr_step\ninputs: {in_1: {uniform: [0, 1]}}\n"),
        )


# --- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "'module' is missing"), ("module: no_step", "unknown module 'no_step'"),
        ("module: ./missing.hlo", "there is no file"), ("module: lr_step\ndots: some", "dots: is 'some'"),
        ("module: lr_step\nprobes: -1", "probes: is -1"),
        ("module: lr_step\ninputs: {in_9: zeros}", "unknown key 'in_9'"),
        ("module: lr_step\nsizes: {n: 3}", "a module's sizes are part of it"),
        ("module: lr_step\ngraph: x", "unknown key 'graph'"),
        ("module: lr_step\naccuracy: fast", "is 'fast'; it can be strict, xla"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_job_is_one_line_that_says_where(text, said, folder):
    text = "" if text == "{}" else text
    with pytest.raises(RequestError) as caught:
        prepare(registry(), job(text, str(folder / "job.yaml")))
    message = str(caught.value)
    assert said in message
    assert len(message.splitlines()) == 1
    assert "job.yaml" in message


def test_a_mistake_in_the_module_names_its_file_and_line(folder):
    (folder / "wrong.hlo").write_text(ODD.replace("divide(x, wide)", "divide(x, sum)"))
    with pytest.raises(RequestError, match=r"wrong\.hlo:13: divide 'y': the operand 'sum' is \[7\]"):
        prepare(registry(), job("module: ./wrong.hlo", str(folder / "job.yaml")))


@pytest.mark.slow
def test_a_module_with_a_sort_says_what_is_filled(folder):
    found = plan(registry(), job("module: sorted.hlo", str(folder / "job.yaml")), arch="sm_90")
    report = found.analysis.report
    assert report["kernels"]["stitched"] == 2
    (sort,) = report["library"]
    assert {name: sort[name] for name in ("name", "stand_in", "shape", "reads", "result")} == {
        "name": "z", "stand_in": "boundary_0", "shape": "f32[16]", "reads": ["operand_0"], "result": None,
    }  # fmt: skip
    assert found.rejections == ()
    assert "sort 'z': sort is left to a library, which reads operand_0\n    z f32[16]: boundary_0 is filled" in (
        found.description
    )
    program = reference(Stitching(), found.analysis)
    assert {each.name for each in program.buffers} == {"in_0", "boundary_0", "operand_0", "out_0"}


def test_a_stand_in_is_filled_as_the_job_says(folder):
    text = "module: sorted.hlo\ninputs: {boundary_0: {uniform: [2, 3]}}"
    found = plan(registry(), job(text, str(folder / "job.yaml")), arch="sm_90")
    wanted = Fill(kind="uniform", low=2, high=3)
    assert reference(Stitching(), found.analysis).buffer("boundary_0").fill == wanted
    with pytest.raises(RequestError, match=r"unknown key 'boundary_1'.*boundary_0"):
        prepare(registry(), job(text.replace("y_0", "y_1"), str(folder / "job.yaml")))


def test_accuracy_goes_into_all_programs_and_into_the_workload(folder):
    """The unfused ways, the candidates, a group's own job; strict is the workload that there was before."""
    found = {}
    for accuracy in ("", "accuracy: strict", "accuracy: xla"):
        prepared = prepare(registry(), job(f"module: ./odd.hlo\n{accuracy}\n", str(folder / "job.yaml")))
        strategy = prepared.strategy
        analysis = strategy.analyse(prepared.workload, Target(arch="sm_90", limits=H100, facts=lambda source: None))
        seeds = strategy.seeds(analysis, strategy.space(analysis, {}), {})
        programs = [strategy.emit(analysis, seeds[0][1], {}), *(
            each.emit(next(each.space.points())) for each in strategy.baselines(analysis)
        )]  # fmt: skip
        flags = {source.flags for program in programs for source in program.sources}
        assert len(flags) == 1
        found[accuracy] = (prepared.workload.key, *flags)
    assert found[""] == found["accuracy: strict"]
    assert found[""][1] == ()
    assert found["accuracy: xla"][1] == ("-prec-div=false", "-prec-sqrt=false")
    assert found["accuracy: xla"][0] != found[""][0]


@pytest.mark.slow
def test_a_frame_is_a_job_of_its_own(folder):
    (folder / "loop.hlo").write_text(LOOP)
    path = str(folder / "job.yaml")
    prepared = prepare(registry(), job("module: loop.hlo\nframe: body\ninputs: {in_1: zeros}", path)).workload
    assert prepared.name == "loop:body"
    assert prepared.content["module"] != prepare(registry(), job("module: loop.hlo", path)).workload.content["module"]
    found = plan(registry(), job("module: loop.hlo\nframe: body", path), arch="sm_90")
    parent = plan(registry(), job("module: loop.hlo", path), arch="sm_90")
    assert "a job of its own with 'frame: body'" in parent.description
    mine = prepare(registry(), job("module: loop.hlo\nframe: body", path)).workload
    inner = [prepare(registry(), each).workload for each in Stitching().parts(parent.analysis)]
    assert [each.key for each in inner] == [mine.key]  # the test has one instruction: nothing to fuse
    assert {each.name for each in reference(Stitching(), found.analysis).buffers} == {"in_0", "in_1", "out_0", "out_1"}
    with pytest.raises(RequestError, match=r"job.yaml.*frame: is 'x'; it can be body, test"):
        prepare(registry(), job("module: loop.hlo\nframe: x", path))
    with pytest.raises(RequestError, match="frame: sorted has no frames"):
        prepare(registry(), job("module: sorted.hlo\nframe: x", path))


LOOP = """HloModule loop

body { s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[8] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  w = f32[8] tanh(v)
  ROOT t = (s32[], f32[8]) tuple(j, w)
}

test { s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}

ENTRY main {
  x = f32[8] parameter(0)
  e = f32[8] exponential(x)
  first = f32[1] slice(x), slice={[0:1]}
  one = f32[] reshape(first)
  zero = s32[] convert(one)
  start = (s32[], f32[8]) tuple(zero, e)
  run = (s32[], f32[8]) while(start), condition=test, body=body
  last = f32[8] get-tuple-element(run), index=1
  ROOT out = f32[8] negate(last)
}
"""


def test_a_dot_counts_where_it_may_be_stitched_and_nowhere_else(folder):
    target = Target(arch="sm_90", limits=H100, facts=lambda source: None)
    strategy = Stitching()
    for dots, counted in (("library", False), ("any", True), ("stitched", True)):
        analysis = strategy.analyse(prepare(registry(), job(f"module: nmt_fig3\ndots: {dots}")).workload, target)
        offered = strategy.space(analysis, {})
        programs = [each.emit(next(each.space.points())) for each in strategy.baselines(analysis)]
        stitched = [strategy.emit(analysis, config, {}) for _, config in strategy.seeds(analysis, offered, {})]
        for program in (*programs, *stitched):
            calls = {step.counted for step in program.steps if step.entry.startswith("library_")}
            assert calls == (set() if dots == "stitched" and program in stitched else {counted})
            assert all(step.counted for step in program.steps if not step.entry.startswith("library_"))


def test_a_module_of_library_calls_alone_is_told_so(folder):
    (folder / "dots.hlo").write_text(DOTS)
    found = plan(registry(), job("module: dots.hlo", str(folder / "job.yaml")), arch="sm_90")
    assert [each.rule for each in found.rejections] == ["nothing"]


DOTS = """HloModule dots

ENTRY main {
  x = f32[4,6] parameter(0)
  y = f32[2,3,5] parameter(1)
  z = f32[6,5] reshape(y)
  ROOT r = f32[4,5] dot(x, z), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


# --- keys -----------------------------------------------------------------------------------------------


def test_the_key_follows_what_the_module_computes_and_not_its_text(folder):
    (folder / "same.hlo").write_text("// a remark\n" + ODD.replace("f32[7,33] divide", "f32[7,33]{1,0} divide"))
    (folder / "other.hlo").write_text(ODD.replace("divide(x, wide)", "multiply(x, wide)"))
    content = {
        name: prepare(registry(), job(f"module: {name}.hlo", str(folder / "job.yaml"))).workload.content
        for name in ("odd", "same", "other")
    }
    assert content["odd"] == content["same"] != content["other"]


# --- the performance library ----------------------------------------------------------------------------


@pytest.mark.slow
def test_what_the_device_has_answered_decides_the_schedule():
    """With every probe answered, the schedule whose entries are fastest is taken, whatever the estimate."""
    target = Target(arch="sm_90", limits=H100, facts=lambda source: None)
    strategy = Stitching()
    workload = prepare(registry(), job("module: nmt_attn\nprobes: 1000")).workload
    analysis = strategy.analyse(workload, target)
    wanted = strategy.probes(analysis)
    assert wanted
    assert len({each.key for each in wanted}) == len(wanted)
    assert all(isinstance(each.program, Program) for each in wanted)
    config = dict(strategy.seeds(analysis, strategy.space(analysis, {}), {}))["packed_shared"]
    estimated = strategy.emit(analysis, config, {})
    # A device on which the last in every list is fastest.
    odd = {each.key: 1000.0 / (1 + number) for number, each in enumerate(wanted)}
    measured = strategy.emit(analysis, config, odd)
    assert isinstance(estimated, Program)
    assert isinstance(measured, Program)
    assert measured.key != estimated.key
    assert strategy.emit(analysis, config, odd).key == measured.key


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_jobs_that_come_with_it_can_be_tuned(path):
    (given,) = jobs.read(str(path), path.read_text())
    target = Target(arch="sm_90", limits=H100, facts=lambda source: None)
    strategy = Stitching()
    analysis = strategy.analyse(prepare(registry(), given).workload, target)
    assert analysis.rejections == ()
    offered = strategy.space(analysis, {})
    seeds = strategy.seeds(analysis, offered, {})
    assert len(seeds) == 6
    for _, config in seeds:
        assert isinstance(strategy.emit(analysis, config, {}), Program)
