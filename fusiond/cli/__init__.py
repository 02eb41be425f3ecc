"""The command line: one file per subcommand. Only the file of the given subcommand is imported. That keeps `fusiond
best` fast: it needs no plugin, no YAML and no rich.

A command's module has `configure(parser)` and `run(arguments) -> int`. Exit status: 0 done, 1 failed, 2 the request
was wrong, 3 nothing is known yet. Standard output holds answers, standard error everything else.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence

from fusiond import __version__
from fusiond.cli import output
from fusiond.cli.options import say_json
from fusiond.model.errors import FusiondError, RequestError, UnknownName

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than a lookup
    import argparse
    from typing import Protocol

    class Command(Protocol):
        """What a module of this package offers."""

        def configure(self, parser: argparse.ArgumentParser) -> None: ...

        def run(self, arguments: argparse.Namespace) -> int: ...


COMMANDS: Mapping[str, str] = {
    "run": "tune a job here and now, with progress",
    "record": "measure the whole space of a job, for the replay device",
    "serve": "run the daemon in the foreground",
    "submit": "hand a job to the daemon",
    "status": "the daemon, its devices, the queue and the latest answers",
    "jobs": "list the jobs",
    "show": "one job: its state, trials, best so far",
    "watch": "follow a job until it ends",
    "cancel": "stop jobs, or take them off the queue",
    "finish": "end a job's search, and measure the finals of what is there",
    "best": "the best known answer for a workload",
    "answers": "list what is known, the last found first",
    "history": "all answers that a workload ever had",
    "forget": "give up the answers of a workload",
    "export": "trials as T4 or CSV, answers as CSV or signed for other boxes",
    "import": "answers that another box has signed",
    "keys": "the key that signs this box's answers, and whose keys are trusted",
    "tokens": "who may ask this box for answers over TCP, and push some",
    "init": "draft the YAML that says how to launch a kernel, from its source",
    "plan": "analysis, space, seeds and rejections of a job; runs nothing",
    "capture": "what a running CUDA program launches, and what of it is worth asking about",
    "judge": "whether a kernel is a right replacement of another one, and how fast",
    "verify": "measure a recorded winner again, here",
    "explain": "why a job came out as it did",
    "plugins": "the plugins, and why one did not load",
    "devices": "the devices of this machine",
    "calibrate": "what measuring costs on a device, and its ceilings",
    "store": "check the store, back it up, restore it",
    "prune": "give back the disk space of what is not needed any more",
    "doctor": "what works here, what does not, and the remedy",
    "examples": "the job files that come with fusiond: list them, or copy them",
    "schema": "the JSON Schema of a kind of YAML file, for editors",
    "completion": "what a shell completes commands and options by",
    "help": "this, or what a command does and its options",
}
PLANNING = ("run", "record", "serve", "plan", "init", "judge", "verify", "doctor")
"""Commands that need more of the plugins than what they are called: these are loaded in a process of their own while
the command's modules are."""
INTERRUPTED = 130
BROKEN_PIPE = 141  #: What a shell shows for a program that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status. Never raises, never shows a traceback unless `--debug` is given."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # what is imported lives as long as the process: no garbage is to be looked for in it
        gc.freeze()
        gc.set_threshold(50_000)
    _open_closed_streams()
    debug, json = "--debug" in words, "--json" in words
    try:
        status = _dispatch(words, ours=argv is None)
        sys.stdout.flush()
        if argv is None and "threading" not in sys.modules and not atexit._ncallbacks():
            os._exit(status)  # nobody waits for the end: taking the interpreter apart costs a tenth of a lookup
        return status
    except FusiondError as problem:
        return _complain(problem, json=json)
    except KeyboardInterrupt:
        output.complain("fusiond: stopped")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output is gone; the interpreter must not complain about it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit as end:  # argparse, after --help
        return end.code if isinstance(end.code, int) else 0
    except Exception as problem:
        if debug:
            import traceback  # costs more than the rest of a lookup's imports

            output.complain(*traceback.format_exc().rstrip().split("\n"))
            return 1
        if isinstance(problem, OSError) and problem.errno == errno.ENOSPC and problem.filename is None:
            _say_error(f"cannot write the output: {problem.strerror}")
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        from fusiond.model.system import faults  # a lookup goes without it

        fault = faults.of(problem)
        if fault is not None:
            return _complain(fault, json=json)
        line = " ".join(f"{type(problem).__name__}: {problem}".split())
        output.complain(f"fusiond: error: {line}")
        output.complain("fusiond: this is a bug in fusiond; --debug shows the traceback")
        return 1


def _dispatch(words: list[str], *, ours: bool) -> int:
    """`ours`: the process was started for this command."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise RequestError("the current folder was deleted; cd to another one") from None
    before, name, after = _split(words)
    if name is None:
        if "--version" in before or "-V" in before:
            output.say(f"fusiond {__version__}")
            return 0
        if "-h" in before or "--help" in before:
            output.say(*usage().split("\n"))
            return 0
        raise RequestError("a command is wanted, for example `fusiond best --pair A,B` (see `fusiond --help`)")
    if name not in COMMANDS:
        raise UnknownName("command", name, COMMANDS)
    if name in PLANNING and not {"-h", "--help"} & {*before, *after}:
        importlib.import_module("fusiond.requests.isolation.start").early(
            told=name == "plan",
            fork=ours and name != "serve",  # in a list of processes a daemon is one
        )
    if name == "best":  # argparse would cost a third of a lookup
        from fusiond.cli import best

        arguments = best.quick(before + after)
        if arguments is not None:
            return best.run(arguments)
    command, parser = command_of(name)
    return command.run(parser.parse_args(before + after))


def command_of(name: str) -> tuple[Command, argparse.ArgumentParser]:
    """A command's module, and the parser of its options."""
    from fusiond.cli.parser import Parser

    command: Command = importlib.import_module(f"fusiond.cli.{name}")
    parser = Parser(prog=f"fusiond {name}", description=COMMANDS[name], allow_abbrev=False)
    parser.add_argument("--debug", action="store_true", help="show tracebacks and debug messages")
    command.configure(parser)
    return command, parser


def _split(words: list[str]) -> tuple[list[str], str | None, list[str]]:
    """Options before the command, the command, what follows. `--db FILE` may stand before the command."""
    index = 0
    while index < len(words) and words[index].startswith("-"):
        index += 2 if words[index] == "--db" else 1
    if index >= len(words):
        return words, None, []
    return words[:index], words[index], words[index + 1 :]


def _complain(problem: FusiondError, *, json: bool) -> int:
    """One line on standard error; with `--json` the same as a document, so that standard output always holds one."""
    _say_error(str(problem))
    if json:
        from fusiond.service.wire import error_document

        say_json({"error": error_document(problem)})
    return problem.exit_status


def _say_error(text: str) -> None:
    try:
        output.complain(f"fusiond: error: {text}")
    except OSError:
        return  # the exit status says it too


def _open_closed_streams() -> None:
    """A program that was started with closed streams has none; what is written to them goes nowhere."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def usage() -> str:
    """What `fusiond --help` prints."""
    lines = ["usage: fusiond COMMAND [options]", ""]
    wide = max(map(len, COMMANDS))
    lines += [f"  {name:<{wide}} {summary}" for name, summary in COMMANDS.items()]
    lines += [
        "",
        "`fusiond COMMAND --help` shows a command's options. Every command knows --db FILE (or FUSIOND_DB), and all",
        "but `serve` know --json.",
        "Exit status: 0 done, 1 failed, 2 the request was wrong, 3 nothing is known yet.",
    ]
    return "\n".join(lines)
