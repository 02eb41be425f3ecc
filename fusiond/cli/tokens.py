"""`fusiond tokens`: manages the tokens that let other programs read answers (read) or push them (write) over TCP."""

import argparse
import re

from fusiond.cli import options, output, render
from fusiond.model.errors import RequestError
from fusiond.store.exchange.database import Exchange
from fusiond.store.exchange.tokens import RIGHTS, digest, new


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("list", "add", "remove"), default="list")
    parser.add_argument("name", metavar="NAME", nargs="?", help="who gets it: a box, a person")
    parser.add_argument(
        "--rights", choices=RIGHTS, default="read", help="read: look-ups (the default); write: pushes and claims, too"
    )
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    if (arguments.what == "list") != (arguments.name is None):
        raise RequestError("is missing" if arguments.name is None else "stands beside list", where="NAME")
    if arguments.name is not None and not re.fullmatch(r"[A-Za-z0-9_.@-]{1,100}", arguments.name):
        raise RequestError("can have letters, digits and _ . @ -", where="NAME")
    with Exchange.beside(options.database(arguments)) as exchange:
        if arguments.what == "add":
            token = new()
            exchange.add_token(arguments.name, arguments.rights, digest(token))
            if arguments.json:
                options.say_json({"name": arguments.name, "rights": arguments.rights, "token": token})
            else:
                output.say(token)  # alone, for `> FILE`
                output.complain("fusiond: it is shown this once; here only its digest is kept")
            return 0
        if arguments.what == "remove" and not exchange.remove_token(arguments.name):
            raise RequestError("has no token", where="NAME")
        found = exchange.tokens()
    columns = ("name", "rights", "made (UTC)")
    return render.listing(arguments, found, columns, (tuple(each.values()) for each in found), "no tokens")
