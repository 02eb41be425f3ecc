"""`fusiond completion SHELL`: prints a script that completes commands, options and files.

The one home of shtab.
"""

import argparse

import shtab

from fusiond import cli
from fusiond.cli import output

SHELLS = ("bash", "zsh", "tcsh")
_FILES = ("FILE", "JOB", "JOB.yaml", "PATH")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="bash: source <(fusiond completion bash)")


def run(arguments: argparse.Namespace) -> int:
    output.say(*shtab.complete(_whole(), arguments.shell).rstrip().split("\n"))
    return 0


def _whole() -> argparse.ArgumentParser:
    """One parser of all commands; files and folders are completed where an option takes them."""
    whole = argparse.ArgumentParser(prog="fusiond", add_help=False)
    commands = whole.add_subparsers()
    for name, summary in cli.COMMANDS.items():
        parser = cli.command_of(name)[1]
        for action in parser._actions:
            word = str(action.metavar)
            if word in _FILES or word.endswith((".yaml", ".cu")) or word.startswith("FILE"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif word == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        commands.add_parser(name, help=summary, parents=[parser], add_help=False)
    return whole
