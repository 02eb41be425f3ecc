"""The plugin of docs/plugins.md that posts what somebody should see, word for word."""

import json
import os
import urllib.request

from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import Record
from fusiond.strategy.hookspecs import hookimpl


@hookimpl
def record_changed(record: Record) -> None:
    if record.verdict.wins and record.evidence == "measured":
        _post(f"{record.workload_name} on {record.device_name}: {record.verdict.value}, {record.speedup:.2f}x")


@hookimpl
def device_sick(device: DeviceInfo, reason: str) -> None:
    _post(f"{device.name} is sick: {reason}")


def _post(text: str) -> None:
    body = json.dumps({"text": text}).encode()
    request = urllib.request.Request(os.environ["FUSIOND_WEBHOOK"], body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=5):
        pass
