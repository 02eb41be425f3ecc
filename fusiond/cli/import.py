"""`fusiond import`: reads answers that another machine signed, or trials of another tuner (T4). Works without a
daemon.

What is imported is data. An answer is served as imported, and nothing of it is built or run here before its signer is
trusted (`fusiond keys trust`); trials become a recorded space, which `strategy: replay` searches.
"""

import argparse
import json
from pathlib import Path

from fusiond.build.exporting import t4
from fusiond.cli import options, output
from fusiond.model.english import counted
from fusiond.model.errors import RequestError
from fusiond.store.exchange import transfer
from fusiond.store.exchange.database import Exchange
from fusiond.strategy import recorded_space


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="lines of `fusiond export --answers`, or a T4 file of trials")
    parser.add_argument("--out", metavar="PACK", help="where the recorded space of T4 trials goes (FILE.jsonl.gz)")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    path = Path(arguments.file).expanduser()
    texts = transfer.of_file(path)
    first = next(texts, b"")
    if t4.looks_like(first):
        return _trials(arguments, path)
    if arguments.out is not None:
        raise RequestError("is for T4 trials; answers go beside the store", where="--out")
    with Exchange.beside(options.database(arguments)) as exchange:
        found = transfer.read(exchange, (line for part in ([first], texts) for line in part))
    if not found.new + found.known + found.refused:
        raise RequestError(f"{path} holds no answers; `fusiond export --answers` writes such a file", where="FILE")
    document = {name: getattr(found, name) for name in ("new", "known", "refused", "why")}
    lines = [f"{counted(found.new, 'answer')} imported, {found.known} known already, {found.refused} refused"]
    lines += [
        f"signed by {signer}, which is not trusted here: its answers are shown, and never built or run; "
        f"`fusiond keys trust {signer} --name NAME` if you know whose it is"
        for signer in sorted(found.untrusted)
    ]
    options.answer(arguments, {**document, "untrusted": sorted(found.untrusted)}, *lines)
    for each in found.why:
        output.complain(f"fusiond: {path}: {each}")
    if found.refused > len(found.why):
        output.complain(f"fusiond: {path}: and {found.refused - len(found.why)} more lines")
    return 1 if found.refused and not found.new + found.known else 0


def _trials(arguments: argparse.Namespace, path: Path) -> int:
    """T4: checked whole before anything is written."""
    document = t4.read(path)
    name = path.name.removesuffix(".gz").removesuffix(".json")
    target = Path(arguments.out).expanduser() if arguments.out else Path(f"{name}.jsonl.gz")
    parameters, rows = t4.rows(document, str(path))
    device, kernel = t4.about(document)
    try:
        recorded_space.write(target, name, parameters, rows, device=device, kernel=kernel, warmups=0)
    except OSError as problem:
        raise RequestError(f"{target} cannot be written: {problem.strerror}", where="--out") from None
    failed = sum(bool(each.failure) for each in rows)
    said = f"{counted(len(rows), 'trial')} in {target}, {failed} of them failed"
    again = f"search them again with `strategy: replay`, `space: {json.dumps(str(target))}`, `device: replay`"
    return options.answer(arguments, {"written": str(target), "trials": len(rows), "failed": failed}, said, again)
