"""What there is to do on a machine with a GPU, in units with a slice of time each, in the order in which they are done.

The first command's units fill the first ten minutes there: the ruler, native against native, one program of each kind,
the headlines with their rivals, whole functions, captured programs, the count against the counter. A unit that had not
enough of its slice goes on when all others of its command have had theirs: what it found is in its file, or its store.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.headlines.order import GROUPS
from tools.gpu_box.box import Box, tool

GPU_TESTS = (
    "tests/devices/test_cuda_contract.py",
    "tests/devices/cuda/test_on_a_gpu.py",
    "tests/build/exporting/test_on_a_gpu.py",
    "tests/torch/test_combining_on_a_gpu.py",
    "tests/triton/test_on_a_gpu.py",
)
"""By name: what stands beside them needs more modules than a box has."""
PAIRS = (
    "batchnorm+hist", "hist+maxpool", "blake256+ethash", "hist+upsample", "maxpool+upsample", "batchnorm+maxpool",
    "blake256+sha256", "hist+im2col", "blake2b+ethash", "batchnorm+upsample", "im2col+maxpool", "blake256+blake2b",
    "ethash+sha256", "im2col+upsample", "batchnorm+im2col", "blake2b+sha256",
)  # fmt: skip
"""The paper's sixteen: its motivating example, then kernels that differ in what they wait for."""
APPLICATIONS = ("harris", "unsharp", "sobel", "shitomasi", "enhance", "night")
MODULES = (
    "layer_norm", "softmax", "bilstm_step", "lr_step", "lstm_step", "nmt_attn", "nmt_fig3", "speech_fwd", "speech_step",
    "w2v_step",
)  # fmt: skip
"""The large ones first: the others are bound by launches."""
GRAPHS = ("fig2", "horner", "cg", "cholesky", "matmul", "random24")
TUNING = ("numpy", "scipy", "threadpoolctl", "sqlite_utils", "pluggy", "yaml", "clang")
SLICE = 60.0
SLOWER = 4  #: So many times as long a slice is where there is no GPU, and everything is emulated
FIRST, SECOND, LONG, HANGS = 1, 2, 3, 4
"""Calls: the first ten minutes; the three after them; what takes hours; where a kernel may hang, after all others."""
HEADLINES_SECS, OVERLAP_SECS = 45.0, 14.0
RIVALS_SECS = {"issue": 6.0, "torch": 36.0, "triton": 8.0, "jax": 16.0, "cupy": 10.0}


@dataclass(frozen=True, kw_only=True)
class Unit:
    """`{secs}` and `{minutes}` in the command are the time that it has. `goes`: how often it may be stopped by its
    limit and go on."""

    name: str
    command: tuple[str, ...]
    what: str
    call: int = FIRST  #: In which command it belongs
    secs: float = SLICE
    goes: int = 1
    whole: bool = False
    """Whether it says nothing before it is done: then it goes on at once, and not behind the others."""
    needs: tuple[str, ...] = ()  #: Modules without which it is skipped
    skip: str = ""
    forced: bool = False  #: Whether it is run all the same when it is named
    result: str = ""  #: The file that it writes, in the results' folder


def units(box: Box, device: str, out: Path) -> list[Unit]:
    """All of them, in the order in which they are done; `out` is the results' folder."""
    made = [*_first(box, device, out), *_second(box, device, out), *_long(box, device, out)]
    return sorted(made, key=lambda each: each.call)


# --- the first ten minutes ------------------------------------------------------------------------------


def _first(box: Box, device: str, out: Path) -> Iterator[Unit]:
    yield from _ruler(device, out)
    yield _python(
        "null", "benchmarks.control", device, out / "null.json", secs=30,
        what="native against native, warm and cold: each must come out `keep`",
        options=("--bundles", str(box.bundles / "null"), "--cold"), skip=_lacking(box, "null"),
    )  # fmt: skip
    yield _check(box, device, out, "alive", FIRST, secs=45)
    yield from _headlines(box, device, out)
    yield _python(
        "steps", "benchmarks.steps", device, out / "steps.json", secs=45,
        what="steps a second of whole functions, fused beside jax.jit, with nothing known and with answers",
        options=("--store", str(out / "work" / "steps.sqlite")), needs=(*TUNING, "jax", "flatbuffers"),
        skip=_gpu_only(device) or _no_nvcc(),
    )  # fmt: skip
    yield _python(
        "capture", "tools.gpu_box.captures", device, out / "capture.json", secs=45,
        what="programs captured, beside themselves without: NVIDIA's runtime, Triton, PyTorch, JAX, CuPy",
        words=(str(box.folder / "capture"),), needs=(*TUNING, "rich"),
        skip=_gpu_only(device) or ("" if (box.folder / "capture").is_dir() else "it was not built"),
    )  # fmt: skip
    yield _python(
        "counters", "benchmarks.counters", device, out / "counters.json", secs=45,
        what="DRAM bytes, sectors and instructions by ncu, to be put beside the count",
        options=("--bundles", str(box.bundles / "headlines")), skip=_gpu_only(device) or _lacking(box, "headlines"),
    )  # fmt: skip


