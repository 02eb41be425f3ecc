"""Three kernels and more: all in one launch, the best pairs, and what they ask for."""

import pytest

from fusiond.model.nouns import Config, Rejection
from fusiond.model.outcomes import Record, Verdict
from fusiond.model.program import FillStep, Launch, Program, problems
from fusiond.requests import jobs
from fusiond_hfuse import space
from fusiond_hfuse.analysis import partition

from .conftest import facts_of, gpu

pytestmark = pytest.mark.slow  # many builds

THREE = ("hist", "maxpool", "hist")
SIZES = {"a.n": 3_500, "b.n": 6_600, "b.bins": 33, "maxpool.channels": 1, "maxpool.height": 150, "maxpool.width": 110}


def together(letters, **values):
    return Config.of({"groups": "+".join(letters), "order": "given", "kind": "horizontal", **values})


def wide(letters, threads, **values):
    sides = {f"threads.{letter}": each for letter, each in zip(letters, threads, strict=True)}
    return together(letters, level="warp", map="pad", **{**sides, **values})


def by_blocks(letters, threads, assign, order="given"):
    sides = {f"threads.{letter}": each for letter, each in zip(letters, threads, strict=True)}
    return together(letters, level="block", assign=assign, **{**sides, "order": order})


def record(pair: str, verdict: str, saved_us: float, **config) -> Record:
    return Record(
        strategy="hfuse", workload_name=pair, workload_key="", sizes={}, device_name="cpu", device_key="", env_key="",
        verdict=Verdict(verdict), config=Config.of(config), program_key="", time_us=100.0, baseline="streams_ab",
        baseline_us=100.0 + saved_us, speedup=1.0, ci95=(1.0, 1.0), verified=True, evidence="emulated", trials=1,
        found_at="",
    )  # fmt: skip


@pytest.fixture
def keys(registry, strategy):
    """The workload key of each part of an analysis, found as the tuner finds it."""

    def keys(analysis):
        found = {}
        for job in strategy.parts(analysis):
            jobs.check_keys(job, strategy.job_keys)
            workload = strategy.parse(job, jobs.JobInputs(registry, job))
            found[workload.key] = workload
        return found

    return keys


@pytest.fixture
def measured(strategy, keys):
    """Records of the parts of an analysis: {names of a pair: microseconds saved}; what is not named keeps apart."""

    def measured(analysis, saved):
        known = {}
        for key, workload in keys(analysis).items():
            gain = saved.get(workload.name, 0.0)
            known[key] = record(
                workload.name, "fuse" if gain else "keep", gain, kind="horizontal", level="warp", map="pad",
                order="ba", **{"threads.a": 128, "threads.b": 256},
            )  # fmt: skip
        return known

    return measured


# --- all in one launch ----------------------------------------------------------------------------------


CONFIGS_OF_THREE = [
    wide("abc", (256, 512, 128)),
    wide("abc", (128, 256, 512), order="threads"),
    together("abc", level="warp", map="stride", blocks=2, **{"threads.a": 128, "threads.b": 128, "threads.c": 512}),
    *(by_blocks("abc", (512, 128, 256), assign) for assign in space.ASSIGNS),
    by_blocks("abc", (128, 512, 1024), "interleaved", "threads"),
    Config.of({"groups": "a+b+c", "kind": "vertical", "threads": 256, "order": "given"}),
]


@pytest.mark.parametrize("config", CONFIGS_OF_THREE, ids=str)
def test_three_in_one_launch(analyse, strategy, same, config):
    """Two of them the same kernel; 7 and 13 blocks of 512, and a kernel that waits for memory."""
    analysis = analyse(*THREE, sizes=SIZES)
    assert analysis.workload.name == "hist,hist,maxpool"
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program), program
    assert problems(program) == ()
    same(program, strategy.unfused(analysis, config))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "config",
    [
        wide("abcd", (128, 256, 64, 512)),
        wide("abcd", (128, 256, 64, 128), order="threads"),
        together("abcd", level="warp", map="stride", blocks=4,
                 **{"threads.a": 128, "threads.b": 256, "threads.c": 64, "threads.d": 128}),
        *(by_blocks("abcd", (256, 128, 64, 512), assign) for assign in space.ASSIGNS),
    ],
    ids=str,
)  # fmt: skip
def test_four_in_one_launch(analyse, strategy, same, zoo, config):
    """Three dynamic parts of one arena, static arrays, two and three dimensions, templates, headers."""
    analysis = analyse("hist", "maxpool", zoo["reverse"], zoo["tiles"], sizes={
        "hist.n": 6_600, "maxpool.channels": 1, "maxpool.height": 150, "maxpool.width": 110, "tiles.n": 2_000,
    }, granularity=64)  # fmt: skip
    assert analysis.workload.members == ("hist", "maxpool", "reverse", "tiles")
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program), program
    same(program, strategy.unfused(analysis, config))


