"""Kernels that other strategies make one launch of: composed Programs against NumPy and SciPy, on the cpu device."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

import fusiond.devices.builtin
import fusiond_hfuse.plugin
import fusiond_mincut.plugin
import fusiond_stitching.plugin
import fusiond_transfer.plugin
from fusiond.model.errors import RequestError
from fusiond.model.events import TrialFinished
from fusiond.model.nouns import Analysis, Config, Rejection
from fusiond.model.outcomes import Record, Trial, Verdict
from fusiond.model.program import Launch, Pointer, Program
from fusiond.requests import jobs
from fusiond.requests.other_strategies import with_others
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.strategy import Target
from fusiond_transfer import delegation
from fusiond_transfer.frontend.graph import Graph, GraphKernel
from fusiond_transfer.strategy import Transfer
from tests.conftest import run_job

from .conftest import Analyse

JOB = Path(__file__).parents[3] / "configs" / "jobs" / "transfer-image.yaml"
PLUGINS = {
    "hfuse": fusiond_hfuse.plugin, "mincut": fusiond_mincut.plugin, "stitching": fusiond_stitching.plugin,
    "transfer": fusiond_transfer.plugin,
}  # fmt: skip
PLAIN = {"grouping": "interval_stabbing", "memory": "pinned", "issue": "overlapped", "send": "message"}


def registry_of(*names: str) -> Registry:
    registry = Registry()
    for name in names:
        registry.add(PLUGINS[name], name)
    return registry


@pytest.fixture(scope="module")
def all_of_them() -> Registry:
    return registry_of(*PLUGINS)


@pytest.fixture
def analysed(all_of_them: Registry, cpu_target: Target) -> Analyse:
    def analysed(path: Path | str = JOB, text: str | None = None, registry: Registry = all_of_them) -> Analysis:
        (job,) = jobs.read(path, text)
        prepared = prepare(registry, job)
        return prepared.strategy.analyse(prepared.workload, with_others(registry, cpu_target))

    return analysed


def emitted(analysis: Analysis, label: str, answers: dict[str, Any] | None = None, **more: Any) -> Program:
    values = {name: value for name, value in {**PLAIN, "together": label, **more}.items() if value is not None}
    found = Transfer().emit(analysis, Config.of(values), answers or {})
    assert isinstance(found, Program), found
    return found


def answered(analysis: Analysis, saves: dict[str, float]) -> dict[str, Record]:
    """Records by which what is named saves so many microseconds; of the rest there is none."""
    known = analysis.payload.other_strategies
    found = {}
    for each in known.offered:
        if each.name not in saves:
            continue
        (config, _) = next(
            (config, program)
            for _, config in each.asked._strategy.seeds(
                each.asked._analysis(), each.asked._strategy.space(each.asked._analysis(), {}), {}
            )
            if isinstance(program := each.asked._strategy.emit(each.asked._analysis(), config, {}), Program)
        )
        gain = saves[each.name]
        found[each.asked.key] = Record(
            strategy=each.strategy, workload_name=each.name, workload_key=each.asked.key, sizes={}, device_name="cpu",
            device_key="cpu", env_key="", verdict=Verdict.FUSE if gain > 0 else Verdict.KEEP, config=config,
            program_key=None, time_us=100.0, baseline="sequential", baseline_us=100.0 + gain, speedup=None, ci95=None,
            verified=True, evidence="emulated", trials=1, found_at="2026-11-24",
        )  # fmt: skip
    return found


def wanted(photo: np.ndarray, bins: int) -> dict[str, np.ndarray]:
    """By SciPy and NumPy."""
    binomial = np.outer([1, 2, 1], [1, 2, 1])
    smooth = ndimage.correlate(photo, binomial, mode="nearest") // 16
    across = ndimage.correlate1d(photo, [-1, 0, 1], axis=1, mode="nearest")
    down = ndimage.correlate1d(photo, [-1, 0, 1], axis=0, mode="nearest")
    return {
        "sharp": np.clip(2 * photo - smooth, 0, 255),
        "edges": np.abs(across) + np.abs(down),
        "histogram": np.histogram(photo, bins=bins, range=(0, 256))[0],
    }


def same_as_numpy(device: Any, program: Program, seed: int = 0, shape: tuple[int, int] = (64, 96)) -> None:
    photo = np.random.default_rng(seed).integers(0, 256, shape).astype(np.int32)
    found = device.run(program, seed=seed, inputs={"photo": photo})
    for name, value in wanted(photo, 64).items():
        assert np.array_equal(found[name].reshape(value.shape), value), name


def launches(program: Program) -> list[str]:
    return [each.name for each in program.steps if isinstance(each, Launch)]


@pytest.mark.slow
def test_two_strategies_in_one_program(analysed: Analyse, device: Any) -> None:
    """mincut's chain and hfuse's pair, overlapped: copies late, early and in any order that the plan allows."""
    analysis = analysed()
    program = emitted(analysis, delegation.EVERYTHING)
    assert launches(program) == ["smooth+detail+sharpen", "find_edges+count"]
    assert len(launches(emitted(analysis, delegation.APART))) == 5
    for seed in range(4):
        same_as_numpy(device, program, seed)
    same_as_numpy(device, emitted(analysis, delegation.EVERYTHING, grouping="separate", when="early", send=None))


def test_answers_decide_and_every_strategy_has_its_share(analysed: Analyse, device: Any) -> None:
    analysis = analysed()
    strategy = Transfer()
    saves = {"sharpen": 7.0, "find_edges + count": 0.0, "detail + count": 5.0, "smooth + find_edges": 2.0}
    answers = answered(analysis, saves)
    assert analysis.payload.other_strategies.labels({}) == ("apart", "everything")
    assert analysis.payload.other_strategies.labels(answers) == ("apart", "hfuse", "mincut", "answers", "everything")
    by_hfuse, by_mincut, by_all = (emitted(analysis, label, answers) for label in ("hfuse", "mincut", "answers"))
    assert sorted(launches(by_hfuse)) == ["detail+count", "sharpen", "smooth+find_edges"]
    assert launches(by_mincut)[0] == "smooth+detail+sharpen"
    assert sorted(launches(by_all)) == ["count", "find_edges", "smooth+detail+sharpen"]
    assert strategy.figures(analysis, None, answers) == {
        "hfuse_asked": 7, "hfuse_answered": 3, "hfuse_launches_less": 2, "hfuse_saves_us": 7.0,
        "mincut_asked": 1, "mincut_answered": 1, "mincut_launches_less": 2, "mincut_saves_us": 7.0,
    }  # fmt: skip
    same_as_numpy(device, by_hfuse, 1)
    same_as_numpy(device, by_mincut, 2)
    said = strategy.resolved(analysis, Config.of({**PLAIN, "together": "hfuse"}), answers)
    assert said["together"] == "hfuse (smooth+find_edges, detail+count)"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "order"), [("fig2", None), ("matmul", "given"), ("matmul", "reordered")])
def test_graphs_of_the_catalogue(analysed: Analyse, device: Any, tmp_path: Path, name: str, order: str | None) -> None:
    """Kernels that hash all that they read, and sources: as with every kernel apart, which other tests hold to NumPy
    and to the graph itself."""
    analysis = analysed(tmp_path / "job.yaml", f"strategy: transfer\ngraph: {name}\ntogether: true\n")
    fused, apart = (emitted(analysis, label, order=order) for label in (delegation.EVERYTHING, delegation.APART))
    assert len(launches(fused)) < len(launches(apart))
    for seed in range(3):
        found, wanted = device.run(fused, seed=seed), device.run(apart, seed=seed)
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[each], wanted[each]) for each in wanted)


@pytest.mark.parametrize(("width", "height"), [(37, 11), (1, 1), (130, 3)])
def test_awkward_sizes(analysed: Analyse, device: Any, width: int, height: int) -> None:
    text = JOB.read_text() + f"sizes: {{width: {width}, height: {height}}}\n"
    program = emitted(analysed(JOB, text), delegation.EVERYTHING)
    assert len(launches(program)) == 2
    same_as_numpy(device, program, 1, (height, width))


@pytest.mark.parametrize("label", ["everything", "hfuse"])
def test_a_composition_can_be_moved_to_odd_sizes(analysed: Analyse, device: Any, label: str) -> None:
    """As finals do: the numbers of others' launches follow from the graph's sizes, in pairs and in regions."""
    analysis = analysed()
    odd = Transfer().odd_sizes(analysis.workload)
    assert odd == {"width": 37, "height": 11, "bins": 64}
    program = emitted(analysis, label, answered(analysis, {"detail + count": 5.0, "smooth + find_edges": 2.0}))
    assert (program.fixed, len(launches(program)) < 5) == ((), True)
    for sizes in (odd, {"width": 1, "height": 1}, {"width": 130, "height": 3}):
        same_as_numpy(device, program.at(sizes), 1, (sizes["height"], sizes["width"]))


def test_what_holds_at_one_size_only_is_fixed(analysed: Analyse, device: Any, tmp_path: Path) -> None:
    """A module for 640 elements, in a graph of n: it can be no other n."""
    text = CHAIN_OF_FLOATS.replace("elements: 640\n", "sizes: {n: 640}\nelements: n\n", 1)
    (tmp_path / "graph.yaml").write_text(text)
    (tmp_path / "roots.hlo").write_text(ROOTS)
    analysis = analysed(tmp_path / "job.yaml", "strategy: transfer\ngraph: ./graph.yaml\ntogether: true\n")
    assert emitted(analysis, delegation.EVERYTHING).fixed == ("n",)
    assert emitted(analysis, delegation.APART).fixed == ()


def test_a_fused_launch_on_mapped_memory(analysed: Analyse, device: Any, tmp_path: Path) -> None:
    """What no message carries: the launch is handed the host's own buffers."""
    text = (JOB.parent / "image" / "graph.yaml").read_text()
    text = text.replace("  histogram: {elements: bins}\n", "  histogram: {elements: bins}\n  photo: {memory: mapped}\n")
    text = text.replace("source: image", f"source: {JOB.parent}/image/image").replace(
        "./sharpen", f"{JOB.parent}/image/sharpen"
    )
    (tmp_path / "graph.yaml").write_text(text)
    analysis = analysed(tmp_path / "job.yaml", "strategy: transfer\ngraph: ./graph.yaml\ntogether: true\n")
    program = emitted(analysis, delegation.EVERYTHING, mapped="all")
    assert not any(each.name.startswith("up_") for each in program.steps)
    for seed in range(3):
        same_as_numpy(device, program, seed)