def _ruler(device: str, out: Path) -> Iterator[Unit]:
    yield Unit(
        name="calibrate",
        what="what measuring costs on this device, and its ceilings",
        command=(sys.executable, "-m", "fusiond", "calibrate", device, "--json"),
        secs=25,
        needs=(*TUNING, "rich", "httpx"),
        result="calibrate.json",
    )
    yield Unit(
        name="agreement",
        what="one kernel by fusiond, CUDA events, do_bench, the profiler and ncu: without it no figure is shown",
        command=(sys.executable, "-m", "benchmarks.agreement", "--device", device, "--out", str(out), "--go-on",
                 "--minutes", "{minutes}"),
        secs=20,
        goes=9,
        needs=TUNING,
        skip=_gpu_only(device) or _no_nvcc(),
    )  # fmt: skip


def _headlines(box: Box, device: str, out: Path) -> Iterator[Unit]:
    """Ours in the order of their worth, the rivals behind those that they stand beside."""
    bundles = box.bundles / "headlines"
    built = _names(bundles)
    common = ("--bundles", str(bundles), "--figures", str(out / "calibrate.json"))
    for number, group in enumerate(GROUPS, 1):
        names = tuple(name for name in group if name in built)
        yield _python(
            f"headlines:{number}", "benchmarks.headlines", device, out / "headlines", secs=HEADLINES_SECS,
            what=f"unfused and fused programs that were built before, to a verdict: {', '.join(names)}",
            words=("measure", *names), options=common, skip="" if names else "none were built",
        )  # fmt: skip
    yield _bench(device, out, "transfer", "overlap", FIRST, ("--overlap", str(1 << 24)), store=False, secs=OVERLAP_SECS)
    for group, secs in RIVALS_SECS.items():
        yield _python(
            f"rivals:{group}", "benchmarks.headlines", device, out / "headlines", secs=secs,
            what="what one would use today, in the same pairs", words=("beside", group), options=common,
            skip=_gpu_only(device) or ("" if built else "none were built"),
        )  # fmt: skip


# --- the three minutes after them -----------------------------------------------------------------------


def _second(box: Box, device: str, out: Path) -> Iterator[Unit]:
    """What failed is done once more before these (`run_all`)."""
    python, gpu = sys.executable, device != "cpu"
    pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib",
              "-o", "filterwarnings=", "-rs")  # fmt: skip
    for path in GPU_TESTS if gpu else ("tests/devices/test_cpu_contract.py",):
        yield Unit(
            name=f"test:{path.removeprefix('tests/').removesuffix('.py').replace('/', '.')}",
            what="the tests that need a GPU; the device keeps the contract of devices",
            command=(*pytest, path),
            call=SECOND,
            needs=("pytest", "pytest_timeout", "hypothesis", "pluggy", "yaml"),
            skip=_no_nvcc() if gpu else "",
        )
    for kind in ("mincut", "hfuse", "stitching", "transfer"):
        yield _check(box, device, out, kind, SECOND, without="ethash" if kind == "hfuse" else "")


# --- what takes longer ----------------------------------------------------------------------------------


