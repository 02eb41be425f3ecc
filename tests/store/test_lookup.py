"""The rules of `best`, one by one; test_lookup_rules.py holds them against a model."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fusiond import __version__
from fusiond.model import keys
from fusiond.model.errors import NothingKnown, RequestError, StoreError
from fusiond.model.nouns import Config
from fusiond.model.outcomes import JobState, Verdict
from fusiond.model.program import Program
from fusiond.store import candidates, last_commit, lookup, reading, sources
from fusiond.store.database import Store
from fusiond.store.process_identity import this_process
from fusiond.strategy import CatalogueEntry

Ask = Callable[..., Any]


@pytest.fixture
def ask(store: Store) -> Ask:
    """`best` in this store, by default with the environment in which `make.device()` was."""

    def best(name: str = "hist,maxpool", **options: Any) -> Any:
        return lookup.best(store.path, name=name, **{"driver": "580.1", "version": __version__, **options})

    return best


def test_the_answer_has_exactly_the_fields_of_the_contract(store: Store, make: Any, ask: Ask) -> None:
    workload, device = make.workload(), make.device()
    source = store.save_artifact(b"__global__", ".cu")
    more = {
        "baseline_config": Config.of({"threads.a": 256}), "baseline_program_key": "unfused program", "processes": 5,
        "ended": "20 trials without a gain", "replaced": "a faster one was found",
        "counted": ({"program": "native", "dram_bytes": 12},),
    }  # fmt: skip
    make.known(store, workload, device, source=str(source), **more)
    assert ask() == {
        "workload": {
            "strategy": "hfuse", "name": "hist,maxpool", "key": workload.key, "sizes": {"a.n": 1000, "b.n": 1000},
        },
        "content_key": workload.content_key, "device": {"name": "cuda:0", "key": device.key}, "verdict": "fuse",
        "config": {"cap": 32, "partition": "paper"}, "program_key": "program", "time_us": 10.0, "baseline": "streams",
        "baseline_us": 15.0,
        "unfused": {"name": "streams", "config": {"threads.a": 256}, "time_us": 15.0, "program_key": "unfused program"},
        "speedup": 1.5, "ci95": [1.4, 1.6], "verified": True, "evidence": "measured", "cache": "warm", "match": "exact",
        "changed": [], "trials": 64, "processes": 5, "ended": "20 trials without a gain",
        "replaced": "a faster one was found", "source": str(source), "found_at": "2026-01-01T00:00:00.000+00:00",
        "sizes_asked": {"a.n": 1000, "b.n": 1000}, "checks": ["2 seeds, equal"], "figures": {"whole_us": 40.5},
        "counted": [{"program": "native", "dram_bytes": 12}], "notes": [],
    }  # fmt: skip


def test_what_is_counted_is_for_those_who_name_the_device_and_is_no_time(store: Store, make: Any, ask: Ask) -> None:
    workload = make.workload()
    absent = make.device("counted:h100", model="NVIDIA H100 (counted)", evidence="counted")
    make.known(store, workload, absent, verdict=Verdict.PROMISING)
    assert ask() is None
    assert ask(device="all") is None
    assert ask(device="cuda") is None
    found = ask(device="counted:h100")
    assert (found["verdict"], found["evidence"]) == ("promising", "counted")
    assert (found["bound_us"], found["unfused_bound_us"], found["bound_ratio"]) == (10.0, 15.0, 1.5)
    times = ("time_us", "baseline_us", "speedup", "ci95")
    assert [found[name] for name in times] == [None] * 4
    assert found["unfused"]["time_us"] is None
    make.known(store, workload, make.device())
    assert ask()["evidence"] == "measured"
    assert ask(device="counted:h100")["evidence"] == "counted"


# --- what is there ---


def test_nothing_is_known_without_a_file_or_in_an_empty_one(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    empty = folder / "empty.sqlite"
    for path in (folder / "missing.sqlite", empty):
        assert lookup.best(path, name="hist", driver=None, version="0") is None
        assert lookup.suggestions(str(path), "hist") == []
        empty.touch()
    assert list(folder.iterdir()) == [empty]


def test_a_file_of_something_else_is_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / "odd #1?.sqlite"
    path.write_text("no database, but long enough to be looked at" * 10)
    with pytest.raises(StoreError, match="no SQLite file"):
        lookup.best(path, name="hist", driver=None, version="0")
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(StoreError, match="not one of fusiond's"):
        lookup.suggestions(path, "hist")


_WITHOUT_RIGHTS = """
import os, sys
from fusiond.store import lookup
if os.getuid() == 0:
    os.setuid(65534)  # nobody: root may write anything
