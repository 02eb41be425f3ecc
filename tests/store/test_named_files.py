"""Which files of a folder claim a name: cheap, bounded, and never wrong about a job file."""

import os
from pathlib import Path

import pytest

from fusiond.store import named_files


@pytest.mark.parametrize(
    ("file", "text", "kind"),
    [
        ("scale.yaml", "kernel: scale\nsource: scale.cu\n", "kernel"),
        ("any.yml", "# ours\nschema: 1\nkernel: scale  # the one\n", "kernel"),
        ("any.yaml", 'pipeline: "scale"\r\nimage: {}\r\n', "pipeline"),
        ("any.yaml", "'graph': 'scale'\n", "graph"),
        ("any.yaml", "{kernel: scale, source: scale.cu}\n", "kernel"),
        ("any.yaml", '{"kernel": "scale", "source": "scale.cu"}\n', "kernel"),
        ("scale.yaml", "kernel: another\n", "kernel"),
        ("scale.hlo", "HloModule whatever\n", "module"),
        ("scale.txt", "\nHloModule whatever\n", "module"),
        ("any.yaml", "kernel: scaled\n", None),
        ("any.yaml", "kernels:\n  - {kernel: scale}\n", None),
        ("scale.yaml", "strategy: mincut\npipeline: scale\n", None),
        ("any.yaml", "graph: scale\nstrategy: transfer\n", None),
        ("scale.yaml", "jobs: [a, b]\n", None),
        ("scale.txt", "notes on the scale\n", None),
        ("any.hlo", "HloModule scale\n", None),
        ("scale.yaml", "\xff\xfe", None),
    ],
)
def test_a_document_claims_its_name(tmp_path: Path, file: str, text: str, kind: str | None) -> None:
    path = tmp_path / file
    path.write_bytes(text.encode("latin-1"))
    assert named_files.claims(str(tmp_path), "scale") == ({kind: [str(path)]} if kind else {})


def test_a_part_is_of_its_whole(tmp_path: Path) -> None:
    (tmp_path / "any.yaml").write_text("pipeline: harris\n")
    assert named_files.claims(str(tmp_path), "harris:dx") == {"pipeline": [str(tmp_path / "any.yaml")]}
    (tmp_path / "loop.hlo").write_text("HloModule loop\n")
    assert named_files.claims(str(tmp_path), "loop:body") == {"module": [str(tmp_path / "loop.hlo")]}


def test_several_documents_may_claim_a_name_the_one_of_that_name_first(tmp_path: Path) -> None:
    for file in ("a.yaml", "scale.yaml"):
        (tmp_path / file).write_text("kernel: scale\n")
    assert named_files.claims(str(tmp_path), "scale") == {
        "kernel": [str(tmp_path / f) for f in ("scale.yaml", "a.yaml")]
    }


def test_only_so_much_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_files, "READ", 2)
    for file in ("a", "b", "c", "zoom"):
        (tmp_path / f"{file}.yaml").write_text(f"kernel: {file}_\n")
    assert named_files.claims(str(tmp_path), "b_")
    assert named_files.claims(str(tmp_path), "c_") == {}
    assert named_files.claims(str(tmp_path), "zoom")  # by its file name, however many others there are
    (tmp_path / "a.yaml").write_text("kernel: a\n" + "#" * named_files.LONGEST_BYTES)
    assert named_files.claims(str(tmp_path), "a_") == {}


def test_what_is_no_plain_file_is_no_document(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "scale.yaml")
    (tmp_path / "other.yaml").mkdir()
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    assert named_files.claims(str(tmp_path), "scale") == {}
    assert named_files.claims(str(tmp_path / "missing"), "scale") == {}
    for name in ("", "../scale", "a/b", "a\0b", "x" * 5000):
        assert named_files.claims(str(tmp_path), name) == {}
