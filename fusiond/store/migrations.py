"""The schema as numbered steps. A released step is never edited: the next one changes its effect.

A file's `user_version` counts the steps that it has seen; a new step raises `SCHEMA_VERSION` in format.py with it.

Triggers keep every row's digest right, and sums over whole tables. A row that is damaged already is never sealed again:
a statement that would change it fails. `sums` holds for each table how many rows it has and the sum of their digests,
so that a row that has vanished shows; and, as `commits`, how many transactions there were, with a number of the store's
own (`last_commit.py`).
"""

import os

from sqlite_utils import Database, Migrations

from fusiond.store import names
from fusiond.store.format import APPLICATION_ID, SCHEMA_VERSION
from fusiond.store.tables import COLUMNS, HEADS, mixed

STEPS = Migrations("fusiond")


def migrate(database: Database, steps: Migrations = STEPS, version: int = SCHEMA_VERSION) -> None:
    """Apply the steps that are missing. Called inside a transaction: a step that fails leaves the file as it was."""
    steps.apply(database)
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {version}")


@STEPS()
def m001_tables(database: Database) -> None:
    """Everything that version 1 knows. JSON columns hold `keys.canonical` texts; times of day are UTC in ISO 8601."""
    _devices(database)
    _jobs(database)
    _programs(database)
    _study(database)
    _records(database)


@STEPS()
def m002_time_of_jobs(database: Database) -> None:
    """How long a job ran, and for how much of that its device was busy; both over all of its sessions."""
    for column in ("wall_secs", "device_secs"):
        database.table("jobs").add_column(column, float)


@STEPS()
def m003_figures_of_records(database: Database) -> None:
    """What a strategy makes of its answer, as a JSON object; NULL for what was found before."""
    database.table("records").add_column("figures", str)


@STEPS()
def m004_programs_are_carried(database: Database) -> None:
    """What a config was emitted as, questions by their content, why answers were replaced, how the finals went.

    Until now a program's key was of what the device acts on; those keys go on as the keys of the work."""
    database.table("emitted").create(  # each config of a job is emitted once: a program, or why not
        _columns("job_id config_key program_key rule nodes detail"),
        pk=("job_id", "config_key"),
        foreign_keys=[("job_id", "jobs", "id"), ("program_key", "programs", "program_key")],
    )
    for column in ("work_key", "against_work"):
        database.table("trials").add_column(column, str)
    database.execute("UPDATE trials SET work_key = program_key, against_work = against")
    database.table("trials").create_index(["work_key", "device_key", "env_key"])
    database.table("finals_lost").create(  # a process of the finals that measured not all that it should
        _columns("job_id process:int program_key outcome reason"),
        pk=("job_id", "process"),
        foreign_keys=[("job_id", "jobs", "id")],
    )
    for column in ("content_key", "content_family_key"):
        database.table("workloads").add_column(column, str)
        database.table("workloads").create_index([column])
    database.table("records").add_column("baseline_config", str)
    database.table("records").add_column("processes", int)
    database.table("records").add_column("ended", str)
    database.table("records").add_column("replaced", str)
    database.table("jobs").add_column("finish_requested", int)
    database.table("jobs").add_column("finding", str)  # why the answer of before stands
    database.table("strategies").create(  # what the plugins said when they were last loaded
        _columns("strategy version:int wrong_versions names fusiond"), pk="strategy"
    )
    database.table("catalogue").create(_columns("kind name path"), pk=("kind", "name"))


@STEPS()
def m005_faults(database: Database) -> None:
    """Jobs that wait for the machine; the daemon that serves; digests, sums and second ways to what is found by an
    index; names by their parts (docs/decisions.md)."""
    database.table("serving").create(_columns("owner device inode"))
    database.table("jobs").add_column("waiting_for", str)
    database.table("jobs").add_column("retry_at", str)
    database.table("jobs").add_column("retries", int)  # without a trial in between
    database.table("measurements").add_column("effort", str)  # NULL for what was measured before
    database.table("records").add_column("counted", str)  # what both sides would pay, by launch; NULL: nobody counted
    database.table("calibrations").create(  # what `calibrate` found, for each driver
        _columns("device_key driver figures at"), pk=("device_key", "driver")
    )
    database.execute("DROP INDEX idx_jobs_same")
    database.execute(
        "CREATE UNIQUE INDEX idx_jobs_same ON jobs (kind, workload_key, device, search) "
        "WHERE state IN ('queued', 'running', 'waiting')"
    )
    _tallies(database)
    database.execute("CREATE TABLE losses (found_at TEXT, acknowledged INTEGER, present INTEGER)")
    _second_ways(database)
    names.make(database)
    seal_all(database)


