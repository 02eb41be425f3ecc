"""`export`: the files of an export folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusiond.build.exporting import adapters, layout
from fusiond.build.exporting.adapters import space
from fusiond.build.exporting.header import header
from fusiond.build.exporting.implementation import implementation
from fusiond.build.exporting.readme import compile_options, readme
from fusiond.model.program import Program, SourceKind, encode, homes, host_steps

LAUNCHER = Path(__file__).with_name("launch.py")


def export(
    program: Program, *, about: Mapping[str, Any], binaries: Mapping[str, Path], arch: str | None
) -> Mapping[str, bytes]:
    """File name -> content.

    `about` says what README.txt tells of the answer (`workload`, `verdict`, `device`, ...: whatever there is, as text).
    `binaries`: source name -> what was built of it, for `arch`; there may be none. ValueError, in one line, for a
    program that cannot be called from outside."""
    for home in homes(program):
        layout.giver(program, home)
    name = file_stem(program)
    texts = {
        "plan.json": plan(program, arch=arch),
        f"{name}.h": header(program),
        f"{name}.cpp": implementation(program, f"{name}.h"),
        "launch.py": LAUNCHER.read_text(encoding="utf-8"),
    }
    files = {}
    for source in program.sources:
        texts[adapters.file_name(source)] = source.text
        built = Path(binaries[source.name]).read_bytes() if source.name in binaries else b""
        texts[adapters.adapter_name(source)] = adapters.adapter(program, source, built)
        if built:
            ending = f".{arch}.cubin" if source.kind is SourceKind.DEVICE else ".so"
            files[f"{source.name}{ending}"] = built
    texts["README.txt"] = readme(program, about, [*texts, *files], arch=arch)
    return {**{file: text.encode() for file, text in texts.items()}, **files}


def file_stem(program: Program) -> str:
    """What the header and the implementation are called; no two programs share it."""
    return f"launch_{space(program).partition('_')[2]}"


def plan(program: Program, *, arch: str | None) -> str:
    """plan.json: the Program, its key, and what else the launcher needs. A reader of Programs skips that."""
    more = {
        "program_key": program.key,
        "arch": arch,
        "graph": layout.in_graph(program),
        "host_steps": sorted(host_steps(program)),
        "optional": sorted(layout.optional(program)),
        "files": {source.name: adapters.file_name(source) for source in program.sources},
        "compile": {source.name: list(compile_options(source)) for source in program.sources},
    }
    return json.dumps({**encode(program), **more}, indent=1, sort_keys=True) + "\n"
