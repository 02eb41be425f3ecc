"""The space of a pair, its seeds and baselines, and the paper's register bound."""

import dataclasses
import itertools
from pathlib import Path

import pytest

from fusiond.model.errors import RequestError
from fusiond.model.gpu.occupancy import carveout_pct, occupancy
from fusiond.model.nouns import Config, DeviceLimits
from fusiond.model.program import Program, Role
from fusiond.requests import jobs
from fusiond.requests.planning import target_for_arch
from fusiond_hfuse import space
from fusiond_hfuse.analysis import registers

JOBS = Path(__file__).parents[3] / "configs" / "jobs"

V100 = DeviceLimits(
    multiprocessors=80, shared_bytes_per_sm=96 * 1024, shared_bytes_per_block=96 * 1024, threads_per_sm=2048,
    blocks_per_sm=32,
)  # fmt: skip
"""The paper's own numbers: 64 K registers, 96 K shared memory, 2048 threads."""


@pytest.mark.parametrize(
    ("threads", "used", "shared_bytes", "wanted"),
    [
        # Batch normalisation and histogram of Fig. 4: nothing but the threads binds, two blocks of 1024, 32 registers.
        ((896, 128), (32, 20), 640, {"b1": 2, "b2": 25, "by_shared": 153, "by_threads": 2, "b0": 2, "r0": 32}),
        # The first kernel's registers bind.
        ((512, 512), (80, 24), 0, {"b1": 1, "b2": 5, "by_shared": None, "by_threads": 2, "b0": 1, "r0": 64}),
        # Shared memory binds.
        ((256, 256), (16, 16), 50_000, {"b1": 16, "b2": 16, "by_shared": 1, "by_threads": 4, "b0": 1, "r0": 128}),
        # A block of 640 threads: 65536 / (3 * 640) = 34.1, of which 32 can be allocated.
        ((512, 128), (32, 20), 80, {"b1": 4, "b2": 25, "by_shared": 1228, "by_threads": 3, "b0": 3, "r0": 32}),
        # Kernels that fit no multiprocessor: one block all the same; r0 has an upper bound.
        ((1024, 1024), (255, 255), 0, {"b1": 0, "b2": 0, "by_shared": None, "by_threads": 1, "b0": 1, "r0": 32}),
        ((128, 128), (255, 16), 90_000, {"b1": 2, "b2": 32, "by_shared": 1, "by_threads": 8, "b0": 1, "r0": 255}),
    ],
)
def test_r0_by_hand(threads, used, shared_bytes, wanted):
    block = min(sum(threads), 2048)
    assert registers.bound(V100, threads=threads, registers=used, shared_bytes=shared_bytes, block=block) == wanted


def test_the_space_on_the_processor(analyse, strategy):
    analysis = analyse("hist", "maxpool")
    found = strategy.space(analysis, {})
    assert [each.name for each in found.parameters] == [
        "kind", "level", "assign", "threads.a", "threads.b", "virtual.a", "virtual.b", "map", "blocks", "threads",
        "order",
    ]  # fmt: skip
    # 28 partitions of at most 1024 threads in steps of 128, padded or strided over 4 numbers of blocks; blocks of their
    # own, of 15 block sizes and numbers of virtual blocks each (four of 128, three of 256, ...), assigned in 4 ways; 8
    # vertical blocks; two orders of each.
    assert found.count() == (28 * 5 + 15 * 15 * 4 + 8) * 2
    assert analysis.report["bound"] is None
    assert analysis.report["kernels"] == [
        {"name": "hist", "registers": None, "shared_bytes": None, "barriers": None, "threads": 512},
        {"name": "maxpool", "registers": None, "shared_bytes": None, "barriers": None, "threads": 256},
    ]


def fits(limits, config):
    """How many of the caps that ask for so many blocks a multiprocessor can have."""
    sides = [
        value * config.get(name.replace("threads", "virtual"), 1)
        for name, value in config.items()
        if name.startswith("threads")
    ]
    block = max(sides) if config.get("level") == "block" else sum(sides)
    resident = occupancy(limits, 16, 0, block).blocks_per_sm
    return sum(blocks <= resident for blocks in (2, 3, 4, 5, 6, 8, 12, 16))


