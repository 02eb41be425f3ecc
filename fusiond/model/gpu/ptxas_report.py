"""Reads the report of `ptxas -v`: registers, shared memory, barriers, stack and spills of each entry.

    ptxas info    : Compiling entry function 'k' for 'sm_90'
    ptxas info    : Function properties for k
        176 bytes stack frame, 292 bytes spill stores, 292 bytes spill loads
    ptxas info    : Used 40 registers, used 1 barriers, 176 bytes cumulative stack size, 2048 bytes smem
    ptxas info    : Function properties for _Z1ffi
        0 bytes stack frame, 44 bytes spill stores, 44 bytes spill loads

Spill bytes stand nowhere else: not in the binary, not in the driver's attributes.
"""

import dataclasses
import re
from collections.abc import Mapping

from fusiond.model.nouns import CompileFacts

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")
_BARRIERS = re.compile(r"used (\d+) barriers")
_CUMULATIVE = re.compile(r"(\d+) bytes cumulative stack size")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_CONSTANT = re.compile(r"(\d+) bytes cmem\[\d+\]")


def parse_report(log: str) -> Mapping[str, CompileFacts]:
    """Mangled name -> facts, for every entry that the log reports.

    A device function that is called and not inlined has a frame of its own, and the log does not say by whom it is
    called. Its spills are added to every entry that reports a cumulative stack (that is, makes calls): an upper
    bound."""
    found: dict[str, CompileFacts] = {}
    calling: set[str] = set()
    called_stores = called_loads = 0
    entry = arch = ""
    function = ""
    frames: dict[str, tuple[int, int, int]] = {}
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, arch = match.groups()
        elif match := _FUNCTION.search(line):
            function = match.group(1)
        elif match := _FRAME.search(line):
            stack, stores, loads = map(int, match.groups())
            frames[function] = (stack, stores, loads)
            if function != entry:
                called_stores += stores
                called_loads += loads
        elif (match := _USED.search(line)) and entry:
            registers, rest = int(match.group(1)), match.group(2)
            stack, stores, loads = frames.get(entry, (0, 0, 0))
            if cumulative := _CUMULATIVE.search(rest):
                calling.add(entry)
                stack = max(stack, int(cumulative.group(1)))
            found[entry] = CompileFacts(
                arch=arch,
                entry=entry,
                registers=registers,
                shared_bytes=_first(_SHARED, rest),
                barriers=_first(_BARRIERS, rest),
                stack_bytes=stack,
                spill_store_bytes=stores,
                spill_load_bytes=loads,
                constant_bytes=sum(int(each) for each in _CONSTANT.findall(rest)),
            )
    for name in calling:
        facts = found[name]
        found[name] = dataclasses.replace(
            facts,
            spill_store_bytes=facts.spill_store_bytes + called_stores,
            spill_load_bytes=facts.spill_load_bytes + called_loads,
        )
    return found


def _first(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match.group(1)) if match else 0
