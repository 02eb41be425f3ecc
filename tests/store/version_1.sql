-- A store of schema version 1 with one of each noun, as `sqlite3 FILE .dump` gives it. Frozen: never edit it.
PRAGMA application_id = 1718973284;
PRAGMA user_version = 1;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'fusiond','m001_tables','2026-01-01T00:00:00.000+00:00');
CREATE TABLE "artifacts" (
   "path" TEXT PRIMARY KEY,
   "bytes" INTEGER,
   "saved_at" TEXT
);
INSERT INTO "artifacts" VALUES('1e/1ee053800321ef4b41dc2254c56e3b52.cu',6,'2026-01-01T00:00:00.000+00:00');
CREATE TABLE "asks" (
   "job_id" TEXT REFERENCES "jobs"("id"),
   "sequence" INTEGER,
   "config_key" TEXT,
   "config" TEXT,
   "origin" TEXT,
   PRIMARY KEY ("job_id", "sequence")
);
INSERT INTO "asks" VALUES('abcdefgh',0,'23f3df5665a8e1b2a4bca6def34df793','{"cap":0}','sampler');
CREATE TABLE "boards" (
   "device_key" TEXT REFERENCES "devices"("device_key"),
   "uuid" TEXT,
   "name" TEXT NOT NULL,
   "env_key" TEXT REFERENCES "envs"("env_key"),
   "sick" TEXT,
   "seen_at" TEXT NOT NULL,
   PRIMARY KEY ("device_key", "uuid")
);
INSERT INTO "boards" VALUES('01d6b1e73089b4bb874e9f2dfc4145c8','GPU-cuda:0','cuda:0','f67a523b71ac22398adb92c041265349',NULL,'2026-01-01T00:00:00.000+00:00');
CREATE TABLE "devices" (
   "device_key" TEXT PRIMARY KEY,
   "model" TEXT,
   "arch" TEXT,
   "memory_bytes" INTEGER,
   "mig" TEXT,
   "evidence" TEXT,
   "limits" TEXT
);
INSERT INTO "devices" VALUES('01d6b1e73089b4bb874e9f2dfc4145c8','NVIDIA H200','sm_90',150323855360,'','measured','{"barriers":16,"barriers_per_sm":0,"blocks_per_sm":32,"multiprocessors":132,"register_granularity":256,"registers_per_block":65536,"registers_per_sm":65536,"registers_per_thread":255,"shared_bytes_per_block":232448,"shared_bytes_per_sm":233472,"shared_bytes_reserved":1024,"shared_granularity_bytes":128,"threads_per_block":1024,"threads_per_sm":2048,"warp_size":32}');
CREATE TABLE "envs" (
   "env_key" TEXT PRIMARY KEY,
   "env" TEXT,
   "first_seen_at" TEXT
);
INSERT INTO "envs" VALUES('f67a523b71ac22398adb92c041265349','{"driver":"580.1","fusiond":"0.1.0"}','2026-01-01T00:00:00.000+00:00');
CREATE TABLE "finals" (
   "job_id" TEXT REFERENCES "jobs"("id"),
   "program_key" TEXT,
   "process" INTEGER,
   "measurement_id" INTEGER REFERENCES "measurements"("id"),
   PRIMARY KEY ("job_id", "program_key", "process")
);
INSERT INTO "finals" VALUES('abcdefgh','program0',0,2);
CREATE TABLE "jobs" (
   "number" INTEGER PRIMARY KEY,
   "id" TEXT NOT NULL,
   "kind" TEXT NOT NULL,
   "workload_key" TEXT NOT NULL REFERENCES "workloads"("workload_key"),
   "device" TEXT NOT NULL,
   "device_key" TEXT,
   "state" TEXT NOT NULL,
   "priority" INTEGER NOT NULL,
   "parent_id" TEXT REFERENCES "jobs"("id"),
   "owner" TEXT,
   "cancel_requested" INTEGER NOT NULL,
   "problem" TEXT,
   "search" TEXT NOT NULL,
   "space_hash" TEXT,
   "created_at" TEXT,
   "started_at" TEXT,
   "ended_at" TEXT,
   "job" TEXT NOT NULL
);
INSERT INTO "jobs" VALUES(1,'abcdefgh','tune','7918a182033828629336682e02bb478e','auto',NULL,'done',0,NULL,NULL,0,NULL,'{"least_gain":1.02,"seed":0,"timeout_secs":600.0,"trials":64}',NULL,'2026-01-01T00:00:00.000+00:00','2026-01-01T00:00:00.000+00:00','2026-01-01T00:00:00.000+00:00','{"device":"auto","files":{},"lines":{},"path":"<job>","request":{"pair":["hist","maxpool"]},"search":{"least_gain":1.02,"seed":0,"timeout_secs":600.0,"trials":64},"sizes":{"a.n":1000},"strategy":"hfuse"}');
CREATE TABLE "measurements" (
   "id" INTEGER PRIMARY KEY,
   "program_key" TEXT,
   "purpose" TEXT,
   "clock" TEXT,
   "cache" TEXT,
   "time_us" REAL,
   "span_us" TEXT,
   "baseline_us" TEXT,
   "wall_us" TEXT,
   "state_before" TEXT,
   "state_after" TEXT,
   "dropped" INTEGER,
   "at" TEXT
);
INSERT INTO "measurements" VALUES(1,'program0','search','device','warm',10.5,'[10.0,11.0]','[20.0,22.0]','[]','{"clock_mhz":null,"others":0,"temperature_c":null,"throttle":""}','{"clock_mhz":null,"others":0,"temperature_c":null,"throttle":""}',0,'2026-01-01T00:00:00.000+00:00');
INSERT INTO "measurements" VALUES(2,'program0','final','device','warm',10.5,'[10.0,11.0]','[20.0,22.0]','[]','{"clock_mhz":null,"others":0,"temperature_c":null,"throttle":""}','{"clock_mhz":null,"others":0,"temperature_c":null,"throttle":""}',0,'2026-01-01T00:00:00.000+00:00');
INSERT INTO "measurements" VALUES(3,NULL,'probe','device','warm',3.0,'[3.0]','[]','[]','{"clock_mhz":null,"others":0,"temperature_c":null,"throttle":""}','{"clock_mhz":null,"others":0,"temperature_c":null,"throttle":""}',0,'2026-01-01T00:00:00.000+00:00');
CREATE TABLE "probes" (
   "probe_key" TEXT,
   "device_key" TEXT,
   "version" INTEGER,
   "time_us" REAL,
   "measurement_id" INTEGER REFERENCES "measurements"("id"),
   PRIMARY KEY ("probe_key", "device_key", "version")
);
INSERT INTO "probes" VALUES('add','01d6b1e73089b4bb874e9f2dfc4145c8',1,3.0,3);
CREATE TABLE "programs" (
   "program_key" TEXT PRIMARY KEY,
   "plan" TEXT,
   "saved_at" TEXT
);
INSERT INTO "programs" VALUES('37f93a3aec5c539f908fb8903671f67c','{
 "buffers": [
  {
   "arena": null,
   "compare": {
    "atol": 0.0,
    "kind": "equal",
    "rtol": 0.0
   },
   "dtype": "int32",
   "elements": 64,
   "fill": {
    "digest": null,
    "file": null,
    "high": 1.0,
    "kind": "zeros",
    "low": 0.0
   },
   "memory": "device",
   "name": "x",
   "offset_bytes": 0,
   "reset": "each_run",
   "role": "output",
   "symbol": null
  }
 ],
 "issue": "streams",
 "name": "fused",
 "plan_version": 1,
 "sources": [
  {
   "defines": [],
   "entries": [
    "k"
   ],
   "flags": [],
   "include_dirs": [],
   "kind": "device",
   "name": "k",
   "register_cap": null,
   "symbols": [],
   "text": "__global__ void k(int *x) {}"
  }
 ],
 "steps": [
  {
   "after": [],
   "arguments": [
    {
     "buffer": "x",
     "is": "Pointer"
    }
   ],
   "block": [
    32,
    1,
    1
   ],
   "counted": true,
   "entry": "k",
   "grid": [
    2,
    1,
    1
   ],
   "is": "Launch",
   "name": "k",
   "shared_bytes": 0,
   "source": "k",
   "stream": 0
  }
 ]
}
','2026-01-01T00:00:00.000+00:00');
CREATE TABLE "records" (
   "id" INTEGER PRIMARY KEY,
   "workload_key" TEXT NOT NULL REFERENCES "workloads"("workload_key"),
   "lookup_name" TEXT NOT NULL,
   "device_key" TEXT NOT NULL,
   "device_name" TEXT,
   "env_key" TEXT,
   "cache" TEXT NOT NULL,
   "evidence" TEXT NOT NULL,
   "verdict" TEXT NOT NULL,
   "config" TEXT,
   "program_key" TEXT,
   "time_us" REAL,
   "baseline" TEXT,
   "baseline_us" REAL,
   "baseline_program_key" TEXT,
   "speedup" REAL,
   "ci_low" REAL,
   "ci_high" REAL,
   "verified" INTEGER,
   "checks" TEXT,
   "trials" INTEGER,
   "found_at" TEXT NOT NULL,
   "source" TEXT,
   "source_hashes" TEXT,
   "job_id" TEXT REFERENCES "jobs"("id"),
   "replaced_by" INTEGER REFERENCES "records"("id")
);
INSERT INTO "records" VALUES(1,'7918a182033828629336682e02bb478e','hist,maxpool','01d6b1e73089b4bb874e9f2dfc4145c8','cuda:0','f67a523b71ac22398adb92c041265349','warm','measured','fuse','{"cap":32,"partition":"paper"}','program',10.0,'streams',15.0,NULL,1.5,1.4,1.6,1,'["2 seeds, equal"]',1,'2026-01-01T00:00:00.000+00:00',NULL,'{}','abcdefgh',2);
INSERT INTO "records" VALUES(2,'7918a182033828629336682e02bb478e','hist,maxpool','01d6b1e73089b4bb874e9f2dfc4145c8','cuda:0','f67a523b71ac22398adb92c041265349','warm','measured','fuse','{"cap":32,"partition":"paper"}','program',10.0,'streams',15.0,NULL,1.5,1.4,1.6,1,'["2 seeds, equal"]',2,'2026-01-01T00:00:00.000+00:00',NULL,'{}','abcdefgh',NULL);
CREATE TABLE "rejections" (
   "job_id" TEXT REFERENCES "jobs"("id"),
   "rule" TEXT,
   "nodes" TEXT,
   "detail" TEXT
);
INSERT INTO "rejections" VALUES('abcdefgh','shared','["hist"]','too much');
CREATE TABLE "trials" (
   "id" INTEGER PRIMARY KEY,
   "job_id" TEXT NOT NULL REFERENCES "jobs"("id"),
   "role" TEXT NOT NULL,
   "sequence" INTEGER NOT NULL,
   "config_key" TEXT NOT NULL,
   "config" TEXT NOT NULL,
   "origin" TEXT,
   "outcome" TEXT NOT NULL,
   "reason" TEXT,
   "ratio" REAL,
   "time_us" REAL,
   "program_key" TEXT,
   "against" TEXT,
   "resolved" TEXT,
   "worst_error" REAL,
   "measurement_id" INTEGER REFERENCES "measurements"("id"),
   "device_key" TEXT NOT NULL,
   "gpu_uuid" TEXT,
   "env_key" TEXT NOT NULL,
   "at" TEXT
);
INSERT INTO "trials" VALUES(1,'abcdefgh','candidate',0,'23f3df5665a8e1b2a4bca6def34df793','{"cap":0}','sampler','measured','',2.0,10.5,'program0','baseline','{}',NULL,1,'01d6b1e73089b4bb874e9f2dfc4145c8','GPU-cuda:0','f67a523b71ac22398adb92c041265349','2026-01-01T00:00:00.000+00:00');
CREATE TABLE "workloads" (
   "workload_key" TEXT PRIMARY KEY,
   "family_key" TEXT,
   "strategy" TEXT,
   "strategy_version" INTEGER,
   "name" TEXT,
   "lookup_name" TEXT,
   "members" TEXT,
   "sizes" TEXT,
   "source_hashes" TEXT,
   "created_at" TEXT
);
INSERT INTO "workloads" VALUES('7918a182033828629336682e02bb478e','7ef3b803f3bbfc2a052b210b627d8043','hfuse',1,'hist,maxpool','hist,maxpool','["hist","maxpool"]','{"a.n":1000,"b.n":1000}','{}','2026-01-01T00:00:00.000+00:00');
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
CREATE INDEX "idx_boards_name"
    ON "boards" ("name");
