"""A host-device link of a given bandwidth and latency for the cpu device: copies take the time that the link would,
and a run takes what its steps come to on streams and engines (`fusiond.model.program.timeline`).

    FUSIOND_CPU_LINK=12GB/s,8us        each way at once; a message takes 8 us and its bytes
    FUSIOND_CPU_LINK=12GB/s,8us,late   of what could begin at a moment, an engine takes what was ready last
"""

import os
import re
from dataclasses import dataclass

from fusiond.model.errors import RequestError

VARIABLE = "FUSIOND_CPU_LINK"
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)GB/s,(\d+(?:\.\d+)?)us(,late)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    bytes_per_us: float
    latency_us: float  #: Of a message, whatever its length
    late: bool = False

    def message_us(self, size_bytes: int) -> float:
        return self.latency_us + size_bytes / self.bytes_per_us

    def __str__(self) -> str:
        return f"{self.bytes_per_us / 1000:g}GB/s,{self.latency_us:g}us{',late' if self.late else ''}"


def parse(text: str) -> Link:
    """RequestError says how a link is written."""
    found = _WRITTEN.fullmatch(text.replace(" ", ""))
    if found is None or float(found[1]) == 0:
        raise RequestError(f"is {text[:80]!r}; expected a bandwidth and a latency, such as 12GB/s,8us", where=VARIABLE)
    return Link(bytes_per_us=1000 * float(found[1]), latency_us=float(found[2]), late=found[3] is not None)


def of_environment() -> Link | None:
    """The link that the environment asks for; None where it asks for none."""
    text = os.environ.get(VARIABLE, "")
    return parse(text) if text else None
