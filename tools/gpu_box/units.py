"""What there is to do on a machine with a GPU, in units of a minute at most, the most valuable second first.

A unit that had not enough of its time goes on when it is its turn again: what it found is in its file, or in its store.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.gpu_box.box import Box, tool

GPU_TESTS = (
    "tests/devices/test_cuda_contract.py",
    "tests/devices/cuda/test_on_a_gpu.py",
    "tests/exporting/test_on_a_gpu.py",
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
TUNING = ("numpy", "optuna", "sqlite_utils", "pluggy", "yaml", "clang")
SLICE = 60.0
HANGS = 4
"""The call in which a kernel may hang: after all others."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """`{secs}` and `{minutes}` in the command are the time that it has. `goes`: how often it may be stopped by its
    limit and go on."""

    name: str
    command: tuple[str, ...]
    what: str
    call: int = 1
    """In which of the half hour's commands it belongs."""
    value: float = 1.0
    """Of a minute of it, beside others of the same call."""
    secs: float = SLICE
    goes: int = 1
    whole: bool = False
    """Whether it says nothing before it is done: then it goes on at once, and not behind the others."""
    needs: tuple[str, ...] = ()
    """Modules without which it is skipped."""
    skip: str = ""
    forced: bool = False
    """Whether it is run all the same when it is named."""
    result: str = ""
    """The file that it writes, in the results' folder."""


def units(box: Box, device: str, out: Path) -> list[Unit]:
    """All of them, in the order in which they are done; `out` is the results' folder."""
    made = [*_first(box, device, out), *_tuned(box, device, out), *_rest(box, device, out)]
    return sorted(made, key=lambda each: (each.call, -each.value))


def _first(box: Box, device: str, out: Path) -> Iterator[Unit]:
    """Is it right, and what does the ruler read?"""
    python, gpu = sys.executable, device != "cpu"
    no_nvcc = _no_nvcc()
    for kind, value in (("mincut", 6.0), ("hfuse", 5.0), ("stitching", 4.0), ("transfer", 3.0)):
        yield _check(box, device, out, kind, 1, value, without="ethash" if kind == "hfuse" else "")
    yield Unit(
        name="calibrate",
        what="what measuring costs on this device, and its ceilings",
        command=(python, "-m", "fusiond", "calibrate", device, "--json"),
        value=9.0,
        needs=(*TUNING, "rich", "httpx"),
        result="calibrate.json",
    )
    yield Unit(
        name="agreement",
        what="one kernel by fusiond, torch's profiler, do_bench and ncu: without it no figure is shown",
        command=(python, "-m", "benchmarks.agreement", "--device", device, "--out", str(out)),
        value=8.0,
        needs=TUNING,
        skip=_no_nvcc() if gpu else "only for a GPU",
    )
    pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib",
              "-o", "filterwarnings=", "-rs")  # fmt: skip
    for path in GPU_TESTS if gpu else ("tests/devices/test_cpu_contract.py",):
        yield Unit(
            name=f"test:{path.removeprefix('tests/').removesuffix('.py').replace('/', '.')}",
            what="the tests that need a GPU; the device keeps the contract of devices",
            command=(*pytest, path),
            value=2.0,
            needs=("pytest", "pytest_timeout", "hypothesis", "pluggy", "yaml"),
            skip=no_nvcc if gpu else "",
        )


def _tuned(box: Box, device: str, out: Path) -> Iterator[Unit]:
    """The papers' figures, and the rivals."""
    for number, pair in enumerate(PAIRS):
        sweep = ("--pairs", pair, "--factors", "1", "--trials", "24", "--search-secs", "30", "--no-plots")
        yield _bench(device, out, "hfuse", pair, 2, 20.0 - number, sweep)
    for number, module in enumerate(MODULES):
        yield _bench(device, out, "stitching", module, 3, 20.0 - number, ("--only", module), store=False)
    for number, application in enumerate(APPLICATIONS):
        options = ("--only", application, "--trials", "16", "--blocks", "6", "--search-secs", "30")
        yield _bench(device, out, "mincut", application, 3, 19.5 - number, options)
    for number, graph in enumerate(GRAPHS):
        yield _bench(device, out, "transfer", graph, 3, 18.0 - number, ("--only", graph), store=False)