CREATE INDEX "idx_workloads_lookup_name_strategy_strategy_version"
    ON "workloads" ("lookup_name", "strategy", "strategy_version");
CREATE INDEX "idx_workloads_strategy_strategy_version"
    ON "workloads" ("strategy", "strategy_version");
CREATE INDEX "idx_workloads_family_key_sizes"
    ON "workloads" ("family_key", "sizes");
CREATE UNIQUE INDEX "idx_jobs_id"
    ON "jobs" ("id");
CREATE INDEX idx_jobs_waiting ON jobs (state, priority DESC, number);
CREATE UNIQUE INDEX idx_jobs_same ON jobs (kind, workload_key, device, search) WHERE state IN ('queued', 'running');
CREATE UNIQUE INDEX "idx_trials_job_id_role_config_key"
    ON "trials" ("job_id", "role", "config_key");
CREATE UNIQUE INDEX "idx_trials_job_id_role_sequence"
    ON "trials" ("job_id", "role", "sequence");
CREATE INDEX "idx_trials_program_key_device_key_env_key"
    ON "trials" ("program_key", "device_key", "env_key");
CREATE UNIQUE INDEX "idx_rejections_job_id_rule_nodes_detail"
    ON "rejections" ("job_id", "rule", "nodes", "detail");
CREATE UNIQUE INDEX idx_records_current ON records (workload_key, device_key, cache) WHERE replaced_by IS NULL;
CREATE INDEX idx_records_by_name ON records (lookup_name, cache, evidence, found_at) WHERE replaced_by IS NULL;
CREATE INDEX "idx_records_workload_key_device_key_cache"
    ON "records" ("workload_key", "device_key", "cache");

