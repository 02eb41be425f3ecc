"""Translates errors of the driver into outcomes. The only module that tells PyCUDA's exceptions from ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fusiond.devices.base import ExecutionError
from fusiond.devices.cuda.driver import DriverError
from fusiond.model.outcomes import Outcome

# The driver's own texts (cuGetErrorString); PyCUDA's message is "cuLaunchKernel failed: TEXT".
_MEANINGS: tuple[tuple[str, Outcome], ...] = (
    ("launch timed out", Outcome.TIMED_OUT),
    ("address space", Outcome.CRASHED),  # "operation not supported on global/shared address space"
    ("illegal memory access", Outcome.CRASHED),
    ("misaligned address", Outcome.CRASHED),
    ("assert", Outcome.CRASHED),
    ("illegal instruction", Outcome.CRASHED),
    ("too many resources", Outcome.LAUNCH_REFUSED),
    ("invalid argument", Outcome.LAUNCH_REFUSED),
    ("invalid configuration", Outcome.LAUNCH_REFUSED),
    ("out of memory", Outcome.LAUNCH_REFUSED),
    ("too many blocks in cooperative launch", Outcome.LAUNCH_REFUSED),
    ("no kernel image", Outcome.LAUNCH_REFUSED),
    ("kernel image is invalid", Outcome.LAUNCH_REFUSED),
    ("named symbol not found", Outcome.LAUNCH_REFUSED),
    ("not supported", Outcome.LAUNCH_REFUSED),
    ("capturing", Outcome.LAUNCH_REFUSED),
)


def outcome_of(text: str) -> Outcome:
    """What a driver's error text says about the candidate; whatever is not known has crashed."""
    return next((outcome for words, outcome in _MEANINGS if words in text), Outcome.CRASHED)


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
    """Turn driver errors into ExecutionErrors that begin with `what` was being done.

    PyCUDA's exceptions are known by their module, so that this file needs no PyCUDA."""
    try:
        yield
    except ExecutionError:
        raise
    except DriverError as problem:
        raise ExecutionError(outcome_of(str(problem)), f"{what}: {problem}") from None
    except Exception as problem:
        if not type(problem).__module__.startswith("pycuda"):
            raise
        text = " ".join(str(problem).split())
        raise ExecutionError(outcome_of(text), f"{what}: {text}") from None