def trades(limits, config):
    """In how many ways one side of a fused block can give the other one registers, for all caps."""
    sides = {letter: config[f"threads.{letter}"] for letter in "ab"}
    found = 0
    for blocks, (giver, taker) in itertools.product((2, 3, 4, 5, 6, 8, 12, 16), ("ab", "ba")):
        most = (registers.fitting(limits, sum(sides.values()), blocks) or 0) // 8 * 8
        for kept in (24, 32, 40, 56, 72, 96):
            found += registers.traded(most, sides[giver], sides[taker], kept) is not None
    return found


@pytest.mark.slow
def test_the_space_on_a_gpu_has_caps(analyse, strategy, h100):
    analysis = analyse("hist", "maxpool", target=h100)
    found = strategy.space(analysis, {})
    assert [each.name for each in found.parameters[-3:]] == ["cap", "taker", "kept"]
    assert found.parameters[-3].values[:4] == ("native", "none", "paper", "fit2")
    kept = [each for each in found.points() if each.get("taker", "none") == "none"]
    free = [each for each in kept if each["cap"] == "none"]
    assert len(free) == (28 * 5 + 15 * 15 * 4 + 8) * 2
    assert len(kept) == sum(3 + fits(h100.limits, each) for each in free)
    beside = [each for each in free if each.get("level") == "warp"]
    assert found.count() == len(kept) + sum(trades(h100.limits, each) for each in beside)
    assert analysis.report["bound"] == {
        "threads": {"a": 512, "b": 512}, "b1": 9, "b2": 4, "by_shared": 2918, "by_threads": 2, "b0": 2, "r0": 32,
    }  # fmt: skip
    assert analysis.report["kernels"][0] == {
        "name": "hist", "registers": 13, "shared_bytes": 80, "barriers": 1, "threads": 512,
    }  # fmt: skip


PAPER = "strategy: hfuse\npair: [{}]\nsearch: {{order: paper}}\n"


def test_the_papers_search(analyse, strategy, h100):
    """Figure 6: d1 = 128, 256, ... 896, each without a bound and with r0."""
    analysis = analyse(text=PAPER.format("hist, maxpool"), target=h100)
    found = strategy.space(analysis, {})
    seeds = strategy.seeds(analysis, found, {})
    assert found.count() == len(seeds) == 14
    tried = [(config["threads.a"], config["threads.b"], config["cap"]) for _, config in seeds]
    assert tried == [(d1, 1024 - d1, cap) for d1 in range(128, 1024, 128) for cap in ("none", "paper")]
    assert [name for name, _ in seeds][:3] == ["paper_128", "paper_128_r0", "paper_256"]
    everything = strategy.space(analyse("hist", "maxpool", target=h100), {})
    assert all(
        everything.problems(space.completed(config, everything, analysis.payload.group)) == () for _, config in seeds
    )
    caps = {config["threads.a"]: strategy.resolved(analysis, config, {})["cap"] for _, config in seeds[1::2]}
    assert caps == dict.fromkeys(range(128, 1024, 128), 32)
    assert isinstance(strategy.emit(analysis, seeds[3][1], {}), Program)


def test_the_papers_search_without_registers_or_partitions(analyse, strategy, zoo):
    on_the_processor = analyse(text=PAPER.format("hist, maxpool"))
    assert strategy.space(on_the_processor, {}).count() == 7
    few = strategy.space(analyse(text=PAPER.format(f"hist, {zoo['tiles']}")), {})  # of at most 512 threads
    assert [config["threads.a"] for config in few.points()] == [512, 640, 768, 896]
    with pytest.raises(RequestError, match=r"`order: paper` is for two kernels"):
        analyse(text=PAPER.replace("pair", "kernels").format("hist, hist, maxpool"))