found = lookup.best(sys.argv[1], name="maxpool,hist", driver=None, version="9")
print(found["match"], lookup.queue_recheck(sys.argv[1], found))
"""


def test_a_lookup_needs_no_right_to_write(store: Store, make: Any) -> None:
    make.known(store, make.workload(), make.device())
    store.close()
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copy(store.path, folder)
        Path(folder).chmod(0o555)
        Path(path).chmod(0o444)
        done = subprocess.run(
            [sys.executable, "-c", _WITHOUT_RIGHTS, path], capture_output=True, text=True, check=False
        )
        Path(folder).chmod(0o700)
        assert os.listdir(folder) == ["fusiond.sqlite"]
    assert done.stdout.split() == ["stale", "None"], done.stderr


def test_what_an_open_file_remembers_has_a_bound(
    store: Store, make: Any, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "_KEPT", 6)
    names = [f"kernel{number},other" for number in range(9)]
    for name in names:
        for size in (1, 2):
            make.known(store, make.workload(name, {"a.n": size}), make.device())
    for name in [*names, "unknown", *reversed(names), *names]:
        assert (ask(name) or {"workload": {"name": name}})["workload"]["name"] == name
        with reading.reading(store.path) as reader:
            assert reader is not None
            assert reader.held == sum(reader.asked.values()) <= 6
            assert set(reader.asked) <= set(reader.kept)


def test_the_number_of_the_last_change_is_read_from_the_file_that_is_there_now(tmp_path: Path) -> None:
    path = tmp_path / "fusiond.sqlite"
    number = last_commit.AcknowledgedNumber(path)
    assert number.read() is None
    last_commit.write(path, 3, 77)
    assert number.read() == (3, 77)
    last_commit.write(path, 4, 77)
    assert number.read() == (4, 77)
    last_commit.forget(path)
    assert number.read() is None
    last_commit.write(path, 1, 78)
    assert number.read() == (1, 78)
    Path(last_commit.file_of(path)).write_bytes(b"damaged")
    assert number.read() is None


# --- devices and evidence ---


def test_a_device_is_asked_for_by_any_of_its_names(store: Store, make: Any, ask: Ask) -> None:
    device = make.device("cuda:1")
    make.known(store, make.workload(), device)
    store.save_device(make.device("cuda:0"))  # another board of the same model
    for name in ("cuda:1", "cuda:0", "cuda", "NVIDIA H200", device.key):
        assert ask(device=name)["device"]["key"] == device.key
    for name in ("cuda:2", "cpu", "cud", "cuda:"):
        assert ask(device=name) is None


def test_a_name_means_the_hardware_that_has_it_now(store: Store, make: Any, ask: Ask) -> None:
    make.known(store, make.workload(), make.device("cuda:0", model="NVIDIA A100"))
    assert ask(device="cuda:0") is not None
    store.save_device(make.device("cuda:0", uuid="GPU-new"))
    assert ask(device="cuda:0") is None
    assert ask(device="NVIDIA A100") is not None


def test_a_device_that_was_never_seen_here_is_known_by_its_records_name(store: Store, make: Any, ask: Ask) -> None:
    workload = make.workload()
    store.save_workload(workload)
    store.save_record(make.record(workload, make.device("cuda:7")), job=None, source_hashes={})
    assert ask(device="cuda:7")["match"] == "exact"


# --- sizes ---


def test_given_sizes_override_those_of_the_last_one_found(store: Store, make: Any, ask: Ask) -> None:
    for size in (10, 1000):
        make.known(store, make.workload(sizes={"a.n": size, "b.n": 7}), make.device())
    found = ask(sizes={"a.n": 10})
    assert (found["match"], found["sizes_asked"], found["notes"]) == ("exact", {"a.n": 10, "b.n": 7}, [])
    found = ask(sizes={"a.n": 64})
    assert (found["match"], found["workload"]["sizes"]) == ("nearest", {"a.n": 10, "b.n": 7})
    assert found["sizes_asked"] == {"a.n": 64, "b.n": 7}
    assert found["notes"] == ["measured at a.n=10; nothing is known at a.n=64"]
    assert ask(sizes={"a.n": 200})["workload"]["sizes"]["a.n"] == 1000


def test_a_size_that_the_workload_lacks_is_a_wrong_request(store: Store, make: Any, ask: Ask) -> None:
    make.known(store, make.workload(), make.device())
    with pytest.raises(RequestError, match=r"hist,maxpool: unknown size 'a.m'; did you mean 'a.n'\?"):
        ask(sizes={"a.m": 3})


# --- several contents ---


def test_a_name_of_several_contents_is_ambiguous(store: Store, make: Any, ask: Ask, tmp_path: Path) -> None:
    """Kernels of two folders may be called the same, and are another question each."""
    hashes = [{f"/{folder}/hist.yaml": "same", f"/{folder}/hist.cu": folder} for folder in ("old", "new")]
    old, new = make.workload(sizes={"n": 64}, content="old"), make.workload(sizes={"n": 8}, content="new")
    make.known(store, old, make.device(), source_hashes=hashes[0])
    make.known(store, new, make.device(), source_hashes=hashes[1], found_at="2026-02-02T00:00:00.000+00:00")
    assert ask("maxpool,hist") == ask(sizes={"n": 64}) | {"name": "maxpool,hist"}
    found = ask()
    assert (found["match"], found["name"]) == ("ambiguous", "hist,maxpool")
    assert found["answers"] == [
        {
            "path": f"/{folder}/hist.yaml",
            "content_key": workload.content_key,
            "strategy": "hfuse",
            "found_at": f"2026-0{month}-0{month}T00:00:00.000+00:00",
            "verdict": "fuse",
            "sizes": dict(workload.sizes),
        }
        for folder, workload, month in (("new", new, 2), ("old", old, 1))
    ]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Two folders with a kernel of the same name, and one without."""
    made = {}
    for name, body in (("one", "x * y"), ("two", "x + y"), ("none", "")):
        made[name] = tmp_path / name
        (made[name] / "src").mkdir(parents=True)
        if body:
            (made[name] / "scale.yaml").write_text("kernel: scale\nsource: src/scale.cu\n")
            (made[name] / "src" / "scale.cu").write_text(f"{body};\n")
    return made


