"""`python -m fusiond`."""

from __future__ import annotations

import sys

from fusiond.cli import main

if __name__ == "__main__":
    sys.exit(main())
