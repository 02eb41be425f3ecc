"""Runs the notebook's cells one after the other, in one namespace, and keeps what they print.

    python examples/notebook/run.py                  rewrites the outputs of from_a_program.ipynb

A cell may only print: what a cell's last expression is worth is not shown.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).with_name("from_a_program.ipynb")


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of a run in this process."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    cells = []
    for cell in notebook["cells"]:
        cell = dict(cell)
        if cell["cell_type"] == "code":
            count += 1
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"cell {count}", "exec"), names)
            lines = printed.getvalue().splitlines(keepends=True)
            cell["execution_count"] = count
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
        cells.append(cell)
    return {**notebook, "cells": cells}


def main() -> None:
    done = run(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    NOTEBOOK.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
