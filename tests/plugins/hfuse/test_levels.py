"""Block level, strided maps and the ways to assign blocks: the same outputs, each block exactly once."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fusiond.model.gpu.limits import limits
from fusiond.model.nouns import Config, Rejection
from fusiond.model.program import FillStep, Program
from fusiond.strategy import Target
from fusiond_hfuse.analysis import partition

NUMBERED = ("sequential", "interleaved", "ticket")  #: Ways in which a number says whose a block is
ASSIGNS = (*NUMBERED, "multiprocessor")


def block_level(a, b, assign, order="ab", virtual=(1, 1)):
    several = {f"virtual.{letter}": number for letter, number in zip("ab", virtual, strict=True) if number > 1}
    return Config.of({
        "kind": "horizontal", "level": "block", "assign": assign, "threads.a": a, "threads.b": b, "order": order,
        **several,
    })  # fmt: skip


def strided(a, b, blocks, order="ab"):
    return Config.of(
        {"kind": "horizontal", "level": "warp", "map": "stride", "blocks": blocks, "threads.a": a, "threads.b": b,
         "order": order}
    )  # fmt: skip


CONFIGS = [
    *(block_level(512, 256, assign) for assign in ASSIGNS),
    *(block_level(128, 1024, assign, "ba") for assign in ASSIGNS),
    block_level(128, 512, "sequential", virtual=(4, 1)), block_level(256, 128, "interleaved", "ba", virtual=(2, 8)),
    block_level(128, 128, "ticket", virtual=(8, 2)), block_level(128, 256, "multiprocessor", virtual=(4, 2)),
    strided(512, 512, 1), strided(128, 384, 4, "ba"), strided(768, 256, 8),
]  # fmt: skip


def whose(assign: str, grids: tuple[int, ...], number: int) -> tuple[int, int]:
    """(side, its block) of one block of a launch at block level, or of one ticket: what the fused kernel works out."""
    whole = sum(grids)
    for side, part in enumerate(grids[:-1]):
        if assign == "sequential":
            if number < part:
                return side, number
            number -= part
        else:
            before = number * partition.ratio(part, whole) >> 32
            if (number + 1) * partition.ratio(part, whole) >> 32 > before:
                return side, before
            number -= before
            whole -= part
    return len(grids) - 1, number


@given(grids=st.lists(st.integers(1, 60), min_size=2, max_size=5), assign=st.sampled_from(NUMBERED))
def test_each_block_is_somebodys_exactly_once(grids, assign):
    owners = [whose(assign, tuple(grids), number) for number in range(sum(grids))]
    assert Counter(owners) == {(side, block): 1 for side, count in enumerate(grids) for block in range(count)}


@given(grids=st.lists(st.integers(1, 60), min_size=2, max_size=5))
def test_any_first_blocks_hold_of_each_side_in_proportion(grids):
    seen = [0] * len(grids)
    for number in range(sum(grids)):
        side, block = whose("interleaved", tuple(grids), number)
        assert block == seen[side]  # a side's blocks begin in their own order
        seen[side] += 1
        for count, part in zip(seen, grids, strict=True):
            assert abs(count - (number + 1) * part / sum(grids)) <= len(grids)


@given(part=st.integers(1, 2**31 - 2), rest=st.integers(1, 2**31 - 2), at=st.integers(0, 2**32))
def test_a_ratio_needs_no_more_than_the_upper_half_of_a_product(part, rest, at):
    """What the kernel computes, `__umulhi(i, ratio)`, of launches of any length."""
    whole = part + rest
    assume(whole < 2**31)
    ratio, at = partition.ratio(part, whole), at % whole
    assert ratio < 2**32
    assert (whole * ratio) >> 32 == part
    assert 0 <= ((at + 1) * ratio >> 32) - (at * ratio >> 32) <= 1
    assert abs((at * ratio >> 32) - at * part / whole) <= 1 + at / 2**32


PAIRS = {
    ("hist", "maxpool"): {"hist.n": 20_000, "maxpool.channels": 2, "maxpool.height": 200, "maxpool.width": 150},
    # 7 and 13 blocks of 512 threads, 27 and 7 at 128 and 1024; both sides have dynamic shared memory.
    ("hist", "hist"): {"a.n": 3_500, "b.n": 6_600, "a.bins": 20, "b.bins": 33},
    # Grids of 12 and 15 blocks that the kernels read (gridDim), static arrays, early returns of whole blocks.
    ("tiles", "reverse"): {},
    # Threads and whole blocks that leave early come to the next block of a strided side all the same.
    ("early", "hist"): {"hist.n": 5_000},
    # Helpers that see the block.
    ("sums", "sums"): {"a.n": 4001, "b.n": 2999, "b.blocks": 7},
}
WAYS = [
    *((("hist", "maxpool"), config) for config in CONFIGS[::2]),
    *((("hist", "hist"), config) for config in CONFIGS[1::2]),
    *((("tiles", "reverse"), config) for config in (
        *(block_level(64, 128, assign) for assign in ASSIGNS), strided(64, 128, 1), strided(64, 512, 4, "ba"),
        block_level(64, 128, "multiprocessor", virtual=(4, 1)), block_level(64, 128, "sequential", "ba", (8, 1)))),
    *((("early", "hist"), config) for config in (
        *(block_level(512, 128, assign) for assign in ASSIGNS), strided(256, 384, 1), strided(128, 128, 2),
        block_level(128, 256, "interleaved", virtual=(8, 4)))),
    *((("sums", "sums"), config) for config in (
        *(block_level(256, 640, assign) for assign in ASSIGNS), strided(256, 640, 1),
        block_level(256, 128, "ticket", virtual=(2, 4)))),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("pair", "config"), WAYS, ids=str)
def test_a_pair_at_every_level_gives_what_it_gives_unfused(analyse, strategy, same, zoo, pair, config):
    analysis = analyse(*(zoo.get(name, name) for name in pair), sizes=PAIRS[pair])
    same(strategy.emit(analysis, config, {}), strategy.unfused(analysis, config))


def test_a_block_level_kernel_needs_the_shared_memory_of_one_side(analyse, strategy):
    analysis = analyse("hist", "hist", sizes={"a.bins": 1000, "b.bins": 3000})
    wide = strategy.emit(analysis, block_level(512, 512, "sequential"), {}).steps[-1]
    assert wide.shared_bytes == 12_000
    assert wide.grid[0] == sum(step.grid[0] for step in strategy.baselines(analysis)[0].emit(
        Config.of({"threads.a": 512, "threads.b": 512})).steps)  # fmt: skip
    beside = Config.of({"kind": "horizontal", "threads.a": 512, "threads.b": 512, "order": "ab"})
    assert strategy.emit(analysis, beside, {}).steps[-1].shared_bytes == 16_000


def test_the_counter_of_tickets_is_zeroed_in_the_counted_span(analyse, strategy):
    program = strategy.emit(analyse("hist", "maxpool"), block_level(512, 256, "ticket"), {})
    zero, launch = program.steps
    assert isinstance(zero, FillStep)
    assert (zero.byte, zero.counted, zero.stream) == (0, True, launch.stream)
    assert launch.arguments[-1].buffer == zero.buffer
    assert program.buffer(zero.buffer).role.value == "scratch"


def test_two_blocks_of_1024_threads_go_together_at_block_level_only(analyse, strategy, same, kernel_file):
    from fusiond_hfuse.plugin import KERNELS

    yaml = (KERNELS / "hist.yaml").read_text().replace("{shape: [512], tune: x}", "{shape: [1024]}")
    name = kernel_file("hist", (KERNELS / "hist.cu").read_text(), yaml)
    analysis = analyse(name, name, sizes={"a.n": 3_000, "b.n": 5_000})
    assert analysis.rejections == ()
    found = strategy.space(analysis, {})
    values = {each.name: each.values for each in found.parameters}
    assert values["kind"] == ("horizontal", "vertical")
    assert values["level"] == ("block",)
    config = block_level(1024, 1024, "interleaved")
    same(strategy.emit(analysis, config, {}), strategy.unfused(analysis, config))


def test_the_blocks_of_a_strided_kernel_are_multiples_of_the_multiprocessors(analyse, strategy):
    target = Target(arch="sm_90", limits=limits("sm_90"), facts=lambda source: None)
    analysis = analyse("hist", "maxpool", target=target)
    config = Config.of({**strided(512, 256, 4), "cap": "none"})
    launch = strategy.emit(analysis, config, {}).steps[-1]
    assert launch.grid == (4 * 132, 1, 1)
    assert launch.arguments[-1].value == 4 * 132
    unknown = dataclasses.replace(target, limits=dataclasses.replace(target.limits, multiprocessors=0))
    analysis = analyse("hist", "maxpool", target=unknown)
    values = {each.name: each.values for each in strategy.space(analysis, {}).parameters}
    assert values["map"] == ("pad",)
    assert strategy.emit(analysis, config, {}).rule == "not_in_space"


LEAVING = """\
__global__ void leaving(int* out, const int* x, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int value = x[i];
    for (int o = 16; o; o /= 2) value += __shfl_xor_sync(__activemask(), value, o);
    out[i] = value;
}
"""
LEAVING_YAML = """\
kernel: leaving
source: leaving.cu
entry: leaving
sizes: {n: 5000}
arguments:
  - {name: out, dtype: int32, elements: n, role: output}
  - {name: x, dtype: int32, elements: n, role: input, fill: iota}
  - {name: n, dtype: int32, value: n}
