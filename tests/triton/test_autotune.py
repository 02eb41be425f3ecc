"""`fusiond.triton.autotune`: what is measured, how often, and what is launched. Few elements a block are slow in the
interpreter, too, so that times decide."""

import gc
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs Triton")

import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources

import fusiond.triton
from fusiond.cuda.recording import group_job
from fusiond.service.frameworks import region_answers
from fusiond.store.database import Store
from tests.cuda.recording.test_launch import until
from tests.triton import recorded
from tests.triton.stand_in import DeviceArray, Gpu

N = 3000
SINGLE, COMPARED = 1, 2  #: Kinds of jobs, by their workloads
KEPT: list[Any] = []  #: The kernels of a test, which are explained as long as they are there


def configs(*blocks: int, **options: Any) -> list[Any]:
    return [triton.Config({"BLOCK": each}, **options) for each in blocks]


def tuned(made: list[Any], db: Path, kernel: Any = recorded.scale, **options: Any) -> Any:
    given = {"key": ["n"], "block": True, "always": True, "device": "cpu", "db": db, **options}
    KEPT.append(fusiond.triton.autotune(made, **given)(kernel))
    return KEPT[-1]


def launched(kernel: Any, gpu: Gpu, n: int = N, *, room: int = 0) -> str:
    """Launch, and compare with NumPy; the config. `room`: elements beyond n, which change nothing that matters."""
    x, y = (DeviceArray(each) for each in (np.random.default_rng(0).random(n + room, np.float32), np.zeros(n + room)))
    y = DeviceArray(np.zeros(n + room, np.float32))
    kernel[lambda given: (triton.cdiv(n, given["BLOCK"]),)](x, y, 3.0, n)
    gpu.drain()
    np.testing.assert_array_equal(y.array[:n], x.array[:n] * np.float32(3))
    return str(kernel.best_config.kwargs["BLOCK"])


def jobs(db: Path) -> list[int]:
    """Of each job that was done, the number of its workloads; each config of a workload was tried once."""
    with Store.open(db) as store:
        rows = store.jobs()
    assert all(each.trials == each.workload_name.count(",") + 1 for each in rows if each.problem is None)
    return sorted(each.workload_name.count(",") + 1 for each in rows)


def asked(of: Any) -> dict[str, Any]:
    """The YAML of a config that was asked for."""
    return json.loads((group_job.folder() / f"{of.names[-1]}.yaml").read_text())  # type: ignore[no-any-return]


def explained() -> str:
    return str(fusiond.triton.explain())


@pytest.fixture(autouse=True)
def kernels_of_one_test(short_measuring: None) -> None:
    KEPT.clear()
    gc.collect()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Gpu], Path]:
    """A store with `scale` at N: 4 a block first, 1024, 32."""
    made: list[Path] = []

    def once(gpu: Gpu) -> Path:
        if not made:
            db = tmp_path_factory.mktemp("measured") / "store.sqlite"
            assert launched(tuned(configs(4, 1024, 32), db), gpu) == "1024"
            made.append(db)
        return made[0]

    return once


@pytest.fixture
def known(measured: Callable[[Gpu], Path], gpu: Gpu, tmp_path: Path) -> Path:
    """A copy of it."""
    db = measured(gpu)
    shutil.copytree(db.parent, tmp_path / "known")
    return tmp_path / "known" / db.name


@pytest.mark.slow
def test_each_is_measured_once_and_the_fastest_compared_with_the_first(gpu: Gpu, known: Path) -> None:
    assert jobs(known) == [SINGLE, SINGLE, SINGLE, COMPARED]
    assert launched(tuned(configs(4, 1024, 32), known, block=False), gpu) == "1024"
    assert "scale n=3000  BLOCK=1024, num_warps=4" in explained()
    assert "x the first config (" in explained()
    assert "3 of 3 measured" in explained()
    assert jobs(known) == [SINGLE, SINGLE, SINGLE, COMPARED]


@pytest.mark.slow
def test_another_process_measures_nothing(gpu: Gpu, known: Path, tmp_path: Path, triton_cache: Path) -> None:
    script = f"""
import pytest, sys
from pathlib import Path
from tests.triton import stand_in, test_autotune as t
gpu = stand_in.installed(pytest.MonkeyPatch(), Path({str(tmp_path)!r}), Path({str(triton_cache)!r}))
assert t.launched(t.tuned(t.configs(4, 1024, 32), Path({str(known)!r})), gpu) == "1024"
"""
    root = Path(__file__).parent.parent.parent
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True, env={**os.environ, "PYTHONHASHSEED": "77"})
    assert jobs(known) == [SINGLE, SINGLE, SINGLE, COMPARED]


