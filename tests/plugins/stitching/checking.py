"""A group of cases as one module (one source to build), and its outputs against the oracle's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from fusiond.devices.compare import compare
from fusiond.model.language.narrow import numpy_dtype
from fusiond.model.nouns import Rejection
from fusiond.model.program import Program
from fusiond_stitching.analysis import planner, verify
from fusiond_stitching.analysis.plan import StitchingPlan
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

from . import handmade, oracle
from .cases import Case, cases
from .policies import LIMITS, POLICIES
from .running import Arrays, Runner


@dataclass(frozen=True, eq=False)
class Batch:
    """`names`: for each output, of which case it is the how-manieth."""

    text: str
    module: HloModule
    inputs: tuple[np.ndarray, ...]
    names: tuple[str, ...]
    wanted: tuple[np.ndarray, ...]

    @staticmethod
    @functools.cache
    def of(group: str) -> Batch:
        """All cases of a group."""
        return Batch.made(tuple(each for each in cases().values() if each.group == group), group)

    @staticmethod
    @functools.cache
    def alone(name: str) -> Batch:
        """One case."""
        return Batch.made((cases()[name],), cases()[name].group)

    @staticmethod
    def one(group: str, name: str, function: Callable[..., object], inputs: tuple[np.ndarray, ...]) -> Batch:
        return Batch.made((Case(name=name, group=group, function=function, inputs=inputs),), group)

    @staticmethod
    def made(found: tuple[Case, ...], group: str) -> Batch:
        """Some cases of a group, side by side in one module."""

        def everything(*arguments: object) -> list[object]:
            results, first = [], 0
            for each in found:
                results.append(each.function(*arguments[first : first + len(each.inputs)]))
                first += len(each.inputs)
            return results

        inputs = tuple(array for each in found for array in each.inputs)
        text = oracle.lowered(everything, *inputs, x64=group == "wide")
        wide = group == "wide"
        with jax.enable_x64(wide):
            shapes = jax.eval_shape(everything, *inputs)
        names = [
            f"{each.name}[{place}]"
            for each, result in zip(found, shapes, strict=True)
            for place, _ in enumerate(jax.tree.leaves(result))
        ]
        return Batch(text, importer.read(text, group), inputs, tuple(names), tuple(oracle.run(text, inputs)))

    def program(self, plan: StitchingPlan) -> Program:
        program = emit.program(self.module, plan)
        assert not isinstance(program, Rejection), program.detail
        return program

    def check(self, runner: Runner, plan: StitchingPlan, *, seed: int = 0) -> None:
        """Runs a plan and compares every output."""
        program = self.program(plan)
        got = runner.run(program, self.given(), seed=seed)
        found = self.differences(program, got)
        assert not found, "\n".join(found)

    def check_planned(self, runner: Runner, policy: str, *, seeds: tuple[int, ...] = (0,)) -> None:
        """The same of one kernel per instruction (`none`), or of the plan that a policy gives, proved first."""
        plan = handmade.unfused(self.module)
        if policy != "none":
            plan = planner.plan(self.module, POLICIES[policy], LIMITS).plan
            assert verify.problems(self.module, plan) == ()
        for seed in seeds:
            self.check(runner, plan, seed=seed)

    def given(self) -> Arrays:
        found = {}
        for place, array in enumerate(self.inputs):
            bits = array.view(numpy_dtype(array.dtype.name))
            found[f"in_{place}"] = bits if bits.size else np.zeros(1, bits.dtype)
        return found

    def differences(self, program: Program, got: Arrays) -> list[str]:
        """A line for each output that is wrong."""
        found = []
        for place, (name, wanted) in enumerate(zip(self.names, self.wanted, strict=True)):
            if wanted.size == 0:
                continue
            buffer = program.buffer(f"out_{place}")
            flat = np.ascontiguousarray(wanted).reshape(-1).view(numpy_dtype(buffer.dtype))
            result = compare(buffer, flat, got[f"out_{place}"])
            if not result.equal:
                found.append(f"{name}: {result.detail} ({result.worst:.3g} of what is allowed)")
        return found
