"""`fusiond keys`: shows the key that signs this machine's answers, and the keys that it trusts."""

import argparse
import re

from fusiond.cli import options, output, render
from fusiond.model.errors import RequestError
from fusiond.store.exchange.database import Exchange
from fusiond.store.exchange.signing import Signer


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=("list", "trust", "distrust"), default="list")
    parser.add_argument("key", metavar="KEY", nargs="?", help="a public key: 64 hexadecimal digits")
    parser.add_argument("--name", metavar="NAME", help="with trust: whose it is, as answers will say")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    database = options.database(arguments)
    if (arguments.what == "list") != (arguments.key is None):
        given = "is missing; 64 hexadecimal digits" if arguments.key is None else "stands beside list"
        raise RequestError(given, where="KEY")
    if arguments.key is not None and not re.fullmatch(r"[0-9a-f]{64}", arguments.key):
        raise RequestError(
            "is not a public key: 64 hexadecimal digits, as `fusiond keys` of that box shows", where="KEY"
        )
    with Exchange.beside(database) as exchange:
        if arguments.what == "trust":
            name = (arguments.name or "").strip()
            if not name or len(name) > 100 or not name.isprintable():
                raise RequestError("is missing; say whose key it is", where="--name")
            exchange.trust(arguments.key, name)
        elif arguments.what == "distrust" and not exchange.distrust(arguments.key):
            raise RequestError("is not trusted here", where="KEY")
        own, trusted = Signer.of(database).public, exchange.signers()
    if arguments.json:
        options.say_json({"own": own, "trusted": [{"key": key, "name": name} for key, name in trusted.items()]})
        return 0
    output.say(f"this box signs with {own}")
    if trusted:
        render.table("", ("trusted", "key"), [(name, key) for key, name in trusted.items()])
    else:
        output.say("no other key is trusted: what is imported is shown, and never built or run")
    return 0
