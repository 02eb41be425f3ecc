"""Ray actors: one per device of the cluster; bundles travel through the object store. The only module that imports
Ray.

An actor holds its device for as long as the daemon runs (`num_gpus=1`: Ray gives it to nobody else), on the node that
has it; it is never started anew elsewhere. What its node was at when that left is lost, and nothing else.
"""

import dataclasses
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusiond.devices import protocol
from fusiond.devices.supervisor import RunnerLost
from fusiond.model.errors import DeviceError
from fusiond.model.nouns import DeviceInfo
from fusiond.service.cluster.remote import Remote, bundles_of, packed

log = logging.getLogger(__name__)

CUDA = "fusiond.devices.cuda.provider:CudaProvider"
NO_RAY = "Ray is not installed; pip install 'fusiond[ray]'"
SLACK_SECS = 60.0
"""What an answer may take beside the time that the device has for it: the way there, a child that is started."""
START_SECS = 120.0


@dataclass(frozen=True, slots=True)
class _Seat:
    """A device's place: the number of the device on a node."""

    node: str
    number: int


class RayCluster:
    """A connection to a cluster. `devices` are those that are there now."""

    def __init__(self, address: str, *, spec: str = CUDA, resource: str = "GPU") -> None:
        """`address`: `auto`, or HOST:PORT of the head. `spec` is the kind of device on the nodes, `resource` what Ray
        counts them as. DeviceError where Ray is missing or the cluster does not answer."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told
        try:
            import ray
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        except ImportError:
            raise DeviceError(NO_RAY) from None
        self._ray: Any = ray
        self._affinity = NodeAffinitySchedulingStrategy
        self._spec, self._resource = spec, resource
        try:
            ray.init(address=address, log_to_driver=False, ignore_reinit_error=True, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as problem:
            raise DeviceError(f"no Ray cluster answers at {address}: {' '.join(str(problem).split())}") from None
        self._actor = ray.remote(max_restarts=0, max_task_retries=0)(Remote)
        self._actors: dict[_Seat, tuple[Any, DeviceInfo]] = {}
        self._names: dict[_Seat, str] = {}
        self._lock = threading.Lock()
        self.bundles = _Bundles(ray)

    def close(self) -> None:
        """Let go of the devices."""
        for actor, _ in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self._ray.shutdown()

    def devices(self) -> dict[str, DeviceInfo]:
        """Name -> device, of all that are there now: `cluster:0`, `cluster:1`, ... A device that comes later has the
        next number; one that has left keeps its own."""
        with self._lock:
            self._look()
            found = sorted(self._actors, key=lambda seat: int(self._names[seat].partition(":")[2]))
            shown: dict[str, DeviceInfo] = {}
            uuids: set[str] = set()
            for seat in found:
                info, name = self._actors[seat][1], self._names[seat]
                # A GPU has a number of its own; of what has none, or shares it, the place is one.
                uuid = info.uuid if info.uuid and info.uuid not in uuids else f"{info.uuid}@{seat.node}:{seat.number}"
                uuids.add(uuid)
                shown[name] = dataclasses.replace(info, name=name, uuid=uuid)
            return shown

    def actor(self, name: str) -> Any:
        with self._lock:
            for seat, (actor, _) in self._actors.items():
                if self._names[seat] == name:
                    return actor
        raise RunnerLost(f"{name} is not in the cluster any more")

    def lose(self, name: str) -> None:
        """It does not answer any more."""
        with self._lock:
            for seat in [each for each in self._actors if self._names[each] == name]:
                actor, _ = self._actors.pop(seat)
                self._ray.kill(actor)

    def _look(self) -> None:
        """Actors for the devices that have none; those of nodes that have left go."""
        alive = {
            node["NodeID"]: node["Resources"].get(self._resource, 0) for node in self._ray.nodes() if node["Alive"]
        }
        for seat in [each for each in self._actors if each.node not in alive]:
            log.warning("%s has left the cluster", self._names[seat])
            self._actors.pop(seat)
        begun = {}
        for node in sorted(alive):
            for number in range(int(alive[node])):
                seat = _Seat(node, number)
                if seat not in self._actors:
                    begun[seat] = self._begin(seat)
        for seat, actor in begun.items():
            try:
                info = self._ray.get(actor.info.remote(), timeout=START_SECS)
            except (self._ray.exceptions.RayError, TimeoutError) as problem:
                log.warning("a device of node %s does not come up: %s", seat.node[:8], _first(problem))
                self._ray.kill(actor)
                continue
            self._actors[seat] = actor, info
            self._names.setdefault(seat, f"cluster:{len(self._names)}")

    def _begin(self, seat: _Seat) -> Any:
        gpus = self._resource == "GPU"
        options: dict[str, Any] = {
            "num_cpus": 0,
            "scheduling_strategy": self._affinity(seat.node, soft=False),
            **({"num_gpus": 1} if gpus else {"resources": {self._resource: 1}}),
        }
        return self._actor.options(**options).remote(self._spec, seat.number if gpus else None)


class _Bundles:
    """Each bundle is put into the object store once, for all devices."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._put: dict[str, Any] = {}
        self._lock = threading.Lock()

    def reference(self, path: str) -> Any:
        with self._lock:
            if path not in self._put:
                if len(self._put) >= 2000:
                    self._put.pop(next(iter(self._put)))
                self._put[path] = self._ray.put(packed(Path(path)))
            return self._put[path]


class RayRunner:
    """A `Runner` whose child process is on another box."""

    def __init__(self, cluster: RayCluster, device: DeviceInfo) -> None:
        self.device = device
        self._cluster, self._ray = cluster, cluster._ray
        self._actor = cluster.actor(device.name)
        self._sent: set[str] = set()

    def call(self, request: protocol.Request, timeout_secs: float) -> protocol.Reply:
        missing = [each for each in dict.fromkeys(bundles_of(request)) if each not in self._sent]
        sent: Mapping[str, Any] = {each: self._cluster.bundles.reference(each) for each in missing}
        line = protocol.encode_request(request)
        answer = self._get(_with(self._actor, line, timeout_secs, sent), timeout_secs + SLACK_SECS)
        self._sent.update(missing)
        return protocol.decode_reply(answer)

    def fresh(self) -> None:
        self._get(self._actor.fresh.remote(), SLACK_SECS)

    def close(self) -> None:
        try:
            self.fresh()
        except RunnerLost as problem:
            log.debug("%s", problem)

    def _get(self, reference: Any, timeout_secs: float) -> Any:
        try:
            return self._ray.get(reference, timeout=timeout_secs)
        except (self._ray.exceptions.RayError, TimeoutError) as problem:
            self._cluster.lose(self.device.name)
            raise RunnerLost(f"{self.device.name} has left the cluster: {_first(problem)}") from None


def _with(actor: Any, line: str, timeout_secs: float, sent: Mapping[str, Any]) -> Any:
    """Ray fetches what is referred to at the top of the arguments, and there alone."""
    names, references = list(sent), list(sent.values())
    return actor.call_with.remote(line, timeout_secs, names, *references)


def _first(problem: BaseException) -> str:
    return str(problem).strip().split("\n")[0][:200] or type(problem).__name__
