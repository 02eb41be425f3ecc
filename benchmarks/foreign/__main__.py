"""Kernels that other people wrote, fused as PTX: `python -m benchmarks.foreign`.

    python -m benchmarks.foreign CORPUS               every kernel of a corpus, 200 pairs of them, how long it takes
    python -m benchmarks.foreign --page               docs/results-ptx.md from the JSON file that is kept
    python -m benchmarks.foreign CORPUS --capture scan --seed 7 -- ./scan 4096
                                                      adds a launch of a program: built with `nvcc -arch=compute_90
                                                      -cudart shared -no-compress`, run without a GPU

A corpus is a folder outside the tree (captures.py). What it was drawn from stands in its drawn.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import commands, runs
from benchmarks.commands import say
from benchmarks.foreign import captures, described, fusing, page
from benchmarks.foreign.captures import Capture
from benchmarks.foreign.fusing import ARCH, Row, apart
from benchmarks.runs import RESULTS
from fusiond.errors import RequestError

PAIRS, SEED, PLANNED, BATCH = 200, 20261128, 5, 10


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 2 the request was wrong."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.foreign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("corpus", type=Path, nargs="?", metavar="CORPUS", help="the folder with captured launches")
    made.add_argument("--pairs", type=int, default=PAIRS, help=f"to run both ways; default: {PAIRS}")
    made.add_argument("--seed", type=int, default=SEED, help=f"default: {SEED}")
    made.add_argument("--jobs", type=int, default=2, help="processes at a time; default: 2")
    made.add_argument("--only", nargs="+", default=[], metavar="NAME", help="pairs of these kernels")
    made.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    made.add_argument("--capture", metavar="NAME", help="run the program behind `--`, and keep a launch of it")
    made.add_argument("--page", action="store_true", help="write docs/results-ptx.md, and nothing else")
    words = list(argv)
    program = words[words.index("--") + 1 :] if "--" in words else []
    given = made.parse_args(words[: words.index("--")] if "--" in words else words)

    def do() -> None:
        if given.page:
            found = list(runs.kept("foreign", given.out))
            commands.page(page.PAGE, page.render(found), found)
        elif given.corpus is None:
            raise RequestError("the folder of the corpus is missing", where="CORPUS")
        elif given.capture:
            _capture(given.corpus / given.capture, program, given.seed)
        else:
            _run(given, commands.said(made, given, ("pairs", "seed", "only")))

    return commands.status(do)


def _capture(into: Path, program: Sequence[str], seed: int) -> None:
    if not program:
        raise RequestError("the program to run is missing; it stands behind `--`", where="--capture")
    with tempfile.TemporaryDirectory() as work:
        kept = captures.drawn(program, captures.built(Path(work)), into, seed)
    say(f"{kept.name}: {kept.entry}, grid {kept.grid}, block {kept.block}, {kept.shared_bytes} bytes of shared memory")


def _run(given: argparse.Namespace, command: str) -> None:
    corpus = {each.name: each for each in captures.kept(given.corpus)}
    run = runs.new("foreign", "", command, "static", {"arch": ARCH, "model": None})
    drawn = given.corpus / "drawn.json"
    run |= {"seed": given.seed, "drawn": json.loads(drawn.read_text(encoding="utf-8")) if drawn.exists() else {}}
    where = runs.path(given.out, run)
    chosen = [each for name, each in corpus.items() if not given.only or name in given.only]

    def ask(one: Capture) -> Row:
        row = apart(fusing.member, one)
        row = {"kernel": one.name, "program": one.program, "entry": one.entry, "member": False, **row}
        say(f"{one.name} {one.entry[:60]}: {'a member' if row['member'] else _why(row)}")
        return row

    with ThreadPoolExecutor(given.jobs) as pool:
        run["members"] = []
        for at in range(0, len(chosen), BATCH):
            run["members"] += pool.map(ask, chosen[at : at + BATCH])
            runs.write(where, run)
        known = {row["kernel"]: row for row in run["members"] if row["member"]}
        named = iter(fusing.pairs(list(known), given.seed))

        def fuse(names: tuple[str, str]) -> Row:
            both = corpus[names[0]], corpus[names[1]]
            row = apart(fusing.fused, both, known, given.seed)
            row = {"pair": list(names), "fused": "result" in row, **row}
            said = row.get("result") or ("fused, not run" if row["fused"] else _why(row))
            say(f"{' + '.join(names)}: {said} {row.get('why', '')[:150]}")
            return row

        run["pairs"], sides = [], []
        while len([each for each in run["pairs"] if each.get("result")]) < given.pairs:
            batch = list(itertools.islice(named, BATCH))
            if not batch:
                break
            run["pairs"] += pool.map(fuse, batch)
            sides += [side for pair in run["pairs"] for side in pair.pop("overhead", ())]
            runs.write(where, run)
    run["overhead"] = fusing.by_way(sides)
    longest = sorted(known, key=lambda name: -known[name]["lines"])
    run["written"] = [
        apart(fusing.written, (corpus[a], corpus[b])) for a, b in zip(longest[::2], longest[1::2], strict=False)
    ]
    fine = [row["pair"] for row in run["pairs"] if row["fused"]][:PLANNED]
    run["planned"] = [_planned(corpus[a], corpus[b]) for a, b in fine]
    runs.write(where, run)
    say(f"wrote {where.name}; `python -m benchmarks.foreign --page` makes docs/results-ptx.md of it")


def _why(row: Row) -> str:
    return f"{row.get('rule', row.get('result', 'no'))}: {row.get('detail', row.get('why', ''))}"[:200]


def _planned(a: Capture, b: Capture) -> Row:
    """`fusiond plan` of a pair, whole processes, the second time: seconds by the clock and of processor time."""
    with tempfile.TemporaryDirectory() as work:
        for each in (a, b):
            described.write(each, Path(work))
        job = Path(work) / "job.yaml"
        job.write_text(f"strategy: hfuse\nkernels: [./{a.name}.yaml, ./{b.name}.yaml]\n", encoding="utf-8")
        command = [sys.executable, "-m", "fusiond", "plan", str(job), "--arch", ARCH]
        for _ in range(2):
            begun, before = time.perf_counter(), os.times()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            after = os.times()
            secs = time.perf_counter() - begun
        busy = after.children_user + after.children_system - before.children_user - before.children_system
    said = done.stderr.strip()[:200] if done.returncode else ""
    return {"pair": [a.name, b.name], "secs": round(secs, 2), "busy_secs": round(busy, 2), "failed": said}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
