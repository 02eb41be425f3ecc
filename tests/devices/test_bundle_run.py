"""The files of a bundle's run: what is not an archive, and where nothing can be written, is one line."""

from pathlib import Path

import numpy as np
import pytest

from fusiond.devices.run import read_inputs, write_outputs
from fusiond.model.errors import RequestError
from fusiond.model.program import Program

NOTHING = Program(name="nothing", buffers=(), sources=(), steps=())


def test_inputs_that_are_no_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "whole.npz", x=np.zeros(300))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-40])
    (tmp_path / "empty.npz").write_bytes(b"")
    for name, says in (
        ("one.npy", "cannot be read: it holds one array; an .npz with arrays named like buffers is wanted"),
        ("cut.npz", "cannot be read: File is not a zip file"),
        ("empty.npz", "cannot be read: No data left in file"),
        ("whole.npz", "no buffer is called 'x'"),
    ):
        with pytest.raises(RequestError, match=f"{name}: {says}"):
            read_inputs(NOTHING, tmp_path / name)


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"y\.npz: cannot be written: No such file or directory"):
        write_outputs(tmp_path / "nowhere" / "y.npz", {"x": np.zeros(1)})