@STEPS()
def m006_profiles_and_drawings(database: Database) -> None:
    """What programs ask of a GPU, counted or by its counters, as JSON: an object for each launch."""
    database.table("profiles").create(
        _columns("program_key gpu evidence rows at"), pk=("program_key", "gpu", "evidence")
    )
    seal_table(database, "profiles")
    database.table("drawings").create(  # pictures of answers, which nothing reads any more
        _columns("workload_key device_key cache drawings"), pk=("workload_key", "device_key", "cache")
    )
    seal_table(database, "drawings")


def _columns(text: str) -> dict[str, type]:
    """Names with their types: `job_id sequence:int ratio:float`; without one, a text."""
    types = {"": str, "int": int, "float": float}
    return {name: types[kind] for name, _, kind in (each.partition(":") for each in text.split())}


def _tallies(database: Database) -> None:
    """What a list of jobs shows of their trials, without looking at each of them."""
    database.execute(
        "CREATE TABLE tallies (job_id TEXT PRIMARY KEY REFERENCES jobs (id), candidates INTEGER NOT NULL, "
        "best_ratio REAL)"
    )
    database.execute(
        "INSERT INTO tallies SELECT j.id, count(t.id), max(t.ratio) FROM jobs j "
        "LEFT JOIN trials t ON t.job_id = j.id AND t.role = 'candidate' GROUP BY j.id"
    )
    database.execute(
        "CREATE TRIGGER jobs_tallied AFTER INSERT ON jobs BEGIN "
        "INSERT INTO tallies (job_id, candidates) VALUES (NEW.id, 0); END"
    )
    database.execute(
        "CREATE TRIGGER trials_tallied AFTER INSERT ON trials WHEN NEW.role = 'candidate' BEGIN "
        "UPDATE tallies SET candidates = candidates + 1, best_ratio = CASE WHEN NEW.ratio IS NULL THEN best_ratio "
        "ELSE max(coalesce(best_ratio, NEW.ratio), NEW.ratio) END WHERE job_id = NEW.job_id; END"
    )


def _second_ways(database: Database) -> None:
    """A row that a damaged index hides is found by another one: readers compare the two."""
    database.execute("DROP INDEX idx_jobs_waiting")
    database.execute("CREATE INDEX idx_jobs_queue ON jobs (state, device, priority DESC, number)")
    database.execute("CREATE INDEX idx_jobs_by_state ON jobs (state, number)")
    database.execute("CREATE INDEX idx_jobs_by_number ON jobs (number, state, id)")
    database.execute("DROP INDEX idx_records_by_name")
    for index, first in (("idx_records_heads", "found_at"), ("idx_records_heads_again", "device_key")):
        others = (each for each in HEADS["records"] if each not in (first, "id"))
        columns = ", ".join(("lookup_name", first, *others, "replaced_by"))  # else SQLite reads the rows for that
        database.execute(f"CREATE INDEX {index} ON records ({columns}) WHERE replaced_by IS NULL")
    for index, first in (("idx_workloads_heads", "strategy"), ("idx_workloads_heads_again", "sizes")):
        others = (each for each in HEADS["workloads"] if each not in (first, "workload_key"))
        columns = ", ".join(("lookup_name", "workload_key", first, *others))  # one name's are neighbours
        database.execute(f"CREATE INDEX {index} ON workloads ({columns})")
    database.execute("CREATE INDEX idx_records_history ON records (workload_key, device_key, cache, id)")
    database.execute("CREATE INDEX idx_records_job ON records (job_id)")  # what `prune` asks
    database.execute("CREATE INDEX idx_jobs_parent ON jobs (parent_id) WHERE parent_id IS NOT NULL")
    database.execute("CREATE INDEX idx_finals_again ON finals (job_id, process)")
    for table in ("asks", "rejections", "finals_lost"):
        database.execute(f"CREATE INDEX idx_{table}_again ON {table} (job_id)")
    database.execute("CREATE INDEX idx_emitted_again ON emitted (config_key, job_id)")
    database.execute("CREATE INDEX idx_programs_again ON programs (program_key, saved_at)")
    database.execute("CREATE INDEX idx_workloads_of_content ON workloads (content_family_key, workload_key)")
    database.execute("CREATE INDEX idx_workloads_of_family ON workloads (family_key, workload_key)")


