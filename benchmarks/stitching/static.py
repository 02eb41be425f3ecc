"""What is known of plans without a device: kernels, bytes, shared memory, and how long planning takes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.stitching import generate, modules
from fusiond.model.nouns import DeviceLimits, Job, Workload
from fusiond.strategy import Target
from fusiond_stitching.analysis import planner, traffic, verify
from fusiond_stitching.analysis.plan import StitchingPlan
from fusiond_stitching.frontend import fills, hlo, importer
from fusiond_stitching.frontend.graph import HloModule
from fusiond_stitching.requests import GROUPS, PROBES, STRICT, StitchingRequest
from fusiond_stitching.strategy import Stitching

SIZES = (100, 1_000, 10_000)  #: Instructions of the generated modules
CROSSING = 2_000  #: Instructions of the one that fits into no block
GOAL_SECS = 30.0


def counts(limits: DeviceLimits, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each of the eight modules. Every plan is verified; one that is not sound ends the run."""
    return [_row(name, limits, say) for name in modules.names()]


def _row(name: str, limits: DeviceLimits, say: Callable[[str], None]) -> dict[str, Any]:
    module = modules.module(name)
    theirs = modules.xla()["modules"][name]
    row: dict[str, Any] = {
        "module": name,
        "instructions": len(module.instructions),
        "library_calls": module.library_calls,
        "xla": theirs["kernels"],
        "bound": theirs["bound"],
        "ideal_bytes": traffic.ideal_bytes(module),
        "plans": {},
    }
    for plan, policy in modules.policies(limits).items():
        begun = time.process_time()
        planned = planner.plan(module, policy, limits)
        secs = time.process_time() - begun
        problems = [*planned.problems, *verify.problems(module, planned.plan, shared_limit=policy.shared_limit)]
        if problems:
            raise ValueError(f"{name}, {plan}: {problems[0]}")
        row["plans"][plan] = {**_described(module, planned.plan), "planning_ms": round(1000 * secs, 1)}
    say(f"{name}: " + ", ".join(f"{plan} {each['kernels']}" for plan, each in row["plans"].items()))
    return row


def _described(module: HloModule, plan: StitchingPlan) -> dict[str, Any]:
    kernels = plan.kernels
    shared = [each.shared_bytes for each in kernels]
    return {
        "kernels": len(kernels),
        "cooperative": sum(1 for each in kernels if each.cooperative),
        "programs": sum(1 for each in kernels for _ in each.programs),
        "bytes": traffic.moved(module, plan),
        "shared_average": round(statistics.fmean(shared)) if shared else 0,
        "shared_most": max(shared, default=0),
    }


def ratios(rows: Sequence[Mapping[str, Any]], plan: str, over: str = "opaque") -> list[float]:
    """Kernels over those of XLA (`over` a column of its table) or of another plan."""
    found = []
    for row in rows:
        base = row["xla"][over] if over in row["xla"] else row["plans"][over]["kernels"]
        found.append(row["plans"][plan]["kernels"] / base)
    return found


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(each) for each in values))


# --- planning times -------------------------------------------------------------------------------------


def growth(limits: DeviceLimits, say: Callable[[str], None], sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """Seconds of processor time for generated modules: reading the text, each plan, and its verification."""
    found = []
    for size in sizes:
        text = generate.module(size)
        begun = time.process_time()
        raw = hlo.parse(text, f"generated-{size}.hlo")
        parsed = time.process_time()
        module = importer.module(raw)
        lowered = time.process_time()
        row: dict[str, Any] = {
            "lines": size,
            "instructions": len(module.instructions),
            "library_calls": module.library_calls,
            "read_secs": round(lowered - begun, 3),
            "parse_secs": round(parsed - begun, 3),
            "analysis_secs": round(analysis_secs(module, limits), 3),
            "plans": {},
        }
        for plan, policy in modules.policies(limits).items():
            begun = time.process_time()
            planned = planner.plan(module, policy, limits)
            middle = time.process_time()
            problems = [*planned.problems, *verify.problems(module, planned.plan, shared_limit=policy.shared_limit)]
            if problems:
                raise ValueError(f"{size} instructions, {plan}: {problems[0]}")
            row["plans"][plan] = {
                "kernels": len(planned.plan.kernels),
                "planning_secs": round(middle - begun, 3),
                "verify_secs": round(time.process_time() - middle, 3),
            }
        times = ", ".join(f"{plan} {each['planning_secs']} s" for plan, each in row["plans"].items())
        say(f"{size}: analysis {row['analysis_secs']} s, {times}")
        found.append(row)
    return found


def analysis_secs(module: HloModule, limits: DeviceLimits) -> float:
    """What all that `plan` shows of a module takes: five plans, what they move, and a look at the code."""
    job = Job(strategy=Stitching.name, request={"module": module.name}, sizes={})
    asked = StitchingRequest(
        job=job, module=module, fills=fills.read(module, None, _no_file), dots="library", accuracy=STRICT,
        deterministic=False, probes=PROBES, groups=GROUPS, group=False,
    )  # fmt: skip
    workload = Workload(
        strategy=Stitching.name, strategy_version=Stitching.version, name=module.name, members=(module.name,),
        sizes={}, content={}, payload=asked,
    )  # fmt: skip
    target = Target(arch="static", limits=limits, facts=lambda source: None)
    begun = time.process_time()
    Stitching().analyse(workload, target)
    return time.process_time() - begun


def _no_file(node: Any) -> tuple[str, str]:
    raise AssertionError("no fill is a file")


def crossing(limits: DeviceLimits, say: Callable[[str], None], size: int = CROSSING) -> dict[str, Any]:
    """The same for a module that is bad for the paper's fusion: shared memory refuses one huge group again and
    again."""
    module = importer.module(hlo.parse(generate.crossing(size), f"crossing-{size}.hlo"))
    row: dict[str, Any] = {"lines": size, "instructions": len(module.instructions), "plans": {}}
    for plan, policy in modules.policies(limits).items():
        begun = time.process_time()
        planned = planner.plan(module, policy, limits)
        secs = time.process_time() - begun
        row["plans"][plan] = {"kernels": len(planned.plan.kernels), "planning_secs": round(secs, 3)}
    say(f"{size}, crossing: " + ", ".join(f"{plan} {each['planning_secs']} s" for plan, each in row["plans"].items()))
    return row


def exponent(rows: Sequence[Mapping[str, Any]], plan: str) -> float:
    """k where planning takes time proportional to instructions^k: between the two largest modules."""
    first, last = rows[-2], rows[-1]
    times = [max(1e-3, each["plans"][plan]["planning_secs"]) for each in (first, last)]
    return math.log(times[1] / times[0]) / math.log(last["instructions"] / first["instructions"])
