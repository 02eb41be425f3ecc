"""Translates errors of the driver into outcomes. The only module that tells PyCUDA's exceptions from ours."""

import contextlib
from collections.abc import Iterator

from fusiond.devices.base import ExecutionError
from fusiond.devices.cuda.driver import DriverError
from fusiond.model.outcomes import Outcome

# The driver's own texts (cuGetErrorString); PyCUDA's message is "cuLaunchKernel failed: TEXT".
_MEANINGS: dict[Outcome, tuple[str, ...]] = {
    Outcome.TIMED_OUT: ("launch timed out",),
    Outcome.CRASHED: (
        "address space",  # "operation not supported on global/shared address space"
        "illegal memory access", "misaligned address", "assert", "illegal instruction",
    ),
    Outcome.LAUNCH_REFUSED: (
        "too many resources", "invalid argument", "invalid configuration", "out of memory", "no kernel image",
        "too many blocks in cooperative launch", "kernel image is invalid", "named symbol not found", "not supported",
        "capturing",
    ),
}  # fmt: skip


def outcome_of(text: str) -> Outcome:
    """What a driver's error text says about the candidate; whatever is not known has crashed."""
    found = (outcome for outcome, texts in _MEANINGS.items() if any(each in text for each in texts))
    return next(found, Outcome.CRASHED)


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
    """Turn driver errors into ExecutionErrors that begin with `what` was being done.

    PyCUDA's exceptions are known by their module, so that this file needs no PyCUDA."""
    try:
        yield
    except Exception as problem:
        if not isinstance(problem, DriverError) and not type(problem).__module__.startswith("pycuda"):
            raise
        text = " ".join(str(problem).split())
        raise ExecutionError(outcome_of(text), f"{what}: {text}") from None
