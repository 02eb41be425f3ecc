"""Everything that is to be done on a GPU box: `python run_all.py --help`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "source"))

from tools.gpu_box import run_all  # noqa: E402
from tools.gpu_box.box import Box  # noqa: E402

raise SystemExit(run_all.main(Box(HERE)))