block: {shape: [256], tune: x}
grid: ["ceil_div(n, block.x)"]
"""


def test_a_thread_that_has_left_a_shuffle_does_no_more_work(analyse, strategy, kernel_file):
    """What goes on after the body (the next block, the other kernel) would be waited for by the rest of the warp."""
    analysis = analyse(kernel_file("leaving", LEAVING, LEAVING_YAML), "hist")
    values = {each.name: each.values for each in strategy.space(analysis, {}).parameters}
    assert values["kind"] == ("horizontal",)
    assert values["map"] == ("pad",)


def test_a_config_without_a_level_is_at_warp_level(analyse, strategy):
    analysis = analyse("hist", "maxpool")
    old = Config.of({"kind": "horizontal", "threads.a": 512, "threads.b": 256, "order": "ab"})
    new = Config.of({**old, "level": "warp", "map": "pad"})
    assert strategy.emit(analysis, old, {}).key == strategy.emit(analysis, new, {}).key


def test_every_seed_is_a_program_of_its_own(analyse, strategy):
    analysis = analyse("hist", "maxpool")
    seeds = strategy.seeds(analysis, strategy.space(analysis, {}), {})
    programs = [strategy.emit(analysis, config, {}) for _, config in seeds]
    assert all(isinstance(each, Program) for each in programs)
    assert len({each.key for each in programs}) == len(seeds)


def test_what_cannot_launch_is_refused_before_it_is_compiled(analyse, strategy):
    asked = []

    def facts(source):
        asked.append(source.name)

    target = Target(arch="sm_90", limits=limits("sm_90"), facts=facts)
    analysis = analyse("hist", "hist", target=target, sizes={"a.bins": 30_000, "b.bins": 30_000})
    asked.clear()
    both = {"kind": "horizontal", "order": "ab", "threads.a": 512, "threads.b": 512}
    found = strategy.emit(analysis, Config.of({**both, "cap": "none"}), {})
    assert isinstance(found, Rejection)
    assert (found.rule, asked) == ("shared_memory", [])
    assert "240000 bytes" in found.detail
    found = strategy.emit(analysis, Config.of({**both, "cap": "fit3"}), {})
    assert (found.rule, asked) == ("not_in_space", [])
    assert "cap != 'fit3' or level == 'block' or threads.a + threads.b <= 672 does not hold" in found.detail
    one = Config.of({**block_level(512, 512, "ticket"), "cap": "fit3"})
    assert isinstance(strategy.emit(analysis, one, {}), Program)  # 512 threads have 128 each, one side has its arena


# --- blocks that are one side's alone ---

PARTING = """\
__global__ void k(int* out, const int* in, int n)
{
    __shared__ int tile[128];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = in[i];
    if (in[i] % 3 == 0) return;
    __syncthreads();
    int v = tile[threadIdx.x ^ 1];
    unsigned here = __activemask();
    out[i] = v + (__shfl_sync(here, v, __ffs(here) - 1) == 0) + COUNT;
}
"""
PARTING_YAML = """\
kernel: k
source: k.cu
entry: k
sizes: {n: 1024}
arguments:
  - {name: out, dtype: int32, elements: n, role: inout, fill: iota}
  - {name: in, dtype: int32, elements: n, role: input, fill: {integers: [0, 99]}}
  - {name: n, dtype: int32, value: n}
