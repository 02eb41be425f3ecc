"""`fusiond help [COMMAND]`: as `fusiond --help`, or `fusiond COMMAND --help`; `--man`: all of it as a manual page."""

import argparse

from fusiond import __version__, cli
from fusiond.cli import output
from fusiond.model.errors import UnknownName


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("command", metavar="COMMAND", nargs="?")
    parser.add_argument("--man", action="store_true", help="all commands and options as a manual page (roff)")


def run(arguments: argparse.Namespace) -> int:
    name = arguments.command
    if arguments.man:
        output.say(*_manual())
        return 0
    if name is None:
        text = cli.usage()
    elif name in cli.COMMANDS:
        text = cli.command_of(name)[1].format_help().rstrip()
    else:
        raise UnknownName("command", name, cli.COMMANDS)
    output.say(*text.split("\n"))
    return 0


def _manual() -> list[str]:
    """fusiond(1), in the macros of man(7)."""
    lines = [f'.TH FUSIOND 1 "" "fusiond {__version__}" "User Commands"', ".SH NAME"]
    lines += ["fusiond \\- measures which CUDA kernels are worth fusing, and how", ".SH SYNOPSIS"]
    lines += [".B fusiond", ".I COMMAND", "[options]", ".SH COMMANDS"]
    for name, summary in cli.COMMANDS.items():
        parser = cli.command_of(name)[1]
        usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
        lines += [f".SS fusiond {_roff(name)}", _roff(f"{summary[:1].upper()}{summary[1:]}."), ".PP", _roff(usage)]
        for action in parser._actions:
            said = "" if action.help in (None, argparse.SUPPRESS) else str(action.help).replace("%%", "%")
            names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
            value = f" {action.metavar or '|'.join(map(str, action.choices or ())) or action.dest.upper()}"
            takes = bool(action.option_strings) and action.nargs != 0
            if said:
                lines += [".TP", f".B {_roff(names + (value if takes else ''))}", _roff(said)]
    lines += [".SH EXIT STATUS"]
    for status, meaning in (
        ("0", "done"),
        ("1", "failed"),
        ("2", "the request was wrong"),
        ("3", "nothing is known yet"),
    ):
        lines += [".TP", f".B {status}", meaning]
    lines += [".SH ENVIRONMENT", ".TP", ".B FUSIOND_DB", "the store", ".TP", ".B FUSIOND_CACHE", "the build cache"]
    return lines


def _roff(text: str) -> str:
    """A text that roff prints as it is."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("\n", " ")
    return f"\\&{plain}" if plain[:1] in (".", "'") else plain
