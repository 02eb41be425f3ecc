"""Headlines: planted times come to their verdict, functions are what NumPy says, pages show what is kept."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import counters, runs
from benchmarks.headlines import measure, page, rivals
from benchmarks.headlines.catalogue import HEADLINES
from benchmarks.headlines.functions import EPSILON, FUNCTIONS
from benchmarks.headlines.measure import HeadlineRun
from benchmarks.headlines.order import GROUPS, ORDER
from fusiond.devices import protocol
from fusiond.devices.base import MORE
from fusiond.model.outcomes import MeasureFailed, Measurement, Outcome, Purpose

TIMES = {"native": 100.0, "streams": 80.0, "graph": 90.0, "seed": 50.0, "near": 40.0, "slow": 300.0, "wrong": 10.0}
"""Microseconds that are planted; `wrong` computes something else."""
ROLES = {"native": "unfused", "streams": "unfused", "graph": "unfused"}


class Board:
    """Answers as a worker would whose programs take what is planted."""

    def __init__(self, times: Mapping[str, float] = TIMES, **failures: MeasureFailed) -> None:
        self.times, self.failures, self.processes = times, failures, 0
        self.asked: list[Any] = []

    def fresh(self) -> None:
        self.processes += 1

    def call(self, request: Any, timeout_secs: float) -> Any:
        self.asked.append(request)
        if isinstance(request, protocol.Reference):
            Path(request.outputs).touch()
            return self.failures.get("native") or protocol.Checked(worst=0.0)
        if isinstance(request, protocol.CheckRequest):
            name = Path(request.bundle).name
            wrong = MeasureFailed(outcome=Outcome.WRONG_RESULT, reason="y differs") if name == "wrong" else None
            return self.failures.get(name) or wrong or protocol.Checked(worst=0.0)
        one, other = (self.times[Path(each).name] for each in (request.candidate, request.baseline))
        wobble = 1 + 0.001 * (self.processes % 3)
        return Measurement(span_us=(one * wobble,) * 6, baseline_us=(other,) * 6, clock="device", purpose=Purpose.FINAL)


def index(names: Mapping[str, float] = TIMES) -> dict[str, Any]:
    entries = [
        {"name": name, "role": ROLES.get(name, "fused"), "config": {"k": name}, "path": name, "program_key": name}
        for name in names
    ]  # fmt: skip
    return {"name": "softmax", "strategy": "stitching", "what": "it", "sizes": {}, "entries": entries}


def ran(board: Board, tmp_path: Path, *, screen_until: float = math.inf, until: float = math.inf,
        found: dict[str, Any] | None = None, beside: Mapping[str, dict[str, Any]] | None = None,
        ) -> tuple[bool, dict[str, Any]]:  # fmt: skip
    """One headline, `beside` others."""
    entry = index(board.times)
    documents = {"it": found or measure.new(entry), **(beside or {})}
    kept: dict[str, str] = {}

    def headline(name: str) -> HeadlineRun:
        def keep() -> None:
            kept[name] = json.dumps(documents[name])

        return HeadlineRun(entry=entry, folder=tmp_path, found=documents[name], keep=keep)

    done = measure.measure(
        board, {name: headline(name) for name in documents}, tmp_path, screen_until=screen_until, until=until
    )
    assert all(json.loads(text) == documents[name] for name, text in kept.items())
    return done, documents["it"]


def test_the_verdict_is_over_the_fastest_unfused_way(tmp_path: Path) -> None:
    done, found = ran(Board(), tmp_path)
    assert done
    assert found["finalists"] == {"unfused": ["streams", "graph"], "fused": ["near", "seed"]}
    result = found["conclusion"]
    assert (result["winner"], result["opponent"], result["verdict"]) == ("near", "streams", "fuse")
    assert result["speedup"] == pytest.approx(2.0, rel=0.002)
    assert result["ci95"][0] <= 2.0 <= result["ci95"][1] * 1.001
    assert (round(result["time_us"]), result["opponent_us"]) == (40, 80.0)
    assert found["screened"]["wrong"] == {"outcome": "wrong_result", "reason": "y differs"}
    assert found["untried"] == 0


@pytest.mark.parametrize("fused", [85.0, 80.0])
def test_what_is_not_faster_is_kept_apart(tmp_path: Path, fused: float) -> None:
    _, found = ran(Board({"native": 100.0, "streams": 80.0, "seed": fused}), tmp_path)
    assert found["conclusion"]["verdict"] == "keep"


def test_a_slice_that_is_over_is_gone_on_from(tmp_path: Path) -> None:
    """Screening always tries one of each side; no process of the finals begins after the end; nothing is lost."""
    done, found = ran(Board(), tmp_path, screen_until=-math.inf, until=-math.inf)
    assert (done, found["conclusion"], sorted(found["screened"])) == (False, None, ["native", "seed"])
    assert found["untried"] == len(TIMES) - 2
    board = Board()
    done, found = ran(board, tmp_path, found=json.loads(json.dumps(found)))
    assert done
    assert not any(isinstance(each, protocol.CheckRequest) for each in board.asked)
    assert (found["conclusion"]["winner"], found["conclusion"]["opponent"]) == ("seed", "native")


def test_headlines_of_a_group_share_their_processes(tmp_path: Path) -> None:
    """And one of which the unfused program breaks costs the others nothing."""
    other = measure.new(index())
    board = Board()
    done, found = ran(board, tmp_path, beside={"other": other})
    assert done
    assert board.processes == 5
    assert found["conclusion"]["speedup"] == other["conclusion"]["speedup"]
    assert not list(tmp_path.glob("*.npz"))  # references are gigabytes
    assert sorted(name for group in GROUPS for name in group) == sorted(ORDER) == sorted(HEADLINES)


def test_what_cannot_be_measured_says_why(tmp_path: Path) -> None:
    broken = MeasureFailed(outcome=Outcome.CRASHED, reason="illegal access")
    done, found = ran(Board(native=broken), tmp_path)
    assert (done, found["problem"]) == (True, "the unfused program: crashed: illegal access")
    done, found = ran(Board({"native": 100.0, "wrong": 1.0}), tmp_path)
    assert found["problem"] == "nothing fused could be measured: wrong: wrong_result: y differs"


# --- functions ------------------------------------------------------------------------------------------


def _norm(x: Any, scale: Any, shift: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * scale + shift


def _softmax(x: Any) -> Any:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return (raised / raised.sum(-1, keepdims=True),)


def _norm_gradient(x: Any, scale: Any, shift: Any, towards: Any) -> Any:
    """By differences in float64, of a few elements of each argument."""
    given, found = [x, scale, shift], []
    for number, each in enumerate(given):
        slope = np.full(each.shape, np.nan)
        for place in list(np.ndindex(each.shape))[:: max(1, each.size // 5)]:
            low, high = ([np.array(one) for one in given] for _ in range(2))
            low[number][place] -= 1e-5
            high[number][place] += 1e-5
            slope[place] = ((_norm(*high) - _norm(*low)) * towards).sum() / 2e-5
        found.append(slope)
    return found


def _adamw(*given: Any) -> Any:
    """The tenth step of AdamW, as it is in the paper (Loshchilov and Hutter, algorithm 2)."""
    count = len(given) // 4
    p, g, m, v = (given[n * count : (n + 1) * count] for n in range(4))
    norm = math.sqrt(sum(float((each**2).sum()) for each in g))
    g = [each / max(1.0, norm) for each in g]
    m = [0.9 * old + 0.1 * new for old, new in zip(m, g, strict=True)]
    v = [0.999 * old + 0.001 * new**2 for old, new in zip(v, g, strict=True)]
    steps = [a / (1 - 0.9**10) / (np.sqrt(b / (1 - 0.999**10)) + 1e-8) for a, b in zip(m, v, strict=True)]
    return (*(one - 1e-3 * (step + 0.01 * one) for one, step in zip(p, steps, strict=True)), *m, *v)


def _llama_rows(x: Any, added: Any, scale: Any, gate: Any, up: Any) -> Any:
    x = x + added
    return x, x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * scale, gate / (1 + np.exp(-gate)) * up


ORACLES = {
    "softmax": _softmax, "layer_norm": lambda *given: (_norm(*given),), "layer_norm_gradient": _norm_gradient,
    "adamw": _adamw, "llama_rows": _llama_rows,
}  # fmt: skip


def drawn(name: str) -> list[Any]:
    dice = np.random.default_rng(3)
    return [abs(dice.standard_normal(shape)) + 0.01 for shape in FUNCTIONS[name].tiny]


def compared(name: str, made: Any) -> None:
    wanted = ORACLES[name](*drawn(name))
    assert len(made) == len(wanted)
    for ours, theirs in zip(made, wanted, strict=True):
        asked = ~np.isnan(theirs)
        assert asked.any()
        assert np.allclose(np.asarray(ours)[asked], theirs[asked], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_jax_computes_is_what_numpy_says(name: str) -> None:
    jax = pytest.importorskip("jax")
    compared(name, jax.jit(FUNCTIONS[name].jax(jax))(*(each.astype(np.float32) for each in drawn(name))))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_pytorch_computes_is_what_numpy_says(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    given = [torch.from_numpy(each.astype(np.float32)) for each in drawn(name)]
    compared(name, [each.detach().numpy() for each in FUNCTIONS[name].torch(torch)(*given)])


class Context:
    broken = False

    def synchronize(self) -> None:
        if self.broken:
            raise RuntimeError("an illegal memory access was encountered")


@pytest.fixture
def jax_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[rivals.Group, Context, list[str]]:
    """JAX beside two headlines; what is asked, and a context that can be broken."""
    context, asked = Context(), []
    executor = SimpleNamespace(cuda=SimpleNamespace(Context=context))
    monkeypatch.setattr(rivals.CudaExecutor, "open", lambda *_, **__: executor)
    monkeypatch.setattr(rivals, "read_bundle", lambda path: (path, {}))

    def measured(executor: Any, program: Path, *_: Any, **__: Any) -> dict[str, Any]:
        asked.append(program.parent.name)
        context.broken = len(asked) == 1
        if context.broken:
            raise RuntimeError("an illegal memory access was encountered")
        return {"ratio": 1.5, "time_us": 3.0, "ours_us": 2.0, "clock": "wall"}

    monkeypatch.setattr(rivals.child, "measured", measured)
    entries = {}
    for name in ("softmax", "adamw"):
        _, found = ran(Board(), tmp_path)
        entries[name] = index() | {"name": name}
        runs.write(tmp_path / f"{name}.json", found | {"device": {"model": "H100"}})
    device = SimpleNamespace(model="H100", name="cuda:0")
    group = rivals.Group("jax", entries, tmp_path / "bundles", tmp_path, device, lambda line: None)  # type: ignore[arg-type]
    return group, context, asked


def test_an_error_that_sticks_is_one_rivals_and_the_others_get_another_process(
    jax_group: tuple[rivals.Group, Context, list[str]], tmp_path: Path
) -> None:
    group, context, asked = jax_group
    assert group.measure(math.inf) == MORE
    assert asked == ["softmax"]
    context.broken = False  # the next process
    assert group.measure(math.inf) == 0
    assert asked == ["softmax", "adamw"]
    rows = {name: json.loads((tmp_path / f"{name}.json").read_text())["rivals"]["jax.jit"] for name in asked}
    assert "illegal memory access" in rows["softmax"]["problem"]
    assert (rows["adamw"]["ratio"], rows["adamw"]["beside"]) == (1.5, "near")


def test_a_rival_that_was_cut_is_tried_once_more(
    jax_group: tuple[rivals.Group, Context, list[str]], tmp_path: Path
) -> None:
    group, _, asked = jax_group
    for tries, wanted in ((1, True), (2, False)):
        for name in ("softmax", "adamw"):
            found = json.loads((tmp_path / f"{name}.json").read_text())
            cut = {"name": "jax.jit", "problem": rivals.CUT, "tries": tries}
            runs.write(tmp_path / f"{name}.json", found | {"rivals": {"jax.jit": cut} if name == "softmax" else {}})
        asked.append("nothing breaks")
        assert group.measure(math.inf) == 0
        assert ("softmax" in asked) is wanted
        asked.clear()
    assert group.measure(-math.inf) == 0  # nothing is left to ask


# --- counters -------------------------------------------------------------------------------------------


def test_what_ncu_counts_stands_beside_what_is_counted() -> None:
    values = {"dram__bytes_read.sum": 60.0, "dram__bytes_write.sum": 40.0, "smsp__inst_executed.sum": 7.0}
    assert counters._columns(values) == {"dram_bytes": 100.0, "warp_instructions": 7.0}
    run = {
        "counters": {"a: native": {"launches": {"k<long>": {"dram_bytes": 100.0}}}, "b: native": {"problem": "no"}},
        "counted": {"a: native": {"launches": {"k<int>": {"dram_bytes": 90.0, "instructions": 5.0}}}},
    }
    (row,) = counters.errors(run)
    assert row == ("a: native", "k", {"dram_bytes": (90.0, 100.0)})
    assert "0.900" in page._counters(run)
    assert counters.spearman([(1.0, 10.0), (2.0, 30.0), (3.0, 20.0)]) == 0.5
    assert counters.spearman([(1.0, 10.0)]) is None


# --- the page -------------------------------------------------------------------------------------------

RUN = {
    "benchmark": "headlines", "evidence": "measured", "date": "2026-11-28T10:00:00+00:00", "command": "run_all",
    "driver": "580", "nvcc": "13.0", "device": {"model": "NVIDIA H100", "env": {"driver": "580.159"}},
}  # fmt: skip
AGREEMENT = RUN | {"benchmark": "agreement", "agrees": True, "rows": []}


def kept(folder: Path, board: Board, tmp_path: Path, *, agrees: bool = True) -> None:
    """A lease of one headline."""
    _, found = ran(board, tmp_path)
    found |= {"strategy": "stitching", "what": "it"}
    rival = {"name": "torch.compile", "ratio": 1.25, "clock": "device"}
    found["rivals"] = {"torch.compile": rival, "Liger": {"name": "Liger", "problem": "not installed"}}
    runs.write(folder / "nvidia-h100" / "headlines-1.json", RUN | {"headlines": {"softmax": found}})
    runs.write(folder / "nvidia-h100" / "agreement-1.json", AGREEMENT | {"agrees": agrees})


def site(root: Path) -> Path:
    (root / "docs").mkdir(parents=True)
    for name in ("README.md", "docs/results.md", "docs/frameworks.md", "docs/measuring.md"):
        (root / name).write_text((page.ROOT / name).read_text())
    return root


def test_pages_say_what_a_gpu_has_shown_and_only_that(tmp_path: Path) -> None:
    root, results = site(tmp_path / "root"), tmp_path / "results"
    page.write(results, root)
    before = {name: (root / name).read_text() for name in ("README.md", "docs/results.md", "docs/results-gpu.md")}
    assert all("not yet measured on a GPU" in each for each in before.values())
    kept(results, Board(), tmp_path)
    assert "docs/images/results-gpu.png" in page.write(results, root)
    text = (root / "docs" / "results-gpu.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| `softmax`"))
    assert "| 80.0 us | 40.0 us | **2.00** (2.00 to 2.00) | 1.25 (torch.compile) | `fuse` |" in row
    assert "| `harris`: the Harris corner detector, 8192 x 8192 | not yet measured on a GPU |" in text
    readme = (root / "README.md").read_text()
    assert "measured on an NVIDIA H100" in readme
    assert "**2.00**" in readme
    assert "not yet measured" not in readme
    standing = (root / "docs" / "results.md").read_text()
    assert standing.count("**not yet measured on a GPU**") == before["docs/results.md"].count("**not yet measured") - 2
    assert "[1 headline](results-gpu.md)" in standing
    page.write(tmp_path / "nothing", root)  # and back again
    assert (root / "README.md").read_text() == before["README.md"]


def test_the_pages_that_are_committed_are_what_is_kept(tmp_path: Path) -> None:
    root = site(tmp_path)
    page.write(page.RESULTS, root)
    for name in ("README.md", "docs/results.md", "docs/frameworks.md", "docs/measuring.md", "docs/results-gpu.md"):
        assert (root / name).read_text() == (page.ROOT / name).read_text(), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in FUNCTIONS.values() if each.triton is not None])
def test_what_triton_computes_is_what_numpy_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton's own interpreter; a row of the softmax takes several turns of its loops."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    triton = pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
    from benchmarks.headlines import triton_kernels

    monkeypatch.setattr(triton_kernels, "LARGEST", 128)
    make = FUNCTIONS[name].triton
    assert make is not None
    given = [torch.from_numpy(each.astype(np.float32)) for each in drawn(name)]
    compared(name, make(torch, triton)(*given))