def hashed(*files: Path) -> dict[str, str]:
    return {str(file): keys.text_key(file.read_text()) for file in files}


def hfuse(**fields: Any) -> Any:
    """What the plugins said, but for the fields given."""
    return SimpleNamespace(**{"name": "hfuse", "version": 1, "wrong_versions": (), "names": {}, **fields})


def of_folders(store: Store, make: Any, folders: dict[str, Path]) -> None:
    store.save_strategies([hfuse()], [])
    for name in ("one", "two"):
        hashes = hashed(folders[name] / "scale.yaml", folders[name] / "src" / "scale.cu")
        make.known(
            store, make.workload("scale", content=name), make.device(), source_hashes=hashes, baseline=f"of {name}"
        )


def test_content_of_its_own_is_not_answered_by_that_of_others(
    store: Store, make: Any, ask: Ask, folders: dict[str, Path]
) -> None:
    of_folders(store, make, folders)
    (folders["one"] / "src" / "scale.cu").write_text("x - y;\n")
    with pytest.raises(lookup.Unsettled):
        ask("scale", folder=str(folders["one"]), strict=True)
    with pytest.raises(NothingKnown, match=r"as .*/one/scale.yaml has it; .* other content .*/two/scale.yaml, 2026"):
        ask("scale", folder=str(folders["one"]), built={"of no record"})
    built = {make.workload("scale", content="two").content_family_key}
    assert ask("scale", folder=str(folders["one"]), built=built)["baseline"] == "of two"


def test_a_pair_is_that_of_all_its_files(store: Store, make: Any, ask: Ask, folders: dict[str, Path]) -> None:
    """One member lies in the folder, the other one elsewhere: as it was, or not."""
    store.save_strategies([hfuse()], [])
    other = folders["two"] / "other.yaml"
    other.write_text("kernel: other\n")
    hashes = hashed(folders["one"] / "scale.yaml", folders["one"] / "src" / "scale.cu", other)
    make.known(store, make.workload("other,scale"), make.device(), source_hashes=hashes)
    assert ask("scale,other", folder=str(folders["one"]), strict=True)["match"] == "exact"
    other.write_text("kernel: other\nblock: 3\n")
    with pytest.raises(lookup.Unsettled):
        ask("scale,other", folder=str(folders["one"]), strict=True)


