"""Devices: their descriptions, what may change about them, and which are sick; their calibrations, which are kept until
the next one under the same driver; and probes, keyed micro-measurements that are kept for ever."""

from dataclasses import dataclass

from fusiond.model.keys import canonical
from fusiond.model.nouns import DeviceInfo, DeviceLimits
from fusiond.model.outcomes import Measurement
from fusiond.store.connection import Connected
from fusiond.store.encoding import decoding, mapping_from, printable
from fusiond.store.format import decoded, now
from fusiond.store.trials import add_measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A piece of hardware as it was seen last; `info.name` is empty when another one took its name."""

    info: DeviceInfo
    sick: str | None  #: Why nothing is to be run on it; None when it is well
    seen_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRow:
    """What `fusiond calibrate` found on a device."""

    device_key: str
    driver: str
    figures: dict[str, float]  #: By the names of `fusiond.devices.calibration`
    at: str


class Devices(Connected):
    def save_device(self, info: DeviceInfo) -> None:
        """Write down a device, its environment and the name that it has now; what stood there is brought up to date."""
        with self._transaction() as database:
            database.execute(
                "INSERT INTO devices (device_key, model, arch, memory_bytes, mig, evidence, limits) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (device_key) DO UPDATE SET model = excluded.model, "
                "arch = excluded.arch, memory_bytes = excluded.memory_bytes, mig = excluded.mig, "
                "evidence = excluded.evidence, limits = excluded.limits",
                [info.key, info.model, info.arch, info.memory_bytes, info.mig, info.evidence, canonical(info.limits)],
            )
            database.table("envs").insert(
                {"env_key": info.env_key, "env": canonical(info.env), "first_seen_at": now()}, ignore=True
            )
            database.execute("UPDATE boards SET name = '' WHERE name = ?", [info.name])
            database.execute(
                "INSERT INTO boards (device_key, uuid, name, env_key, seen_at) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (device_key, uuid) DO UPDATE "
                "SET name = excluded.name, env_key = excluded.env_key, seen_at = excluded.seen_at",
                [info.key, info.uuid, info.name, info.env_key, now()],
            )

    def devices(self) -> list[DeviceRow]:
        """Every piece of hardware that was ever saved, the one seen last first."""
        with self._moment():
            known = self._row("SELECT rows FROM sums WHERE name = 'boards'")
            rows = self._sealed(
                "FROM boards b NOT INDEXED JOIN devices d USING (device_key) LEFT JOIN envs e USING (env_key) "
                "ORDER BY b.seen_at DESC, b.name",
                skip=True,
                expected=known["rows"] if known else None,
                b="boards",
                d="devices",
                e="envs",
            )
            found = []
            for board, device, env in rows:
                with decoding(self.path, "devices", device["device_key"]):
                    info = DeviceInfo(
                        **{name: device[name] for name in ("model", "arch", "memory_bytes", "mig", "evidence")},
                        name=board["name"],
                        uuid=board["uuid"],
                        env=mapping_from(env["env"] if env else "{}"),
                        limits=DeviceLimits(**decoded(device["limits"])),
                    )
                found.append(DeviceRow(info=info, sick=board["sick"], seen_at=board["seen_at"]))
            return found

    def set_sick(self, device_key: str, gpu_uuid: str, reason: str | None) -> None:
        """Say that a piece of hardware is sick, or (None) well again. StoreError when it was never saved."""
        with self._transaction() as database:
            database.execute(
                "INSERT INTO boards (device_key, uuid, name, sick, seen_at) VALUES (?, ?, '', ?, ?) "
                "ON CONFLICT (device_key, uuid) DO UPDATE SET sick = excluded.sick",
                [device_key, gpu_uuid, printable(reason) if reason is not None else None, now()],
            )

    def sick(self, device_key: str, gpu_uuid: str) -> str | None:
        """Why a piece of hardware is sick; None when it is well or unknown."""
        ways = ("INDEXED BY sqlite_autoindex_boards_1", "NOT INDEXED")
        rows = self._sealed_of("boards", ways, device_key=device_key, uuid=gpu_uuid)
        return rows[0]["sick"] if rows else None

    # --- what was measured of them ---

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
