"""How often the verdict is right, on simulated noise: `python benchmarks/verdict.py [--runs 4000]`, JSON on standard
output.

Three finalists of one true speed-up are measured in five processes of ten pairs each. A process shifts all of its
ratios by a common amount (placement, clock), and each pair adds its own noise. The alternative is what is often
done: pool the samples of one process, and ask whether the interval of their mean lies above 1.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import Counter

from fusiond import verdict
from fusiond.model import Measurement, Purpose, median

FINALISTS, PROCESSES, PAIRS = 3, verdict.LEAST_PROCESSES, 10
LEAST_GAIN = 1.02
NOISE = {"quiet": (0.003, 0.002), "usual": (0.006, 0.004), "noisy": (0.015, 0.01)}
"""Relative standard deviations: (between processes, within one)."""
GAINS = (0.97, 1.00, 1.01, 1.02, 1.03, 1.05, 1.10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=4000)
    runs = parser.parse_args().runs
    generator = random.Random(0)
    table = [
        {"noise": name, "true_gain": gain, **shares(generator, gain, *NOISE[name], runs)}
        for name in NOISE
        for gain in GAINS
    ]
    print(json.dumps({"runs": runs, "least_gain": LEAST_GAIN, "table": table}, indent=1))


def shares(generator: random.Random, gain: float, between: float, within: float, runs: int) -> dict[str, float]:
    """In how many of the runs each verdict was given, and in how many the pooled samples of one process said
    `faster`."""
    found: Counter[str] = Counter()
    for _ in range(runs):
        finals = {
            str(index): [process(generator, gain, between, within) for _ in range(PROCESSES)]
            for index in range(FINALISTS)
        }
        logs = {key: [verdict.process_ratio(each) for each in processes] for key, processes in finals.items()}
        conclusion = verdict.conclude(logs, LEAST_GAIN)
        assert conclusion is not None
        found[conclusion.verdict.value] += 1
        found["pooled_says_faster"] += pooled(max(finals.values(), key=lambda each: median_ratio(each[0]))[0])
    names = ("fuse", "undecided", "keep", "pooled_says_faster")
    return {name: round(found[name] / runs, 4) for name in names}


def process(generator: random.Random, gain: float, between: float, within: float) -> Measurement:
    shift = generator.gauss(math.log(gain), between)
    ratios = tuple(math.exp(shift + generator.gauss(0, within)) for _ in range(PAIRS))
    return Measurement(
        span_us=tuple(100.0 for _ in ratios),
        baseline_us=tuple(100.0 * ratio for ratio in ratios),
        clock="device",
        purpose=Purpose.FINAL,
    )


def median_ratio(measurement: Measurement) -> float:
    return median(measurement.baseline_us)


def pooled(measurement: Measurement) -> bool:
    logs = [math.log(each / 100.0) for each in measurement.baseline_us]
    return verdict.estimate(logs, 1).low > 1.0


if __name__ == "__main__":
    main()
