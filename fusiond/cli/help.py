"""`fusiond help [COMMAND]`: as `fusiond --help`, or `fusiond COMMAND --help`."""

from __future__ import annotations

import argparse

from fusiond import cli
from fusiond.cli import output
from fusiond.errors import UnknownName


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", metavar="COMMAND", nargs="?")


def run(arguments: argparse.Namespace) -> int:
    name = arguments.command
    if name is None:
        text = cli.usage()
    elif name in cli.COMMANDS:
        text = cli.command_of(name)[1].format_help().rstrip()
    else:
        raise UnknownName("command", name, cli.COMMANDS)
    output.say(*text.split("\n"))
    return 0
