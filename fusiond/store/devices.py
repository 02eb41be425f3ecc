"""Devices: what they are, what may change about them, and which pieces of hardware are sick."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fusiond.keys import canonical
from fusiond.model import DeviceInfo, DeviceLimits
from fusiond.store.connection import Connected
from fusiond.store.encoding import mapping_from, printable
from fusiond.store.format import now


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
            database.table("devices").insert(
                {
                    "device_key": info.key,
                    "model": info.model,
                    "arch": info.arch,
                    "memory_bytes": info.memory_bytes,
                    "mig": info.mig,
                    "evidence": info.evidence,
                    "limits": canonical(info.limits),
                },
                replace=True,
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
        rows = self._rows(
            "SELECT b.*, d.model, d.arch, d.memory_bytes, d.mig, d.evidence, d.limits, COALESCE(e.env, '{}') AS env "
            "FROM boards b JOIN devices d USING (device_key) LEFT JOIN envs e USING (env_key) "
            "ORDER BY b.seen_at DESC, b.name"
        )
        return [
            DeviceRow(
                info=DeviceInfo(
                    name=row["name"],
                    model=row["model"],
                    arch=row["arch"],
                    memory_bytes=row["memory_bytes"],
                    mig=row["mig"],
                    uuid=row["uuid"],
                    evidence=row["evidence"],
                    env=mapping_from(row["env"]),
                    limits=DeviceLimits(**json.loads(row["limits"])),
                ),
                sick=row["sick"],
                seen_at=row["seen_at"],
            )
            for row in rows
        ]

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
        row = self._row("SELECT sick FROM boards WHERE device_key = ? AND uuid = ?", [device_key, gpu_uuid])
        return row["sick"] if row else None
