"""PTX to a cubin, once per register cap. The report of ptxas goes into the build cache beside the cubin."""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusiond.build import compiler, ptx_entries
from fusiond.build.cache import BuildCache
from fusiond.build.working import working_folder
from fusiond.model.gpu.entry_table import SYMBOL, EntryName, EntryTable, table_bytes
from fusiond.model.gpu.ptxas_report import parse_report
from fusiond.model.keys import plain
from fusiond.model.nouns import CompileFacts, NamedPtx
from fusiond.model.outcomes import BuildFailed
from fusiond.model.ptx import rewrite

log = logging.getLogger(__name__)

PTXAS_SECS = 300.0  #: Ten times what the slowest kernel of the papers needs; a compiler that takes longer has hung


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """One source, built for one architecture and one register cap."""

    path: Path
    facts: Mapping[str, CompileFacts]  #: Entry as written in the source -> what ptxas reported
    names: Mapping[str, str]  #: Entry as written in the source -> mangled name
    log: str  #: Warnings; empty when there were none


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A PTX text, and what assembles it."""

    front: NamedPtx
    ptxas: Path
    version: str
    file: str  #: What messages call a text that nvcc has not written; empty for one that it has

    def place(self, line: int) -> str:
        """What messages call a line: `softmax.ptx:12: softmax`, the entry behind it."""
        if not self.file or not line:
            return self.file or "ptxas"
        heads = [each for each in ptx_entries.module(self.front.text).functions if each.line <= line]
        return f"{self.file}:{line}" + (f": {heads[-1].name}" if heads else "")


def cubin(
    assembly: Assembly, cache: BuildCache, key: str, options: Sequence[str], cap: int | None, arch: str
) -> Cubin | BuildFailed:
    """What is assembled under a cap, from the cache where `key` is in it."""
    failed = cache.failure(key)
    if failed is not None:
        return failed
    binary, facts = cache.get(key, ".cubin"), cache.get(key, ".facts")
    if binary is not None and facts is not None:
        try:
            return _cubin_of(binary, json.loads(facts.read_text()), assembly.front)
        except (OSError, ValueError, KeyError, TypeError):
            log.warning("%s cannot be read, building again", facts)
    made = _run_ptxas(assembly, options, cap, arch)
    if isinstance(made, compiler.Retriable):
        return made.failed
    if isinstance(made, BuildFailed):
        return cache.put_failure(key, made)
    data, reported, messages = made
    binary = cache.put(key, ".cubin", data)
    entry = {"facts": plain(reported), "log": messages}
    cache.put(key, ".facts", json.dumps(entry))
    return _cubin_of(binary, entry, assembly.front)


def _cubin_of(binary: Path, entry: Mapping[str, Any], front: NamedPtx) -> Cubin:
    facts = {name: CompileFacts(**each) for name, each in entry["facts"].items()}
    return Cubin(path=binary, facts=facts, names=front.names, log="\n".join(filter(None, (front.log, entry["log"]))))


ERROR = re.compile(r"^ptxas(?:-\w+)? (?:\S+, line (\d+); )?(?:error|fatal)\s*:\s*(.*)$")


def _first_error(lines: Iterable[str], place: Callable[[int], str]) -> str | None:
    """The first error; `place` says what to call a line of the PTX, 0 for errors that name none."""
    for line in lines:
        if match := ERROR.match(line):
            return f"{place(int(match.group(1) or 0))}: {match.group(2)}"
    return None


def _run_ptxas(
    assembly: Assembly, options: Sequence[str], cap: int | None, arch: str
) -> tuple[bytes, Mapping[str, CompileFacts], str] | BuildFailed | compiler.Retriable:
    front = assembly.front
    text = front.text if cap is None else rewrite.with_register_cap(front.text, cap)
    with working_folder("ptxas") as work:
        (work / "in.ptx").write_text(text + _table_ptx(front))
        command = [str(assembly.ptxas), "-v", f"-arch={arch}", *options, "in.ptx", "-o", "out.cubin"]
        done = compiler.attempt(command, work, PTXAS_SECS)
        if isinstance(done, compiler.Retriable):
            return done
        messages = compiler.readable(done.stderr + done.stdout, work)
        if done.returncode != 0 or not (work / "out.cubin").is_file():
            for entry, mangled in front.names.items():
                messages = messages.replace(f"'{mangled}'", f"'{entry}'")
            return compiler.refused(done, messages, lambda lines: _first_error(lines, assembly.place))
        data = (work / "out.cubin").read_bytes()
    reported = parse_report(messages)
    facts = {}
    for entry, mangled in front.names.items():
        if mangled not in reported:
            return BuildFailed(reason=f"ptxas reported nothing about {entry} ({mangled})", log=messages)
        each = reported[mangled]
        if cap is not None and each.registers > cap:
            return BuildFailed(reason=f"{entry} uses {each.registers} registers under a cap of {cap}", log=messages)
        facts[entry] = CompileFacts(**{**plain(each), "entry": entry})
    ignored = next((line for line in messages.splitlines() if "setmaxnreg" in line), None)
    if ignored is not None:  # "setmaxnreg ignored ...": the kernel would spill, or have none of what it was built for
        return BuildFailed(reason=" ".join(ignored.split()), log=messages)
    return data, facts, "\n".join(line for line in messages.splitlines() if "warning" in line)


def _table_ptx(front: NamedPtx) -> str:
    """The entry table as a constant array that no kernel refers to."""
    parameters = ptx_entries.parameters(front.text)
    entries = {
        name: EntryName(mangled=mangled, parameters=parameters[mangled]) for name, mangled in front.names.items()
    }
    data = table_bytes(EntryTable(entries=entries, symbols=front.symbols))
    return f"\n.visible .global .align 1 .b8 {SYMBOL}[{len(data)}] = {{{', '.join(map(str, data))}}};\n"
