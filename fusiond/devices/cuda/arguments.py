"""Arguments as bytes, laid out as the kernel's entry table says. A mismatch is found here: the driver would read
on."""

from collections.abc import Callable

from fusiond.devices.base import ExecutionError
from fusiond.model.gpu.entry_table import EntryName
from fusiond.model.language.narrow import scalar
from fusiond.model.outcomes import Outcome
from fusiond.model.program import Argument, Bytes, HostCall, Launch, Pointer


def value_bytes(argument: Argument, address: Callable[[str], int]) -> bytes:
    """One argument's bytes; `address` tells where a buffer is."""
    if isinstance(argument, Pointer):
        return address(argument.buffer).to_bytes(8, "little")
    if isinstance(argument, Bytes):
        return argument.filled(address)
    try:
        return scalar(argument.dtype, argument.value).tobytes()
    except (OverflowError, TypeError, ValueError) as problem:
        raise ExecutionError(
            Outcome.LAUNCH_REFUSED, f"{argument.value!r} is not of type {argument.dtype}: {problem}"
        ) from None


def check(step: Launch | HostCall, sizes: tuple[int, ...]) -> None:
    """Refuse a step whose arguments are not those of its function: number, and bytes of each."""
    given = [len(value_bytes(each, lambda _: 0)) for each in step.arguments]
    if len(given) != len(sizes):
        raise ExecutionError(
            Outcome.LAUNCH_REFUSED, f"step {step.name!r} passes {len(given)} arguments, {step.entry} takes {len(sizes)}"
        )
    for index, (have, want) in enumerate(zip(given, sizes, strict=True)):
        if have != want:
            raise ExecutionError(
                Outcome.LAUNCH_REFUSED,
                f"step {step.name!r}: argument {index} has {have} bytes, {step.entry} takes {want} there",
            )


def pack(step: Launch, entry: EntryName, address: Callable[[str], int]) -> bytes:
    """The argument buffer of a launch."""
    packed = bytearray(entry.argument_bytes)
    for parameter, argument in zip(entry.parameters, step.arguments, strict=True):
        start = parameter.offset_bytes
        packed[start : start + parameter.size_bytes] = value_bytes(argument, address)
    return bytes(packed)
