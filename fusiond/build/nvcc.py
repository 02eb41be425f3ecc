"""CUDA C++ to a cubin in two steps: nvcc once per source and architecture, ptxas once more per register cap.

    Source --nvcc--> PTX + names --ptxas--> cubin + facts        a value BuildFailed where either says no

The second step takes a tenth of the first, so a search over register caps costs little; a source that is PTX begins
with it, and `assemblers` says with which ptxas. Everything is answered from the build cache. The key of the first step
holds the text, the flags and the compiler's version; the files that the source includes are found out while compiling,
and checked by content on every later look-up.

Names. A step names a kernel (a buffer a variable) as the source does (`ns::maxpool<float, 5>`). A line is appended
to the source for each entry and symbol, a device constant that holds its address; it makes the compiler instantiate
a template, and its initialiser in the PTX is the mangled name. The lines are then taken out of the PTX again, so
that the kernels are compiled as they stand, and a table of names goes into the binary
(`fusiond.model.gpu.entry_table`).

Register caps. `--maxrregcount` is silently ignored for a kernel with `__launch_bounds__` (`.maxntid` in the PTX),
so the cap is written into the PTX as `.maxnreg`, and the registers that ptxas reports are checked against it.
"""

import dataclasses
import functools
import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusiond.build import assemblers, compiler, ptx_entries, ptxas
from fusiond.build.cache import BuildCache, default_folder, of_folder
from fusiond.build.working import working_folder
from fusiond.model.keys import content_key, plain, text_key
from fusiond.model.nouns import CompileFacts, NamedPtx
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Source, SourceKind, SourceLanguage
from fusiond.model.ptx.tree import PtxError

NVCC_SECS = 300.0  #: Ten times what the slowest kernel of the papers needs; a compiler that takes longer has hung
LEAST_CAP = 16  #: Lower caps are raised to the ABI's minimum anyway
_RECIPE = 2  #: Part of every key: raise it when the same input comes to give another output here
_MISSING = (
    "no nvcc: pip install 'fusiond[nvcc]', or install the CUDA toolkit (12.0 or later, with ptxas beside nvcc) and put"
    " its bin folder on PATH, or set FUSIOND_NVCC=/path/to/nvcc or CUDA_HOME"
)


# --- the compiler ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """A CUDA compiler that was found."""

    nvcc: Path
    ptxas: Path
    version: str  #: `13.0.88`
    root: Path  #: The toolkit's folder; headers below it are covered by the version


def find() -> Toolkit | None:
    """The compiler to use: FUSIOND_NVCC, else `nvcc` on PATH, in CUDA_HOME, CUDA_PATH, or /usr/local/cuda, else the one
    that pip has installed.

    None when there is none (or it does not run, or has no ptxas beside it). Looked for once per environment."""
    variables = ("FUSIOND_NVCC", "PATH", "CUDA_HOME", "CUDA_PATH")
    return _find(tuple(os.environ.get(name, "") for name in variables))


@functools.lru_cache(maxsize=8)
def _find(environment: tuple[str, ...]) -> Toolkit | None:
    named, path, *homes = environment
    installed = compiler.installed("nvcc", path, homes)
    for nvcc in [named] if named else [*installed, *compiler.in_wheel("nvidia", "cu[1-9]*/bin/nvcc")]:
        if not os.access(nvcc, os.X_OK):
            continue
        version = re.search(r"\bV(\d+(?:\.\d+)+)", compiler.ask([nvcc, "--version"]))
        # nvcc on PATH may be a link or a script; it knows itself where its toolkit is.
        here = re.search(r"_HERE_=(.*)", compiler.ask([nvcc, "--dryrun", "-ptx", "-x", "cu", os.devnull]))
        if version is None or here is None:
            continue
        ptxas = Path(here.group(1)) / "ptxas"
        if os.access(ptxas, os.X_OK):
            root = ptxas.resolve().parent.parent
            return Toolkit(nvcc=Path(nvcc), ptxas=ptxas, version=version.group(1), root=root)
    return None


