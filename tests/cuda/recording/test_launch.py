"""Launches of `fusiond.cuda.kernel` on the processor: as they are until there is an answer, as one from then on, and
always with what they give one after the other."""

import dataclasses
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.array_utils import byte_bounds

import fusiond.cuda
from fusiond.cuda.recording import arguments, group_job, groups
from fusiond.cuda.recording.arguments import Array
from fusiond.cuda.recording.origins import CompilerOptions
from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.region_answers import Found
from tests.service.frameworks.answered import emitted

SOURCE = r"""
extern "C" __global__ void scale(const float* x, float* y, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * by;
}

extern "C" __global__ void histogram(unsigned* counts, const int* v, int n) {
    extern __shared__ unsigned own[];
    if (threadIdx.x < 16) own[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[v[i] & 15], 1u);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], own[threadIdx.x]);
}
"""  # noqa: E501
N = 1000


class Data:
    """Arguments of both kernels, and what they should give."""

    def __init__(self, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.x, self.y = random.random(N, np.float32), np.zeros(N, np.float32)
        self.counts, self.v = np.zeros(16, np.uint32), random.integers(0, 16, N).astype(np.int32)

    def scale(self, by: float = 0.3, kernel: Any = None) -> None:
        (kernel or SCALE).launch(4, 256, (self.x, self.y, np.float32(by), np.int32(N)))

    def histogram(self, kernel: Any = None) -> None:
        (kernel or HISTOGRAM).launch((2,), (128,), (self.counts, self.v, np.int32(N)), shared_mem=64)

    def check(self, by: float = 0.3, times: int = 1) -> None:
        np.testing.assert_array_equal(self.y, self.x * np.float32(by))
        np.testing.assert_array_equal(self.counts, times * np.bincount(self.v, minlength=16))


SCALE = fusiond.cuda.kernel(SOURCE, "scale")
HISTOGRAM = fusiond.cuda.kernel(SOURCE, "histogram")


def states() -> list[tuple[str, int]]:
    return [(each.state, each.launches) for each in fusiond.cuda.explain()]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, str(fusiond.cuda.explain())
        time.sleep(0.02)


def test_they_run_as_one_with_the_numbers_of_each_time(answered: Callable[..., Any], db: Path) -> None:
    asked = answered()
    for seed, by in enumerate((0.3, 0.26, 0.49)):  # all are asked for as 0.25
        data = Data(seed)
        with fusiond.cuda.launch(always=True, db=db):
            data.scale(by)
            data.histogram()
        data.check(by)
    assert states() == [("fused", 3)]
    assert len(asked) == 1
    assert "1.50x (emulated), 3 times" in str(fusiond.cuda.explain())


def test_inside_nothing_is_launched_and_outside_all_is(db: Path) -> None:
    data = Data()
    with fusiond.cuda.launch(SCALE, HISTOGRAM, db=db) as (scale, histogram):
        data.scale(kernel=scale)
        data.histogram(histogram)
        assert not data.y.any()
        assert not data.counts.any()
    data.check()
    data.scale(0.7)
    data.check(0.7)


def test_an_answer_is_taken_up_without_waiting(
    monkeypatch: pytest.MonkeyPatch, db: Path, nothing_is_known: list[Any]
) -> None:
    """Unknown: as they are, and handed in by another thread; once it is there, as one."""
    found: dict[str, Found] = {}
    here = threading.get_ident()
    threads = set()

    def look(self: region_answers.Asker, asked: Any) -> Found:
        threads.add(threading.get_ident())
        return found.get(asked.workload, Found(state="unknown"))

    monkeypatch.setattr(region_answers.Asker, "look", look)
    monkeypatch.setattr(region_answers, "POLL_SECS", 0.02)
    monkeypatch.setattr(region_answers.Asker, "_stamp", lambda self: time.monotonic())
    data = Data()

    def once() -> None:
        with fusiond.cuda.launch(db=db):
            data.scale()
            data.histogram()

    once()
    until(lambda: bool(nothing_is_known))
    once()
    data.check(times=2)
    (handed,) = {each.workload: each for each in nothing_is_known}.values()
    assert "handed to the daemon" in str(fusiond.cuda.explain())
    found[handed.workload] = dataclasses.replace(emitted(handed), evidence="measured", speedup=1.25)
    until(lambda: states()[0][0] == "fused")
    once()
    data.check(times=3)
    assert states() == [("fused", 1)]
    assert "1.25x, 1 times" in str(fusiond.cuda.explain())
    assert here not in threads


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Found(state="keep", evidence="measured"), "kept: apart they are as fast"),
        (Found(state="fuse", evidence="emulated"), "kept: its answer is emulated: always=True"),
        (Found(state="refused", reason="because"), "refused: because"),
    ],
)
def test_other_answers_leave_them_as_they_are(
    monkeypatch: pytest.MonkeyPatch, db: Path, found: Found, said: str
) -> None:
    monkeypatch.setattr(region_answers.Asker, "look", lambda self, asked: found)
    data = Data()
    for _ in range(2):
        with fusiond.cuda.launch(db=db):
            data.scale()
            data.histogram()
        until(lambda: said in str(fusiond.cuda.explain()))
    data.check(times=2)