@pytest.mark.slow
def test_other_sizes_begin_with_the_nearest(gpu: Gpu, known: Path, nothing_is_known: list[Any]) -> None:
    """At 600 only two were measured."""
    assert launched(tuned(configs(4, 32), known), gpu, 600) == "32"
    kernel = tuned(configs(4, 1024, 32), known, block=False, search={"trials": 9})
    assert [launched(kernel, gpu, n) for n in (2000, 700)] == ["1024", "32"]
    assert "scale n=2000  BLOCK=1024" in explained()
    assert "nearest: as at n=3000; 0 of 3 measured" in explained()
    assert "nearest: as at n=600; 0 of 3 measured" in explained()
    until(lambda: len(nothing_is_known) == 6)
    first = next(each for each in nothing_is_known if asked(each)["sizes"] == {"n": 2000})
    assert region_answers.of(known).tune(first).state == "keep"
    assert launched(tuned(configs(4, 1024, 32), known, block=False), gpu, 2000) == "1024"
    assert "nearest: as at n=3000; 1 of 3 measured" in explained()


@pytest.mark.slow
def test_emulated_answers_are_for_scripts(gpu: Gpu, known: Path) -> None:
    assert launched(tuned(configs(4, 1024, 32), known, block=False, always=False), gpu) == "4"
    assert "unknown: the first config; 0 of 3 measured" in explained()


@pytest.mark.slow
def test_nobody_waits_and_the_answer_is_taken_up(gpu: Gpu, db: Path, nothing_is_known: list[Any]) -> None:
    """The test is the daemon. 128 fails there, as the last one."""
    kernel = tuned(configs(4, 1024, 128), db, recorded.sometimes, block=False)
    assert launched(kernel, gpu) == "4"
    until(lambda: len(nothing_is_known) == 3)
    assert "handed to the daemon, which has no answer yet" in explained()
    for number, state in enumerate(("keep", "keep", "refused", "keep")):
        until(lambda number=number: len(nothing_is_known) > number)
        assert launched(kernel, gpu) == "4"
        assert region_answers.of(db).tune(nothing_is_known[number]).state == state
    until(lambda: launched(kernel, gpu) == "1024")
    assert jobs(db) == [SINGLE, SINGLE, SINGLE, COMPARED]
    assert [each.name.count(",") for each in nothing_is_known] == [0, 0, 0, 1]


def test_what_needs_more_shared_memory_than_there_is_is_not_asked_for(
    gpu: Gpu, db: Path, nothing_is_known: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.triton.utils, "get_device_properties", lambda device: {"max_shared_mem": 40})
    x, total = DeviceArray(np.ones(N, np.float32)), DeviceArray(np.zeros(1, np.float32))
    kernel = tuned([*configs(256), *configs(1024, num_warps=16)], db, recorded.summed, block=False)
    kernel[lambda given: (triton.cdiv(N, given["BLOCK"]),)](x, total, N)
    gpu.drain()
    until(lambda: "out of resource: shared memory, Required: 64, Hardware limit: 40" in explained())
    until(lambda: len(nothing_is_known) == 1)


@pytest.mark.slow
def test_what_is_wrong_does_not_compile_or_fails_is_left_out_and_not_tried_again(gpu: Gpu, db: Path) -> None:
    """512 is the fastest by itself, and wrong."""
    for _ in range(2):
        assert launched(tuned(configs(4, 256, 512, 128, 64), db, recorded.sometimes), gpu) == "64"
        assert "not BLOCK=256, num_warps=4" in explained()
        assert "CompileTimeAssertionFailure" in explained()
        assert "not BLOCK=128, num_warps=4" in explained()
        assert "the unfused program does not work: a: PTX line" in explained()
        assert jobs(db) == [SINGLE] * 4 + [COMPARED] * 2


