"""The strategy `replay`: a recorded space is searched, as if its configs were measured now.

    strategy: replay
    space: ./conv_A100.jsonl.gz
    device: replay

The unfused way is the recorded config of the median time. The file is not copied into the job: it is kept by the hash
of its bytes, and a job fails, saying so, when the file is another one by then.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fusiond.model.errors import RequestError
from fusiond.model.inputs import values
from fusiond.model.keys import text_key
from fusiond.model.nouns import Analysis, Config, Job, Rejection, Workload, frozen
from fusiond.model.program import Buffer, Launch, Program, Role, Source
from fusiond.strategy import Answers, Baseline, Inputs, StrategyBase, Target
from fusiond.strategy.space import EMPTY, Space
from fusiond_replay import script, t4
from fusiond_replay.pack import Pack, Row
from fusiond_replay.script import ReplayScript


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFile:
    """A file that holds a recorded space."""

    path: str
    digest: str  #: The key of its bytes


class Replay(StrategyBase[RecordedFile, Target]):
    name = "replay"
    version = 1
    job_keys: tuple[str, ...] = ("space",)

    def parse(self, job: Job, inputs: Inputs) -> Workload[RecordedFile]:
        where = job.where("space")
        given = job.request.get("space")
        if not isinstance(given, str):
            raise RequestError("'space' must be the path of a recorded space, as in ./conv.jsonl.gz", where=where)
        values.job_sizes(job, ())  # a recorded space has no sizes
        path = inputs.resolve("space", given if "/" in given else f"./{given}", where=where)
        recording = RecordedFile(path=path, digest=inputs.digest(path, where=where))
        pack = _opened(recording).pack
        return Workload(
            strategy=self.name,
            strategy_version=self.version,
            name=pack.name,
            members=(pack.name,),
            sizes=frozen({}),
            content={"digest": recording.digest},
            payload=recording,
        )

    def analyse(self, workload: Workload[RecordedFile], target: Target) -> Analysis[RecordedFile, Target]:
        opened = _opened(workload.payload)
        failed = sum(bool(each.failure) for each in opened.pack.rows)
        report = {
            "recorded on": opened.pack.device or "a device that is not named",
            "configs": len(opened.pack.rows),
            "failed": failed,
            "fastest_us": round(min(opened.times_us.values()), 3),
            "notice": opened.pack.notice,
        }
        return Analysis(workload=workload, report=frozen(report), payload=target, alone=True)

    def space(self, analysis: Analysis[RecordedFile, Target], answers: Answers) -> Space:
        return _opened(analysis.workload.payload).space

    def seeds(
        self, analysis: Analysis[RecordedFile, Target], space: Space, answers: Answers
    ) -> tuple[tuple[str, Config], ...]:
        return (("median", _opened(analysis.workload.payload).median),)

    def baselines(self, analysis: Analysis[RecordedFile, Target]) -> tuple[Baseline, ...]:
        opened = _opened(analysis.workload.payload)

        def emit(config: Config) -> Program:
            return _program(opened.pack, opened.rows[opened.median], opened.median)

        return (Baseline(name="median", detail="the recorded config of the median time", space=EMPTY, emit=emit),)

    def emit(self, analysis: Analysis[RecordedFile, Target], config: Config, answers: Answers) -> Program | Rejection:
        opened = _opened(analysis.workload.payload)
        return _program(opened.pack, opened.rows[config], config)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    pack: Pack
    space: Space
    rows: Mapping[Config, Row]
    times_us: Mapping[Config, float]
    median: Config


@functools.lru_cache(maxsize=2)
def _opened(recording: RecordedFile) -> _Opened:
    path = Path(recording.path)
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise RequestError(f"cannot be read: {problem.strerror}", where=recording.path) from None
    if text_key(data) != recording.digest:
        raise RequestError("is another file than when the job was submitted; submit it again", where=recording.path)
    pack = t4.read(path)
    rows = {Config.of(pack.values(each)): each for each in pack.rows}
    times_us = {config: time for config, row in rows.items() if (time := pack.time_us(row)) is not None}
    order = sorted(times_us, key=lambda each: (times_us[each], each.key))
    return _Opened(pack=pack, space=pack.space, rows=rows, times_us=times_us, median=order[len(order) // 2])


def _program(pack: Pack, row: Row, config: Config) -> Program:
    text = script.write(
        f"{pack.name} {config}", ReplayScript(samples_us=row.samples_us, warmups=pack.warmups, failure=row.failure)
    )
    launch = Launch(
        name="recorded", source="recorded", entry="recorded", grid=(1, 1, 1), block=(32, 1, 1), arguments=()
    )
    return Program(
        name=f"{pack.name} {config}"[:200],
        buffers=(Buffer(name="result", dtype="int32", elements=16, role=Role.OUTPUT),),
        sources=(Source(name="recorded", text=text, entries=("recorded",)),),
        steps=(launch,),
    )
