"""`fusiond init`: drafts the document of a workload from a source file.

What the file does not say is left to the user. Nothing is measured, and nothing is overwritten unasked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from fusiond.build import nvcc
from fusiond.cli import options, output
from fusiond.model.errors import RequestError
from fusiond.model.inputs import documents
from fusiond.model.inputs.documents import Node
from fusiond.model.nouns import Job
from fusiond.requests.isolation import registry as plugins
from fusiond.requests.jobs import JobInputs
from fusiond.requests.registry import Registry
from fusiond.strategy import Strategy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fusiond.cuda.capture.draft_filling import CapturedKernels


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE[:NAME]", help="scan.cu, scan.cu:block_scan, norm.py:rms_norm")
    parser.add_argument(
        "-I", "--include", action="append", default=[], metavar="DIR", help="where headers are looked for; any number"
    )
    parser.add_argument("--from", dest="capture", metavar="DIR", help="fill in what a capture of the program says")
    parser.add_argument("--output", metavar="FILE.yaml", help="default: NAME.yaml beside the source; - prints it")
    parser.add_argument("--force", action="store_true", help="overwrite a file that is there")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output, nothing else")


def run(arguments: argparse.Namespace) -> int:
    registry = plugins.load()
    path, name = _split(arguments.file, registry)
    captured = _captured(arguments.capture) if arguments.capture else None
    name = captured.instance(name) if captured else name
    strategy = next(each for each in registry.strategies.values() if path.suffix in each.drafts)
    include = [os.path.relpath(Path(each).expanduser(), path.parent) for each in arguments.include]
    whole, text = _drafted(registry, strategy, path, name, tuple(Path(each).as_posix() for each in include))
    root, unknown = documents.drafted(text, "draft")
    kind = next(iter(strategy.names))
    target = Path(arguments.output or path.parent / f"{root.mapping()[kind].text()}.yaml").expanduser()
    if captured:
        text = captured.filled(text, None if arguments.output == "-" else target.parent)
        root, unknown = documents.drafted(text, "draft")
    if arguments.output == "-":
        output.say(*text.splitlines())
        return 0
    here, there = path.parent.resolve(), target.resolve().parent
    if here != there:
        text = _seen_from(text, root.mapping(), here, there)
    if target.exists() and not arguments.force:
        raise RequestError(f"{target} is there already; --force overwrites it", where="--output")
    options.write(target, text, where="--output")
    if arguments.json:
        options.say_json({"wrote": str(target), "strategy": strategy.name, "unknown": [each.key for each in unknown]})
        return 0
    output.say(f"wrote {target}")
    if whole != path:
        output.say(f"from {whole.name}, which {path.name} is a part of")
    if unknown:
        output.say(f'to be filled in, where "{documents.UNKNOWN}" stands:')
        output.say(*(f"  line {each.line}: {each.key}" for each in unknown))
    return 0


def _drafted(
    registry: Registry, strategy: Strategy, path: Path, name: str, folders: tuple[str, ...]
) -> tuple[Path, str]:
    """The draft of a file, or where that is a part of another one beside it, of that. RequestError."""
    job = Job(strategy=strategy.name, request={}, sizes={}, path=str(path))

    def draft(file: Path) -> tuple[Path, str]:
        return file, strategy.draft(str(file), name, JobInputs(registry, job, compiler=nvcc.compiled), folders)

    try:
        return draft(path)
    except RequestError as problem:
        including = _including(path, strategy.drafts)
        if including is None:
            raise
        try:
            return draft(including)
        except RequestError:
            raise _part_of_another(path, including, name, problem) from None


def _captured(folder: str) -> CapturedKernels:
    from fusiond.cuda.capture.draft_filling import CapturedKernels  # for this alone

    return CapturedKernels(Path(folder).expanduser())


def _seen_from(text: str, keys: Mapping[str, Node], here: Path, there: Path) -> str:
    """A draft with the paths of its source and headers as another folder sees them."""
    lines = text.split("\n")
    for key in {"source", "include"} & keys.keys():
        given = keys[key].plain()
        moved = [os.path.relpath(here / each, there) for each in ([given] if isinstance(given, str) else given)]
        lines[keys[key].line - 1] = f"{key}: {json.dumps(moved[0] if isinstance(given, str) else moved)}"
    return "\n".join(lines)


def _including(path: Path, endings: Collection[str]) -> Path | None:
    """A file beside this one that includes it: a part of another file is rarely whole."""
    for each in sorted(path.parent.glob("*"))[:_MOST_LOOKED_AT]:
        if each == path or each.suffix not in endings or not each.is_file() or each.stat().st_size > _MOST_BYTES:
            continue
        if re.search(rf'#\s*include\s*"(\./)?{re.escape(path.name)}"', each.read_text("latin-1")):
            return each
    return None


def _part_of_another(path: Path, including: Path, name: str, problem: RequestError) -> RequestError:
    beside = including.with_name(f"{including.name}:{name}" if name else including.name)
    return RequestError(f"{problem}. {including.name} includes {path.name}: name that file, {beside}")


_MOST_LOOKED_AT, _MOST_BYTES = 500, 2_000_000


def _split(given: str, registry: Registry) -> tuple[Path, str]:
    """The file, and the name behind a colon."""
    endings = [ending for each in registry.strategies.values() for ending in each.drafts]
    for ending in endings:
        head, found, rest = given.partition(ending)
        if found and (not rest or rest.startswith(":")):
            return Path(os.path.abspath(Path(head + found).expanduser())), rest.removeprefix(":").strip()
    raise RequestError(
        f"{given!r} is not a file that a draft can be made from ({', '.join(sorted(set(endings)))})", where="FILE"
    )