def test_every_seed_of_three_is_a_program_that_is_right(analyse, strategy, same, measured):
    analysis = analyse(*THREE, sizes=SIZES)
    known = measured(analysis, {"hist,maxpool": 20.0})
    found = strategy.space(analysis, known)
    seeds = strategy.seeds(analysis, found, known)
    assert [name for name, _ in seeds] == [
        "matched_sequence", "matched_streams", "matched_graph", "together_even_split", "together_vertical",
        "together_block_sequential", "together_block_interleaved", "together_block_ticket",
        "together_block_multiprocessor", "together_block_virtual", "together_stride", "apart",
    ]  # fmt: skip
    reference = strategy.baselines(analysis)[0]
    native = reference.emit(next(reference.space.points()))
    for _, config in seeds:
        assert found.problems(config) == ()
        same(strategy.emit(analysis, config, known), native)


def test_fifteen_share_a_block_and_sixteen_do_not(analyse, strategy, runner):
    small = {f"{letter}.n": 300 for letter in "abcdefghijklmnop"}
    fifteen = analyse(*["hist"] * 15, sizes={key: small[key] for key in list(small)[:15]}, granularity=32)
    letters = "abcdefghijklmno"
    program = strategy.emit(fifteen, wide(letters, (32,) * 15), {})
    assert isinstance(program, Program), program
    assert "FUSIOND_BARRIER(15, 32)" in program.sources[0].text
    got = runner.run(program, order=3)
    assert {int(got[f"{letter}.counts"].sum()) for letter in letters} == {300}
    sixteen = analyse(*["hist"] * 16, sizes=small, granularity=32)
    levels = next(each for each in strategy.space(sixteen, {}).parameters if each.name == "level")
    assert levels.values == ("block",)
    assert partition.even(sixteen.payload.group, sixteen.payload.target.limits) is None


# --- parts and the matching ------------------------------------------------------------------------------


def test_the_parts_are_all_pairs_each_once(analyse, keys):
    analysis = analyse("hist", "maxpool", "hist", "maxpool")
    assert analysis.report["pairs"] == ["a+b", "a+c", "a+d", "b+c", "b+d", "c+d"]
    assert sorted(each.name for each in keys(analysis).values()) == ["hist,hist", "hist,maxpool", "maxpool,maxpool"]


def test_a_part_is_the_pair_that_somebody_else_asks_for(analyse, parse, keys):
    sizes = {"a.n": 1000, "b.n": 2000, "maxpool.channels": 3}
    analysis = analyse(*THREE, sizes=sizes)
    wanted = {
        parse("maxpool", "hist", sizes={"hist.n": 1000, "maxpool.channels": 3}).key,
        parse("hist", "maxpool", sizes={"hist.n": 2000, "maxpool.channels": 3}).key,
        parse("hist", "hist", sizes={"a.n": 1000, "b.n": 2000}).key,
    }
    assert set(keys(analysis)) == wanted
    swapped = analyse(*THREE, sizes={**sizes, "a.n": 2000, "b.n": 1000})
    assert set(keys(swapped)) == wanted


def test_a_pair_has_no_parts(analyse, strategy):
    assert strategy.parts(analyse("hist", "maxpool")) == ()


def test_the_composition_is_what_saves_most(analyse, strategy, same, measured, zoo):
    analysis = analyse("hist", "maxpool", zoo["reverse"], zoo["sums"], sizes={
        "hist.n": 6_600, "maxpool.channels": 1, "maxpool.height": 150, "maxpool.width": 110,
    }, granularity=64)  # fmt: skip
    saved = {"hist,maxpool": 30.0, "maxpool,reverse": 50.0, "reverse,sums": 40.0}
    known = {
        key: each if each.verdict is Verdict.KEEP else record(
            each.workload_name, "fuse", saved[each.workload_name], kind="horizontal", level="warp", map="pad",
            order="ba", **{"threads.a": 64 if each.workload_name.startswith("reverse") else 128, "threads.b": 256},
        )
        for key, each in measured(analysis, saved).items()
    }  # fmt: skip
    found = strategy.space(analysis, known)
    groupings = next(each for each in found.parameters if each.name == "groups").values
    assert groupings == ("a+b|c+d", "a+b+c+d", "a|b|c|d")
    seeds = dict(strategy.seeds(analysis, found, known))
    program = strategy.emit(analysis, seeds["matched_streams"], known)
    launches = [step for step in program.steps if isinstance(step, Launch)]
    assert [(step.name, step.block[0], step.stream) for step in launches] == [
        ("fused_ab", 384, 0),
        ("fused_cd", 320, 1),
    ]
    assert {step.stream for step in strategy.emit(analysis, seeds["matched_sequence"], known).steps} == {0}
    assert strategy.emit(analysis, seeds["matched_graph"], known).issue == "graph"
    same(program, strategy.unfused(analysis, seeds["matched_streams"]))