def test_the_catalogue_settles_a_name_without_files(
    store: Store, make: Any, ask: Ask, folders: dict[str, Path]
) -> None:
    of_folders(store, make, folders)
    path = folders["two"] / "scale.yaml"
    spoken = {
        "versions": {"hfuse": 1}, "wrong": {"hfuse": ()}, "kinds": {"hfuse": ["kernel"]}, "fusiond": {__version__},
    }  # fmt: skip
    says = lookup.Says(**spoken, catalogue={("kernel", "scale"): str(path)})
    assert ask("scale", folder=str(folders["none"]), says=says, strict=True)["baseline"] == "of two"
    says = lookup.Says(**spoken, catalogue={("graph", "scale"): str(path)})
    assert ask("scale", says=says)["match"] == "ambiguous"  # what this strategy takes is not a graph
    assert ask("scale", folder=str(folders["one"]), says=says)["baseline"] == "of one"


def test_contents_that_were_never_read_are_for_the_plugins(store: Store, make: Any, ask: Ask) -> None:
    make.known(store, make.workload(), make.device())
    store.save_strategies([hfuse()], [])
    with store._transaction() as database:
        database.execute("UPDATE workloads SET content_key = NULL, content_family_key = NULL")
    with pytest.raises(lookup.Unsettled):
        ask(strict=True)
    assert ask()["match"] == "exact"
    assert ask()["content_key"] is None
    assert ask("nobody", strict=True) is None


# --- by content ---


def test_a_content_is_found_under_any_name(store: Store, make: Any) -> None:
    def ask_of(workload: Any, **options: Any) -> Any:
        return lookup.best_of(
            store.path, family=workload.content_family_key, sizes=workload.sizes, name=workload.name,
            driver=options.pop("driver", "580.1"), version=__version__, **options,
        )  # fmt: skip

    known = make.workload("theirs", content="same")
    make.known(store, known, make.device())
    assert ask_of(make.workload("mine", content="same"))["match"] == "exact"
    assert ask_of(make.workload("mine", content="same"), driver="590")["match"] == "stale"
    near = ask_of(make.workload("mine", sizes={"a.n": 2000, "b.n": 1000}, content="same"))
    assert (near["match"], near["notes"]) == ("nearest", ["measured at a.n=1000; nothing is known at a.n=2000"])
    assert ask_of(make.workload("theirs", content="other")) is None
    assert ask_of(known, device="cpu") is None
    assert ask_of(known, cache="cold") is None


# --- what has changed since ---


def test_another_driver_or_fusiond_makes_an_answer_stale(store: Store, make: Any, ask: Ask) -> None:
    make.known(store, make.workload(), make.device())
    assert ask(driver=None)["match"] == "exact"  # unknown is not a change
    found = ask(driver="590.2", version="9.0.0")
    assert found["match"] == "stale"
    assert found["notes"] == [
        "found with driver 580.1; today it is 590.2",
        f"found with fusiond {__version__}; today it is 9.0.0",
    ]


def test_an_older_version_of_the_strategy_is_stale_where_its_program_is_kept(store: Store, make: Any, ask: Ask) -> None:
    program = Program(name="kept", buffers=(), sources=(), steps=())
    make.known(store, make.workload(), make.device(), program_key=program.key)
    store.submit(make.job(), make.workload(strategy_version=2))
    assert ask() is None  # nobody could call it
    store.save_program(program)
    found = ask()
    assert (found["match"], found["changed"]) == ("stale", ["strategy"])
    assert found["notes"] == ["found by version 1 of hfuse; today it is version 2"]
    assert lookup.queue_recheck(store.path, found) is None  # measured again it would be of version 1 still
    make.known(store, make.workload(strategy_version=2), make.device())
    assert ask()["match"] == "exact"


def test_keeping_them_apart_needs_the_unfused_program(store: Store, make: Any, ask: Ask) -> None:
    program = Program(name="unfused", buffers=(), sources=(), steps=())
    make.known(
        store, make.workload(), make.device(), verdict=Verdict.KEEP, baseline_program_key=program.key, program_key=None
    )
    store.submit(make.job(), make.workload(strategy_version=2))
    assert ask() is None
    store.save_program(program)
    assert (ask()["match"], ask()["unfused"]["program_key"]) == ("stale", program.key)