def test_what_does_not_start_is_not_launched_again(gpu: Gpu, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, tried = gpu.triton.utils.load_binary, []

    def refused(name: str, *more: Any) -> Any:
        tried.append(name)
        if len(tried) == 1:
            raise OutOfResources(300000, 232448, "shared memory")
        return load(name, *more)

    monkeypatch.setattr(gpu.triton.utils, "load_binary", refused)
    kernel = tuned(configs(4, 1024), db, block=False)
    assert [launched(kernel, gpu) for _ in range(2)] == ["1024", "1024"]
    assert len(tried) == 2
    assert "not BLOCK=4" in explained()
    assert "out of resource: shared memory" in explained()


def test_what_is_summed_begins_with_zeros(gpu: Gpu, db: Path, nothing_is_known: list[Any]) -> None:
    x, total = DeviceArray(np.ones(N, np.float32)), DeviceArray(np.zeros(1, np.float32))
    kernel = tuned(configs(4, 1024), db, recorded.summed, reset_to_zero=["total"], block=False)
    kernel[lambda given: (triton.cdiv(N, given["BLOCK"]),)](x, total, N)
    gpu.drain()
    assert total.array[0] == N
    until(lambda: len(nothing_is_known) == 2)
    for each in nothing_is_known:
        document = asked(each)
        roles = [(given.get("role"), given.get("fill")) for given in document["arguments"]]
        assert roles[:2] == [("input", {"uniform": [0, 1]}), ("inout", "zeros")]
        assert document["sizes"] == {"n": N}


# --- as Triton has it -----------------------------------------------------------------------------------


def test_prunes_as_triton_does(gpu: Gpu, db: Path) -> None:
    seen: list[Any] = []

    def early(made: list[Any], named: dict[str, Any], **kwargs: Any) -> list[Any]:
        seen.append((named["n"], sorted(kwargs)))
        return made[1:]

    def model(BLOCK: int, n: int, **_: Any) -> float:  # noqa: N803
        return BLOCK * n

    by = {"early_config_prune": early, "perf_model": model, "top_k": 2}
    kernel = tuned(configs(4, 1024, 64, 128), db, block=False, prune_configs_by=by)
    assert launched(kernel, gpu) == "64"
    assert seen == [(N, ["grid", "warmup"])]
    assert "0 of 2 measured" in explained()


def test_a_configs_own_hook_runs_before_each_launch(gpu: Gpu, db: Path) -> None:
    seen: list[Any] = []
    made = configs(4, pre_hook=lambda given: seen.append((given["n"], given["BLOCK"], given["num_warps"])))
    kernel = tuned(made, db)
    assert [launched(kernel, gpu) for _ in range(2)] == ["4", "4"]
    assert seen == [(N, 4, 4)] * 2
    assert not db.exists()


def test_heuristics_below_and_keywords(gpu: Gpu, db: Path, nothing_is_known: list[Any]) -> None:
    made = triton.heuristics({"BLOCK": lambda given: 1 << 3 * given["num_stages"]})(recorded.scale)
    kernel = tuned([triton.Config({}, num_stages=each) for each in (1, 3)], db, made, block=False)
    x, y = DeviceArray(np.ones(N, np.float32)), DeviceArray(np.zeros(N, np.float32))
    kernel[lambda given: (triton.cdiv(N, given["BLOCK"]),)](x, n=N, y=y, by=2.0)
    gpu.drain()
    assert (y.array == 2).all()
    until(lambda: len(nothing_is_known) == 2)
    assert [asked(each)["grid"][0] for each in nothing_is_known] == [str(N // 8), "6"]


def test_what_is_the_key(gpu: Gpu, db: Path) -> None:
    """Its values, and the types of the arguments: what else differs is the same key."""
    kernel = tuned(configs(64), db)
    launched(kernel, gpu)
    launched(kernel, gpu, room=5)
    launched(kernel, gpu, 2000)
    x = DeviceArray(np.zeros(N, np.float16))
    kernel[(1,)](x, x, 3.0, N)
    gpu.drain()
    assert len(kernel._launches) == 3


def test_arrays_are_let_go(gpu: Gpu, db: Path, nothing_is_known: list[Any]) -> None:
    before = set(DeviceArray.alive)
    kernel = tuned(configs(4, 1024), db, block=False)
    launched(kernel, gpu)
    arrays = {name: DeviceArray(np.ones(N, np.float32)) for name in "xy"}
    kernel[(1,)](**arrays, by=1.0, n=64)
    gpu.drain()
    arrays.clear()
    until(lambda: len(nothing_is_known) == 4)
    gc.collect()
    assert set(DeviceArray.alive) <= before


@pytest.mark.parametrize(
    ("options", "said"),
    [({"search": {"trails": 3}}, "unknown key 'trails'"), ({"device": "gpu 0"}, "'gpu 0' is not a device")],
)
def test_options_that_a_job_could_not_have(options: dict[str, Any], said: str, db: Path) -> None:
    with pytest.raises(ValueError, match=said):
        tuned(configs(16), db, **options)


def test_turned_off_it_is_tritons(monkeypatch: pytest.MonkeyPatch, db: Path) -> None:
    monkeypatch.setenv("FUSIOND", "off")
    assert type(tuned(configs(16), db)) is Autotuner
