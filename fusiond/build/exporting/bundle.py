"""A bundle: a folder that holds one Program and all it needs, and runs where nothing can be installed.

    plan.json            the Program (fusiond.model.program.encode)
    sources/NAME.cu      the texts, for people (.ptx, .cpp)
    binaries/NAME.so     what was built of them (.so or .ptx for the processor, .cubin for a GPU)
    inputs/FILE.npy      the files that fills refer to

It is the child process's input, the bug report and the export. Only the standard library is used here.
"""

import contextlib
import errno
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from fusiond.model.errors import RequestError
from fusiond.model.keys import text_key
from fusiond.model.program import Fill, Program, decode, to_text
from fusiond.model.system import faults, files

_ATTEMPTS = 4  #: How often a broken bundle is put aside: another process may put it there once more meanwhile


def write_bundle(folder: Path, program: Program, binaries: Mapping[str, Path]) -> None:
    """Write a bundle; the folder appears whole or not at all. An existing one is left as it is where it is whole, and
    written again where it is not (after a power cut, say). Others may write or read the same one meanwhile."""
    if _is_whole(folder, program, binaries):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        made = work / "bundle"
        made.mkdir()
        local = _with_files(program, functools.partial(_copied, made / "inputs"))
        (made / "sources").mkdir()
        for source in program.sources:
            (made / "sources" / f"{source.name}{source.suffix}").write_text(source.text, encoding="utf-8")
        (made / "binaries").mkdir()
        for name, path in binaries.items():
            _link_or_copy(path, made / "binaries" / f"{name}{path.suffix}")
        (made / "plan.json").write_text(to_text(local))
        _put(made, folder, lambda: _is_whole(folder, program, binaries), aside=work / "broken")
    finally:
        files.discard(work)


def _put(made: Path, folder: Path, whole: Callable[[], bool], *, aside: Path) -> None:
    """Rename a folder to where it belongs. One that is there already stays where it is `whole`: somebody else was
    faster, and it may be in use."""
    for attempt in range(_ATTEMPTS):
        try:
            os.rename(made, folder)
            return
        except OSError as problem:
            if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) or attempt + 1 == _ATTEMPTS:
                raise
        if whole():
            return
        with contextlib.suppress(FileNotFoundError):  # somebody else mends it too
            os.rename(folder, aside.with_name(f"{aside.name}{attempt}"))


def _is_whole(folder: Path, program: Program, binaries: Mapping[str, Path]) -> bool:
    """Whether a folder holds this bundle: its plan to the letter, and every binary at its full length."""
    try:
        plan = decode(json.loads((folder / "plan.json").read_text()))
        sizes = [
            (folder / "binaries" / f"{name}{path.suffix}").stat().st_size == path.stat().st_size
            for name, path in binaries.items()
        ]
        inputs = [(folder / "inputs" / each.fill.file).is_file() for each in plan.buffers if each.fill.file is not None]
    except (OSError, ValueError):
        return False
    return plan.key == _with_files(program, _local).key and all(sizes) and all(inputs)


def _with_files(program: Program, named: Callable[[Fill], str]) -> Program:
    """The program with other names for the files of its fills."""
    buffers = tuple(
        each if each.fill.file is None else replace(each, fill=replace(each.fill, file=named(each.fill)))
        for each in program.buffers
    )
    return replace(program, buffers=buffers)


def _local(fill: Fill) -> str:
    """What a bundle's plan calls a file."""
    return f"{fill.digest}.npy"


def _copied(inputs: Path, fill: Fill) -> str:
    assert fill.file is not None
    inputs.mkdir(exist_ok=True)
    target = inputs / _local(fill)
    if not target.exists():  # copied, not linked: the user may write into the file later
        shutil.copyfile(fill.file, target)
        if text_key(target.read_bytes()) != fill.digest:
            raise RequestError("has changed since the job was submitted; submit it again", where=fill.file)
    return target.name


def read_bundle(folder: Path) -> tuple[Program, dict[str, Path]]:
    """The Program of a bundle, and source name -> built file. RequestError when the folder holds no
    bundle, MachineFault when the machine cannot read it."""
    try:
        program = decode(json.loads((folder / "plan.json").read_text()))
    except FileNotFoundError:
        raise RequestError("is not a bundle: there is no plan.json in it", where=str(folder)) from None
    except (OSError, ValueError) as problem:
        if isinstance(problem, OSError) and (fault := faults.of_system(problem, str(folder / "plan.json"))):
            raise fault from None
        raise RequestError(f"plan.json cannot be read: {problem}", where=str(folder)) from None
    binaries = {path.stem: path for path in sorted((folder / "binaries").glob("*")) if path.is_file()}
    return _with_files(program, lambda fill: str(folder / "inputs" / str(fill.file))), binaries


def _link_or_copy(source: Path, target: Path) -> None:
    """A hard link where the file system allows it: binaries are written once and never changed."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