def test_a_wrong_version_never_serves(store: Store, make: Any, ask: Ask) -> None:
    program = Program(name="wrong", buffers=(), sources=(), steps=())
    store.save_program(program)
    make.known(store, make.workload(), make.device(), program_key=program.key)
    says = {"kinds": {"hfuse": ()}, "catalogue": {}, "fusiond": {__version__}}
    assert ask(says=lookup.Says(versions={"hfuse": 3}, wrong={"hfuse": (2,)}, **says))["match"] == "stale"
    assert ask(says=lookup.Says(versions={"hfuse": 3}, wrong={"hfuse": (1, 2)}, **says)) is None
    assert ask(says=lookup.Says(versions={"hfuse": 1}, wrong={"hfuse": (1,)}, **says)) is None


def test_what_the_plugins_say_is_read_from_the_store(store: Store, make: Any, ask: Ask) -> None:
    make.known(store, make.workload(), make.device())
    with pytest.raises(lookup.Unsettled):
        ask(strict=True, version=__version__)  # nobody has said anything yet
    said = hfuse(version=2, wrong_versions=(1,), names={"kernel": "pair"})
    entry = CatalogueEntry(kind="kernel", name="hist", path=Path("hist.yaml"))
    store.save_strategies([said], [entry])
    assert ask(strict=True, version=__version__) is None
    (row,) = store._rows("SELECT kind, name, path FROM catalogue")
    assert row == {"kind": "kernel", "name": "hist", "path": os.path.abspath("hist.yaml")}
    with pytest.raises(lookup.Unsettled):
        ask(strict=True, version="another")
    store.save_strategies([hfuse(version=2)], [])
    assert ask(strict=True, version=__version__) is None  # no program was kept
    assert store._rows("SELECT * FROM catalogue") == []
    store.save_strategies([hfuse()], [])
    assert ask(strict=True, version=__version__)["match"] == "exact"


