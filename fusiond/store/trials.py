"""The rows of a study: asks, trials with their measurements, rejections, and finals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fusiond.model.errors import StoreError
from fusiond.model.keys import canonical
from fusiond.model.nouns import COUNTED, Config, Rejection, Value
from fusiond.model.outcomes import Ask, Measurement, Outcome, Trial
from fusiond.store.connection import Connected, Row
from fusiond.store.encoding import (
    config_from,
    config_text,
    decoding,
    mapping_from,
    measurement_columns,
    measurement_from,
    printable,
)
from fusiond.store.format import decoded, now
from fusiond.store.jobs import got_on
from fusiond.store.tables import Damage, called

if TYPE_CHECKING:  # it takes a while to load, and only what writes needs it
    from sqlite_utils import Database

_TRIALS = "FROM trials t LEFT JOIN measurements m ON m.id = t.measurement_id"
_AS_COLUMNS = ("sequence", "role", "origin", "ratio", "time_us")  #: Fields of a trial that columns hold as they are
_WAYS = {
    table: (f"INDEXED BY {first}", f"INDEXED BY {second}")
    for table, first, second in (
        ("asks", "sqlite_autoindex_asks_1", "idx_asks_again"),
        ("rejections", "idx_rejections_job_id_rule_nodes_detail", "idx_rejections_again"),
        ("finals_lost", "sqlite_autoindex_finals_lost_1", "idx_finals_lost_again"),
        ("finals", "sqlite_autoindex_finals_1", "idx_finals_again"),
        ("trials", "idx_trials_job_id_role_sequence", "idx_trials_job_id_role_config_key"),
    )
}
"""Two indexes for the rows of a job: what one of them hides the other one finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTrial:
    """A candidate that was checked on the processor, with its lower bound on a GPU that is not here."""

    model: str  #: Of the device, as it says itself: the GPU's own name, and `(counted)`
    arch: str
    config: Config
    program_key: str
    bound_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KindredTrial:
    """A candidate of a workload that has something in common with another one, on any device."""

    workload_key: str
    device_key: str
    evidence: str  #: Of the device
    config: Config
    outcome: Outcome
    time_us: float | None  #: None where it was not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLine:
    """A trial without its samples, for lists of thousands."""

    id: int  #: Of the row: trials that were written down later have a larger one
    sequence: int
    role: str
    origin: str
    outcome: str
    config: Mapping[str, Value]
    ratio: float | None
    time_us: float | None
    reason: str


