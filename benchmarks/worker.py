"""What a lost worker costs: `python -m benchmarks.worker [--device cpu] [--rounds 10]`, JSON on standard output.

Milliseconds from the moment in which the child process of a device is killed to the first answer of the next one,
beside the same request to a child that is there. On a GPU most of it is the new context.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fusiond.devices import probe, protocol
from fusiond.devices.lock import device_lock
from fusiond.devices.supervisor import Supervisor
from fusiond.exporting.bundle import write_bundle
from fusiond.model import MeasureFailed
from fusiond.registry import Registry
from fusiond.requests.planning import choose_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    provider, device = choose_device(Registry.load(), arguments.device)

    def waiting(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    with tempfile.TemporaryDirectory() as folder, device_lock(device, stop=lambda: False, waiting=waiting):
        bundle = Path(folder) / "bundle"
        write_bundle(bundle, probe.PROGRAM, {})
        runner = Supervisor(provider, device)
        request = protocol.Reference(bundle=str(bundle), seed=0, outputs=str(Path(folder) / "outputs.npz"))
        found: dict[str, list[float]] = {"there": [], "killed": [], "fresh": []}
        ask(runner, request)
        for _ in range(arguments.rounds):
            found["there"].append(ask(runner, request))
            child = runner._child
            assert child is not None
            os.kill(child.pid, signal.SIGKILL)
            found["killed"].append(ask(runner, request))
            runner.fresh()
            found["fresh"].append(ask(runner, request))
        runner.close()
    medians = {f"{name}_ms": round(statistics.median(times), 2) for name, times in found.items()}
    print(
        json.dumps(
            {
                "device": device.name,
                "model": device.model,
                "rounds": arguments.rounds,
                **medians,
                "replacing_ms": round(medians["killed_ms"] - medians["there_ms"], 2),
                "slowest_ms": round(max(found["killed"]), 2),
            },
            indent=1,
        )
    )


def ask(runner: Supervisor, request: protocol.Request) -> float:
    """Milliseconds until the answer."""
    begun = time.perf_counter()
    reply = runner.call(request, 60)
    if isinstance(reply, MeasureFailed):
        raise SystemExit(f"{reply.outcome.value}: {reply.reason}")
    return 1000 * (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
