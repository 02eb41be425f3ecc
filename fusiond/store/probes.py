"""Probes: keyed micro-measurements, taken once per device and kept for ever."""

from __future__ import annotations

from fusiond.model import Measurement
from fusiond.store.connection import Connected
from fusiond.store.trials import add_measurement


class Probes(Connected):
    def probe(self, key: str, device_key: str, version: int) -> float | None:
        """Microseconds; None when it was not measured by this version of the strategy that wants it."""
        row = self._row(
            "SELECT time_us FROM probes WHERE probe_key = ? AND device_key = ? AND version = ?",
            [key, device_key, version],
        )
        return row["time_us"] if row else None

    def add_probe(self, key: str, device_key: str, version: int, measurement: Measurement) -> None:
        """Write down a probe; a later one takes the place of an earlier one."""
        with self._transaction() as database:
            database.table("probes").insert(
                {
                    "probe_key": key,
                    "device_key": device_key,
                    "version": version,
                    "time_us": measurement.time_us,
                    "measurement_id": add_measurement(database, measurement, None),
                },
                replace=True,
            )
