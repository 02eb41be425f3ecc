"""Trials per second on 1, 2, 4 and 8 sleeping fake devices of a local Ray cluster of two nodes.

    python -m benchmarks.fleet.cluster [--secs 1.0] [--out FILE.json]

A trial costs its device the time that its program takes to load, so what is left is what fusiond and Ray add. Equal
programs are measured once and do not count. The rate is that of the search without its first and its last round, in
which not every device has something to do.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from fusiond.cluster.provider import ClusterProvider, others, runner
from fusiond.cluster.rayed import RayCluster
from fusiond.events import Event, Events, TrialFinished
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.store.database import Store
from fusiond.testing.fakes import FakePlugin
from fusiond.tuning import tuner
from fusiond.tuning.tuner import Tuner

SPEC, RESOURCE = "fusiond.testing.sleeping:SleepingProvider", "fake_device"
SIDES = {1: 4, 2: 6, 4: 9, 8: 13}
"""Devices -> side of the toy's space: larger for more, so that each has several rounds."""


class Limited(RayCluster):
    """The first few devices of the cluster."""

    most = 0

    def devices(self) -> dict[str, Any]:
        return dict(list(super().devices().items())[: self.most])


def rate(cluster: Limited, count: int) -> tuple[float, int]:
    """Measured programs a second with so many devices, and how many were measured."""
    cluster.most = count
    registry = Registry()
    registry.add(FakePlugin(), "fakes")
    registry.providers["cluster"] = ClusterProvider(cluster, SPEC)
    ended: list[float] = []
    seen: set[str] = set()

    def heard(event: Event) -> None:
        if isinstance(event, TrialFinished) and event.trial.program_key not in seen:
            seen.add(str(event.trial.program_key))
            ended.append(time.monotonic())

    text = f"strategy: toy\nside: {SIDES[count]}\nlabel: on{count}\ndevice: cluster\nsearch: {{trials: 100000}}\n"
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "fusiond.sqlite") as store:
        (job,) = jobs.read("/toy.yaml", text)
        row = tuner.submit(store, registry, job)
        store.claim("benchmark", job=row.id)
        made = Tuner(store, registry, Events(heard), runner=runner, others=others)
        made.run(row.id, lambda: len(store.trials(row.id)) >= SIDES[count] ** 2)  # without the finals
    steady = ended[count:-count]
    return (len(steady) - 1) / (steady[-1] - steady[0]), len(ended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--secs", type=float, default=1.0, help="what a trial costs its device (1.0)")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ["FUSIOND_FAKE_LOAD_SECS"] = str(arguments.secs)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=1, resources={RESOURCE: 4})
    cluster = Limited(made.address, spec=SPEC, resource=RESOURCE)
    try:
        found: dict[str, Any] = {"secs": arguments.secs, "cores": os.cpu_count(), "devices": {}}
        one = 0.0
        for count in SIDES:
            per_sec, trials = rate(cluster, count)
            one = one or per_sec
            part = per_sec / (count * one)
            found["devices"][count] = {"per_sec": round(per_sec, 3), "of_n_times_one": round(part, 3), "trials": trials}
            print(f"{count} devices: {per_sec:.2f} trials/s, {part:.2f} of {count} x one ({trials} trials)", flush=True)
    finally:
        cluster.close()
        made.shutdown()
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
