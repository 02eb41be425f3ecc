"""g++: CUDA C++ to shared objects for the cpu device, and host sources to shared objects for any device."""

import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fusiond.build import compiler as compilers
from fusiond.build.cache import BuildCache, default_folder, of_folder
from fusiond.build.cpu import commands, lowering
from fusiond.build.working import working_folder
from fusiond.model.errors import DeviceError, StoreError
from fusiond.model.keys import content_key, text_key
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Source, SourceKind, SourceLanguage

TIMEOUT_SECS = 120.0
OWN_SECS = 300.0  #: For fusiond's own sources
_MISSING = "no C++ compiler: install g++ (Debian, Ubuntu: apt install g++), or name one in FUSIOND_CXX"
_NO_PLACE: set[Path] = set()  #: Precompiled preludes that could not be kept: not made again in this process
_HOST_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fno-strict-aliasing", "-ffp-contract=off")


def find() -> str | None:
    """The compiler: FUSIOND_CXX, else g++ on the PATH; None when there is none."""
    return shutil.which(os.environ.get("FUSIOND_CXX") or "g++")


def missing() -> str | None:
    """What is missing, with the remedy; None when the compiler is there."""
    return None if find() else _MISSING


@functools.cache
def version(compiler: str) -> str:
    """The compiler's own first line, such as `g++ (Debian 12.2.0) 12.2.0`. DeviceError when it says nothing."""
    line = compilers.ask([compiler, "--version"]).partition("\n")[0]
    if not line:
        raise DeviceError(f"{compiler} does not run: it says nothing to --version")
    return line


@functools.cache
def _runtime_key(compiler: str) -> str:
    """Changes with the compiler and with every file that makes an object what it is."""
    files = [*sorted(commands.RUNTIME.iterdir()), Path(commands.__file__), Path(lowering.__file__), Path(__file__)]
    texts = [(path.name, text_key(path.read_bytes())) for path in files if path.is_file()]
    return content_key([version(compiler), texts])


def once(
    name: str, of: object, make: Callable[[str, Path], Path], *, suffix: str = ".so", cache: BuildCache | None = None
) -> Path:
    """A file of fusiond's own, from the cache where it was built before. `of`: what makes it what it is beside the
    compiler. `make` builds it with that compiler in a folder, and says which file it is. DeviceError without g++."""
    compiler = _compiler()
    cache = cache or of_folder(default_folder())
    key = content_key([name, version(compiler), of])
    with cache.turn(key, suffix) as found:
        if found is not None:
            return found
        with working_folder(name) as work:
            return cache.put(key, suffix, make(compiler, work).read_bytes())


def demand(what: str, command: Sequence[str], work: Path) -> None:
    """Run a compiler on sources of fusiond's own. DeviceError, with `what`, where they do not build."""
    done = compilers.run(command, work, OWN_SECS)
    if done.returncode != 0:
        raise DeviceError(f"{what} does not build: {done.stderr.strip()[:500]}")


def scheduler(cache: BuildCache | None = None) -> Path:
    """The scheduler library of the cpu device; built on first use. DeviceError when that fails."""
    key, failing = _runtime_key(_compiler()), "the cpu device's scheduler does not build"
    return once("scheduler", key, functools.partial(_made, commands.library, failing), cache=cache)


def race_host() -> Path:
    """The executable that runs a launch under ThreadSanitizer; built on first use. DeviceError when that fails."""
    compiler = _compiler()
    make = functools.partial(_made, commands.host, f"no race checks: {compiler} has no ThreadSanitizer")
    found = once("race-host", _runtime_key(compiler), make, suffix=".exe")
    if not os.access(found, os.X_OK):  # entries of the cache are plain files
        found.chmod(0o700)
    return found


def _made(command: Callable[..., list[str]], failing: str, compiler: str, work: Path) -> Path:
    """What a command of `commands` builds. DeviceError, which begins with `failing`, where it builds nothing."""
    outcome = _run(command(work / "out", cxx=compiler), work)
    if outcome is not None:
        failed = outcome if isinstance(outcome, BuildFailed) else outcome.failed
        raise DeviceError(f"{failing}: {failed.reason}")
    return work / "out"


