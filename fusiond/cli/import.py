"""`fusiond import`: reads answers that another machine signed. Works without a daemon.

What is imported is data. An answer is served as imported, and nothing of it is built or run here before its signer is
trusted (`fusiond keys trust`).
"""

import argparse
from pathlib import Path

from fusiond.cli import options, output
from fusiond.model.english import counted
from fusiond.model.errors import RequestError
from fusiond.store.exchange import transfer
from fusiond.store.exchange.database import Exchange


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="lines of `fusiond export --answers`")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    path = Path(arguments.file).expanduser()
    with Exchange.beside(options.database(arguments)) as exchange:
        found = transfer.read(exchange, transfer.of_file(path))
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