def test_parts_are_ordinary_jobs(analysed: Analyse, all_of_them: Registry) -> None:
    """Also where no file of theirs is on the disk."""
    analysis = analysed()
    parts = Transfer().parts(analysis)
    workloads = [prepare(all_of_them, each).workload for each in parts]
    keys = [each.key for each in workloads]
    files = {path for each in workloads for path in each.source_hashes}
    assert files == {
        str(JOB.parent / "image" / "sharpen.yaml")
    }  # what is made for others is not a file that can change
    assert sorted(keys) == sorted(each.asked.key for each in analysis.payload.other_strategies.offered)
    assert {each.strategy for each in parts} == {"hfuse", "mincut"}


def test_a_strategy_that_is_missing_leaves_its_kernels_apart(analysed: Analyse, device: Any) -> None:
    alone = analysed(registry=registry_of("transfer"))
    assert not alone.payload.other_strategies.offered
    said = Transfer().describe(alone)
    assert "sharpen: apart; no strategy that takes a pipeline is installed" in said
    assert "pairs of kernels: apart; no strategy that takes kernels is installed" in said
    assert "together" not in {each.name for each in Transfer().space(alone, {}).parameters}
    without = analysed(registry=registry_of("transfer", "hfuse"))
    program = emitted(without, delegation.EVERYTHING)
    assert len(launches(program)) == 3
    same_as_numpy(device, program)