def build(source: Source, *, cache: BuildCache | None = None, races: bool = False) -> Path | BuildFailed:
    """The shared object of a source, from the cache where it was built before; `races`: the one that `race_host`
    runs. DeviceError when there is no compiler."""
    if source.language is SourceLanguage.PTX:
        return BuildFailed(reason=f"{source.name} is PTX, which g++ does not read; the cpu device interprets it")
    compiler = _compiler()
    cache = cache or of_folder(default_folder())
    key = content_key(["racing 3" if races else "object 3", _runtime_key(compiler), source, _included(source)])
    known = cache.get(key, ".so") or cache.failure(key)
    if known is not None:
        return known
    with working_folder("gxx") as work:
        text = _unit(source)
        if isinstance(text, BuildFailed):
            return cache.put_failure(key, text)
        path, out = work / f"{source.name}.cpp", work / "object.so"
        path.write_text(text, encoding="utf-8")
        if source.kind is SourceKind.DEVICE and not races:
            _precompiled(compiler, cache, work)
        try:
            outcome = _run(_command(compiler, source, path, out, races=races), work)
        except compilers.UsedUp as fault:  # not kept: another day there may be more
            return BuildFailed(reason=str(fault))
        if outcome is not None:
            return cache.put_failure(key, outcome) if isinstance(outcome, BuildFailed) else outcome.failed
        return cache.put(key, ".so", out.read_bytes())


def exported(source: Source, entry: str) -> str:
    """The name under which an entry of a device source is exported; PTX has its own."""
    return entry if source.language is SourceLanguage.PTX else f"entry_{source.entries.index(entry)}"


def exported_symbol(source: Source, symbol: str) -> str:
    """The name under which a variable of a device source is exported; PTX has its own."""
    return symbol if source.language is SourceLanguage.PTX else f"symbol_{source.symbols.index(symbol)}"


def _compiler() -> str:
    compiler = find()
    if compiler is None:
        raise DeviceError(_MISSING)
    return compiler


def _unit(source: Source) -> str | BuildFailed:
    if source.kind is SourceKind.HOST:
        return source.text
    try:
        lowered = lowering.lower(source.text)
    except lowering.LoweringError as problem:
        return BuildFailed(reason=f"{source.name}: {problem}")
    entries = {exported(source, entry): entry for entry in source.entries}
    symbols = {exported_symbol(source, symbol): symbol for symbol in source.symbols}
    return commands.translation_unit(lowered, entries, symbols, name=f"{source.name}.cu", defines=source.defines)


def _command(compiler: str, source: Source, path: Path, out: Path, *, races: bool = False) -> list[str]:
    includes = [f"-I{folder}" for folder in source.include_dirs]
    if source.kind is SourceKind.HOST:
        defines = [f"-D{name}={value}" for name, value in source.defines]
        return [compiler, *_HOST_FLAGS, *source.flags, *defines, *includes, str(path), "-o", str(out)]
    return commands.kernel(path, out, cxx=compiler, flags=includes, precompiled=path.parent, sanitize=races)


def _precompiled(compiler: str, cache: BuildCache, work: Path) -> None:
    """Put the precompiled prelude into `work`: it saves half of the time of a small kernel. Where it cannot be had, or
    does not suit (other macros), the compiler reads the text instead."""
    key = content_key(["prelude", _runtime_key(compiler)])
    place = cache.path(key, ".gch")
    with cache.turn(key, ".gch") as found:
        if found is None and place not in _NO_PLACE and cache.failure(key) is None:
            with working_folder("gxx") as folder:
                outcome = _run(commands.header(folder, cxx=compiler), folder)
                try:
                    if outcome is None:
                        found = cache.put(key, ".gch", (folder / f"{commands.PRELUDE}.gch").read_bytes())
                    elif isinstance(outcome, BuildFailed):
                        cache.put_failure(key, outcome)
                except StoreError:  # it is large, and an object may well have room
                    _NO_PLACE.add(place)
    if found is not None:
        (work / f"{commands.PRELUDE}.gch").symlink_to(found.absolute())


def _included(source: Source) -> list[tuple[str, str]]:
    """Every file in the include folders: an edited header must not be answered by an old object."""
    return [
        (str(path.relative_to(folder)), text_key(path.read_bytes()))
        for folder in source.include_dirs
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and path.suffix in (".h", ".hpp", ".cuh", ".inc", ".inl", ".cu")
    ]


def _run(command: Sequence[str], work: Path) -> BuildFailed | compilers.Retriable | None:
    """None when it built. Raises MachineFault: nothing is known about the source then."""
    try:
        done = compilers.run(command, work, TIMEOUT_SECS)
    except subprocess.TimeoutExpired:
        return compilers.Retriable(BuildFailed(reason=f"g++ was still busy after {TIMEOUT_SECS:.0f} s"))
    return None if done.returncode == 0 else compilers.refused(done, done.stderr, _first_error)


def _first_error(lines: Iterable[str]) -> str | None:
    """As `file:line: message`."""
    reason = next((line for line in lines if "error:" in line), None)
    if reason is None:
        return None
    place, _, text = reason.rpartition(" error: ")
    file, _, position = place.rpartition("/")[2].partition(":")
    line = position.partition(":")[0]
    where = f"{file}:{line}: " if line.isdigit() else ""
    return f"{where}{text.strip() or reason}"[:500]
