"""Probes: keyed micro-measurements, taken once per device and kept for ever; and calibrations of devices, which are
kept until the next one under the same driver."""

from __future__ import annotations

from dataclasses import dataclass

from fusiond.model.keys import canonical
from fusiond.model.outcomes import Measurement
from fusiond.store.connection import Connected
from fusiond.store.format import decoded, now
from fusiond.store.trials import add_measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRow:
    """What `fusiond calibrate` found on a device."""

    device_key: str
    driver: str
    figures: dict[str, float]
    """By the names of `fusiond.devices.calibration`."""
    at: str


class Probes(Connected):
    def calibrations(self) -> list[CalibrationRow]:
        """All that are kept, the newest first."""
        rows = self._sealed("FROM calibrations c ORDER BY at DESC, c.rowid DESC", [], skip=True, c="calibrations")
        return [
            CalibrationRow(
                device_key=row["device_key"], driver=row["driver"], figures=decoded(row["figures"]), at=row["at"]
            )
            for (row,) in rows
        ]

    def calibration(self, device_key: str, driver: str) -> dict[str, float]:
        """Figures by their names; empty where `calibrate` was never run on the device under this driver."""
        for row in self.calibrations():
            if (row.device_key, row.driver) == (device_key, driver):
                return row.figures
        return {}

    def add_calibration(self, device_key: str, driver: str, figures: dict[str, float]) -> None:
        """Write down a calibration; a later one takes the place of an earlier one."""
        with self._transaction() as database:
            database.execute("DELETE FROM calibrations WHERE device_key = ? AND driver = ?", [device_key, driver])
            database.table("calibrations").insert(
                {"device_key": device_key, "driver": driver, "figures": canonical(figures), "at": now()}
            )

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
