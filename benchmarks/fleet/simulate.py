"""A fleet of 1 to 1,000 boxes with one upstream, simulated.

    python -m benchmarks.fleet.simulate [--out FILE.json]

Recorded are the times that checking and sampling candidates took (benchmarks/pipeline_times.json): a job has 64 trials
drawn from them, and finals of five processes. Measured first, on the machine that this runs on, is what the upstream's
own code takes for a look-up, a push and a claim: the functions that its endpoints call. HTTP is a constant for each
request (`--http-us`, from 2,201 look-ups a second on four connections).

Every box takes the next of its own questions, claims it, tunes it or finds it answered, pushes its answer, and asks
look-ups meanwhile, of which a part is a miss here and goes to the upstream. The upstream serves one request at a time,
in the order of arrival, as the daemon's one process does. Half of the questions are asked on every box of a model;
there are four models. A question that another box has a claim on is put behind the box's others.

What is told: the makespan beside that of boxes that do not know of each other, how busy the upstream is, how long
requests wait there, and how many it could serve.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import random
import statistics
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusiond.exchange import entry as entries
from fusiond.exchange import transfer
from fusiond.exchange.database import Exchange
from fusiond.exchange.signing import Signer

RECORDED = Path(__file__).parents[1] / "pipeline_times.json"
BOXES = (1, 10, 50, 100, 300, 1000)
MODELS, TRIALS, PROCESSES = 4, 64, 5
QUESTIONS = 40
"""Of each box; half of them are asked on every box of its model, too."""
LOOKUPS_PER_SEC, MISSES = 5.0, 0.1
"""Of each box while it runs, and the part of them that its own store does not answer."""


@dataclass(frozen=True)
class Costs:
    """Seconds that the upstream is busy for one request."""

    find: float
    push: float
    claim: float
    http: float


def answers(known: int) -> tuple[str, list[str], list[bytes]]:
    """So many made-up answers of one device: its key, their contents, their lines."""
    signer = Signer(bytes(32))
    device = {
        "key": "", "name": "cuda:0", "model": "Simulated", "arch": "sm_90", "memory_bytes": 80 << 30, "mig": "",
        "evidence": "measured",
        "limits": {"multiprocessors": 132, "shared_bytes_per_sm": 1, "shared_bytes_per_block": 1, "threads_per_sm": 1,
                   "blocks_per_sm": 1},
    }  # fmt: skip
    device["key"] = entries.content_key(["Simulated", "sm_90", 132, 80, "", "measured"])
    lines, families = [], []
    for number in range(known):
        family = entries.content_key([number])
        families.append(family)
        body = {
            "strategy": "hfuse", "strategy_version": 1, "fusiond": "0.1.0",
            "workload": {"key": family, "family_key": family, "content_key": family, "content_family_key": family,
                         "name": f"question{number}", "sizes": {"n": 5000000}},
            "device": device, "environment": {"driver": "580.1"}, "cache": "warm", "evidence": "measured",
            "verdict": "fuse", "config": {"threads": 512, "cap": 32}, "program": None, "time_us": 81.3,
            "baseline": "streams_ab", "baseline_us": 100.0, "baseline_config": {"threads": 512}, "unfused": None,
            "speedup": 1.23, "ci95": [1.21, 1.25], "verified": True, "checks": ["2 seeds, equal"], "figures": {},
            "counted": [], "trials": 64, "processes": 5, "ended": "", "found_at": "2026-11-24T12:00:00+00:00",
        }  # fmt: skip
        lines.append(signer.sign(body, {}).line().encode())
    return str(device["key"]), families, lines


def measured(http_us: float, known: int = 3000) -> Costs:
    """What its own code takes here, with so many answers known."""
    device, families, lines = answers(known)
    with tempfile.TemporaryDirectory() as folder, Exchange(Path(folder) / "x.exchange.sqlite") as exchange:
        transfer.read(exchange, lines[:-50])
        push = statistics.median(_secs(lambda line=line: transfer.read(exchange, [line])) for line in lines[-50:])
        draw = random.Random(0)

        def find() -> None:
            found = exchange.find(family=draw.choice(families), devices=[device], cache="warm", sizes='{"n":5000000}')
            exchange.envelope(found[0]["key"])

        found = statistics.median(_secs(find) for _ in range(2000))
        claim = statistics.median(_secs(lambda q=str(q): exchange.claim(q, "box", 90, 0.0)) for q in range(100))
    return Costs(find=found, push=push, claim=claim, http=http_us / 1e6)


def _secs(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


@dataclass
class Upstream:
    """One server, first come, first served."""

    free_at: float = 0.0
    busy: float = 0.0
    waits: list[float] = field(default_factory=list)
    claimed: dict[int, tuple[int, float]] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)

    def serve(self, at: float, secs: float) -> float:
        begun = max(at, self.free_at)
        self.free_at = begun + secs
        self.busy += secs
        self.waits.append(begun - at)
        return self.free_at


def simulate(boxes: int, costs: Costs, times: list[float], seed: int = 0) -> dict[str, Any]:
    draw = random.Random(seed)
    upstream = Upstream()
    shared = [list(range(model * 10**6, model * 10**6 + QUESTIONS // 2)) for model in range(MODELS)]
    queues: list[deque[int]] = []
    for box in range(boxes):
        own = [10**7 + box * 1000 + number for number in range(QUESTIONS - QUESTIONS // 2)]
        questions = [*shared[box % MODELS], *own]
        draw.shuffle(questions)
        queues.append(deque(questions))
    duration: dict[int, float] = {}
    alone = [0.0] * boxes
    for box, queue in enumerate(queues):
        for question in queue:
            if question not in duration:
                duration[question] = sum(draw.choices(times, k=TRIALS)) + PROCESSES * 4 * statistics.mean(times)
            alone[box] += duration[question]
    check_secs = PROCESSES * 2 * statistics.mean(times)
    events: list[tuple[float, int, int, str, int]] = []
    count = 0

    def at(when: float, box: int, what: str, question: int = 0) -> None:
        nonlocal count
        count += 1
        heapq.heappush(events, (when, count, box, what, question))

    ended = [0.0] * boxes
    left = boxes
    for box in range(boxes):
        at(draw.random(), box, "next")
        at(draw.expovariate(LOOKUPS_PER_SEC * MISSES), box, "miss")
    requests, tuned = 0, 0
    while left:
        now, _, box, what, question = heapq.heappop(events)
        if what == "miss":
            if ended[box]:
                continue
            requests += 1
            upstream.serve(now, costs.find + costs.http)
            at(now + draw.expovariate(LOOKUPS_PER_SEC * MISSES), box, "miss")
        elif what == "next":
            if not queues[box]:
                ended[box], left = now, left - 1
                continue
            question = queues[box].popleft()
            requests += 2  # is it answered, and the claim
            now = upstream.serve(now, costs.find + costs.claim + 2 * costs.http)
            holder, until = upstream.claimed.get(question, (box, 0.0))
            if question in upstream.answered:
                at(now + check_secs, box, "next")
            elif holder != box and until > now:
                queues[box].append(question)
                at(now if len(queues[box]) > 1 else now + 15.0, box, "next")
            else:
                upstream.claimed[question] = box, math.inf  # it is renewed until it is released
                at(now + duration[question], box, "found", question)
                tuned += 1
        else:
            requests += 2  # the push, and the claim that is let go
            now = upstream.serve(now, costs.push + costs.claim + 2 * costs.http)
            upstream.answered.add(question)
            upstream.claimed.pop(question, None)
            at(now, box, "next")
    makespan = max(ended)
    waits = sorted(upstream.waits)
    return {
        "boxes": boxes,
        "makespan_secs": round(makespan, 1),
        "makespan_without_upstream_secs": round(max(alone), 1),
        "jobs_tuned": tuned,
        "jobs_without_upstream": boxes * QUESTIONS,
        "requests_per_sec": round(requests / makespan, 2),
        "upstream_busy": round(upstream.busy / makespan, 4),
        "wait_p99_ms": round(1e3 * waits[int(0.99 * (len(waits) - 1))], 3),
        "answers_kept": len(upstream.answered),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--http-us", type=float, default=450.0, help="what HTTP adds to a request on the upstream")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    recorded = json.loads(RECORDED.read_text())
    costs = measured(arguments.http_us)
    found = [simulate(boxes, costs, recorded["measure_secs"]) for boxes in BOXES]
    most = 1.0 / (costs.find + costs.http)
    document = {
        "measured_us": {name: round(getattr(costs, name) * 1e6, 1) for name in ("find", "push", "claim", "http")},
        "lookups_per_sec_at_most": round(most),
        "boxes_that_saturate": round(most / (LOOKUPS_PER_SEC * MISSES)),
        "cores": os.cpu_count(),
        "recorded": recorded["recorded"],
        "fleets": found,
    }
    text = json.dumps(document, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
