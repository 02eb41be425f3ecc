"""From generated kernels to a comparison: a job of them, a config, one compilation, the outputs bit by bit."""

import dataclasses
import hashlib
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fusiond.build.cpu import commands
from fusiond.build.cpu.lowering import lower
from fusiond.devices.counting.run import count
from fusiond.devices.cpu import native
from fusiond.model.nouns import Analysis, Config
from fusiond.model.program import Program, Source
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.strategy import Target
from fusiond_hfuse import space
from fusiond_hfuse.strategy import Hfuse

from .conftest import OPTIMISE, Arrays, Runner, outputs
from .generator import Choices, Generated, config, kernel, pick


def generated(choices: Choices, names: Sequence[str]) -> list[Generated]:
    """A kernel for each name; now and then the second is the first again."""
    kernels = [kernel(choices, name) for name in names]
    return [kernels[0], kernels[0], *kernels[2:]] if choices.number(0, 19) == 19 else kernels


def analysed(
    folder: Path, registry: Registry, target: Target, kernels: Sequence[Generated], granularity: int = 32
) -> Analysis:
    """The analysis of a job of these kernels."""
    for each in kernels:
        (folder / f"{each.name}.cu").write_text(each.source)
        (folder / f"{each.name}.yaml").write_text(each.yaml)
    key = "pair" if len(kernels) == 2 else "kernels"
    names = ", ".join(f"./{each.name}.yaml" for each in kernels)
    (job,) = jobs.read(folder / "job.yaml", f"strategy: hfuse\n{key}: [{names}]\ngranularity: {granularity}\n")
    strategy = Hfuse()
    return strategy.analyse(strategy.parse(job, jobs.JobInputs(registry, job)), target)


def chosen(choices: Choices, analysis: Analysis, target: Target) -> Config:
    """Some point of the space. Of three kernels also two of them fused, and the third beside them: what the space has
    once pairs were measured."""
    group = analysis.payload.group
    if len(group.slots) == 2 or choices.number(0, 1) == 0:
        return config(choices, Hfuse().space(analysis, {}))
    alone = pick(choices, group.letters)
    pair = group.letters.replace(alone, "")
    fused = config(choices, space.fused(group.among(pair), target.limits, target.arch))
    threads = space.unfused(group.among(alone), target.limits).parameters[0].values
    return Config.of(
        {
            "groups": "|".join(sorted(["+".join(pair), alone])),
            "launch": pick(choices, space.LAUNCHES),
            f"alone.{alone}": pick(choices, threads),
            **{f"{pair}.{name}": value for name, value in fused.items()},
        }
    )


class JointRunner(Runner):
    """Compiles all sources of several Programs at once, each in a namespace: a small one is mostly its start."""

    def __init__(self, folder: Path, library: Path) -> None:
        super().__init__(folder, library)
        self._exported: dict[tuple[str, str], str] = {}

    def joined(self, *programs: Program) -> None:
        """Compile these, and forget what was."""
        texts: dict[str, int] = {}
        entries: dict[str, str] = {}
        parts = []
        self._exported = {}
        for source in (each for program in programs for each in program.sources):
            text = _written(source)
            if text not in texts:
                texts[text] = len(texts)
                parts.append(f"namespace unit{texts[text]} {{\n{text}\n}}\n{_forgotten(text)}")
            for entry in source.entries:
                number = texts[text]
                name = f"entry{number}_{source.entries.index(entry)}"
                entries[name] = f"unit{number}::{entry}"
                self._exported[text, entry] = name
        unit = commands.translation_unit("\n".join(parts), entries)
        stem = self.folder / hashlib.sha256(unit.encode()).hexdigest()[:24]
        cpp, out = stem.with_suffix(".cpp"), stem.with_suffix(".so")
        if not out.exists():
            cpp.write_text(unit)
            command = commands.kernel(cpp, out, flags=[OPTIMISE], precompiled=self.folder)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        self._module = self.runtime.load(out)

    def entry(self, source: Source, name: str) -> tuple[native.NativeEntry, native.NativeModule]:
        return self._module.entry(self._exported[_written(source), name]), self._module


def _written(source: Source) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in source.defines) + lower(source.text)


def _forgotten(text: str) -> str:
    """Macros go on where a namespace ends."""
    names = dict.fromkeys(re.findall(r"(?m)^\s*#\s*define\s+(\w+)", text))
    return "".join(f"#undef {name}\n" for name in names if not name.startswith("FUSIOND_"))


def differences(program: Program, wanted: Arrays, got: Arrays | native.Fault) -> list[str]:
    """What differs from the outputs that were wanted, bit by bit."""
    if isinstance(got, native.Fault):
        return [f"{got.kind.name}: {got.text}"]
    return [
        f"{name}: {(array != got[name]).sum()} of {array.size} differ, the first at {(array != got[name]).argmax()}"
        for name, array in outputs(program, wanted).items()
        if array.tobytes() != got[name].tobytes()
    ]


def differences_in_ptx(program: Program, wanted: Arrays) -> list[str]:
    """What nvcc makes of a program, run on the same data by the interpreter of PTX, has other than these outputs: a
    second judge, which has nothing in common with the emulation of C++ but the data."""
    plain = tuple(dataclasses.replace(each, flags=(*each.flags, "-fmad=false")) for each in program.sources)
    found = count(dataclasses.replace(program, sources=plain), seed=1, budget=None)
    failed = [f"{row.launch}: {row.failed}" for row in found.rows if row.failed]
    return failed or differences(program, wanted, {**wanted, **found.outputs})