class Trials(Connected):
    # --- asks ---

    def add_asks(self, job: str, asks: Sequence[Ask]) -> None:
        """Write down what the study chose, all or nothing. StoreError for a sequence number that was used before."""
        with self._transaction() as database:
            for ask in asks:
                database.table("asks").insert(
                    {
                        "job_id": job,
                        "sequence": ask.sequence,
                        "config_key": ask.config.key,
                        "config": config_text(ask.config),
                        "origin": ask.origin,
                    }
                )

    def asks(self, job: str) -> list[Ask]:
        """What the study of a job chose, in order."""
        rows = self._of_job("asks", "sequence", job)
        return [Ask(sequence=row["sequence"], config=config_from(row["config"]), origin=row["origin"]) for row in rows]

    # --- trials ---

    def add_trial(
        self,
        job: str,
        trial: Trial,
        *,
        device_key: str,
        gpu_uuid: str,
        env_key: str,
        against: str | None,
        work: tuple[str | None, str | None] | None = None,
    ) -> None:
        """Write down a trial and its measurement, both or neither.

        `against` is the program_key of the baseline that it was paired with; `work` are the keys of what the device
        does for the two (None: for all that they say).

        StoreError when this job has a trial of this role with this config, or with this sequence number: no recorded
        trial is repeated."""
        with self._transaction() as database:
            measured = None
            if trial.measurement is not None:
                measured = add_measurement(database, trial.measurement, trial.program_key)
            database.table("trials").insert(
                {
                    "job_id": job,
                    **{name: getattr(trial, name) for name in ("program_key", "worst_error", *_AS_COLUMNS)},
                    "config_key": trial.config.key,
                    "config": config_text(trial.config),
                    "outcome": trial.outcome.value,
                    "reason": printable(trial.reason),
                    "against": against,
                    "work_key": work[0] if work else trial.program_key,
                    "against_work": work[1] if work else against,
                    "resolved": canonical(trial.resolved),
                    "measurement_id": measured,
                    "device_key": device_key,
                    "gpu_uuid": gpu_uuid,
                    "env_key": env_key,
                    "at": now(),
                }
            )
            got_on(database, job)

    def trials(self, job: str, role: str | None = "candidate", *, skip: bool = False) -> list[Trial]:
        """The trials of a job in the order in which they were asked; role None: of all roles, role by role.

        StoreError for a damaged row; with `skip` it is left out, and said so in the log."""
        scope = {"job": job, "role": role}
        where = "job_id = :job AND (:role IS NULL OR role = :role)"
        with self._moment():
            ids = self._trial_ids(where, scope)
            return self._trials(f"WHERE {where} ORDER BY t.role, t.sequence", scope, skip=skip, expected=len(ids))

    def trial_lines(self, job: str, *, after: int = 0) -> list[TrialLine]:
        """All trials of a job without their samples, role by role, as they were asked; `after`: only those written down
        behind the one with that id. A damaged one is left out, and said so in the log."""
        with self._moment():
            ids = self._trial_ids("job_id = :job AND id > :after", {"job": job, "after": after})
            tail = "FROM trials t WHERE t.job_id = ? AND t.id > ? ORDER BY t.role, t.sequence"
            rows = self._sealed(tail, [job, after], skip=True, expected=len(ids), t="trials")
            return [
                TrialLine(
                    **{name: row[name] for name in ("id", "outcome", *_AS_COLUMNS)},
                    config=decoded(row["config"]),
                    reason=row["reason"] or "",
                )
                for (row,) in rows
            ]

    def measured(
        self, work: str, against: str | None, device_key: str, env_key: str, *, cache: str = "warm"
    ) -> Trial | None:
        """The last trial, of any job, that measured equal work against equal work in the same environment, a complete
        one before one that was stopped early. Finals and probes are not an answer."""
        found = self._trials(
            "WHERE t.work_key = ? AND t.against_work IS ? AND t.device_key = ? AND t.env_key = ? "
            "AND t.outcome = ? AND m.cache = ? AND m.purpose IN ('search', 'baseline') "
            "ORDER BY m.dropped, t.id DESC LIMIT 1",
            [work, against, device_key, env_key, Outcome.MEASURED.value, cache],
            skip=True,  # it is measured again
        )
        return found[0] if found else None

    def counted_trials(self, workload_key: str, *, before: str) -> list[CountedTrial]:
        """What is kept of bounds of a workload's candidates, in the order in which they were counted: those that were
        written down before the first trial of the job `before`; of a job without trials, none. A damaged one is left
        out, and said so in the log."""
        rows = self._sealed(
            "FROM trials t JOIN jobs j ON j.id = t.job_id JOIN devices d ON d.device_key = t.device_key "
            "WHERE j.workload_key = ? AND d.evidence = ? AND t.role = 'candidate' AND t.outcome = ? "
            "AND t.time_us IS NOT NULL AND t.id < (SELECT min(id) FROM trials WHERE job_id = ?) ORDER BY t.id",
            [workload_key, COUNTED, Outcome.MEASURED.value, before],
            skip=True,
            t="trials",
            d="devices",
        )
        found = []
        for row, device in rows:
            with decoding(self.path, "trials", called("trials", row)):
                found.append(
                    CountedTrial(
                        model=device["model"],
                        arch=device["arch"],
                        config=config_from(row["config"]),
                        program_key=row["program_key"],
                        bound_us=row["time_us"],
                    )
                )
        return found

    def kindred_trials(self, family_key: str, *, before: str, most: int) -> list[KindredTrial]:
        """What became of the candidates of a family of workloads, on every device: the last `most` of those that were
        written down before the first trial of the job `before`, in their order; of a job without trials, none. A
        damaged one is left out, and said so in the log."""
        return self._of_workloads("w.family_key = ?", [family_key], before, most)

    def near_trials(self, strategy: str, family_key: str, *, before: str, most: int) -> list[KindredTrial]:
        """The same for all other workloads of a strategy: which of them are near, their configs have to say."""
        return self._of_workloads("w.strategy = ? AND w.family_key <> ?", [strategy, family_key], before, most)

    def _of_workloads(self, where: str, values: Sequence[str], before: str, most: int) -> list[KindredTrial]:
        rows = self._sealed(
            "FROM trials t JOIN jobs j ON j.id = t.job_id JOIN devices d ON d.device_key = t.device_key "
            f"JOIN workloads w ON w.workload_key = j.workload_key WHERE {where} AND t.role = 'candidate' "
            "AND t.job_id <> ? AND t.id < (SELECT min(id) FROM trials WHERE job_id = ?) ORDER BY t.id DESC LIMIT ?",
            [*values, before, before, most],
            skip=True,
            t="trials",
            d="devices",
            w="workloads",
        )
        found = []
        for row, device, workload in reversed(rows):
            with decoding(self.path, "trials", called("trials", row)):
                found.append(
                    KindredTrial(
                        workload_key=workload["workload_key"],
                        device_key=row["device_key"],
                        evidence=device["evidence"],
                        config=config_from(row["config"]),
                        outcome=Outcome(row["outcome"]),
                        time_us=row["time_us"],
                    )
                )
        return found

    def trial_of_work(self, job: str, work: str) -> Trial | None:
        """The first trial of an unfused way of this job that did equal work; None when there is none."""
        where = "job_id = ? AND work_key = ? AND role <> 'candidate'"
        with self._moment():
            ids = self._trial_ids(where, [job, work])
            found = self._trials("WHERE t.id = ?", [min(ids)], expected=1) if ids else []
        return found[0] if found else None

    def config_of(self, program_key: str) -> Config | None:
        """The config of the last trial of a program, of any job, as an unfused way where it was one; None when it was
        never tried."""
        where = "WHERE t.program_key = ? ORDER BY role = 'candidate', t.id DESC LIMIT 1"
        found = self._trials(where, [program_key])
        return found[0].config if found else None

    def against(self, job: str, role: str, sequence: int) -> str | None:
        """The program_key of what a trial was paired with; None when it was measured alone."""
        for row in self._sealed_of("trials", _WAYS["trials"], job_id=job, role=role, sequence=sequence):
            against: str | None = row["against"]
            return against
        return None

    def worked(self, program_key: str, device_key: str) -> bool:
        """Whether a program was ever measured on a device of this kind."""
        where = "FROM trials t WHERE program_key = ? AND device_key = ? AND outcome = ? LIMIT 1"
        return bool(self._sealed(where, [program_key, device_key, Outcome.MEASURED.value], t="trials"))

    def _trial_ids(self, where: str, parameters: Sequence[object] | Mapping[str, object]) -> list[int]:
        first, second = (f"SELECT id FROM trials {way} WHERE {where}" for way in _WAYS["trials"])
        return self._same(first, second, parameters)

    def _trials(
        self,
        where: str,
        parameters: Sequence[object] | Mapping[str, object],
        *,
        skip: bool = False,
        expected: int | None = None,
    ) -> list[Trial]:
        found = []
        rows = self._sealed(
            f"{_TRIALS} {where}", parameters, skip=skip, expected=expected, t="trials", m="measurements"
        )
        for row, measured in rows:
            if measured is None and row["measurement_id"] is not None:
                damage = Damage("measurements", str(row["measurement_id"])).sentence(self.path)
                if not skip:
                    raise StoreError(damage)
                self._tell(damage)
                continue
            with decoding(self.path, "trials", called("trials", row)):
                found.append(_trial(row, measured))
        return found

    # --- rejections ---

    def add_rejections(self, job: str, rejections: Iterable[Rejection]) -> None:
        """Write down what the strategy ruled out; one that stands there already is not repeated."""
        with self._transaction() as database:
            for each in rejections:
                database.table("rejections").insert(
                    {
                        "job_id": job,
                        "rule": each.rule,
                        "nodes": canonical(each.nodes),
                        "detail": printable(each.detail),
                    },
                    ignore=True,
                )

    def rejections(self, job: str, *, skip: bool = False) -> list[Rejection]:
        """In the order in which they were added. `skip`: see `trials`."""
        found = []
        for row in self._of_job("rejections", "rowid", job, skip=skip):
            with decoding(self.path, "rejections", job):
                nodes = tuple(decoded(row["nodes"]))
            found.append(Rejection(rule=row["rule"], nodes=nodes, detail=row["detail"]))
        return found

    # --- finals ---

    def add_finals(self, job: str, process: int, measured: Mapping[str, Measurement]) -> None:
        """Write down what one fresh process measured, all of it (program_key -> measurement) or nothing. StoreError
        when that process's results are there already."""
        with self._transaction() as database:
            for key, measurement in measured.items():
                id = add_measurement(database, measurement, key)
                database.table("finals").insert(
                    {"job_id": job, "program_key": key, "process": process, "measurement_id": id}
                )
            got_on(database, job)

    def lose_final(self, job: str, process: int, program_key: str, outcome: Outcome, reason: str) -> None:
        """Write down that a process measured not all that it should, and which program was to blame."""
        with self._transaction() as database:
            database.table("finals_lost").insert(
                {
                    "job_id": job,
                    "process": process,
                    "program_key": program_key,
                    "outcome": outcome.value,
                    "reason": printable(reason),
                }
            )

    def lost_finals(self, job: str) -> dict[int, tuple[str, Outcome, str]]:
        """Process -> (program_key, outcome, reason) of the processes that were lost or too noisy."""
        rows = self._of_job("finals_lost", "process", job)
        return {row["process"]: (row["program_key"], Outcome(row["outcome"]), row["reason"]) for row in rows}

    def _of_job(self, table: str, order: str, job: str, *, skip: bool = False) -> list[Row]:
        return self._sealed_of(table, _WAYS[table], order=order, skip=skip, job_id=job)

    def finals(self, job: str, *, skip: bool = False) -> dict[str, dict[int, Measurement]]:
        """program_key -> process -> what it measured there; a process that failed is missing. `skip`: see `trials`."""
        with self._moment():
            first, second = (f"SELECT rowid FROM finals {way} WHERE job_id = ?" for way in _WAYS["finals"])
            ids = self._same(first, second, [job])
            rows = self._sealed(
                "FROM finals f JOIN measurements m ON m.id = f.measurement_id WHERE f.job_id = ? "
                "ORDER BY f.process, m.id",
                [job],
                skip=skip,
                expected=len(ids),
                wanted={"job_id": job},
                f="finals",
                m="measurements",
            )
            found: dict[str, dict[int, Measurement]] = {}
            for final, measured in rows:
                with decoding(self.path, "measurements", measured["id"]):
                    found.setdefault(final["program_key"], {})[final["process"]] = measurement_from(measured)
            return found

    def environments(self, job: str) -> set[tuple[str, str]]:
        """(device_key, env_key) of every trial of a job: more than one means that its numbers do not compare."""
        return {(row["device_key"], row["env_key"]) for row in self._of_job("trials", "id", job)}


def add_measurement(database: Database, measurement: Measurement, program_key: str | None) -> int:
    """Inside a transaction: a measurement's row, and its id."""
    row = {"program_key": program_key, **measurement_columns(measurement), "at": now()}
    id = database.table("measurements").insert(row).last_pk
    assert isinstance(id, int)
    return id


def _trial(row: Row, measured: Row | None) -> Trial:
    return Trial(
        **{name: row[name] for name in ("reason", "program_key", "worst_error", *_AS_COLUMNS)},
        config=config_from(row["config"]),
        outcome=Outcome(row["outcome"]),
        resolved=mapping_from(row["resolved"]),
        measurement=measurement_from(measured) if measured is not None else None,
    )
