"""Probes: keyed micro-measurements, taken once per device and kept for ever."""

from __future__ import annotations

from fusiond.model import Measurement
from fusiond.store.connection import Connected
from fusiond.store.trials import add_measurement


class Probes(Connected):
    def probe(self, key: str, device_key: str, version: int) -> float | None:
        """Microseconds; None when it was not measured by this version of the strategy that wants it."""
        rows = self._sealed(
            "FROM probes p WHERE probe_key = ? AND device_key = ? AND version = ?",
            [key, device_key, version],
            skip=True,  # it is measured again
            p="probes",
        )
        return rows[0][0]["time_us"] if rows else None

    def add_probe(self, key: str, device_key: str, version: int, measurement: Measurement) -> None:
        """Write down a probe; a later one takes the place of an earlier one."""
        with self._transaction() as database:
            values = [key, device_key, version]
            database.execute("DELETE FROM probes WHERE probe_key = ? AND device_key = ? AND version = ?", values)
            database.execute(
                "INSERT INTO probes (probe_key, device_key, version, time_us, measurement_id) VALUES (?, ?, ?, ?, ?)",
                [*values, measurement.time_us, add_measurement(database, measurement, None)],
            )
