"""The provider of a cluster's devices, for the tuner and the daemon."""

from collections.abc import Sequence
from pathlib import Path

from fusiond.devices.base import Binary, DeviceProvider, Executor
from fusiond.devices.supervisor import Runner, Supervisor
from fusiond.model.errors import DeviceError
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, Source
from fusiond.service.cluster.ray_actors import RayCluster, RayRunner
from fusiond.service.cluster.remote import provider_of
from fusiond.strategy import Facts


class ClusterProvider:
    """A `DeviceProvider`: what is built is built here, what runs runs there. One device of each model stands for all
    that are equal to it: a job on it is measured on all of them at once."""

    kind = "cluster"

    def __init__(self, cluster: RayCluster, spec: str) -> None:
        self.cluster = cluster
        self._local = provider_of(spec)
        self.shares_cores = False  # of this box

    def devices(self) -> tuple[DeviceInfo, ...]:
        first: dict[tuple[str, str], DeviceInfo] = {}
        for info in self.cluster.devices().values():
            first.setdefault((info.key, info.env_key), info)
        return tuple(first.values())

    def missing(self) -> tuple[str, ...]:
        return () if self.cluster.devices() else ("cluster: no node of the Ray cluster has a device",)

    def normalise(self, program: Program) -> Program:
        return self._local.normalise(program)

    def build(self, source: Source, arch: str) -> Binary | BuildFailed:
        return self._local.build(source, arch)

    def ptx(self, source: Source, arch: str) -> str | None:
        return self._local.ptx(source, arch)

    def sanitize(self, bundle: Path, device: str) -> tuple[str, ...]:
        raise LookupError("the sanitizer runs on no device of a cluster")

    def facts(self, arch: str) -> Facts:
        return self._local.facts(arch)

    def executor(self, name: str) -> Executor:
        raise DeviceError(f"{name} is on another box")


def runner(provider: DeviceProvider, device: DeviceInfo) -> Runner:
    """How the tuner reaches a device: a child process here, or an actor."""
    if isinstance(provider, ClusterProvider):
        return RayRunner(provider.cluster, device)
    return Supervisor(provider, device)


def others(provider: DeviceProvider, device: DeviceInfo) -> Sequence[Runner]:
    """The devices of the cluster that are equal to one, and help it."""
    if not isinstance(provider, ClusterProvider):
        return ()
    known = provider.cluster.devices().values()
    equal = [each for each in known if (each.key, each.env_key) == (device.key, device.env_key)]
    return [RayRunner(provider.cluster, each) for each in equal if each.name != device.name]