def test_an_answer_that_fits_nowhere_is_left_out(
    analysed: Analyse, device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one takes its kernels; where none can, the config says why."""
    known = analysed().payload.other_strategies
    right = known._part
    why = Rejection(rule="no_part", nodes=(), detail="sharpen: its answer is 2 steps")
    monkeypatch.setattr(
        delegation.Together,
        "_part",
        lambda self, each, answers: why if each.strategy == "mincut" else right(each, answers),
    )
    program = emitted(analysed(), delegation.EVERYTHING)
    # Pairs in its place, whichever of equal ones: no launch is the region's.
    kernels = ["count", "detail", "find_edges", "sharpen", "smooth"]
    assert sorted(name for each in launches(program) for name in each.split("+")) == kernels
    assert len(launches(program)) == 3
    assert not any({"smooth", "detail"} <= set(each.split("+")) for each in launches(program))
    same_as_numpy(device, program)
    monkeypatch.setattr(delegation.Together, "_part", lambda self, each, answers: why)
    assert Transfer().emit(analysed(), Config.of({**PLAIN, "together": delegation.EVERYTHING}), {}) == why


def forgets_a_read(kernels: dict[str, GraphKernel]) -> None:
    kernels[PAIR] = dataclasses.replace(kernels[PAIR], reads=())


def forgets_a_write(kernels: dict[str, GraphKernel]) -> None:
    kernels[PAIR] = dataclasses.replace(kernels[PAIR], writes=kernels[PAIR].writes[:1])


def exchanges_what_it_is_handed(kernels: dict[str, GraphKernel]) -> None:
    body: Any = kernels[CHAIN].body
    first, second, *rest = body.fragment.launch.arguments
    launch = dataclasses.replace(body.fragment.launch, arguments=(second, first, *rest))
    made = dataclasses.replace(body, fragment=dataclasses.replace(body.fragment, launch=launch))
    kernels[CHAIN] = dataclasses.replace(kernels[CHAIN], body=made)


def reads_another_vector(kernels: dict[str, GraphKernel]) -> None:
    """The pair waits for the chain's result, and is handed that: a dependency that nobody asked for."""
    body: Any = kernels[PAIR].body
    arguments = tuple(
        Pointer(buffer="sharp") if each == Pointer(buffer="photo") else each for each in body.fragment.launch.arguments
    )
    made = dataclasses.replace(body.fragment, launch=dataclasses.replace(body.fragment.launch, arguments=arguments))
    kernels[PAIR] = dataclasses.replace(
        kernels[PAIR], reads=("sharp",), body=dataclasses.replace(body, fragment=made)
    )  # fmt: skip


CHAIN, PAIR = "smooth+detail+sharpen", "find_edges+count"
MUTANTS = (forgets_a_read, forgets_a_write, exchanges_what_it_is_handed, reads_another_vector)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_a_composition_that_is_wrong_is_seen(
    analysed: Analyse, device: Any, monkeypatch: pytest.MonkeyPatch, mutant: Callable[[dict[str, GraphKernel]], None]
) -> None:
    """Broken on purpose: no Program can be made of it, or its results are not NumPy's in some order that is allowed."""
    as_it_is = delegation.composed

    def broken(graph: Graph, made: Any) -> Graph:
        right = as_it_is(graph, made)
        kernels = {each.name: each for each in right.kernels}
        mutant(kernels)
        return dataclasses.replace(right, kernels=tuple(kernels.values()))

    def right(seed: int) -> bool:
        try:
            same_as_numpy(device, emitted(analysis, delegation.EVERYTHING), seed)
        except (AssertionError, KeyError, ValueError, RuntimeError):
            return False
        return True

    analysis = analysed()
    monkeypatch.setattr(delegation, "composed", broken)
    assert not all(right(seed) for seed in range(6))


CHAINS = """
graph: chains
elements: 512
dtype: int32
inputs: [x, y]
outputs: [p, q]
kernels:
  - {name: a, on: device, reads: [x], writes: [u], body: x + 1}
  - {name: c, on: device, reads: [y], writes: [v], body: y + 3}
  - {name: d, on: device, reads: [u], writes: [q], body: u + 4}
  - {name: b, on: device, reads: [v], writes: [p], body: v + 2}
"""


@pytest.mark.slow
def test_a_fused_node_that_would_close_a_cycle_is_refused(analysed: Analyse, device: Any, tmp_path: Path) -> None:
    """a before d, c before b: each of a + b and c + d is offered; never both are taken."""
    (tmp_path / "graph.yaml").write_text(CHAINS)
    analysis = analysed(tmp_path / "job.yaml", "strategy: transfer\ngraph: ./graph.yaml\ntogether: true\n")
    known = analysis.payload.other_strategies
    assert {each.kernels for each in known.offered} >= {("a", "b"), ("c", "d")}
    answers = answered(analysis, {"a + b": 5.0, "c + d": 4.0})
    assert [each.name for each in known.chosen("hfuse", answers)] == ["a + b"]
    program = emitted(analysis, "hfuse", answers)
    x, y = (np.arange(512, dtype=np.int32) * factor for factor in (3, 5))
    for seed in range(3):
        found = device.run(program, seed=seed, inputs={"x": x, "y": y})
        assert np.array_equal(found["p"], y + 5)
        assert np.array_equal(found["q"], x + 5)


REGION = """
regions:
  - {pipeline: ./doc.yaml, reads: {READS}, writes: {WRITES}}
"""


@pytest.mark.parametrize(
    ("reads", "writes", "why"),
    [
        ("x: x", "q: q, p: p", "it needs y, which it does not name as read"),
        ("u: u", "q: q", "it has fewer than two kernels"),
        ("x: x", "h: h", "h is on the host"),
        ("x: x", "q: q", "u is needed outside of it"),
    ],
)
def test_regions_that_cannot_be_one(analysed: Analyse, tmp_path: Path, reads: str, writes: str, why: str) -> None:
    text = CHAINS + "  - {name: h, on: host, reads: [u], writes: [h], body: u + 1}\n"
    text = text.replace("outputs: [p, q]", "outputs: [p, q, h]")
    (tmp_path / "graph.yaml").write_text(text + REGION.replace("READS", reads).replace("WRITES", writes))
    (tmp_path / "doc.yaml").write_text("pipeline: doc\n")
    analysis = analysed(tmp_path / "job.yaml", "strategy: transfer\ngraph: ./graph.yaml\ntogether: true\n")
    assert dict(analysis.payload.other_strategies.refused)["doc"] == why


SHARED = """
graph: shared
elements: 500
dtype: uint32
inputs: [x, y, z]
placed: [z]
outputs: [p, q, r]
kernels:
  - {name: a, on: device, reads: [x], writes: [u], body: x + 1}
  - {name: b, on: device, reads: [y], writes: [v], in_place: {v: y}, body: y * 3}
  - {name: c, on: device, reads: [z, u], writes: [w], in_place: {w: u}, body: z - u}
  - {name: h, on: host, reads: [v], writes: [t], in_place: {t: v}, body: v + 7}
  - {name: d, on: device, reads: [t, x], writes: [p], in_place: {p: t}, body: t + x}
  - {name: e, on: device, reads: [w, z], writes: [q], in_place: {q: w}, body: w + z}
  - {name: f, on: device, reads: [x], writes: [r], in_place: {r: x}, body: x * x}
"""
REPEATED = """
graph: repeated
elements: 300
dtype: uint32
inputs: [x, y]
outputs: [x2, y2]
loop: true
carried: {x: x2, y: y2}
iterations: 3
kernels:
  - {name: a, on: device, reads: [x, y], writes: [u], body: x + 2 * y}
  - {name: b, on: device, reads: [y], writes: [v], body: y * y}
  - {name: h, on: host, reads: [v], writes: [w], body: v + 5}
  - {name: c, on: device, reads: [u], writes: [x2], body: u + 1}
  - {name: d, on: device, reads: [w, y], writes: [y2], body: w - y}
"""


def text_of_a_job(tmp_path: Path, graph: str, *lines: str) -> tuple[Path, str]:
    (tmp_path / "graph.yaml").write_text(graph)
    said = "\n".join(["strategy: transfer", "graph: ./graph.yaml", "together: true", *lines])
    return tmp_path / "job.yaml", said


def shared_by_numpy(x: Any, y: Any, z: Any) -> dict[str, Any]:
    return {"p": y * 3 + 7 + x, "q": z - (x + 1) + z, "r": x * x}


def repeated_by_numpy(x: Any, y: Any) -> dict[str, Any]:
    for _ in range(3):
        x, y = x + 2 * y + 1, y * y + 5 - y
    return {"x2": x, "y2": y}


@pytest.mark.slow
@pytest.mark.parametrize("limit", [8000, 6000])
def test_in_place_with_placed_inputs_and_under_a_limit(
    analysed: Analyse, device: Any, tmp_path: Path, limit: int
) -> None:
    """c overwrites what nobody else reads, f what d and a read: those are no pair. Under 6000 bytes, what three or four
    vectors need at once evicts others or does not fit."""
    analysis = analysed(*text_of_a_job(tmp_path, SHARED, f"limits: {{device_bytes: {limit}}}"))
    known = analysis.payload.other_strategies
    pairs = {each.kernels for each in known.offered}
    assert {("a", "b"), ("b", "c"), ("d", "e"), ("e", "f")} <= pairs
    assert not pairs & {("a", "f"), ("d", "f"), ("a", "c"), ("b", "d")}
    numbers, made = np.random.default_rng(3), 0
    for each in sorted(known.offered, key=lambda each: each.name):
        answers = answered(analysis, {each.name: 5.0})
        config = Config.of({**PLAIN, "together": "hfuse", "allocation": "group"})
        program = Transfer().emit(analysis, config, answers)
        if isinstance(program, Rejection):
            assert program.rule == "device_limit"
            assert limit == 6000
            continue
        assert "+".join(each.kernels) in launches(program)
        made += 1
        x, y, z = (numbers.integers(0, 2**32, 500, np.uint32) for _ in range(3))
        found = device.run(program, seed=1, inputs={"x": x, "y": y, "z": z})
        for name, values_ in shared_by_numpy(x, y, z).items():
            assert np.array_equal(found[name], values_), (each.name, name)
    assert made == len(known.offered) if limit != 6000 else made >= 4


def test_a_fused_launch_that_a_limit_does_not_hold_is_refused(analysed: Analyse, tmp_path: Path) -> None:
    analysis = analysed(*text_of_a_job(tmp_path, CHAINS, "limits: {device_bytes: 4096}"))
    config = Config.of({**PLAIN, "together": "everything", "allocation": "group"})
    refused = Transfer().emit(analysis, config, {})
    assert isinstance(refused, Rejection)
    assert (refused.rule, refused.detail) == (
        "device_limit", "4096 bytes on the device are too few: a+c alone needs 8192 at once"
    )  # fmt: skip


@pytest.mark.slow
def test_pairs_in_the_body_of_a_loop(analysed: Analyse, device: Any, tmp_path: Path) -> None:
    analysis = analysed(*text_of_a_job(tmp_path, REPEATED))
    pairs = {each.kernels for each in analysis.payload.other_strategies.offered}
    assert pairs == {("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")}
    x, y = (np.arange(300, dtype=np.uint32) * factor for factor in (3, 11))
    for name in (" + ".join(each) for each in sorted(pairs)):
        program = emitted(analysis, "hfuse", answered(analysis, {name: 5.0}))
        assert sum(each.startswith(name.replace(" ", "")) for each in launches(program)) == 3
        assert sum(source.name.startswith("fused") for source in program.sources) == 1
        for seed in range(2):
            found = device.run(program, seed=seed, inputs={"x": x, "y": y})
            assert all(np.array_equal(found[each], value) for each, value in repeated_by_numpy(x, y).items()), name


@pytest.mark.parametrize(
    ("graph", "region", "why"),
    [
        (SHARED, "{pipeline: ./doc.yaml, reads: {x: x, z: z}, writes: {q: q}}", "no strategy that takes"),
        (SHARED + "  - {name: g, on: device, reads: [p], writes: [s], in_place: {s: p}}\n",
         "{pipeline: ./doc.yaml, reads: {t: t, x: x}, writes: {s: s}}", "no strategy that takes"),
        (SHARED, "{pipeline: ./doc.yaml, reads: {u: u, z: z}, writes: {w: w, q: q}}",
         "w is stored where u is, which it may still read"),
        (REPEATED, "{pipeline: ./doc.yaml, reads: {x: x, y: y}, writes: {x2: x2}}", "no strategy that takes"),
        (REPEATED.replace("[u], writes: [x2]", "[u], writes: [x2, k]").replace("body: u + 1", "body: {x2: u, k: u}"),
         "{pipeline: ./doc.yaml, reads: {x: x, y: y}, writes: {k: k}}", "x2 is needed outside of it"),
    ],
)  # fmt: skip
def test_regions_in_place_and_in_loops(analysed: Analyse, tmp_path: Path, graph: str, region: str, why: str) -> None:
    (tmp_path / "doc.yaml").write_text("pipeline: doc\n")
    graph = graph.replace("outputs: [p, q, r]", "outputs: [q, r, s]") if "[s]" in graph else graph
    analysis = analysed(*text_of_a_job(tmp_path, f"{graph}regions:\n  - {region}\n"), registry=registry_of("transfer"))
    assert why in dict(analysis.payload.other_strategies.refused)["doc"]


def test_who_does_not_ask_has_the_key_of_before(all_of_them: Registry, tmp_path: Path) -> None:
    def key(text: str) -> str:
        (job,) = jobs.read(tmp_path / "job.yaml", f"strategy: transfer\ngraph: fig2\n{text}")
        return prepare(all_of_them, job).workload.key

    assert key("") == key("together: false\n") != key("together: true\n")


ROOTS = """
HloModule roots

ENTRY main {
  x = f32[640]{0} parameter(0)
  squares = f32[640]{0} multiply(x, x)
  one = f32[] constant(1)
  ones = f32[640]{0} broadcast(one), dimensions={}
  above = f32[640]{0} add(squares, ones)
  ROOT roots = f32[640]{0} sqrt(above)
}
"""
CHAIN_OF_FLOATS = """
graph: roots
elements: 640
dtype: float32
inputs: [x]
outputs: [roots, total]
vectors: {total: {elements: 1}}
kernels:
  - {name: square, on: device, reads: [x], writes: [squares], body: x * x}
  - {name: add, on: device, reads: [squares], writes: [above], body: squares + 1}
  - {name: root, on: device, reads: [above], writes: [roots], body: sqrt(above)}
  - {name: sum, on: host, reads: [roots], writes: [total], body: sum(roots)}
regions:
  - {module: ./roots.hlo, reads: {in_0: x}, writes: {out_0: roots}}
"""


def test_a_module_as_one_node(analysed: Analyse, device: Any, tmp_path: Path) -> None:
    """HLO, by the strategy that stitches it."""
    (tmp_path / "graph.yaml").write_text(CHAIN_OF_FLOATS)
    (tmp_path / "roots.hlo").write_text(ROOTS)
    analysis = analysed(tmp_path / "job.yaml", "strategy: transfer\ngraph: ./graph.yaml\ntogether: true\n")
    assert [each.strategy for each in analysis.payload.other_strategies.offered] == ["stitching"]
    program = emitted(analysis, delegation.EVERYTHING)
    assert launches(program) == ["square+add+root"]
    x = np.random.default_rng(0).normal(size=640).astype(np.float32)
    for seed in range(3):
        found = device.run(program, seed=seed, inputs={"x": x})
        wanted = np.sqrt(x.astype(np.float64) ** 2 + 1)
        np.testing.assert_allclose(found["roots"], wanted, rtol=1e-6)
        np.testing.assert_allclose(found["total"], wanted.sum(), rtol=1e-5)


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ("{reads: {in_0: x}, writes: {out_0: roots}}", "needs one document"),
        ("{module: ./a.hlo, pipeline: ./a.yaml, reads: {in_0: x}, writes: {out_0: roots}}", "needs one document"),
        ("{module: ./a.hlo, reads: {in_0: x}, writes: {out_0: root}}", "unknown vector 'root'; did you mean 'roots'"),
        ("{module: ./roots.hlo, reads: {}, writes: {out_0: roots}}", "names nothing"),
        ("{module: ./b.hlo, reads: {in_0: x}, writes: {out_0: roots}}", "there is no file"),
    ],
)
def test_regions_that_say_nothing_sensible(analysed: Analyse, tmp_path: Path, region: str, message: str) -> None:
    text, line = CHAIN_OF_FLOATS.partition("  - {module")[0], CHAIN_OF_FLOATS.count("\n")
    (tmp_path / "graph.yaml").write_text(f"{text}  - {region}\n")
    for name in ("a.hlo", "roots.hlo"):
        (tmp_path / name).write_text(ROOTS)
    with pytest.raises(RequestError, match=rf"graph\.yaml:{line}\b.*{message}"):
        analysed(tmp_path / "job.yaml", "strategy: transfer\ngraph: ./graph.yaml\ntogether: true\n")


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_the_example_is_tuned_whole(tmp_path: Path, all_of_them: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts first, each with a record; then compositions, each compared with the unfused kernels and measured whole."""
    monkeypatch.chdir(tmp_path)
    registry = registry_of(*PLUGINS)
    registry.add(fusiond.devices.builtin, "devices")
    (job,) = jobs.read(JOB, device="cpu", trials=16)
    trials: list[Trial] = []

    def hear(event: Any) -> None:
        if isinstance(event, TrialFinished):
            trials.append(event.trial)

    with Store.open(tmp_path / "db.sqlite") as store:
        row, state = run_job(store, registry, job, hear)
        assert (state.value, store.job(row.id).problem) == ("done", None)
        (device,) = registry.providers["cpu"].devices()
        record = store.record(row.workload_key, device.key)
    assert record is not None
    assert record.verified
    assert record.evidence == "emulated"
    assert (record.figures["hfuse_asked"], record.figures["hfuse_answered"], record.figures["mincut_answered"]) == (
        7, 7, 1,
    )  # fmt: skip
    composed = [each for each in trials if each.config.get("together", "apart") != "apart"]
    assert composed
    assert {each.outcome.value for each in composed} == {"measured"}


# --- kernels over parts of vectors ----------------------------------------------------------------------


OF_PARTS = """
graph: roots
sizes: {n: 640}
elements: 2 * n
dtype: float32
inputs: [x]
outputs: [roots, total]
vectors: {squares: {elements: n}, above: {elements: n}, total: {elements: 1}}
kernels:
  - {name: square, on: device, reads: ["x[:n]"], writes: [squares], body: x * x}
  - {name: add, on: device, reads: [squares], writes: [above], body: squares + 1}
  - {name: root, on: device, reads: [above], writes: ["roots[:n]"], body: sqrt(above)}
  - {name: twice, on: device, reads: ["x[n:]"], writes: ["roots[n:]"], body: 2 * x}
  - {name: sum, on: host, reads: [roots], writes: [total], body: sum(roots)}
regions:
  - {module: ./roots.hlo, reads: {in_0: "x[:n]"}, writes: {out_0: "roots[:n]"}}
"""
JOB_TEXT = "strategy: transfer\ngraph: ./graph.yaml\ntogether: true\n"


@pytest.fixture
def analysis(analysed: Analyse, tmp_path: Path) -> Analysis:
    (tmp_path / "graph.yaml").write_text(OF_PARTS)
    (tmp_path / "roots.hlo").write_text(ROOTS)
    return analysed(tmp_path / "job.yaml", JOB_TEXT)


def parts_are_numpys(device: Any, program: Any) -> None:
    x = np.random.default_rng(0).normal(size=1280).astype(np.float32)
    roots = np.concatenate([np.sqrt(x[:640].astype(np.float64) ** 2 + 1), 2.0 * x[640:]])
    for seed in range(3):
        found = device.run(program, seed=seed, inputs={"x": x})
        np.testing.assert_allclose(found["roots"], roots, rtol=1e-6)
        np.testing.assert_allclose(found["total"], roots.sum(), rtol=1e-4)


def test_a_region_over_a_part(analysis: Analysis, device: Any) -> None:
    program = emitted(analysis, delegation.EVERYTHING)
    assert launches(program) == ["square+add+root", "twice"]
    assert program.fixed == ("n",)
    parts_are_numpys(device, program)


def test_a_pair_over_parts_of_one_vector(analysis: Analysis, device: Any) -> None:
    """Both halves of the result in one launch, and squares and above apart."""
    answers = answered(analysis, {"root + twice": 5.0})
    assert answers
    program = emitted(analysis, "hfuse", answers)
    assert "root+twice" in launches(program)
    parts_are_numpys(device, program)
    assert emitted(analysis, delegation.APART).fixed == ()


def test_a_part_that_begins_at_an_odd_byte_stays_apart(analysed: Analyse, tmp_path: Path) -> None:
    text = OF_PARTS.replace("x[:n]", "x[1:n + 1]").replace("x[n:]", "x[n - 1:2 * n - 1]")
    (tmp_path / "graph.yaml").write_text(text)
    (tmp_path / "roots.hlo").write_text(ROOTS)
    known = analysed(tmp_path / "job.yaml", JOB_TEXT).payload.other_strategies
    assert dict(known.refused)["roots"] == "x[1:641] begins at byte 4; its strategy counts on 256s"