def version() -> str | None:
    """The compiler's version, `13.0.88`; None where there is none."""
    toolkit = find()
    return toolkit.version if toolkit else None


def missing() -> str | None:
    """What to do when there is no compiler, in one line; None when there is one."""
    if find():
        return None
    named = os.environ.get("FUSIOND_NVCC")
    return f"FUSIOND_NVCC={named} is not an nvcc that runs, with ptxas beside it" if named else _MISSING


def missing_for(sources: Iterable[Source]) -> str | None:
    """The same for what these sources need: PTX needs a ptxas only."""
    languages = {each.language for each in sources if each.kind is SourceKind.DEVICE}
    line = missing() if SourceLanguage.CUDA in languages else None
    if line is None and SourceLanguage.PTX in languages and not assemblers.found():
        return assemblers.MISSING
    return line


# --- what is built --------------------------------------------------------------------------------------


def ptx(source: Source, arch: str, *, cache: BuildCache | None = None) -> str | BuildFailed:
    """The text alone of `named_ptx`."""
    found = named_ptx(source, arch, cache=cache)
    return found if isinstance(found, BuildFailed) else found.text


def named_ptx(source: Source, arch: str, *, cache: BuildCache | None = None) -> NamedPtx | BuildFailed:
    """The PTX of a source, and what its entries and symbols are called in it."""
    if source.language is SourceLanguage.PTX:
        return _as_written(source)
    toolkit = find()
    if toolkit is None:
        return BuildFailed(reason=_MISSING)
    try:
        return _ptx(toolkit, cache or of_folder(default_folder()), source, source.target(arch))
    except PtxError as problem:  # not kept: the parser may learn it
        return BuildFailed(reason=f"{_file_name(source)}: nvcc writes what is not understood here: {problem}")


PORTABLE = "sm_80"  #: What PTX is made for where nobody says for which GPU: all from this one on run it
_ARCH = re.compile(r"--?(?:arch|gpu-architecture)=((?:sm|compute)_\d+[af]?)$")


def compiled(source: Source) -> NamedPtx | BuildFailed | None:
    """`fusiond.strategy.Inputs.compiled`: its PTX, for the architecture that its flags name, else for `PORTABLE`."""
    if find() is None:
        return None
    named = [match[1] for flag in source.flags if (match := _ARCH.match(flag))]
    flags = tuple(flag for flag in source.flags if not _ARCH.match(flag))
    arch = named[-1].replace("compute", "sm") if named else PORTABLE
    return named_ptx(dataclasses.replace(source, flags=flags), arch)


def build(source: Source, arch: str, *, cache: BuildCache | None = None) -> ptxas.Cubin | BuildFailed:
    """The cubin of a source under its register cap. Safe to call from several threads and processes."""
    arch = source.target(arch)
    front = named_ptx(source, arch, cache=cache)
    if isinstance(front, BuildFailed):
        return front
    assembly = _assembly(source, front, arch)
    if isinstance(assembly, BuildFailed):
        return assembly
    options = _split_flags(source.flags)
    if isinstance(options, BuildFailed):
        return options
    caps = [each for each in (source.register_cap, options.register_cap) if each is not None]
    cap = min(caps, default=None)
    if cap is not None and cap < LEAST_CAP:
        return BuildFailed(reason=f"a register cap of {cap}; the least that is kept is {LEAST_CAP}")
    recipe = [_RECIPE, "cubin", front.text, front.names, front.symbols, options.ptxas, cap, arch, assembly.version]
    key = content_key(recipe if not assembly.file else [*recipe, assembly.file])
    try:
        return ptxas.cubin(assembly, cache or of_folder(default_folder()), key, options.ptxas, cap, arch)
    except PtxError as problem:
        return BuildFailed(reason=f"{_file_name(source)}: {problem}")