def test_what_keeps_apart_is_not_composed(analyse, strategy, measured):
    analysis = analyse(*THREE)
    found = strategy.space(analysis, measured(analysis, {}))
    assert found.parameters[0].values == ("a|b|c", "a+b+c")
    assert found == strategy.space(analysis, {})
    assert "matched_sequence" not in dict(strategy.seeds(analysis, found, {}))


def test_a_composition_means_the_same_at_other_sizes(analyse, strategy, same, measured):
    """The winner is checked at odd sizes too, for which no pair was measured."""
    analysis = analyse(*THREE, sizes=SIZES)
    known = measured(analysis, {"hist,maxpool": 20.0})
    config = dict(strategy.seeds(analysis, strategy.space(analysis, known), known))["matched_sequence"]
    assert config["groups"] == "a|b+c"  # a+c would save as much
    odd = strategy.odd_sizes(analysis.workload)
    assert set(odd) == {"a.n", "a.bins", "b.n", "b.bins", "maxpool.channels", "maxpool.height", "maxpool.width"}
    other = analyse(*THREE, sizes={**SIZES, **odd})
    program = strategy.emit(other, config, {})
    assert isinstance(program, Program), program
    same(program, strategy.unfused(other, config))


def test_tickets_of_two_groups_are_two_counters(analyse, strategy, same):
    analysis = analyse("hist", "hist", "hist", "hist", sizes={"a.n": 900, "b.n": 1700, "c.n": 2500, "d.n": 3000})
    pair = {"kind": "horizontal", "level": "block", "assign": "ticket"}
    pairs = {
        "ab": {"order": "ab", "threads.a": 128, "threads.b": 256},
        "cd": {"order": "dc", "threads.c": 128, "threads.d": 512},
    }
    values = {f"{name}.{key}": each for name, own in pairs.items() for key, each in {**pair, **own}.items()}
    config = Config.of({"groups": "a+b|c+d", "launch": "streams", **values})
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program), program
    assert problems(program) == ()
    assert [(step.buffer, step.stream) for step in program.steps if isinstance(step, FillStep)] == [
        ("tickets.ab", 0), ("tickets.cd", 1),
    ]  # fmt: skip
    same(program, strategy.unfused(analysis, config))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"groups": "a+b|d"}, "not a grouping"), ({"groups": "c+a|b"}, "not a grouping"),
        ({"launch": "later"}, "launch is later"), ({"alone.a": 100}, "not offered for a"),
        ({"cap.a": 32}, "not offered for a"), ({"bc.threads.b": 100}, "threads.b is 100"),
        ({"bc.blocks": 2}, "does not apply"), ({"alone.b": 512}, "fits no group"),
        ({"kind": "horizontal"}, "fits no group"), ({"threads.a": 128}, "not offered for a"),
    ],
)  # fmt: skip
def test_a_composition_that_is_none_is_refused(analyse, strategy, measured, changes, said):
    analysis = analyse(*THREE)
    known = measured(analysis, {"hist,maxpool": 20.0})
    config = dict(strategy.seeds(analysis, strategy.space(analysis, known), known))["matched_sequence"]
    assert isinstance(strategy.emit(analysis, config, known), Program)
    found = strategy.emit(analysis, Config.of({**config, **changes}), known)
    assert isinstance(found, Rejection)
    assert found.rule == "not_in_space"
    assert said in found.detail


# --- who cannot be fused ---------------------------------------------------------------------------------


