"""Proving stitching's plans at 10^9 elements, beside planning them, and small ones beside the check of each element:
`python -m benchmarks.proofs`, JSON on standard output.

    real     the functions of `stitching.sized` at their real sizes, each in a process of its own: processor time of
             all its plans together (those of `stitching.modules`, and the packed one without rows in registers), and
             the most memory that the process had
    small    at small sizes, beside the check that looks at every element of every block: the tests' oracle
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.stitching import modules
from fusiond.requests.planning import target_for_arch
from fusiond_stitching.analysis import planner, verify
from fusiond_stitching.analysis.plan import StitchingPlan
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

ARCH = "sm_90"
LIMITS = target_for_arch(ARCH).limits
CHILD = "--child"


def main() -> None:
    if sys.argv[1:] == [CHILD]:
        print(json.dumps(proved(sys.stdin.read())))
        return
    from benchmarks.stitching import sized  # jax: no part of what is measured in a child

    result: dict[str, Any] = {"arch": ARCH, "real": {}, "small": {}}
    for name, each in sized.FUNCTIONS.items():
        command = [sys.executable, "-m", "benchmarks.proofs", CHILD]
        done = subprocess.run(command, input=each.text(each.real), stdout=subprocess.PIPE, text=True, check=True)
        result["real"][name] = json.loads(done.stdout)
        result["small"][name] = beside(each.text(each.small))
    print(json.dumps(result, indent=1))


def proved(text: str) -> Mapping[str, Any]:
    """Of one module, in a process in which nothing else happens."""
    module = importer.read(text, "module")
    begun = time.process_time()
    plans = planned(module)
    middle = time.process_time()
    for policy, plan in plans:
        problems = verify.problems(module, plan, shared_limit=policy.shared_limit)
        if problems:
            raise ValueError(problems[0])
    return {
        "elements": module.largest,
        "instructions": len(module.instructions),
        "plans": len(plans),
        "planning_secs": round(middle - begun, 4),
        "proving_secs": round(time.process_time() - middle, 4),
        "memory_mb": most_mb(),
    }


def most_mb() -> int:
    """The largest resident set of this process (`ru_maxrss` would count what it was forked from)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (size,) = (each.split()[1] for each in lines if each.startswith("VmHWM:"))
    return int(size) // 1024


def planned(module: HloModule) -> list[tuple[FusionPolicy, StitchingPlan]]:
    """Each plan with its policy. ValueError where there is none."""
    policies = modules.policies(LIMITS)
    every = [*policies.values(), dataclasses.replace(policies["packed"], registers=False)]
    found = []
    for policy in every:
        made = planner.plan(module, policy, LIMITS)
        if made.problems:
            raise ValueError(made.problems[0])
        found.append((policy, made.plan))
    return found


def beside(text: str) -> Mapping[str, Any]:
    """The two checks of the same plans."""
    from tests.plugins.stitching import enumerated  # the check that is not part of fusiond any more

    module = importer.read(text, "module")
    plans = planned(module)
    secs = {}
    for name, check in (("proving", verify.problems), ("enumerating", enumerated.problems)):
        begun = time.process_time()
        for policy, plan in plans:
            if check(module, plan, shared_limit=policy.shared_limit):
                raise ValueError(f"{name}: a sound plan is refused")
        secs[name] = time.process_time() - begun
    return {
        "elements": module.largest,
        **{f"{name}_secs": round(each, 4) for name, each in secs.items()},
        "ratio": round(secs["enumerating"] / secs["proving"], 1),
    }


if __name__ == "__main__":
    main()