block: {shape: [64]}
grid: ["n // block.x"]
"""


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("count", ["0", "__syncthreads_count(v > 9)"])
def test_who_leaves_early_where_lanes_meet_is_fused_block_by_block(analyse, strategy, same, kernel_file, count):
    analysis = analyse(
        kernel_file("k", PARTING.replace("COUNT", count), PARTING_YAML), "hist", sizes={"hist.n": 3000}, compiled=True
    )
    assert analysis.rejections == ()
    assert "some threads may leave before a barrier" in analysis.report["only_block_by_block"][0]
    found = strategy.space(analysis, {})
    assert {each["level"] for each in found.points()} == {"block"}
    assert "virtual.b" not in {each.name for each in found.parameters}
    for assign in ASSIGNS:
        config = Config.of({"kind": "horizontal", "level": "block", "assign": assign, "threads.a": 256,
                            "threads.b": 64, "virtual.a": 2, "order": "ab"})  # fmt: skip
        same(strategy.emit(analysis, config, {}), strategy.unfused(analysis, config))
        beside = Config.of({"kind": "horizontal", "level": "warp", "map": "pad", "order": "ab", "threads.a": 256,
                            "threads.b": 64})  # fmt: skip
    assert strategy.emit(analysis, beside, {}).rule == "not_in_space"


@pytest.mark.slow
@pytest.mark.parametrize("threads", [16, 48])
def test_blocks_that_are_no_whole_warps_are_fused_block_by_block(analyse, strategy, same, kernel_file, threads):
    text = PARTING.replace("if (in[i] % 3 == 0) return;", "").replace("COUNT", "0")
    name = kernel_file("k", text, PARTING_YAML.replace("[64]", f"[{threads}]").replace("1024", "1008"))
    analysis = analyse(name, "hist", sizes={"hist.n": 3000})
    config = Config.of({"kind": "horizontal", "level": "block", "assign": "interleaved", "threads.a": 256,
                        "threads.b": threads, "virtual.a": 1, "order": "ba"})  # fmt: skip
    same(strategy.emit(analysis, config, {}), strategy.unfused(analysis, config))


def test_static_arrays_of_both_sides_lie_over_each_other(analyse, strategy, kernel_file):
    """20 KB each: together 40 KB of static memory, or 20 KB of dynamic one."""
    text = PARTING.replace("if (in[i] % 3 == 0) return;", "").replace("COUNT", "0").replace("tile[128]", "tile[5120]")
    name = kernel_file("k", text, PARTING_YAML)
    analysis = analyse(name, name)
    program = strategy.emit(analysis, block_level(64, 64, "interleaved"), {})
    assert program.steps[0].shared_bytes == 20480
    assert "__shared__ int tile" not in program.sources[0].text
    several = strategy.emit(analysis, block_level(64, 64, "interleaved", virtual=(2, 4)), {})
    assert several.steps[0].shared_bytes == 4 * 20480