def _assembly(source: Source, front: NamedPtx, arch: str) -> ptxas.Assembly | BuildFailed:
    if source.language is SourceLanguage.PTX:
        chosen = assemblers.choose(front.text, arch, _file_name(source))
        if isinstance(chosen, BuildFailed):
            return chosen
        return ptxas.Assembly(front=front, ptxas=chosen.path, version=chosen.version, file=_file_name(source))
    toolkit = find()
    assert toolkit is not None
    return ptxas.Assembly(front=front, ptxas=toolkit.ptxas, version=toolkit.version, file="")


class NvccFacts:
    """`fusiond.strategy.Facts` of one architecture: entry -> facts, BuildFailed, or None where no compiler is
    there."""

    def __init__(self, arch: str, *, cache: BuildCache | None = None) -> None:
        self.arch = arch
        self._cache = cache

    def __call__(self, source: Source) -> Mapping[str, CompileFacts] | BuildFailed | None:
        there = assemblers.found() if source.language is SourceLanguage.PTX else find()
        if not there:
            return None
        built = build(source, self.arch, cache=self._cache)
        return built if isinstance(built, BuildFailed) else built.facts


# --- flags ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """A source's flags, sorted by who must see them."""

    nvcc: tuple[str, ...]
    ptxas: tuple[str, ...]
    register_cap: int | None
    only_nvcc: tuple[str, ...]  #: Those that mean nothing to what is PTX already


_OURS = re.compile(
    r"-{1,2}(arch|gpu-architecture|gencode|generate-code|code|gpu-code|o|output-file|ptx|cubin|fatbin|c|compile|dc|rdc"
    r"|relocatable-device-code|dlink|lib|run|E|M|MD|MF|keep|dryrun|x)(=.*)?$"
)
_PTXAS = re.compile(r"(?:-Xptxas|--?ptxas-options)(?:=(.*))?$")
_CAP = re.compile(r"--?maxrregcount(?:=(\d+))?$")
_FMAD_OFF = re.compile(r"--?fmad=false$")


def _split_flags(flags: Sequence[str]) -> _Options | BuildFailed:
    """Options of the second step are told apart from those of the first; the ones fusiond sets itself are refused."""
    front: list[str] = []
    back: list[str] = []
    only_front: list[str] = []
    cap: int | None = None
    rest = [word for flag in flags for word in shlex.split(flag)]
    while rest:
        flag = rest.pop(0)
        if match := _PTXAS.match(flag):
            value = match.group(1) if match.group(1) is not None else (rest.pop(0) if rest else "")
            back += [each for each in value.split(",") if each]
        elif match := _CAP.match(flag):
            number = match.group(1) or (rest.pop(0) if rest else "")
            if not number.isdigit():
                return BuildFailed(reason=f"the flag {flag} wants a number")
            cap = int(number)
        elif _OURS.match(flag):
            return BuildFailed(reason=f"the flag {flag} cannot be given: fusiond says what is built, for which GPU")
        else:
            front.append(flag)
            if flag in ("-lineinfo", "--generate-line-info"):
                back.append("--generate-line-info")
            elif flag in ("-G", "--device-debug"):
                back.append("--device-debug")
            elif _FMAD_OFF.match(flag):
                back += ["--fmad", "false"]
            else:
                only_front.append(flag)
    return _Options(nvcc=tuple(front), ptxas=tuple(back), register_cap=cap, only_nvcc=tuple(only_front))


# --- first step: nvcc -----------------------------------------------------------------------------------

_TABLE_LINE = re.compile(r"^\.global \.align 8 \.u64 fusiond_(\w+_\d+) = (?:generic\()?([\w$]+)\)?;\n", re.MULTILINE)
_ANONYMOUS = re.compile(r"_GLOBAL__N__[0-9a-f]{8}_")


