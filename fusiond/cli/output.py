"""Prints everything that the command line prints, with control characters escaped.

Names, paths and messages come from files, plugins and compilers; none of their control or bidirectional characters
may reach a terminal.
"""

import sys

from fusiond.model.english import shortened, shown


def say(*lines: str) -> None:
    """Lines of an answer, on standard output; nothing where there are none."""
    if lines:
        print("\n".join(map(shown, lines)), flush=True)


def say_text(text: str) -> None:
    """A text of several lines, such as a source: word for word into a file or a pipe, escaped on a terminal."""
    if sys.stdout.isatty():
        lines = text.split("\n")
        text = "\n".join("\t".join(map(shown, line.split("\t"))) for line in lines)
    sys.stdout.write(text)


def complain(*lines: str) -> None:
    """Lines on standard error, each cut to a bearable length."""
    print("\n".join(shortened(shown(each)) for each in lines), file=sys.stderr, flush=True)
