"""Devices: their descriptions, what may change about them, and which are sick."""

from __future__ import annotations

from dataclasses import dataclass

from fusiond.model.keys import canonical
from fusiond.model.nouns import DeviceInfo, DeviceLimits
from fusiond.store.connection import Connected
from fusiond.store.encoding import decoding, mapping_from, printable
from fusiond.store.format import decoded, now


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A piece of hardware as it was seen last; `info.name` is empty when another one took its name."""

    info: DeviceInfo
    sick: str | None
    """Why nothing is to be run on it; None when it is well."""
    seen_at: str


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
                        name=board["name"],
                        model=device["model"],
                        arch=device["arch"],
                        memory_bytes=device["memory_bytes"],
                        mig=device["mig"],
                        uuid=board["uuid"],
                        evidence=device["evidence"],
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
