"""`fusiond capture`: captures the launches of a running CUDA program."""

import argparse
from pathlib import Path

from fusiond.cli import options
from fusiond.model.errors import RequestError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "fusiond capture [--without-gpu] [--out DIR] [options] -- COMMAND ...\n"
        "       fusiond capture DIR [--list | --html FILE | --json | --pick N,N | --submit]"
    )
    parser.add_argument("words", nargs="*", metavar="COMMAND ... or DIR", help="behind `--`; or a capture's folder")
    begin = parser.add_argument_group("capturing")
    begin.add_argument("--without-gpu", action="store_true", help="run the program on a CUDA runtime that needs no GPU")
    begin.add_argument("--build", metavar="CMD", help="run first; what nvcc then needs is added to its options")
    begin.add_argument("--kernels", choices=("run", "none"), default="run", help="without a GPU; none: only note them")
    begin.add_argument("--for", type=float, dest="seconds", metavar="SECS", help="note no longer than that")
    begin.add_argument("--launches", type=int, metavar="N", help="note no more launches than that")
    begin.add_argument("--data", action="store_true", help="keep what is in memory before each kernel's first launch")
    begin.add_argument("--out", metavar="DIR", default="capture", help="the folder to make; default: capture")
    look = parser.add_argument_group("looking at a capture")
    look.add_argument("--list", action="store_true", help="kernels, groups worth asking about, copies; the default")
    look.add_argument("--count", action="store_true", help="count what each kernel would pay at least (a second each)")
    look.add_argument("--html", metavar="FILE", help="the same as a page")
    look.add_argument("--pick", metavar="N,N", help="write the YAML of these kernels, and a job; or `copies`: a graph")
    look.add_argument("--submit", action="store_true", help="hand the ten best groups to the daemon")
    look.add_argument("--to", metavar="FOLDER", help="where --pick and --submit write; default: the capture's folder")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    words = arguments.words
    if not words:
        raise RequestError("takes a command behind `--`, or the folder of a capture", where="fusiond capture")
    if len(words) == 1 and Path(words[0]).is_dir():
        from fusiond.cli import captured

        return captured.run(Path(words[0]), arguments)
    from fusiond.cli.output import complain
    from fusiond.cuda.capture import runner

    found = runner.run(words, arguments)
    complain(found.summary)
    return found.status