def _devices(database: Database) -> None:
    database.table("devices").create(  # what a device is: one row for all boards of a model
        _columns("device_key model arch memory_bytes:int mig evidence limits"), pk="device_key"
    )
    database.table("envs").create(_columns("env_key env first_seen_at"), pk="env_key")
    database.table("boards").create(  # one piece of hardware, and what it was called last
        _columns("device_key uuid name env_key sick seen_at"),
        pk=("device_key", "uuid"),
        not_null={"name", "seen_at"},
        foreign_keys=[("device_key", "devices", "device_key"), ("env_key", "envs", "env_key")],
    )
    database.table("boards").create_index(["name"])


def _jobs(database: Database) -> None:
    database.table("workloads").create(
        # lookup_name: the name's parts in order: pairs are unordered
        _columns(
            "workload_key family_key strategy strategy_version:int name lookup_name members sizes source_hashes "
            "created_at"
        ),
        pk="workload_key",
    )
    database.table("workloads").create_index(["lookup_name", "strategy", "strategy_version"])
    database.table("workloads").create_index(["strategy", "strategy_version"])
    database.table("workloads").create_index(["family_key", "sizes"])
    database.table("jobs").create(
        # number: the order of arrival
        _columns(
            "number:int id kind workload_key device device_key state priority:int parent_id owner cancel_requested:int "
            "problem search space_hash created_at started_at ended_at job"
        ),
        pk="number",
        not_null={"id", "kind", "workload_key", "device", "state", "priority", "cancel_requested", "search", "job"},
        foreign_keys=[("workload_key", "workloads", "workload_key"), ("parent_id", "jobs", "id")],
    )
    database.table("jobs").create_index(["id"], unique=True)
    database.execute("CREATE INDEX idx_jobs_waiting ON jobs (state, priority DESC, number)")
    database.execute(  # the same job twice is one job, as long as it has not ended
        "CREATE UNIQUE INDEX idx_jobs_same ON jobs (kind, workload_key, device, search) "
        "WHERE state IN ('queued', 'running')"
    )


def _programs(database: Database) -> None:
    database.table("programs").create(_columns("program_key plan saved_at"), pk="program_key")
    database.table("artifacts").create(_columns("path bytes:int saved_at"), pk="path")


def _study(database: Database) -> None:
    database.table("asks").create(
        _columns("job_id sequence:int config_key config origin"),
        pk=("job_id", "sequence"),
        foreign_keys=[("job_id", "jobs", "id")],
    )
    database.table("measurements").create(
        _columns(
            "id:int program_key purpose clock cache time_us:float span_us baseline_us wall_us state_before state_after "
            "dropped:int at"
        ),
        pk="id",
    )
    database.table("trials").create(
        _columns(
            "id:int job_id role sequence:int config_key config origin outcome reason ratio:float time_us:float "
            "program_key against resolved worst_error:float measurement_id:int device_key gpu_uuid env_key at"
        ),
        pk="id",
        not_null={"job_id", "role", "sequence", "config_key", "config", "outcome", "device_key", "env_key"},
        foreign_keys=[("job_id", "jobs", "id"), ("measurement_id", "measurements", "id")],
    )
    database.table("trials").create_index(["job_id", "role", "config_key"], unique=True)
    database.table("trials").create_index(["job_id", "role", "sequence"], unique=True)
    database.table("trials").create_index(["program_key", "device_key", "env_key"])
    database.table("finals").create(
        _columns("job_id program_key process:int measurement_id:int"),
        pk=("job_id", "program_key", "process"),
        foreign_keys=[("job_id", "jobs", "id"), ("measurement_id", "measurements", "id")],
    )
    database.table("probes").create(
        _columns("probe_key device_key version:int time_us:float measurement_id:int"),
        pk=("probe_key", "device_key", "version"),
        foreign_keys=[("measurement_id", "measurements", "id")],
    )
    database.table("rejections").create(_columns("job_id rule nodes detail"), foreign_keys=[("job_id", "jobs", "id")])
    database.table("rejections").create_index(["job_id", "rule", "nodes", "detail"], unique=True)