def _long(box: Box, device: str, out: Path) -> Iterator[Unit]:
    """The papers' figures whole, and the jobs."""
    python, gpu = sys.executable, device != "cpu"
    for pair in PAIRS:
        sweep = ("--pairs", pair, "--factors", "1", "--trials", "24", "--search-secs", "30", "--no-plots")
        yield _bench(device, out, "hfuse", pair, LONG, sweep)
    for module in MODULES:
        yield _bench(device, out, "stitching", module, LONG, ("--only", module), store=False)
    for application in APPLICATIONS:
        options = ("--only", application, "--trials", "16", "--blocks", "6", "--search-secs", "30")
        yield _bench(device, out, "mincut", application, LONG, options)
    for graph in GRAPHS:
        yield _bench(device, out, "transfer", graph, LONG, ("--only", graph), store=False)
    yield _check(box, device, out, "hfuse", LONG, only="ethash")
    yield _python(
        "control", "benchmarks.control", device, out / "control.json", call=LONG,
        what="native against native of the catalogue: how often it is called faster",
        options=("--bundles", str(box.bundles), "--most", "12" if gpu else "2"),
    )  # fmt: skip
    yield _python(
        "models", "benchmarks.models", device, out, call=LONG,
        what="the training steps of GPT-2 small and of a llama layer, by jax and by torch",
        needs=(*TUNING, "jax", "torch"), skip=_gpu_only(device) or _no_nvcc(),
    )  # fmt: skip
    jobs = box.source / "configs" / "jobs"
    for job in sorted((jobs / "gpu" if gpu else jobs).glob("*.yaml")):
        yield Unit(
            name=f"job:{job.stem}",
            what=f"fusiond run {job.name}",
            command=(python, "-m", "fusiond", "run", str(job), "--device", device,
                     "--trials", "16" if gpu else "2", "--json"),
            call=LONG,
            goes=3,
            whole=True,
            needs=(*TUNING, "rich", "httpx"),
            skip=_no_nvcc() if gpu else "takes too long on a processor; name it",
            forced=not gpu,
            result=f"job-{job.stem}.json",
        )  # fmt: skip
    sanitizer = tool("compute-sanitizer")
    yield Unit(
        name="sanitize",
        what="memcheck, racecheck and synccheck of the first candidate of each workload",
        command=(python, "-m", "fusiond.devices.cuda.sanitize", str(box.bundles), "--out", str(out / "sanitize.json"),
                 "--jobs", "6", "--minutes", "{minutes}"),
        call=LONG,
        goes=9,
        needs=("numpy", "pycuda"),
        skip=_gpu_only(device) or ("" if sanitizer else "compute-sanitizer is not on PATH"),
    )  # fmt: skip
    yield _check(box, device, out, "questions", HANGS)


# --- kinds of units -------------------------------------------------------------------------------------


def _python(
    name: str, module: str, device: str, out: Path, *, what: str, words: tuple[str, ...] = (),
    options: tuple[str, ...] = (), call: int = FIRST, secs: float = SLICE, needs: tuple[str, ...] = ("numpy",),
    skip: str = "",
) -> Unit:  # fmt: skip
    """A module that keeps what it finds in --out, ends within --minutes and goes on."""
    command = (sys.executable, "-m", module, *words, "--device", device, "--out", str(out), *options,
               "--minutes", "{minutes}")  # fmt: skip
    driver = ("pycuda",) if device != "cpu" else ()
    return Unit(name=name, command=command, what=what, call=call, secs=secs, goes=9, needs=(*needs, *driver), skip=skip)


def _check(
    box: Box, device: str, out: Path, kind: str, call: int, *, without: str = "", only: str = "", secs: float = SLICE
) -> Unit:
    name = "-".join(filter(None, ("check", kind, only)))
    what = "every workload of the catalogue, fused and unfused, compared and timed"
    if kind == "questions":
        what = "what only a GPU can tell: barriers when threads have returned"
    if kind == "alive":
        what = "a program of each strategy, and of each kind of launch and memory, right on two seeds"
    return _python(
        name.replace("-", ":"), "fusiond.devices.check", device, out / f"{name}.json", what=what, call=call, secs=secs,
        words=(str(box.bundles),), skip=_lacking(box, kind),
        options=("--only", f"{kind}/", *(("--without", without) if without else ()),
                 *(("--with", only) if only else ())),
    )  # fmt: skip


def _bench(
    device: str, out: Path, name: str, part: str, call: int, options: tuple[str, ...], *, store: bool = True,
    secs: float = SLICE,
) -> Unit:  # fmt: skip
    gpu = device != "cpu"
    kept = ("--store", str(out / "work" / f"{name}.sqlite")) if store else ()
    return Unit(
        name=f"bench:{name}:{part}",
        what=" ".join([f"benchmarks/{name}", *options]),
        command=(sys.executable, "-m", f"benchmarks.{name}", "--device", device, "--out", str(out / name), "--go-on",
                 *kept, *options, *(() if gpu else ("--quick",))),
        call=call,
        secs=secs,
        goes=3,
        whole=call != FIRST,
        needs=TUNING,
        skip=_no_nvcc() if gpu else "takes too long on a processor; name it",
        forced=not gpu,
    )  # fmt: skip


def _names(folder: Path) -> set[str]:
    """What the index of a folder of bundles has."""
    index = folder / "index.json"
    return {each["name"] for each in json.loads(index.read_text())["entries"]} if index.is_file() else set()


def _lacking(box: Box, kind: str) -> str:
    return "" if (box.bundles / kind).is_dir() else "none were built"


def _gpu_only(device: str) -> str:
    return "only for a GPU" if device == "cpu" else ""


def _no_nvcc() -> str:
    return "" if tool("nvcc") else "nvcc is not on PATH, and not in /usr/local/cuda/bin"