def _ptx(toolkit: Toolkit, cache: BuildCache, source: Source, arch: str) -> NamedPtx | BuildFailed:
    if source.kind is not SourceKind.DEVICE:
        return BuildFailed(reason=f"source {source.name!r} is host code, nvcc is not asked to build it")
    options = _split_flags(source.flags)
    if isinstance(options, BuildFailed):
        return options
    said = [source.text, source.entries, source.symbols, options.nvcc, source.defines, source.include_dirs]
    key = content_key([_RECIPE, "ptx", *said, _file_name(source), arch, toolkit.version])
    known = _known_ptx(cache, key)
    if known is not None:
        return known
    made = _run_nvcc(toolkit, source, options, arch)
    if isinstance(made, compiler.Retriable):
        return made.failed
    if isinstance(made, BuildFailed):
        # A failure is kept only where no file but the source can be the cause: a missing header may come.
        looks_elsewhere = any(each.startswith(("-I", "--include-path", "-include")) for each in options.nvcc)
        return made if source.include_dirs or looks_elsewhere else cache.put_failure(key, made)
    found, included = made
    # One file, so that a text never meets the names of another run.
    entry = {**plain(found), "included": plain(included)}
    cache.put(key, ".json", json.dumps(entry))
    return found


def _known_ptx(cache: BuildCache, key: str) -> NamedPtx | BuildFailed | None:
    """The answer of an earlier run, if the files that it included are still the same."""
    failed = cache.failure(key)
    if failed is not None:
        return failed
    path = cache.get(key, ".json")
    if path is None:
        return None
    try:
        entry = json.loads(path.read_text())
        if any(_digest(path) != digest for path, digest in entry["included"].items()):
            return None
        del entry["included"]
        return NamedPtx(**entry)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _run_nvcc(
    toolkit: Toolkit, source: Source, options: _Options, arch: str
) -> tuple[NamedPtx, Mapping[str, str]] | BuildFailed | compiler.Retriable:
    name = _file_name(source)
    with working_folder("nvcc") as work:
        (work / name).write_text(_with_table(source))
        command = [str(toolkit.nvcc), "-ptx", f"-arch={arch}", "-MD", "-MF", "deps", "-o", "out.ptx"]
        command += [f"-I{each}" for each in source.include_dirs]
        command += [f"-D{key}={value}" if value != "" else f"-D{key}" for key, value in source.defines]
        done = compiler.attempt([*command, *options.nvcc, name], work, NVCC_SECS)
        if isinstance(done, compiler.Retriable):
            return done
        messages = compiler.readable(done.stderr + done.stdout, work)
        if done.returncode != 0 or not (work / "out.ptx").is_file():
            return compiler.refused(done, messages, _first_error)
        # An anonymous namespace is named after the folder of this run; equal sources are to give equal text.
        text = _ANONYMOUS.sub(f"_GLOBAL__N__{text_key(source.text)[:8]}_", (work / "out.ptx").read_text())
        included = _included(work / "deps", work, toolkit.root)
    found = dict(_TABLE_LINE.findall(text))
    names = {entry: found.get(f"entry_{index}", "") for index, entry in enumerate(source.entries)}
    symbols = {symbol: found.get(f"symbol_{index}", "") for index, symbol in enumerate(source.symbols)}
    text = _TABLE_LINE.sub("", text)
    kernels = ptx_entries.parameters(text)
    lost = [entry for entry, mangled in names.items() if mangled not in kernels]
    if lost:
        return BuildFailed(reason=f"{name}: {', '.join(lost)} is not a kernel (__global__ function)", log=messages)
    lost = [symbol for symbol, mangled in symbols.items() if not mangled]
    if lost:
        return BuildFailed(reason=f"{name}: {', '.join(lost)} is not a variable of the device", log=messages)
    return NamedPtx(text=text, names=names, symbols=symbols, log=messages), included


_NVCC_ERROR = re.compile(r"^(.*?)(?:\((\d+)\)|:(\d+)(?::\d+)?): (?:catastrophic |fatal )?error(?: #[\w-]+)?: (.*)$")
_NVCC_FATAL = re.compile(r"^nvcc (?:fatal|error)\s*:\s*(.*)$")


