"""`python -m fusiond.counting BUNDLE`."""

from __future__ import annotations

import sys

from fusiond.counting.command import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