def _rest(box: Box, device: str, out: Path) -> Iterator[Unit]:
    python, gpu = sys.executable, device != "cpu"
    bundles = str(box.bundles)
    yield _check(box, device, out, "hfuse", 3, 10.0, only="ethash")
    yield Unit(
        name="control",
        what="native against native: how often it is called faster",
        command=(python, "-m", "benchmarks.control", "--device", device, "--bundles", bundles,
                 "--most", "12" if gpu else "2", "--minutes", "{minutes}", "--out", str(out / "control.json")),
        call=3,
        value=9.0,
        goes=6,
        needs=("numpy",),
    )  # fmt: skip
    sanitizer = tool("compute-sanitizer")
    yield Unit(
        name="sanitize",
        what="memcheck, racecheck and synccheck of the first candidate of each workload",
        command=(python, "-m", "fusiond.devices.cuda.sanitize", bundles, "--out", str(out / "sanitize.json"),
                 "--jobs", "6", "--minutes", "{minutes}"),
        call=3,
        value=1.0,
        goes=9,
        needs=("numpy", "pycuda"),
        skip="" if sanitizer and gpu else "compute-sanitizer is not on PATH" if gpu else "only for a GPU",
    )  # fmt: skip
    yield Unit(
        name="worker",
        what="what a lost child process costs",
        command=(python, str(box.source / "benchmarks" / "worker.py"), "--device", device),
        call=3,
        value=2.0,
        needs=("numpy", "pluggy", "yaml"),
        result="worker.json",
    )
    yield Unit(
        name="data_plane",
        what="what a checked run of hist and maxpool costs beside its kernels, and moves over the bus",
        command=(python, "-m", "benchmarks.data_plane", "--device", device,
                 "--bundle", str(box.bundles / "hfuse" / "hist+maxpool" / "native")),
        value=4.0,
        needs=("numpy", "pycuda", "pluggy", "yaml"),
        skip="" if gpu else "only for a GPU",
        result="data_plane.json",
    )  # fmt: skip
    jobs = box.source / "configs" / "jobs"
    for job in sorted((jobs / "gpu" if gpu else jobs).glob("*.yaml")):
        yield Unit(
            name=f"job:{job.stem}",
            what=f"fusiond run {job.name}",
            command=(python, "-m", "fusiond", "run", str(job), "--device", device,
                     "--trials", "16" if gpu else "2", "--json"),
            call=3,
            value=3.0,
            goes=3,
            whole=True,
            needs=(*TUNING, "rich", "httpx"),
            skip=_no_nvcc() if gpu else "takes too long on a processor; name it",
            forced=not gpu,
            result=f"job-{job.stem}.json",
        )  # fmt: skip
    yield _check(box, device, out, "questions", HANGS, 1.0)


def _check(
    box: Box, device: str, out: Path, kind: str, call: int, value: float, *, without: str = "", only: str = ""
) -> Unit:
    name = "-".join(filter(None, ("check", kind, only)))
    what = "every workload of the catalogue, fused and unfused, compared and timed"
    if kind == "questions":
        what = "what only a GPU can tell: barriers when threads have returned"
    command = (
        sys.executable, "-m", "fusiond.devices.check", str(box.bundles), "--device", device,
        "--only", f"{kind}/", "--out", str(out / f"{name}.json"), "--minutes", "{minutes}",
        *(("--without", without) if without else ()), *(("--with", only) if only else ()),
    )  # fmt: skip
    return Unit(
        name=name.replace("-", ":"),
        what=what,
        command=command,
        call=call,
        value=value,
        goes=9,
        needs=("numpy", *(("pycuda",) if device != "cpu" else ())),
        skip="" if (box.bundles / kind).is_dir() else "none were built",
    )


def _bench(
    device: str, out: Path, name: str, part: str, call: int, value: float, options: tuple[str, ...], *,
    store: bool = True,
) -> Unit:  # fmt: skip
    gpu = device != "cpu"
    kept = ("--store", str(out / "work" / f"{name}.sqlite")) if store else ()
    return Unit(
        name=f"bench:{name}:{part}",
        what=" ".join([f"benchmarks/{name}", *options]),
        command=(sys.executable, "-m", f"benchmarks.{name}", "--device", device, "--out", str(out / name), "--go-on",
                 *kept, *options, *(() if gpu else ("--quick",))),
        call=call,
        value=value,
        goes=3,
        whole=True,
        needs=TUNING,
        skip=_no_nvcc() if gpu else "takes too long on a processor; name it",
        forced=not gpu,
    )  # fmt: skip


def _no_nvcc() -> str:
    return "" if tool("nvcc") else "nvcc is not on PATH, and not in /usr/local/cuda/bin"