def _first_error(lines: Iterable[str]) -> str | None:
    """The first error as `file:line: message`; one in a line that was appended only where there is no other."""
    appended = None
    for line in lines:
        if match := _NVCC_ERROR.match(line):
            file, brackets, colon, message = match.groups()
            if not file.startswith(("entry ", "symbol ")):
                return f"{file}:{brackets or colon}: {message}"
            appended = appended or f"{file}: {message}"
        elif (match := _NVCC_FATAL.match(line)) or (match := ptxas.ERROR.match(line)):
            return match.group(match.lastindex or 0)
    return appended


_KERNEL_OF = """\
template <class... A> __host__ __device__ constexpr auto fusiond_kernel_of(void (*kernel)(A...)) { return kernel; }"""
"""Of functions that share a name (CUDA has a `norm` of its own), the kernel is the one that returns nothing."""


def _with_table(source: Source) -> str:
    """The source with one constant per entry and symbol appended; errors in those lines name it."""
    lines = [source.text.rstrip("\n"), "", _KERNEL_OF]
    for kind, names in (("entry", source.entries), ("symbol", source.symbols)):
        for index, name in enumerate(names):
            quoted = re.sub(r'["\\\n]', "'", name)
            lines.append(f'#line 1 "{kind} {quoted}"')
            address = f"fusiond_kernel_of(&{name})" if kind == "entry" else f"&{name}"
            lines.append(f"__device__ const void* const fusiond_{kind}_{index} = (const void*)({address});")
    return "\n".join(lines) + "\n"


def _file_name(source: Source) -> str:
    """As it stands in messages; relative, so that no folder of this run gets into the result."""
    return re.sub(r"[^\w.-]", "_", source.name).lstrip(".-") + source.suffix


@functools.lru_cache(maxsize=32)  # what a plan builds is asked for several times
def _as_written(source: Source) -> NamedPtx | BuildFailed:
    """PTX that the user has, or that a strategy has written: what it calls its kernels are their names."""
    file, options = _file_name(source), _split_flags(source.flags)
    if isinstance(options, BuildFailed):
        return options
    if options.only_nvcc:
        return BuildFailed(
            reason=f"{file}: the flag {options.only_nvcc[0]} is for C++, and this is PTX: -Xptxas and -maxrregcount are"
            " for it"
        )
    try:
        module = ptx_entries.module(source.text)
    except PtxError as problem:
        return BuildFailed(reason=f"{file}:{problem.line}: {problem.reason}")
    known = {"kernel (.entry)": list(module.entries), "variable": [each.name for each in module.variables]}
    for kind, wanted in (("kernel (.entry)", source.entries), ("variable", source.symbols)):
        lost = [each for each in wanted if each not in known[kind]]
        if lost:
            there = ", ".join(known[kind]) or "none"
            return BuildFailed(reason=f"{file}: {', '.join(lost)} is not a {kind} of it; there is {there}")
    names, symbols = ({each: each for each in given} for given in (source.entries, source.symbols))
    return NamedPtx(text=source.text, names=names, symbols=symbols, log="")


# --- what a source includes -----------------------------------------------------------------------------


def _included(deps: Path, work: Path, toolkit: Path) -> Mapping[str, str]:
    """Path -> digest of each file that was included, without the toolkit's and the system's own."""
    if not deps.is_file():
        return {}
    text = deps.read_text().partition(":")[2].replace("\\\n", " ")
    paths = [word.replace("\\ ", " ") for word in re.findall(r"(?:\\.|\S)+", text)]
    found = {}
    for path in paths:
        real = (work / path).resolve()
        ours = real.is_relative_to(work.resolve()) or path.startswith(("entry ", "symbol "))
        if ours or any(real.is_relative_to(each) for each in (toolkit, Path("/usr/include"), Path("/usr/lib"))):
            continue
        content = _digest(str(real))
        if content is not None:
            found[str(real)] = content
    return found


def _digest(path: str) -> str | None:
    """Of a file's content now; None where it cannot be read."""
    try:
        return text_key(Path(path).read_bytes())
    except OSError:
        return None
