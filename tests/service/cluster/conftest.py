"""A Ray cluster on this machine: a head without devices, and nodes that have a fake one each."""

import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

SPEC = "fusiond.testing.sleeping:SleepingProvider"
RESOURCE = "fake_device"


class Nodes:
    """The cluster as a test changes it."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "num_gpus": 0, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            one = self.cluster.add_node(num_cpus=1, resources={RESOURCE: 1}, wait=False)
            self.nodes.append(one)
        self.cluster.wait_for_nodes()

    def kill(self, number: int) -> None:
        """As a power cut would: nobody is told."""
        self.cluster.remove_node(self.nodes.pop(number), allow_graceful=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    pytest.importorskip("ray", reason="needs Ray: pip install 'fusiond[ray]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    made = Nodes()
    try:
        yield made
    finally:
        import ray

        ray.shutdown()
        made.cluster.shutdown()


@pytest.fixture
def connect(nodes: Nodes) -> Iterator[Callable[[], Any]]:
    from fusiond.service.cluster.ray_actors import RayCluster

    opened = []

    def of() -> RayCluster:
        opened.append(RayCluster(nodes.cluster.address, spec=SPEC, resource=RESOURCE))
        return opened[-1]

    yield of
    for each in opened:
        each.close()