def test_what_needs_the_others_result_runs_in_order(answered: Callable[..., Any], db: Path) -> None:
    """The same shapes, once apart and once in a chain; and the same input for both, which is not a reason."""
    answered()
    a, b, c = (np.arange(N, dtype=np.float32), *np.zeros((2, N), np.float32))
    d = np.zeros(N, np.float32)

    def both(*arrays: Any) -> None:
        with fusiond.cuda.launch(always=True, db=db):
            SCALE.launch(4, 256, (arrays[0], arrays[1], np.float32(2), np.int32(N)))
            SCALE.launch(4, 256, (arrays[2], arrays[3], np.float32(2), np.int32(N)))

    both(a, b, a, d)
    assert states() == [("fused", 1)]
    both(a, b, b, c)
    np.testing.assert_array_equal(c, 4 * a)
    assert states() == [("refused", 1)]
    assert "scale and scale share memory that one of them may write" in str(fusiond.cuda.explain())
    both(a[: N // 2].repeat(2), d, a, b)
    assert states() == [("fused", 2)]
    np.testing.assert_array_equal(b, 2 * a)


@pytest.mark.slow
def test_a_whole_number_that_varies_is_asked_for_once_more(answered: Callable[..., Any], db: Path) -> None:
    asked = answered()
    last = 0
    for n in (600, 601, 602, 777, 900, 1000, 999):
        data = Data(n)
        with fusiond.cuda.launch(always=True, db=db):
            SCALE.launch(4, 256, (data.x, data.y, np.float32(2), np.int32(n)))
            data.histogram()
        np.testing.assert_array_equal(data.y[:n], 2 * data.x[:n])
        assert not data.y[n:].any()
        last = len(asked)
    assert last == 4  # three by themselves, then 512 for all
    assert sum(count for _, count in states()) == 7


SAMPLES = r"""
#ifndef TILE
#error "say TILE"
#endif
struct Box { int low, high; double by; };
namespace ops {
template <typename T, int K> __global__ void clamp(T* y, const T* __restrict__ x, Box box, const float* bias, int n) {
    __shared__ T own[TILE];
    for (int i = blockIdx.x * TILE + threadIdx.x; i < n; i += gridDim.x * TILE) {
        own[threadIdx.x] = x[i] + (bias ? (T)bias[i] : (T)0);
        T v = own[threadIdx.x];
        y[i] = (v < box.low ? box.low : v > box.high ? box.high : v) * box.by + K;
    }
}
}
__device__ float twice(float v) { return 2 * v; }
__global__ void twice_all(float* x, unsigned long long n, bool really) {
    unsigned i = threadIdx.x + blockIdx.x * blockDim.x;
    if (really && i < n) x[i] = twice(x[i]);
}
"""


def test_structs_templates_macros_and_pointers_to_nothing(answered: Callable[..., Any], db: Path) -> None:
    answered()
    clamp = fusiond.cuda.kernel(SAMPLES, "ops::clamp<int, 3>", ["-D", "TILE=64", "-std=c++17"])
    twice = fusiond.cuda.kernel(SAMPLES, "twice_all", ("-DTILE=1",))
    box = np.array((-3, 5, 2.0), np.dtype([("low", "i4"), ("high", "i4"), ("by", "f8")], align=True))[()]
    x, y = np.arange(-10, 10, dtype=np.int32), np.zeros(20, np.int32)
    z = np.arange(40, dtype=np.float32)
    with fusiond.cuda.launch(clamp, twice, always=True, db=db) as (first, second):
        first((2,), (64,), (y, x, box, None, np.int32(20)))
        second(1, 64, (z, np.uint64(40), np.bool_(True)))
    assert states() == [("fused", 1)], str(fusiond.cuda.explain())
    np.testing.assert_array_equal(y, np.clip(x, -3, 5) * 2 + 3)
    np.testing.assert_array_equal(z, 2 * np.arange(40))


REFUSED = {
    "keeps its value": ("__device__ int calls; __global__ void k(float* x) { if (threadIdx.x == 0) x[0] = ++calls; }",
                        (), "variables that the host sets, or that keep their value: calls"),
    "no such option": ("__global__ void k(float* x) { x[threadIdx.x] = 1; }", ("-DX", "--relocatable-device-code=true"),
                       "--relocatable-device-code=true, which a job cannot say"),
    "not C++": ("__global__ void k(float* x) { x[threadIdx.x] = nothing; }", (), "nothing"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_asked_says_why(name: str, db: Path) -> None:
    """They are described as launches: whether they run as they are is no matter here."""
    source, options, said = REFUSED[name]
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    kernel = fusiond.cuda.kernel(source, "k", options)
    launches = [
        kernel.described(1, 64, (x,), 0, None),
        SCALE.described(1, 64, (x, y, np.float32(1), np.int32(9)), 0, None),
    ]
    always = region_answers.FusionOptions(always=True, block=False, search=None, device=None, db=db)
    assert groups.of(launches, always) is not None
    (explained,) = fusiond.cuda.explain()
    assert explained.state == "refused"
    assert said in explained.reason
    assert not {"\n", "/"} & set(explained.reason)


def test_the_question_is_of_shapes_alone(db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSIOND_CACHE", str(tmp_path))

    def asked(seed: int, by: float, *, swapped: bool = False, n: int = N) -> group_job.KernelsQuestion:
        data = Data(seed)
        launches = [
            SCALE.described(4, 256, (data.x, data.y, np.float32(by), np.int32(n)), 0, None),
            HISTOGRAM.described(2, 128, (data.counts, data.v, np.int32(N)), 64, None),
        ][:: -1 if swapped else 1]
        values = [groups._described(each)[1] for each in launches]
        return group_job.asked(launches, values, "cpu")

    first = asked(0, 0.3)
    assert asked(1, 0.49).digest == first.digest
    swapped = asked(0, 0.3, swapped=True)
    assert (swapped.digest, swapped.workload, sorted(swapped.job())) == (
        first.digest, first.workload, sorted(first.job()),
    )  # fmt: skip
    assert [swapped.letter(0), swapped.letter(1)] == [first.letter(1), first.letter(0)]
    assert len({first.digest, asked(0, 0.7).digest, asked(0, 0.3, n=999).digest}) == 3


class Interrupted(Exception):
    pass


def test_an_exception_leaves_done_what_was_launched(db: Path) -> None:
    data = Data()

    def interrupted() -> None:
        with fusiond.cuda.launch(db=db):
            data.scale()
            data.histogram()
            raise Interrupted

    with pytest.raises(Interrupted):
        interrupted()
    data.check()


def test_off(monkeypatch: pytest.MonkeyPatch, db: Path) -> None:
    monkeypatch.setenv("FUSIOND", "off")
    data, foreign = Data(), object()
    with fusiond.cuda.launch(SCALE, foreign, always=True, db=db) as (scale, other):
        assert (scale, other) == (SCALE, foreign)
        data.scale()
        assert data.y.any()
        data.histogram()
    data.check()
    assert str(fusiond.cuda.explain()) == "no launches came together"


def test_what_is_handed_over_is_let_go(db: Path) -> None:
    data = Data()
    with fusiond.cuda.launch(db=db):
        data.scale()
        data.histogram()
    left = [weakref.ref(each) for each in (data.x, data.y, data.counts, data.v)]
    del data
    gc.collect()
    assert [each() for each in left] == [None] * 4


def test_several_threads(answered: Callable[..., Any], db: Path) -> None:
    """Each records its own launches."""
    answered()
    wrong: list[str] = []

    def once(seed: int) -> None:
        data = Data(seed)
        with fusiond.cuda.launch(always=True, db=db):
            data.scale(0.25 + seed / 100)
            data.histogram()
        data.check(0.25 + seed / 100)

    def work(seed: int) -> None:
        for turn in range(20):
            try:
                once(seed)
            except AssertionError as problem:
                wrong.append(f"{seed}, {turn}: {problem}")

    once(0)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []
    assert states() == [("fused", 81)]


FORKS = """
import os, sys
sys.path.insert(0, {tests!r})
import fusiond.cuda
from tests.cuda.recording.test_launch import Data, states
data = Data()
def both(data):
    with fusiond.cuda.launch(db={db!r}):
        data.scale()
        data.histogram()
both(data)
assert len(states()) == 1
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert states() == []
again = Data(3)
both(again)
again.check()
assert states() == [("unknown", 0)]
assert "was forked from one that had asked" in str(fusiond.cuda.explain())
print("went on", flush=True)
"""


@pytest.mark.slow
def test_a_forked_child_goes_on(db: Path) -> None:
    """As they are: what parses is its parent's. It ends by itself, whatever its parent's threads were at."""
    script = FORKS.format(tests=str(Path(__file__).parents[3]), db=str(db))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((1, 2), "argument 0 of scale is a Python int, which has no width in CUDA"),
        ((np.zeros(4, np.float32), "x"), "argument 1 of scale is a str, whose memory cannot be located"),
        ((np.float32(1),), "scale is handed no array"),
        ((np.zeros(4, np.float32),), "scale takes 4 arguments, and is handed 1"),
        ((np.zeros(4, np.float32), np.zeros(4, np.float32), np.float64(1), np.int32(4)),
         "argument 2 of scale has 4 bytes, and is handed 8"),
    ],
)  # fmt: skip
def test_wrong_arguments(args: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        SCALE.launch(1, 32, args)


class Function:
    """As PyCUDA has it."""

    __module__ = "pycuda._driver"


class Graph:
    __module__ = "cupy.cuda.graph"


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (Function(), "is a function of PyCUDA, which carries no CUDA source; fusiond.cuda.kernel"),
        (Graph(), "a CUDA graph, whose nodes name no source"),
        (len, "len is a builtins.builtin_function_or_method, which carries no CUDA source"),
    ],
)
def test_kernels_without_source(kernel: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        fusiond.cuda.launch(SCALE, kernel)


# --- what is known of arguments -------------------------------------------------------------------------


@given(st.data())
def test_a_span_is_what_numpy_says(data: st.DataObject) -> None:
    whole = np.zeros((6, 7, 3), np.int16)
    view = whole[tuple(data.draw(st.slices(length)) for length in whole.shape)]
    view = view.transpose(data.draw(st.permutations(range(3))))
    found = arguments.read(view, widen=False)
    assert isinstance(found, Array)
    if view.size:
        assert (found.low, found.high) == byte_bounds(view)
    else:
        assert found.size_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=7))
def test_overlaps_by_brute_force(spans: list[tuple[int, int, int, bool]]) -> None:
    made = [(Array("int8", low, low, low + length, "cpu"), launch, writes) for low, length, launch, writes in spans]
    wanted = {
        (min(one, other), max(one, other))
        for a, one, writes in made
        for b, other, writes_too in made
        if one != other and (writes or writes_too) and set(range(a.low, a.high)) & set(range(b.low, b.high))
    }
    found = arguments.overlap(made)
    assert (found in wanted) if wanted else found is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_asked_for_as_the_power_of_two_below_it(value: float) -> None:
    below = groups._below(value)
    assert np.sign(below) == np.sign(value)
    assert abs(below) <= abs(value) <= 2 * abs(below)
    assert value == 0 or np.frexp(abs(below))[0] == 0.5


@given(st.integers(-(2**63), 2**64 - 1))
def test_and_so_is_a_whole_one(value: int) -> None:
    below = groups._whole_below(value)
    assert abs(below) <= abs(value) < 2 * max(abs(below), 1)
    assert (below > 0) == (value > 0)
    assert below & -below == abs(below)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("-DX", "-D", "Y=2", "--define-macro=Z=a b"),
         CompilerOptions((("X", "1"), ("Y", "2"), ("Z", "a b")), (), (), ())),
        (("-Iinc", "-I", "/usr", "--include-path=x"), CompilerOptions((), ("inc", "/usr", "x"), (), ())),
        (("-std=c++17", "--use_fast_math", "-arch=sm_90", "-w"), CompilerOptions((), (), ("--use_fast_math",), ())),
        (("-dc", "-fmad=false"), CompilerOptions((), (), ("-fmad=false",), ("-dc",))),
    ],
)  # fmt: skip
def test_options(options: tuple[str, ...], told: Any) -> None:
    assert CompilerOptions.of(options) == told
