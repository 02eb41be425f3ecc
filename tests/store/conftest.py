"""A store in a fresh folder, and nouns to put into it."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fusiond import __version__
from fusiond.model.nouns import Config, DeviceInfo, DeviceLimits, Job, Search, Workload
from fusiond.model.outcomes import Measurement, Outcome, Purpose, Record, Trial, Verdict
from fusiond.store.database import Store


class Make:
    """Nouns with plain values; any field can be said."""

    def workload(self, name: str = "hist,maxpool", sizes: Mapping[str, int] | None = None, **fields: Any) -> Workload:
        given: dict[str, Any] = {
            "strategy": "hfuse", "strategy_version": 1, "members": tuple(name.split(",")), "content": {"sources": name},
            "payload": None,
        }  # fmt: skip
        return Workload(name=name, sizes=sizes or {"a.n": 1000, "b.n": 1000}, **{**given, **fields})

    def job(self, **fields: Any) -> Job:
        given: dict[str, Any] = {"strategy": "hfuse", "request": {"pair": ["hist", "maxpool"]}, "sizes": {"a.n": 1000}}
        return Job(**{**given, **fields})

    def search(self, seed: int) -> Search:
        return Search(seed=seed)

    def measurement(self, *span_us: float, **fields: Any) -> Measurement:
        given: dict[str, Any] = {"baseline_us": (20.0, 22.0), "clock": "device", "purpose": Purpose.SEARCH}
        return Measurement(span_us=span_us or (10.0, 11.0), **{**given, **fields})

    def trial(self, sequence: int = 0, **fields: Any) -> Trial:
        given: dict[str, Any] = {
            "config": Config.of({"cap": sequence}), "origin": "sampler", "outcome": Outcome.MEASURED, "ratio": 2.0,
            "time_us": 10.5, "program_key": f"program{sequence}", "measurement": self.measurement(),
        }  # fmt: skip
        return Trial(sequence=sequence, **{**given, **fields})

    def device(self, name: str = "cuda:0", **fields: Any) -> DeviceInfo:
        emulated = name.startswith("cpu")
        given: dict[str, Any] = {
            "model": "Processor" if emulated else "NVIDIA H200",
            "arch": "cpu" if emulated else "sm_90",
            "memory_bytes": 140 << 30,
            "uuid": "" if emulated else f"GPU-{name}",
            "evidence": "emulated" if emulated else "measured",
            "env": {"driver": "580.1", "fusiond": __version__},
            "limits": DeviceLimits(multiprocessors=132, shared_bytes_per_sm=228 << 10, shared_bytes_per_block=227 << 10,
                                   threads_per_sm=2048, blocks_per_sm=32),
        }  # fmt: skip
        return DeviceInfo(name=name, **{**given, **fields})

    def record(self, workload: Workload, device: DeviceInfo, **fields: Any) -> Record:
        given: dict[str, Any] = {
            "verdict": Verdict.FUSE, "config": Config.of({"cap": 32, "partition": "paper"}), "program_key": "program",
            "time_us": 10.0, "baseline": "streams", "baseline_us": 15.0, "speedup": 1.5, "ci95": (1.4, 1.6),
            "verified": True, "checks": ("2 seeds, equal",), "figures": {"whole_us": 40.5}, "trials": 64,
            "found_at": "2026-01-01T00:00:00.000+00:00",
        }  # fmt: skip
        return Record(
            strategy=workload.strategy, workload_name=workload.name, workload_key=workload.key, sizes=workload.sizes,
            strategy_version=workload.strategy_version, content_key=workload.content_key, device_name=device.name,
            device_key=device.key, env_key=device.env_key, evidence=device.evidence, **{**given, **fields},
        )  # fmt: skip

    def known(
        self, store: Store, workload: Workload, device: DeviceInfo, *, job: str | None = None, **fields: Any
    ) -> Record:
        """A record with all that it refers to, in the store."""
        hashes = fields.pop("source_hashes", {})
        store.save_workload(workload)
        store.save_device(device)
        record = self.record(workload, device, **fields)
        store.save_record(record, job=job, source_hashes=hashes)
        return record

    def changed(self, value: Any, **fields: Any) -> Any:
        return dataclasses.replace(value, **fields)


@pytest.fixture(scope="session")
def make() -> Make:
    return Make()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "fusiond.sqlite") as opened:
        yield opened


@pytest.fixture
def job(store: Store, make: Make) -> str:
    """The id of a job that runs."""
    row = store.submit(make.job(), make.workload())
    assert store.claim("1:gone:1", job=row.id)
    return row.id
