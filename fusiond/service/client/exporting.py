"""`fusiond best --export`: writes a stored Program as the folder with which a program calls an answer."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusiond.build import nvcc
from fusiond.build.exporting.files import export as files_of
from fusiond.devices.base import Binary
from fusiond.model.errors import DeviceError, NothingKnown, RequestError, StoreError
from fusiond.model.program import Program, decode
from fusiond.requests.isolation import registry as plugins
from fusiond.store import lookup

FOR_NO_GPU = "sm_90"
"""What an answer of the processor is built for when nobody names an architecture; launch.py builds for any other."""
_UNFUSED = ("keep", "undecided", "unpromising")  #: Verdicts whose answer is the unfused program


def export(
    database: Path, document: Mapping[str, Any], folder: Path, *, unfused: bool = False, arch: str | None = None
) -> list[Path]:
    """Write an answer of `best` into `folder`, and say which files.

    `unfused`: the tuned unfused program instead of the answer's. `arch`: build for that architecture (`sm_90`) instead
    of the one of the answer's device. NothingKnown when the store does not hold the program."""
    if arch is not None and not re.fullmatch(r"sm_[0-9]+[af]?", arch):
        raise RequestError(f"{arch!r} is not an architecture; write sm_90, for example", where="--arch")
    if document.get("imported"):  # it holds code of another box's
        raise NothingKnown(
            "this answer was imported, and nothing of it is built before this box has measured it: `fusiond run` does "
            "that at once, the daemon when its device is idle, where `fusiond keys trust` trusts its signer"
        )
    program = _program(database, document, unfused=unfused)
    device_arch = _arch(database, document["device"]["key"])
    # Without a compiler README.txt says how to build.
    wanted = arch or (None if nvcc.missing_for(program.sources) else device_arch or FOR_NO_GPU)
    binaries = _binaries(program, wanted, demanded=bool(arch or device_arch))
    about = _about(document)
    if binaries and not (arch or device_arch):
        about["built"] = f"for {wanted}, since the answer's device is not a GPU; `--arch` names another architecture"
    try:
        files = files_of(program, about=about, binaries=binaries, arch=wanted if binaries else arch or device_arch)
    except ValueError as problem:
        raise NothingKnown(f"this program cannot be exported: {problem}") from None
    return _written(folder, files)


def _program(database: Path, document: Mapping[str, Any], *, unfused: bool) -> Program:
    """The Program of an answer, or of what it is compared with."""
    as_unfused = unfused or document["verdict"] in _UNFUSED
    holder = (document.get("unfused") or {}) if as_unfused else document
    key = holder.get("program_key")
    what = "unfused program" if as_unfused else "program"
    if key is None:
        raise NothingKnown(f"this answer names no {what}: an older fusiond found it; run the job again")
    plan = lookup.program(database, key)
    if plan is None:
        raise NothingKnown(f"the {what} {key} of this answer is not in the store; run the job again")
    try:
        return decode(plan)
    except ValueError as problem:
        raise StoreError(f"{database}: the program {key} cannot be read: {problem}") from None


def _arch(database: Path, device_key: str) -> str | None:
    """The architecture of the answer's device; None where that is not a GPU."""
    arch = lookup.arch(database, device_key)
    if arch is None:
        raise DeviceError("the device of this answer is not in the store")
    return arch if arch.startswith("sm_") else None


def _binaries(program: Program, arch: str | None, *, demanded: bool) -> dict[str, Path]:
    """What is built of each source; nothing without an architecture, nor where what nobody demanded does not build."""
    if arch is None:
        return {}
    provider = plugins.load().provider("cuda")
    found = {}
    for source in program.sources:
        built = provider.build(source, arch)
        if not isinstance(built, Binary):
            if not demanded:
                return {}
            raise DeviceError(f"{source.name} does not build for {arch}: {built.reason}")
        found[source.name] = built.path
    return found


def _about(document: Mapping[str, Any]) -> dict[str, str]:
    """What README.txt says of the answer."""
    workload, device = document["workload"], document["device"]
    sizes = ", ".join(f"{name}={value}" for name, value in workload.get("sizes", {}).items())
    said = {"emulated": " (emulated: its times say nothing about a GPU)", "counted": " (counted: nothing was measured)"}
    evidence = said.get(document.get("evidence", ""), "")
    facts = {
        "workload": f"{workload['name']} [{workload['strategy']}]{f' at {sizes}' if sizes else ''}",
        "verdict": document["verdict"],
        "device": f"{device['name']}{evidence}",
        "measured": document.get("found_at"),
    }
    return {name: str(value) for name, value in facts.items() if value}


def _written(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """All of the files; none, where one would take the place of something else."""
    paths = {folder / name: data for name, data in files.items()}
    for path, data in paths.items():
        if path.exists() and not (path.is_file() and path.read_bytes() == data):
            raise RequestError(f"{path} exists already, and is something else; name an empty folder", where="--export")
    for path, data in paths.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as problem:
            raise RequestError(f"cannot be written: {problem.strerror}", where=str(path)) from None
    return list(paths)
