"""`fusiond best`: prints the best known answer for a name or a job file.

By name it must be fast, so this file imports the standard library and what is as light only; a job file and `--export`
import what they need.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

from fusiond.cli import answer_text, options, output
from fusiond.model.errors import NothingKnown, RequestError, StoreError, UnknownName
from fusiond.service import best
from fusiond.store import lookup
from fusiond.store.document import DAMAGED_SOURCE

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than a lookup
    import argparse
    from typing import Any

AMBIGUOUS = 2  #: The exit status where a name stands for several contents: the request has to say more


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB.yaml", nargs="?", help="what this job asks, whatever it is called")
    options.add_store(parser)
    options.add_workload(parser, required=False)  # `_check` demands one of three: argparse's words would mislead
    options.add_cache(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--source", action="store_true", help="print the generated source of the answer")
    form.add_argument("--export", metavar="DIR", help="write what a program needs to call the answer")
    parser.add_argument("--unfused", action="store_true", help="with --source or --export: the fastest unfused way")
    parser.add_argument("--arch", metavar="ARCH", help="with --export: build for this architecture, such as sm_90")


def quick(words: Sequence[str]) -> Any:
    """The arguments, where all of them are what programs write: options with a word after each, `--json`, one job file;
    None for argparse to judge."""
    found = dict.fromkeys(("job", "pair", "workload", "db", "device", "cache", "export", "arch"))
    found |= {"size": [], "json": False, "source": False, "unfused": False}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = word[2:] if word.startswith("--") else "job"
        if word == "--json":
            found["json"] = True
            continue
        value = word if name == "job" else rest.pop(0) if rest else "-"
        known = name in ("job", "pair", "workload", "db", "device", "cache")
        if value.startswith("-") or not known or found[name] is not None:
            return None
        found[name] = value
    fits = found["cache"] in (None, "warm", "cold") and None in (found["pair"], found["workload"])
    return SimpleNamespace(**found) if fits else None


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    database = options.database_name(arguments)
    if arguments.job is not None:
        return _of_job(arguments, database)
    document = find(database, options.workload_name(arguments), **options.asked(arguments, "warm"))
    return _say(arguments, database, document)


def find(
    database: str | os.PathLike[str], name: str, *, device: str | None, sizes: dict[str, int], cache: str = "warm"
) -> dict[str, Any]:
    """The document of `best --json`; NothingKnown, with what is known, when there is no such record."""
    document = best.by_name(database, name, device=device, sizes=sizes, cache=cache)
    if document is not None:
        return document
    _check_device(database, device)
    on = f" on {device}" if device else ""
    with_caches = " with cold caches" if cache == "cold" else ""
    known = lookup.suggestions(database, name)
    hint = f"; known: {', '.join(known)}" if known else "; `fusiond run JOB.yaml` finds out"
    raise NothingKnown(f"nothing is known about {name}{on}{with_caches} yet{hint}")


def _check_device(database: str | os.PathLike[str], device: str | None) -> None:
    """UnknownName for a device that neither is one by its name nor has an answer."""
    if device is None or re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        return
    names = lookup.devices(database)
    if device not in names:
        raise UnknownName("device", device, {*names, "cpu", "cuda"}, where="--device")


def _check(arguments: argparse.Namespace) -> None:
    given = [each for each in (arguments.job, arguments.pair, arguments.workload) if each is not None]
    if not given:
        raise RequestError("one of the arguments JOB.yaml --pair --workload is required (see `fusiond best --help`)")
    if len(given) > 1:
        raise RequestError("stands beside --pair or --workload; one of them", where=arguments.job)
    if arguments.json and arguments.source:
        raise RequestError("stands beside --json; one of them", where="--source")
    if arguments.unfused and not arguments.source and arguments.export is None:
        raise RequestError(
            "is for --source and --export; the answer names the unfused way by itself", where="--unfused"
        )
    if arguments.export is not None and not arguments.export.strip():
        raise RequestError("is empty; name a folder", where="--export")
    if arguments.arch is not None and arguments.export is None:
        raise RequestError("is for --export", where="--arch")


def _of_job(arguments: argparse.Namespace, database: str) -> int:
    """What a job file asks: one document for each of its workloads."""
    if not arguments.job.endswith((".yaml", ".yml")) and not os.path.exists(arguments.job):
        option = "--pair" if "," in arguments.job else "--workload"
        raise RequestError(f"there is no file {arguments.job}; a name is asked for with {option}", where="JOB.yaml")
    found = best.by_job(database, arguments.job, **options.asked(arguments), upstreams=True)
    if any(isinstance(each, NothingKnown) for each in found):
        _check_device(database, options.device(arguments))
    if len(found) == 1:
        if isinstance(found[0], NothingKnown):
            raise found[0]
        return _say(arguments, database, found[0])
    return _say_all(arguments, found)


def _say_all(arguments: argparse.Namespace, found: Sequence[dict[str, Any] | NothingKnown]) -> int:
    if arguments.source or arguments.export is not None:
        which = "--source" if arguments.source else "--export"
        raise RequestError(
            f"{arguments.job} asks about {len(found)} workloads; name one with --size or --cache", where=which
        )
    if arguments.json:
        from fusiond.service.wire import error_document

        options.say_json(
            [{"error": error_document(each)} if isinstance(each, NothingKnown) else each for each in found]
        )
    for each in found:
        if isinstance(each, NothingKnown):
            output.complain(f"fusiond: error: {each}")
        elif not arguments.json:
            output.say(*answer_text.lines(each))
    return NothingKnown.exit_status if any(isinstance(each, NothingKnown) for each in found) else 0


def _say(arguments: argparse.Namespace, database: str, document: dict[str, Any]) -> int:
    if document["match"] == "ambiguous":
        if arguments.json:
            options.say_json(document)
        output.complain(*answer_text.ambiguous(document))
        return AMBIGUOUS
    if arguments.export is not None:
        from pathlib import Path

        from fusiond.service.client.exporting import export  # builds the strategy's files: plugins and all

        files = export(Path(database), document, Path(arguments.export), unfused=arguments.unfused, arch=arguments.arch)
        written = [str(path) for path in files]
        return options.answer(arguments, {**document, "files": written}, *written)
    elif arguments.source:
        for text in _unfused_sources(database, document) if arguments.unfused else [_source(arguments, document)]:
            output.say_text(text)
    elif arguments.json:
        options.say_json(document)
    else:
        output.say(*answer_text.lines(document))
    return 0


def _source(arguments: argparse.Namespace, document: dict[str, Any]) -> str:
    path = document.get("source")
    if document.get("imported"):
        from fusiond.store.exchange import find as imported  # an answer of this box does without

        text = imported.source(options.database(arguments), document["imported"]["key"])
        if text is None:
            raise NothingKnown("the source of this imported answer did not come with it")
        return text
    damaged = [note for note in document["notes"] if note.startswith(DAMAGED_SOURCE)]
    if damaged:
        raise StoreError(damaged[0])
    if not path:
        raise NothingKnown("this answer has no generated source: nothing is fused; --unfused prints what to use")
    try:
        with open(path) as stream:
            return stream.read()
    except OSError as problem:
        raise StoreError(f"the source of this answer cannot be read: {problem}") from None


def _unfused_sources(database: str, document: dict[str, Any]) -> Iterator[str]:
    """The sources of the stored program, word for word; a line of comment names each where there are several."""
    key = document["unfused"]["program_key"]
    plan = lookup.program(database, key) if key else None
    if plan is None:
        raise NothingKnown("the unfused program of this answer is not in the store; `fusiond verify` measures it again")
    several = len(plan["sources"]) > 1
    for source in plan["sources"]:
        if several:
            yield f"// --- {source['name']} ---\n"
        yield source["text"] if source["text"].endswith("\n") or not several else f"{source['text']}\n"
