"""`python -m fusiond.cli.preloaded judge`: a command that has loaded its modules before its arguments arrive.

The daemon keeps such a process for the request that comes next: half a second of imports is nobody's wait. It reads one
line of JSON, `{"folder", "arguments"}`, and then is that command in that folder, whose files `out` and `err` are its
standard output and error. Where no line comes, nobody wants it any more.
"""

import importlib
import json
import os
import sys

from fusiond.cli import main
from fusiond.requests.isolation import start


def run(command: str) -> int:
    start.early(fork=True)
    importlib.import_module(f"fusiond.cli.{command}")
    line = sys.stdin.readline()
    if not line:
        return 0
    told = json.loads(line)
    os.chdir(told["folder"])
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    return main([command, *told["arguments"]])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
