"""Plans that were broken on purpose."""

import dataclasses
from typing import Any

from fusiond_stitching.analysis.plan import StitchedKernel, StitchingPlan


def last(plan: StitchingPlan) -> tuple[StitchedKernel, Any, Any]:
    """The last kernel, its only program, and the only stage of that."""
    kernel = plan.steps[-1]
    assert isinstance(kernel, StitchedKernel)
    (program,) = kernel.programs
    (stage,) = program.stages
    return kernel, program, stage


def changed(plan: StitchingPlan, **said: Any) -> StitchingPlan:
    """The plan with other values in these: `kernel_grid=3`, `program_blocks=3`, `stage_dims=(3,)`."""
    kernel, program, stage = last(plan)
    of = {
        each: {name.partition("_")[2]: value for name, value in said.items() if name.startswith(f"{each}_")}
        for each in ("kernel", "program", "stage")
    }
    program = dataclasses.replace(program, **{"stages": (dataclasses.replace(stage, **of["stage"]),), **of["program"]})
    phase = dataclasses.replace(kernel.phases[0], programs=(program,))
    return dataclasses.replace(
        plan, steps=(*plan.steps[:-1], dataclasses.replace(kernel, phases=(phase,), **of["kernel"]))
    )


def homeless(stage: Any) -> tuple[Any, ...]:
    """A stage's results, of which the first is stored nowhere."""
    return (dataclasses.replace(stage.results[0], homes=()), *stage.results[1:])
