"""`fusiond explain --bundle`: writes a trial as bundles that run without an installation, for a bug report."""

from pathlib import Path

from fusiond.build.exporting.bundle import write_bundle
from fusiond.model.errors import DeviceError, NothingKnown, RequestError
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import BuildFailed, Outcome, Trial
from fusiond.model.program import Program
from fusiond.requests.isolation import registry as plugins
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow


def write(store: Store, row: JobRow, trials: list[Trial], number: int | None, folder: Path) -> list[Path]:
    """Write FOLDER/candidate and FOLDER/baseline of a trial (None: the best one), built for the device it ran on.

    RequestError when the folder is taken or there is no such trial, NothingKnown when it never became a program."""
    trial = _chosen(trials, number)
    info = _device(store, row)
    keys = {"candidate": trial.program_key, "baseline": store.against(row.id, trial.role, trial.sequence)}
    written = []
    for name, key in keys.items():
        if key is None:
            if name == "candidate":
                raise NothingKnown(f"trial {trial.sequence} never became a program: {trial.reason}")
            continue
        program = store.program(key)
        if program is None:
            raise NothingKnown(f"the program of the {name} is not in the store")
        path = folder / name
        if path.exists():
            raise RequestError(f"{path} exists already; name an empty folder", where="--bundle")
        try:
            write_bundle(path, program, _binaries(program, info))
        except OSError as problem:
            raise RequestError(f"cannot write {path}: {problem.strerror}", where="--bundle") from None
        written.append(path)
    return written


def _chosen(trials: list[Trial], number: int | None) -> Trial:
    candidates = [each for each in trials if each.role == "candidate"]
    if number is not None:
        for each in candidates:
            if each.sequence == number:
                return each
        raise RequestError(f"there is no trial {number}; there are {len(candidates)}", where="--trial")
    measured = [each for each in candidates if each.outcome is Outcome.MEASURED]
    if not measured:
        raise NothingKnown("no candidate was measured; name one with --trial")
    return max(measured, key=lambda each: each.ratio or 0.0)


def _device(store: Store, row: JobRow) -> DeviceInfo:
    for each in store.devices():
        if each.info.key == row.device_key:
            return each.info
    raise NothingKnown(f"job {row.id} has not run on any device")


def _binaries(program: Program, info: DeviceInfo) -> dict[str, Path]:
    provider = plugins.load().provider("cuda" if info.arch.startswith("sm_") else info.name)
    found = {}
    for source in program.sources:
        built = provider.build(source, info.arch)
        if isinstance(built, BuildFailed):
            raise DeviceError(f"{source.name} does not build for {info.model}: {built.reason}")
        found[source.name] = built.path
    return found
