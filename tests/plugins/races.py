"""Finds races in the launches of a program whose memory the test provides."""

from fusiond.build import gxx
from fusiond.devices.cpu.native import Argument, NativeLaunch
from fusiond.devices.cpu.race import find_races
from fusiond.model.inputs.fills import initial
from fusiond.model.language import narrow
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Pointer, Program, Scalar


def races(program: Program, seed: int = 1) -> list[str]:
    """A text for each race in each launch, which gets its buffers as they are filled: half the work of
    `fusiond.devices.cpu.race.find_in`, which does the steps before it too. AssertionError for a text that does not
    build."""
    found: list[str] = []
    for step in program.launches:
        source = program.source(step.source)
        built = gxx.build(source, races=True)
        assert not isinstance(built, BuildFailed), built.reason
        arguments: list[Argument] = []
        for each in step.arguments:
            if isinstance(each, Pointer):
                arguments.append(initial(program.buffer(each.buffer), seed).copy())
            else:
                assert isinstance(each, Scalar), each
                arguments.append(narrow.scalar(each.dtype, each.value))
        launch = NativeLaunch(grid=step.grid, block=step.block, shared_bytes=step.shared_bytes)
        found += find_races(gxx.race_host(), built, gxx.exported(source, step.entry), launch, arguments)
    return found