def test_a_source_that_is_a_pipe_now_keeps_nobody_waiting(store: Store, make: Any, ask: Ask, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.cu"
    os.mkfifo(pipe)
    make.known(store, make.workload(), make.device(), source_hashes={str(pipe): keys.text_key("int x;\n")})
    assert ask()["notes"] == [f"source cannot be compared: {pipe}: it is not a regular file"]
    assert not sources.equal(str(pipe), keys.text_key(""))


def test_the_comparison_with_the_sources_can_be_left_for_later(
    store: Store, make: Any, ask: Ask, tmp_path: Path
) -> None:
    path = tmp_path / "changed.cu"
    path.write_text("int y;\n")
    make.known(store, make.workload(), make.device(), source_hashes={str(path): keys.text_key("int x;\n")})
    found = ask(later=True)
    assert (found["match"], found["notes"]) == ("exact", [])
    assert lookup.compared(found) == ask()
    assert found["match"] == "stale"


def test_a_changed_source_file_is_said(store: Store, make: Any, ask: Ask, tmp_path: Path) -> None:
    same, changed, gone, crlf = (tmp_path / name for name in ("same.cu", "changed.cu", "gone.cu", "crlf.cu"))
    for path in (same, changed, gone):
        path.write_text("int x;\n")
    crlf.write_bytes(b"int x;\r\n")
    hashes = {str(path): keys.text_key(path.read_text()) for path in (same, changed, gone, crlf)}
    make.known(store, make.workload(), make.device(), source_hashes=hashes)
    changed.write_text("int y;\n")
    gone.unlink()
    assert ask()["notes"] == [f"source changed: {changed}", f"source is gone: {gone}"]
    assert (ask()["match"], ask()["changed"]) == ("stale", ["source"])
    assert lookup.queue_recheck(store.path, ask()) is None  # what would be measured again is the old source


def test_a_large_file_is_compared_by_its_date(
    store: Store, make: Any, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "x.npy"
    data.write_bytes(b"x" * 100)
    monkeypatch.setattr(sources, "COMPARED_BYTES", 10)
    make.known(store, make.workload(), make.device(), source_hashes={str(data): "?"})
    os.utime(data, (1_700_000_000, 1_700_000_000))
    assert ask()["notes"] == []
    os.utime(data, (1_900_000_000, 1_900_000_000))
    assert ask()["notes"] == [
        f"source may have changed: {data} (too large to compare here) is younger than this answer"
    ]


def test_the_lookups_text_key_is_that_of_keys() -> None:
    assert sources.text_key("naïve".encode()) == keys.text_key("naïve")


# --- checking again ---


def test_a_stale_answer_queues_one_check_on_its_own_device(store: Store, make: Any, ask: Ask) -> None:
    tuned = store.submit(make.job(device="auto"), make.workload())
    store.claim(this_process(), job=tuned.id)
    make.known(store, make.workload(), make.device(), job=tuned.id)
    store.finish(tuned.id, JobState.DONE)
    stale = ask(driver="590.2")
    id = lookup.queue_recheck(store.path, stale)
    assert id is not None
    row = store.job(id)
    assert row is not None
    assert (row.kind, row.device, row.workload_key) == ("verify", "cuda:0", make.workload().key)
    assert (row.state, row.search, row.trials) == (JobState.QUEUED, tuned.search, 0)
    assert store.load_job(id) == make.job(device="cuda:0")
    assert lookup.queue_recheck(store.path, stale) is None
    assert store.claim(this_process()) == store.job(id)
    assert lookup.queue_recheck(store.path, stale) is None
    store.finish(id, JobState.FAILED, "the device is sick")
    assert lookup.queue_recheck(store.path, stale) is None  # not again and again
    with store._transaction() as database:
        database.execute("UPDATE jobs SET ended_at = '2026-01-01T00:00:00.000+00:00'")
    assert lookup.queue_recheck(store.path, stale) is not None


def test_a_check_needs_a_job_and_a_file_that_can_be_written(store: Store, make: Any, ask: Ask, tmp_path: Path) -> None:
    make.known(store, make.workload(), make.device())
    assert lookup.queue_recheck(store.path, ask()) is None
    assert lookup.queue_recheck(tmp_path / "missing.sqlite", ask()) is None
    assert not (tmp_path / "missing.sqlite").exists()
    with store._transaction():
        assert lookup.queue_recheck(store.path, ask()) is None


# --- what it costs ---


_IMPORTS = """
import sys
import fusiond.store.lookup
heavy = {"sqlite_utils", "dataclasses", "typing", "inspect", "pathlib", "numpy", "yaml", "optuna"}
print(*(heavy & set(sys.modules)), *(name for name in sys.modules if name.startswith("fusiond")))
"""


def test_a_lookup_imports_the_standard_library_only() -> None:
    environment = {"PYTHONPATH": str(Path(lookup.__file__).parents[2])}
    command = [sys.executable, "-S", "-c", _IMPORTS]  # -S: without what the installed packages' .pth files import
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    store = ["candidates", "document", "format", "hashing", "identity", "last_commit", "lookup", "named_files"]
    store += ["reading", "recheck", "sources", "tables"]
    ours = ["fusiond", "fusiond.model", "fusiond.model.errors", "fusiond.store"]
    ours += [f"fusiond.store.{each}" for each in store]
    assert sorted(done.stdout.split()) == ours


def test_no_query_reads_a_whole_table(store: Store, make: Any, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    make.known(store, make.workload(), make.device())
    connect, statements = reading.connect, []

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(reading, "connect", traced)
    for device in ("cuda:0", None):
        ask(device=device, sizes={"a.n": 64})
    queries = [each for each in statements if " FROM records" in each or " FROM workloads" in each]
    # Two indexes, the record that was chosen, the newest version: the second question finds all of it still known.
    assert len(queries) == 4
    assert len([each for each in queries if "INDEXED BY idx_records_heads" in each]) == 2
    for query in queries:
        plan = [row["detail"] for row in store._rows(f"EXPLAIN QUERY PLAN {query}")]
        assert not [step for step in plan if step.startswith("SCAN")], plan
        if "INDEXED BY idx_records_heads" in query:  # no row is read, and each workload is looked for by its key
            assert [step for step in plan if step.startswith("SEARCH r USING COVERING INDEX")], plan
            assert [step for step in plan if step.startswith("SEARCH w USING COVERING INDEX") and "key=?" in step], plan


def test_the_store_decodes_in_one_place() -> None:
    folder = Path(lookup.__file__).parent
    found = {path.name for path in folder.glob("*.py") if "json.loads" in path.read_text()}
    assert found == {"format.py"}
