"""Counts what the launches of a bundle would do on a GPU: `python -m fusiond.devices.cpu.count BUNDLE [--json]`."""

from __future__ import annotations

import sys

from fusiond.devices.counting.command import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
