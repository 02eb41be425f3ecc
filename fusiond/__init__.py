"""fusiond: measures which CUDA kernels, pipelines and graphs are worth fusing, and keeps the answers.

    import fusiond

    with fusiond.Client() as client:
        answer = client.best("hist,maxpool")        # an Answer, or None
        (job,) = client.submit("job.yaml")          # to the daemon

    (answer,) = fusiond.tune("job.yaml")            # without one: measures here and now
    fusiond.export(answer, "folder")                # what a program needs to call it

What stands in `__all__` is what programs may rely on. Each name is imported when it is first used: asking for an answer
costs little more than Python itself.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fusiond.model.errors import (
        Ambiguous,
        DaemonError,
        DeviceError,
        FusiondError,
        MachineFault,
        NothingKnown,
        RequestError,
        StoreError,
    )
    from fusiond.model.nouns import Job
    from fusiond.model.outcomes import JobState
    from fusiond.requests.planning import Plan
    from fusiond.service.client.answers import Answer, DeviceName, Judgement, Unfused, WorkloadName
    from fusiond.service.client.client import Client
    from fusiond.service.client.functions import best, export, plan, tune
    from fusiond.service.progress import Progress
    from fusiond.store.job_rows import JobRow

__version__ = "0.2.0"

__all__ = [
    "Ambiguous",
    "Answer",
    "Client",
    "DaemonError",
    "DeviceError",
    "DeviceName",
    "FusiondError",
    "Job",
    "JobRow",
    "JobState",
    "Judgement",
    "MachineFault",
    "NothingKnown",
    "Plan",
    "Progress",
    "RequestError",
    "StoreError",
    "Unfused",
    "WorkloadName",
    "__version__",
    "best",
    "export",
    "plan",
    "tune",
]

_HOMES = {
    "fusiond.service.client.answers": ("Answer", "DeviceName", "Judgement", "Unfused", "WorkloadName"),
    "fusiond.service.client.client": ("Client",),
    "fusiond.service.client.functions": ("best", "export", "plan", "tune"),
    "fusiond.model.errors": (
        *("Ambiguous", "DaemonError", "DeviceError", "FusiondError", "MachineFault", "NothingKnown", "RequestError"),
        "StoreError",
    ),
    "fusiond.model.nouns": ("Job",),
    "fusiond.model.outcomes": ("JobState",),
    "fusiond.service.progress": ("Progress",),
    "fusiond.requests.planning": ("Plan",),
    "fusiond.store.job_rows": ("JobRow",),
}


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'fusiond' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