def _records(database: Database) -> None:
    database.table("records").create(
        # lookup_name: the workload's, once more: the index that answers `best` begins with it
        _columns(
            "id:int workload_key lookup_name device_key device_name env_key cache evidence verdict config program_key "
            "time_us:float baseline baseline_us:float baseline_program_key speedup:float ci_low:float ci_high:float "
            "verified:int checks trials:int found_at source source_hashes job_id replaced_by:int"
        ),
        pk="id",
        not_null={"workload_key", "lookup_name", "device_key", "cache", "evidence", "verdict", "found_at"},
        foreign_keys=[
            ("workload_key", "workloads", "workload_key"),
            ("job_id", "jobs", "id"),
            ("replaced_by", "records", "id"),
        ],
    )
    database.execute(
        "CREATE UNIQUE INDEX idx_records_current ON records (workload_key, device_key, cache) WHERE replaced_by IS NULL"
    )
    database.execute(
        "CREATE INDEX idx_records_by_name ON records (lookup_name, cache, evidence, found_at) WHERE replaced_by IS NULL"
    )
    database.table("records").create_index(["workload_key", "device_key", "cache"])  # the history too


# --- digests ---

DAMAGED = "damaged row"  #: What SQLite says, with the table and the row behind it, when a damaged row would be changed


def seal_all(database: Database) -> None:
    """Give every table that there is its digests, sums and triggers. Inside a migration; none has digests yet."""
    database.execute("CREATE TABLE sums (name TEXT PRIMARY KEY, rows INTEGER NOT NULL, total INTEGER NOT NULL)")
    own = int.from_bytes(os.urandom(8), "little") >> 4
    database.execute("INSERT INTO sums VALUES ('commits', 0, ?)", [own])
    for table in COLUMNS:
        if database.table(table).exists():
            seal_table(database, table)


def seal_table(database: Database, table: str) -> None:
    """The same for one table, which came after the others."""
    database.execute(f"ALTER TABLE {table} ADD COLUMN digest BLOB")
    database.execute("INSERT INTO sums VALUES (?, 0, 0)", [table])
    database.execute(f"UPDATE {table} SET digest = {seal(table)}")
    rows = database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    total = 0
    for (digest,) in database.execute(f"SELECT digest FROM {table}").fetchall():
        total = mixed(total, None, digest)
    database.execute("UPDATE sums SET rows = ?, total = ? WHERE name = ?", [rows, total, table])
    add_triggers(database, table)


def seal(table: str, row: str = "") -> str:
    """The SQL of a row's digest; `row` is `NEW.` or `OLD.` in a trigger."""
    return f"fusiond_digest('{table}', {', '.join(row + name for name in COLUMNS[table])})"


def add_triggers(database: Database, table: str) -> None:
    names = ", ".join(COLUMNS[table])
    database.execute(
        f"CREATE TRIGGER {table}_came AFTER INSERT ON {table} BEGIN "
        f"UPDATE sums SET rows = rows + 1 WHERE name = '{table}'; "
        f"UPDATE {table} SET digest = {seal(table, 'NEW.')} WHERE rowid = NEW.rowid; END"
    )
    database.execute(
        f"CREATE TRIGGER {table}_changed AFTER UPDATE OF {names} ON {table} BEGIN "
        f"SELECT RAISE(ABORT, '{DAMAGED} of {table}') WHERE OLD.digest IS NOT {seal(table, 'OLD.')}; "
        f"UPDATE {table} SET digest = {seal(table, 'NEW.')} WHERE rowid = NEW.rowid; END"
    )
    database.execute(
        f"CREATE TRIGGER {table}_sealed AFTER UPDATE OF digest ON {table} BEGIN "
        f"UPDATE sums SET total = fusiond_mixed(total, OLD.digest, NEW.digest) WHERE name = '{table}'; END"
    )
    database.execute(
        f"CREATE TRIGGER {table}_went AFTER DELETE ON {table} BEGIN "
        "UPDATE sums SET rows = rows - 1, total = fusiond_mixed(total, OLD.digest, NULL) "
        f"WHERE name = '{table}'; END"
    )