def test_a_kernel_that_cannot_be_fused_stays_alone(analyse, strategy, same, keys, kernel_file):
    from fusiond_hfuse.plugin import KERNELS

    yaml = (KERNELS / "hist.yaml").read_text().replace("kernel: hist", "kernel: odd")
    source = (KERNELS / "hist.cu").read_text().replace("extern __shared__", "(void)kept;\n    extern __shared__")
    odd = kernel_file("hist", "__device__ int kept;\n" + source, yaml)
    analysis = analyse(odd, "hist", "maxpool", sizes={"odd.n": 2_000, "hist.n": 3_000, **{
        name: value for name, value in SIZES.items() if name.startswith("maxpool")}})  # fmt: skip
    assert [each.rule for each in analysis.rejections] == ["symbol"]
    assert [each.name for each in keys(analysis).values()] == ["hist,maxpool"]
    assert analysis.report["together"] is False
    found = strategy.space(analysis, {})
    assert found.parameters[0].values == ("a|b|c",)
    seeds = dict(strategy.seeds(analysis, found, {}))
    assert list(seeds) == ["apart"]
    same(strategy.emit(analysis, seeds["apart"], {}), strategy.unfused(analysis, seeds["apart"]))
    refused = strategy.emit(analysis, wide("abc", (128, 128, 128)), {})
    assert refused.rule == "not_in_space"


def test_kernels_of_other_flags_pair_among_themselves(analyse, keys, kernel_file):
    from fusiond_hfuse.plugin import KERNELS

    yaml = (KERNELS / "hist.yaml").read_text().replace("kernel: hist", "kernel: fast\nflags: [-use_fast_math]")
    fast = kernel_file("hist", (KERNELS / "hist.cu").read_text(), yaml)
    analysis = analyse(fast, "hist", "maxpool", fast)
    assert sorted(each.name for each in keys(analysis).values()) == ["fast,fast", "hist,maxpool"]
    assert {each.rule for each in analysis.rejections} == {"flags_differ"}


# --- baselines, registers --------------------------------------------------------------------------------


def test_the_baselines_of_three(analyse, strategy, same):
    analysis = analyse(*THREE, sizes=SIZES)
    baselines = strategy.baselines(analysis)
    assert [each.name for each in baselines] == ["sequential", "streams_abc", "streams_cba", "graph"]
    plain = next(baselines[0].space.points())
    programs = [each.emit(plain) for each in baselines]
    assert [[(step.name, step.stream) for step in each.steps] for each in programs] == [
        [("a", 0), ("b", 0), ("c", 0)], [("a", 0), ("b", 1), ("c", 2)], [("c", 0), ("b", 1), ("a", 2)],
        [("a", 0), ("b", 1), ("c", 2)],
    ]  # fmt: skip
    assert [each.issue for each in programs] == ["streams", "streams", "streams", "graph"]
    for each in programs[1:]:
        same(each, programs[0])


USED = gpu(facts_of(histogram=13, max_pool=40))


def test_r0_of_three(analyse, strategy):
    """b1 = b2 = 65536 / (256 * 13), b3 = 65536 / (256 * 40), threads 2048 / 768; r0 = 65536 / (2 * 768) = 42.6."""
    analysis = analyse(*THREE, target=USED)
    arena = (
        strategy.emit(analysis, Config.of({**wide("abc", (256, 256, 256)), "cap": "none"}), {}).steps[0].shared_bytes
    )
    assert analysis.report["bound"] == {
        "threads": {"a": 256, "b": 256, "c": 256}, "b1": 19, "b2": 19, "b3": 6,
        "by_shared": 228 * 1024 // arena, "by_threads": 2, "b0": 2, "r0": 40,
    }  # fmt: skip
    seeds = dict(strategy.seeds(analysis, strategy.space(analysis, {}), {}))
    config = seeds["together_r0"]
    assert strategy.resolved(analysis, config, {})["cap"] == 40
    assert strategy.emit(analysis, config, {}).sources[0].register_cap == 40


def test_a_cap_of_a_pair_in_a_composition_is_resolved(analyse, strategy):
    analysis = analyse(*THREE, target=USED)
    config = Config.of({
        "groups": "a+c|b", "launch": "sequence", "alone.b": 512, "cap.b": "fit3", "ac.kind": "horizontal",
        "ac.level": "warp", "ac.map": "pad", "ac.order": "ca", "ac.threads.a": 512, "ac.threads.c": 512,
        "ac.cap": "paper",
    })  # fmt: skip
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program), program
    assert [(each.name, each.register_cap) for each in program.sources] == [("fused_ac", 32), ("b_hist", 40)]
    assert strategy.resolved(analysis, config, {})["ac.cap"] == 32  # 65536 / (2 * 1024)
