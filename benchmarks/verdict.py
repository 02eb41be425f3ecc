"""How often the verdict is right, on simulated noise: `python -m benchmarks.verdict [--runs 4000]`, JSON on standard
output.

Three finalists of one true speed-up are measured in five processes of ten pairs each. The simplest noise: a process
shifts all of its ratios by a common amount (placement, clock), and each pair adds its own. The others are single
samples, baseline and candidate taking turns in being first (ABBA), with what was seen on real GPUs on top of that:

    drift       the device becomes slower all the time, by 10 % within a process
    bimodal     the clock jumps between two states that are 16 % apart, on the average every 12 samples
    outliers    one sample in 20 takes 1.2 to 3 times as long
    all         the three of them at once

What the samples of a process are worth is decided by the same code as in a job: too noisy a batch is thrown away, and
another process takes its place. The alternative is what is often done: pool the samples of one process, and ask
whether the interval of their mean lies above 1.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import Counter
from collections.abc import Collection

from fusiond.devices import timing
from fusiond.devices.timing import Sampling
from fusiond.model import Measurement, Purpose, median
from fusiond.tuning import verdict

FINALISTS, PROCESSES, PAIRS = 3, verdict.LEAST_PROCESSES, 10
LEAST_GAIN = 1.02
NOISE = {"quiet": (0.003, 0.002), "usual": (0.006, 0.004), "noisy": (0.015, 0.01)}
"""Relative standard deviations: (between processes, within one)."""
GAINS = (0.97, 1.00, 1.01, 1.02, 1.03, 1.05, 1.10)
HARDER = {"drift": {"drift"}, "bimodal": {"bimodal"}, "outliers": {"outliers"}, "all": {"drift", "bimodal", "outliers"}}
HARDER_GAINS = (1.00, 1.01, 1.03, 1.05)
NOISE_LIMIT = Sampling(purpose=Purpose.FINAL).noise_limit


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
    table += [
        {"noise": name, "true_gain": gain, **shares(generator, gain, *NOISE["usual"], runs, HARDER[name])}
        for name in HARDER
        for gain in HARDER_GAINS
    ]
    print(json.dumps({"runs": runs, "least_gain": LEAST_GAIN, "table": table}, indent=1))


def shares(
    generator: random.Random,
    gain: float,
    between: float,
    within: float,
    runs: int,
    trouble: Collection[str] = (),
) -> dict[str, float]:
    """In how many of the runs each verdict was given, and in how many the pooled samples of one process said
    `faster`."""
    found: Counter[str] = Counter()
    for _ in range(runs):
        finals = {
            str(index): [process(generator, gain, between, within, trouble) for _ in range(PROCESSES)]
            for index in range(FINALISTS)
        }
        logs = {key: [verdict.process_ratio(each) for each in processes] for key, processes in finals.items()}
        conclusion = verdict.conclude(logs, LEAST_GAIN)
        assert conclusion is not None
        found[conclusion.verdict.value] += 1
        found["pooled_says_faster"] += pooled(max(finals.values(), key=lambda each: median_ratio(each[0]))[0])
    names = ("fuse", "undecided", "keep", "pooled_says_faster")
    return {name: round(found[name] / runs, 4) for name in names}


def process(
    generator: random.Random, gain: float, between: float, within: float, trouble: Collection[str] = ()
) -> Measurement:
    """What one process measures. One that is too noisy is taken again, as in a job."""
    while True:
        measured = (
            samples(generator, gain, between, within, trouble) if trouble else pairs(generator, gain, between, within)
        )
        if not timing.too_noisy(measured.span_us, measured.baseline_us, NOISE_LIMIT):
            return measured


def samples(
    generator: random.Random, gain: float, between: float, within: float, trouble: Collection[str]
) -> Measurement:
    """Sample by sample: candidate, baseline, baseline, candidate, ..."""
    shift = math.exp(generator.gauss(math.log(gain), between))
    slow = generator.random() < 0.5
    times: tuple[list[float], list[float]] = ([], [])
    """Of the candidate, of the baseline."""
    for index in range(2 * PAIRS):
        arm = (index + index // 2) % 2
        time_us = 100.0 * (shift if arm else 1.0) * math.exp(generator.gauss(0, within / math.sqrt(2)))
        if "drift" in trouble:
            time_us *= 1 + 0.10 * index / (2 * PAIRS)
        if "bimodal" in trouble:
            slow ^= generator.random() < 1 / 12
            time_us *= 1.16 if slow else 1.0
        if "outliers" in trouble and generator.random() < 0.05:
            time_us *= generator.uniform(1.2, 3.0)
        times[arm].append(time_us)
    return Measurement(span_us=tuple(times[0]), baseline_us=tuple(times[1]), clock="device", purpose=Purpose.FINAL)


def pairs(generator: random.Random, gain: float, between: float, within: float) -> Measurement:
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
    logs = [math.log(b / a) for a, b in zip(measurement.span_us, measurement.baseline_us, strict=True)]
    return verdict.estimate(logs, 1).low > 1.0


if __name__ == "__main__":
    main()
