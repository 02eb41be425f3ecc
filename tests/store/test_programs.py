"""Programs by key, artifacts by content."""

import os
import time

import pytest

from fusiond.model.errors import StoreError
from fusiond.model.keys import text_key
from fusiond.model.program import Buffer, Launch, Pointer, Program, Role, Source, SourceKind, to_text
from fusiond.store.database import Store
from fusiond.store.plans import pack


def program(name: str = "fused") -> Program:
    source = Source(name="k", kind=SourceKind.DEVICE, text="__global__ void k(int *x) {}", entries=("k",))
    launch = Launch(name="k", source="k", entry="k", grid=(2, 1, 1), block=(32, 1, 1), arguments=(Pointer(buffer="x"),))
    buffer = Buffer(name="x", dtype="int32", elements=64, role=Role.OUTPUT)
    return Program(name=name, buffers=(buffer,), sources=(source,), steps=(launch,))


def test_a_plan_of_another_version_is_a_store_error(store: Store) -> None:
    store.save_program(program())
    with store._transaction() as database:
        text = to_text(program())
        assert '"plan_version": 2' in text
        plan = pack(text.replace('"plan_version": 2', '"plan_version": 99'))
        database.execute("UPDATE programs SET plan = ?", [plan])
    with pytest.raises(StoreError, match="reads plans of version 2, not 99"):
        store.program(program().key)


def test_an_artifact_is_named_by_its_content(store: Store) -> None:
    path = store.save_artifact(b"cubin", ".cubin")
    assert path.read_bytes() == b"cubin"
    assert path.is_relative_to(store.artifacts)
    assert path.name == text_key(b"cubin") + ".cubin"
    assert store.save_artifact(b"cubin", ".cubin") == path
    assert store.save_artifact(b"cubin", ".cu") != path


def test_a_damaged_artifact_is_written_again(store: Store) -> None:
    path = store.save_artifact(b"cubin", ".cubin")
    path.write_bytes(b"cu")
    assert store.save_artifact(b"cubin", ".cubin").read_bytes() == b"cubin"


def test_a_file_is_whole_before_a_row_names_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "_transaction", killed)
        with pytest.raises(KeyboardInterrupt):
            store.save_artifact(b"whole", ".cu")
    (orphan,) = store.artifacts.rglob("*.cu")
    assert orphan.read_bytes() == b"whole"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            store.save_artifact(b"another", ".cu")
    assert store.collect_orphans(older_than_secs=-1) == [orphan]
    assert [path for path in store.artifacts.rglob("*") if path.is_file()] == []


def test_orphans_are_files_that_no_row_names_and_nobody_is_writing(store: Store) -> None:
    kept = store.save_artifact(b"kept", ".cu")
    orphan, young = kept.parent / "orphan.cu", kept.parent / ".writing-abc"
    for path in (kept, orphan, young):
        path.write_bytes(b"kept")
    long_ago = time.time() - 7200
    os.utime(orphan, (long_ago, long_ago))
    os.utime(kept, (long_ago, long_ago))
    assert store.collect_orphans() == [orphan]
    assert kept.exists()
    assert young.exists()
    assert store.collect_orphans(older_than_secs=-1) == [young]
    assert store.collect_orphans() == []
