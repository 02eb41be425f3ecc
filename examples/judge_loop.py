"""Asks a command for candidates of a kernel, has each judged, and prints the best.

    python examples/judge_loop.py kernel.yaml --candidates "python examples/mutate_block.py" --budget 20

The command is run once for each candidate. On standard input it gets one JSON document,

    {"reference": text of kernel.yaml, "source": text of its source, "verdicts": [what `fusiond judge` said, ...]}

where each of the last verdicts has the candidate's `source`, too. It answers with a source in CUDA C++; lines in it
that begin with `//: ` are YAML that replaces what the reference says: `//: block: {shape: [64]}`. Candidates are kept
beside the reference, as kernel_1.cu, kernel_1.yaml, and so on.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

LAST = 10
"""So many verdicts are told to the command."""


def judged(reference: Path, number: int, source: str, device: str) -> dict[str, Any]:
    """What `fusiond judge` says of a source, with the source."""
    given = yaml.safe_load(reference.read_text(encoding="utf-8"))
    path = reference.with_name(f"{reference.stem}_{number}.yaml")
    path.with_suffix(".cu").write_text(source, encoding="utf-8")
    changes = yaml.safe_load("\n".join(re.findall(r"^//: (.*)", source, re.MULTILINE))) or {}
    document = {**given, "kernel": path.stem, "source": f"{path.stem}.cu", **changes}
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "fusiond", "judge", str(reference), str(path), "--device", device, "--json"]
    said = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
    if "error" in said:
        said = {"right": False, "problem": said["error"]["problem"], "speedup": None}
    return {"source": source, "path": str(path), **said}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("reference", type=Path, metavar="REFERENCE.yaml")
    parser.add_argument("--candidates", required=True, metavar="COMMAND")
    parser.add_argument("--budget", type=int, default=20, metavar="N", help="candidates; default: 20")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="M", help="stop after so long; default: 60")
    parser.add_argument("--device", default="auto", metavar="D")
    given = parser.parse_args()
    text = given.reference.read_text(encoding="utf-8")
    asked = {"reference": text, "source": (given.reference.parent / yaml.safe_load(text)["source"]).read_text()}
    verdicts: list[dict[str, Any]] = []
    end = time.monotonic() + 60 * given.minutes
    while len(verdicts) < given.budget and time.monotonic() < end:
        question = json.dumps({**asked, "verdicts": verdicts[-LAST:]})
        answer = subprocess.run(shlex.split(given.candidates), input=question, stdout=subprocess.PIPE, text=True)
        if answer.returncode != 0:
            sys.exit(f"{given.candidates} ended with status {answer.returncode}")
        verdicts.append(judged(given.reference, len(verdicts) + 1, answer.stdout, given.device))
        print(len(verdicts), f"{verdicts[-1]['speedup']}x" if verdicts[-1]["right"] else verdicts[-1]["problem"])
    right = [each for each in verdicts if each["right"]]
    best = max(right, key=lambda each: each["speedup"] or 0.0, default=None)
    print(f"best: {best['path']}, {best['speedup']}x, {best['evidence']}" if best else "best: the reference")


if __name__ == "__main__":
    main()
