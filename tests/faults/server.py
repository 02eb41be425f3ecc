"""Runs fusiond's commands, each in a fork of one process that has loaded everything already: a command costs a few
hundredths of a second this way, so that thousands of them can be disturbed.

One JSON object a line on standard input: {"words": [...], "in_process": bool}; one a line on standard output:
{"status", "out", "err"}. Waits are short, and with `in_process` planning and measuring happen in that fork, without
processes of their own; nothing else is different.
"""

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from fusiond import cli
from fusiond.build import compiler
from fusiond.cli import best, run, serve  # noqa: F401 - loaded before the forks
from fusiond.devices import supervisor
from fusiond.requests.isolation import registry, start
from fusiond.requests.registry import Registry
from fusiond.tuning import tuner
from fusiond.tuning.tuner import Tuner


def main() -> None:
    importlib.import_module("scipy.linalg")  # what is imported late takes longest
    Registry.load()
    tuner.FIRST_WAIT_SECS = 0.02
    supervisor.MOST_PAUSE_SECS = 0.02
    compiler.PAUSES_SECS = (0.01, 0.01)
    for line in sys.stdin:
        print(json.dumps(done(**json.loads(line))), flush=True)


def _forked() -> int:
    """`os.fork`, which is among the calls that fail; this one is not the product's."""
    while True:
        with contextlib.suppress(OSError):
            return os.fork()


def done(words: Sequence[str], in_process: bool) -> dict[str, Any]:
    # In memory: what is written into a folder may be disturbed.
    with os.fdopen(os.memfd_create("out"), "rb") as out, os.fdopen(os.memfd_create("err"), "rb") as err:
        child = _forked()
        if child == 0:
            status = 99
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
                if in_process:
                    from tests.fakes import InProcess

                    assert Tuner.__init__.__kwdefaults__ is not None
                    Tuner.__init__.__kwdefaults__["runner"] = InProcess
                    registry.load = Registry.load
                    start.early = lambda **_: None
                status = cli.main(words)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        said = [os.pread(each.fileno(), 1 << 20, 0).decode(errors="replace") for each in (out, err)]
    return {"status": os.waitstatus_to_exitcode(ended), "out": said[0], "err": said[1]}


if __name__ == "__main__":
    main()
