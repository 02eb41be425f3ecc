"""A bundle appears whole or not at all, and brings back the Program."""

import dataclasses
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build.exporting import bundle
from fusiond.build.exporting.bundle import read_bundle, write_bundle
from fusiond.model.errors import RequestError
from fusiond.model.keys import text_key
from fusiond.model.program import Buffer, Fill, Launch, Program, Role, Source, SourceKind

PROGRAM = Program(
    name="p",
    buffers=(Buffer(name="x", dtype="float32", elements=4, role=Role.INOUT),),
    sources=(Source(name="a.b", text="// é\n", entries=("f",)),
             Source(name="h", kind=SourceKind.HOST, text="//", entries=("g",))),
    steps=(Launch(name="s", source="a.b", entry="f", grid=(1, 1, 1), block=(1, 1, 1), arguments=()),),
)  # fmt: skip


@pytest.fixture
def binaries(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for name in ("a.b", "h"):
        found[name] = tmp_path / f"{text_key(name)}.so"
        found[name].write_bytes(name.encode())
    return found


def with_input(path: Path) -> Program:
    fill = Fill(kind="file", file=str(path), digest=text_key(path.read_bytes()))
    return dataclasses.replace(PROGRAM, buffers=(dataclasses.replace(PROGRAM.buffers[0], fill=fill),))


def test_what_is_written_comes_back(tmp_path: Path, binaries: dict[str, Path]) -> None:
    folder = tmp_path / "deep" / "bundle"
    write_bundle(folder, PROGRAM, binaries)
    program, found = read_bundle(folder)
    assert program == PROGRAM
    assert {name: path.read_bytes() for name, path in found.items()} == {"a.b": b"a.b", "h": b"h"}
    assert (folder / "sources" / "a.b.cu").read_text(encoding="utf-8") == "// é\n"
    assert (folder / "sources" / "h.cpp").exists()
    assert [each.name for each in folder.parent.iterdir()] == ["bundle"]


def test_a_users_file_is_copied_and_may_change_later(tmp_path: Path, binaries: dict[str, Path]) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(4, dtype=np.float32))
    write_bundle(tmp_path / "b", with_input(path), binaries)
    program, _ = read_bundle(tmp_path / "b")
    kept = Path(program.buffers[0].fill.file or "")
    assert kept.is_absolute()
    assert kept.parent == tmp_path / "b" / "inputs"
    with path.open("r+b") as file:  # in place: the same inode
        file.write(b"\0" * 40)
    np.testing.assert_array_equal(np.load(kept), np.arange(4, dtype=np.float32))
    plan = json.loads((tmp_path / "b" / "plan.json").read_text())
    assert str(tmp_path) not in json.dumps(plan)


def test_a_users_file_that_has_changed_is_refused(tmp_path: Path, binaries: dict[str, Path]) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(4, dtype=np.float32))
    program = with_input(path)
    np.save(path, np.ones(4, dtype=np.float32))
    with pytest.raises(RequestError, match="changed since the job was submitted"):
        write_bundle(tmp_path / "b", program, binaries)
    assert not (tmp_path / "b").exists()


def test_nothing_is_left_of_a_failure(tmp_path: Path, binaries: dict[str, Path]) -> None:
    binaries["h"].unlink()
    with pytest.raises(OSError, match="No such file"):
        write_bundle(tmp_path / "out" / "b", PROGRAM, binaries)
    assert list((tmp_path / "out").iterdir()) == []


def test_who_comes_later_leaves_the_bundle_of_who_was_faster(
    tmp_path: Path, binaries: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two find none; the first has finished, and uses it, when the second goes on."""
    folder, look = tmp_path / "b", bundle._is_whole

    def slowly(*arguments: Any) -> bool:
        found = look(*arguments)
        monkeypatch.setattr(bundle, "_is_whole", look)
        write_bundle(folder, PROGRAM, binaries)
        (folder / "in use").touch()
        return found

    monkeypatch.setattr(bundle, "_is_whole", slowly)
    write_bundle(folder, PROGRAM, binaries)
    assert (folder / "in use").exists()
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_many_writers_one_bundle(tmp_path: Path, binaries: dict[str, Path]) -> None:
    failures: list[BaseException] = []

    def write() -> None:
        try:
            write_bundle(tmp_path / "out" / "b", PROGRAM, binaries)
        except BaseException as problem:
            failures.append(problem)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
    assert os.listdir(tmp_path / "out") == ["b"]
    assert read_bundle(tmp_path / "out" / "b")[0] == PROGRAM


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"plan_version": 1}', '{"plan_version": 99}', "\x00"])
def test_what_is_no_bundle(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(RequestError, match=r"plan\.json cannot be read") as caught:
        read_bundle(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_damaged_bundle_is_written_again(tmp_path: Path) -> None:
    """What a power cut leaves: the folder is there, the files in it are empty."""
    binary = tmp_path / "s.so"
    binary.write_bytes(b"built")
    program = Program(
        name="p", buffers=(Buffer(name="y", dtype="int32", elements=4, role=Role.OUTPUT),),
        sources=(Source(name="s", text="...", entries=("f",)),), steps=(),
    )  # fmt: skip
    folder = tmp_path / "bundle"
    for damaged in ("plan.json", "binaries/s.so"):
        write_bundle(folder, program, {"s": binary})
        (folder / damaged).unlink()
        (folder / damaged).write_bytes(b"")
        write_bundle(folder, program, {"s": binary})
        assert (folder / "binaries/s.so").read_bytes() == b"built"
        assert read_bundle(folder)[0] == program