def test_seeds_are_points_of_the_space(analyse, strategy, h100):
    analysis = analyse("hist", "maxpool", target=h100)
    found = strategy.space(analysis, {})
    seeds = strategy.seeds(analysis, found, {})
    assert [name for name, _ in seeds] == [
        "paper_even_split", "paper_r0", "given_blocks", "vertical", "block_sequential", "block_interleaved",
        "block_ticket", "block_multiprocessor", "block_virtual", "stride",
    ]  # fmt: skip
    assert all(found.problems(config) == () for _, config in seeds)
    even = dict(seeds)["paper_even_split"]
    assert (even["threads.a"], even["threads.b"], even["cap"]) == (512, 512, "none")
    assert strategy.resolved(analysis, dict(seeds)["paper_r0"], {})["cap"] == 32


def test_the_papers_cap_is_the_sources(analyse, strategy, h100):
    analysis = analyse("hist", "maxpool", target=h100)
    config = Config.of({"kind": "horizontal", "threads.a": 512, "threads.b": 128, "order": "ab", "cap": "paper"})
    program = strategy.emit(analysis, config, {})
    assert program.sources[0].register_cap == 32  # 65536 / (3 * 640), rounded down to a multiple of 8
    assert "__launch_bounds__" not in program.sources[0].text
    bounded = strategy.emit(analysis, Config.of({**config, "cap": "fit3"}), {})
    assert bounded.sources[0].register_cap is None
    assert "__global__ void __launch_bounds__(640, 3) fused_hist_maxpool(" in bounded.sources[0].text
    free = strategy.emit(analysis, Config.of({**config, "cap": "none"}), {})
    assert "__global__ void __launch_bounds__(640) fused_hist_maxpool(" in free.sources[0].text


def test_blocks_that_a_source_asks_for_are_inherited(analyse, strategy, kernel_file, h100):
    from fusiond_hfuse.plugin import KERNELS

    text = (KERNELS / "hist.cu").read_text()
    source = "#define MOST(n, ...) n\nconstexpr int AT_ONCE = 3;\n" + text.replace(
        "__global__ void", "__global__ void __launch_bounds__(MOST(512, 1), (AT_ONCE, AT_ONCE + 1))"
    )
    name = kernel_file("hist", source, (KERNELS / "hist.yaml").read_text())
    analysis = analyse(name, "maxpool", target=h100)
    found = strategy.space(analysis, {})
    assert next(each for each in found.parameters if each.name == "cap").values[3] == "given"
    seeds = dict(strategy.seeds(analysis, found, {}))
    assert (seeds["block_sequential"]["cap"], seeds["paper_even_split"]["cap"]) == ("given", "none")
    program = strategy.emit(analysis, seeds["block_sequential"], {})
    assert f"__launch_bounds__({program.steps[0].block[0]}, 4) " in program.sources[0].text
    too_many = Config.of({**seeds["given_blocks"], "cap": "given"})
    assert strategy.emit(analysis, too_many, {}).rule == "launch"  # four of 768 threads


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
@pytest.mark.parametrize("threads", [32, 96, 256, 384, 640, 1024])
def test_registers_at_the_steps_of_occupancy(arch, threads):
    limits = target_for_arch(arch).limits
    for blocks in range(1, 33):
        most = registers.fitting(limits, threads, blocks)
        resident = [occupancy(limits, each, 0, threads).blocks_per_sm for each in range(16, 256)]
        assert most == max((each for each, have in enumerate(resident, 16) if have >= blocks), default=None)
    for own in (13, 32, 40, 119):
        cap = registers.as_native(limits, threads, own)
        rounded = -(-own // 8) * 8
        if registers.fitting(limits, threads, 1) >= rounded:
            assert own <= cap <= own + 8
            before, after = (occupancy(limits, each, 0, threads).blocks_per_sm for each in (rounded, cap))
            assert before == after


@pytest.mark.campaign
@pytest.mark.needs_nvcc
def test_a_fused_kernel_takes_hardly_more_registers_than_its_parts(analyse, strategy):
    """Unbounded, ptxas takes 176 where the kernels have 72 and 48."""
    target = target_for_arch("sm_90")
    analysis = analyse("blake256", "blake2b", target=target)
    most = max(each["registers"] for each in analysis.report["kernels"])
    for name, config in strategy.seeds(analysis, strategy.space(analysis, {}), {}):
        program = strategy.emit(analysis, config, {})
        (facts,) = target.facts(program.sources[0]).values()
        assert facts.registers <= most + 8, name


def test_fixed_blocks_have_one_value(analyse, strategy, kernel_file, tmp_path):
    from fusiond_hfuse.plugin import KERNELS

    yaml = (KERNELS / "hist.yaml").read_text()
    source = (KERNELS / "hist.cu").read_text()
    fixed = kernel_file("hist", source, yaml.replace("{shape: [512], tune: x}", "{shape: [96]}"))
    analysis = analyse(fixed, "maxpool")
    values = {each.name: each.values for each in strategy.space(analysis, {}).parameters}
    assert values["threads.a"] == (96,)
    assert values["threads.b"][0] == 256
    assert "threads" not in values  # no block size in common, so no vertical fusion
    assert values["kind"] == ("horizontal",)
    (name, seed), *_ = strategy.seeds(analysis, strategy.space(analysis, {}), {})
    assert (name, seed["threads.a"], seed["threads.b"]) == ("paper_even_split", 96, 128)


def test_a_launch_bound_in_the_source_limits_the_block(analyse, strategy, kernel_file):
    from fusiond_hfuse.plugin import KERNELS

    source = (KERNELS / "hist.cu").read_text().replace("__global__ void", "__global__ void __launch_bounds__(512)")
    name = kernel_file("hist", source, (KERNELS / "hist.yaml").read_text())
    found = strategy.space(analyse(name, "maxpool"), {})
    values = {each.name: each.values for each in found.parameters}
    assert values["threads.a"] == (512, 128, 256, 384)
    assert max(values["threads"]) == 512


def test_baselines_tune_the_same_knobs(analyse, strategy, h100):
    analysis = analyse("hist", "maxpool", target=h100)
    baselines = strategy.baselines(analysis)
    assert [each.name for each in baselines] == ["sequential", "streams_ab", "streams_ba", "graph"]
    assert [each.like for each in baselines] == [None, "sequential", "sequential", "sequential"]
    sequential, streams_ab, streams_ba, graph = baselines
    assert [each.name for each in sequential.space.parameters] == ["threads.a", "threads.b", "cap.a", "cap.b"]
    given = next(sequential.space.points())
    assert dict(given) == {"threads.a": 512, "threads.b": 256, "cap.a": "none", "cap.b": "none"}
    program = sequential.emit(Config.of({**given, "cap.b": "fit6"}))
    assert [each.register_cap for each in program.sources] == [None, 40]  # 65536 / (6 * 256)
    assert sequential.space.problems(Config.of({**given, "cap.a": "fit5"}))  # 5 * 512 threads
    assert [(step.name, step.stream) for step in program.steps] == [("a", 0), ("b", 0)]
    assert [(step.name, step.stream) for step in streams_ab.emit(given).steps] == [("a", 0), ("b", 1)]
    assert [(step.name, step.stream) for step in streams_ba.emit(given).steps] == [("b", 0), ("a", 1)]
    assert graph.emit(given).issue == "graph"
    assert dataclasses.replace(graph.emit(given), issue="streams").key == streams_ab.emit(given).key


@pytest.mark.slow
def test_all_programs_have_the_same_buffers(analyse, strategy):
    """Data are drawn from a buffer's name, so that fused and unfused see the same."""
    analysis = analyse("hist", "maxpool")
    buffers = {strategy.baselines(analysis)[0].emit(Config.of({"threads.a": 128, "threads.b": 128})).buffers}
    for config in strategy.space(analysis, {}).points():
        program = strategy.emit(analysis, config, {})
        assert isinstance(program, Program)
        buffers.add(tuple(each for each in program.buffers if each.role is not Role.SCRATCH))
    assert len(buffers) == 1
    assert [each.name for each in buffers.pop()] == ["a.counts", "a.x", "b.largest", "b.position", "b.image"]


def test_a_config_from_elsewhere_is_refused(analyse, strategy):
    analysis = analyse("hist", "maxpool")
    for values in (
        {},
        {"kind": "horizontal", "threads.a": 896, "threads.b": 256, "order": "ab"},
        {"kind": "vertical", "threads": 100, "order": "ab"},
    ):
        assert strategy.emit(analysis, Config.of(values), {}).rule == "not_in_space"


@pytest.mark.slow
def test_block_sizes_that_come_to_no_launch_are_left_out(analyse, strategy, kernel_file):
    from fusiond_hfuse.plugin import KERNELS

    yaml = (KERNELS / "hist.yaml").read_text().replace("ceil_div(n, block.x)", "n // block.x")
    name = kernel_file("hist", (KERNELS / "hist.cu").read_text(), yaml)
    analysis = analyse(name, "maxpool", sizes={"hist.n": 600})
    values = {each.name: each.values for each in strategy.space(analysis, {}).parameters}
    assert values["threads.a"] == (512, 128, 256, 384)
    assert strategy.baselines(analysis)[0].space.parameters[0].values == (512, 128, 256, 384)


@pytest.mark.parametrize(
    ("job", "name", "parts"),  # of four: hist twice, maxpool twice, and either hist beside a maxpool
    [("hist-maxpool", "hist,maxpool", 0), ("hist-maxpool-paper", "hist,maxpool", 0),
     ("four-kernels", "hist,hist,maxpool,maxpool", 4)],
)  # fmt: skip
def test_the_jobs_that_come_with_it(registry, strategy, cpu_target, job, name, parts):
    (found,) = jobs.read(JOBS / f"{job}.yaml")
    jobs.check_keys(found, strategy.job_keys)
    analysis = strategy.analyse(strategy.parse(found, jobs.JobInputs(registry, found)), cpu_target)
    assert (analysis.workload.name, analysis.rejections, len(strategy.parts(analysis))) == (name, (), parts)
    for _, config in strategy.seeds(analysis, strategy.space(analysis, {}), {}):
        assert isinstance(strategy.emit(analysis, config, {}), Program)


@pytest.mark.needs_nvcc
def test_a_cap_binds_the_fused_kernel(analyse, strategy):
    """A number of registers and launch bounds never stand together."""
    target = target_for_arch("sm_90")
    analysis = analyse("hist", "maxpool", target=target)
    program = strategy.emit(analysis, dict(strategy.seeds(analysis, strategy.space(analysis, {}), {}))["paper_r0"], {})
    assert isinstance(program, Program)
    assert program.sources[0].register_cap == analysis.report["bound"]["r0"]
    for cap in (24, program.sources[0].register_cap):
        found = target.facts(dataclasses.replace(program.sources[0], register_cap=cap))
        assert found["fused_hist_maxpool"].registers <= cap


def test_as_much_shared_memory_is_asked_for_as_the_resident_blocks_take(analyse, strategy, h100):
    """hist has 4 * bins bytes; its blocks of 512 threads and maxpool's of 256 have 13 and 32 registers."""
    analysis = analyse("hist", "maxpool", target=h100)
    _, baseline = strategy.baselines(analysis)[:2]
    apart = baseline.emit(next(iter(baseline.space.points())))
    wanted = max(
        carveout_pct(h100.limits, registers, int(step.shared_bytes), step.block[0] * step.block[1], barriers=1)
        for step, registers in zip(apart.launches, (13, 32), strict=True)
    )
    assert [each.carveout_pct for each in apart.launches] == [wanted, wanted]  # they share multiprocessors
    for name, config in strategy.seeds(analysis, strategy.space(analysis, {}), {}):
        (launch,) = strategy.emit(analysis, config, {}).launches
        threads, shared = launch.block[0], int(launch.shared_bytes)
        assert launch.carveout_pct == carveout_pct(h100.limits, 32, shared, threads, barriers=1), name
    without = analyse("maxpool", "upsample", target=h100)
    config = dict(strategy.seeds(without, strategy.space(without, {}), {}))["paper_even_split"]
    assert strategy.emit(without, config, {}).launches[0].carveout_pct is None


def test_without_a_compiler_s_facts_the_driver_chooses(analyse, strategy, cpu_target, h100):
    for target in (cpu_target, dataclasses.replace(h100, facts=lambda source: None)):
        analysis = analyse("hist", "maxpool", target=target)
        config = dict(strategy.seeds(analysis, strategy.space(analysis, {}), {}))["given_blocks"]
        assert strategy.emit(analysis, config, {}).launches[0].carveout_pct is None
