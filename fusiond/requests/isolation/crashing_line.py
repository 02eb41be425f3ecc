"""Which line of a file crashes a parser: the shortest beginning of the file that does, found by halving it."""

import time

from fusiond.requests.isolation.helpers import Files
from fusiond.requests.isolation.planner import Planner
from fusiond.requests.jobs import JobInputs

LOOK_SECS = 5.0  #: For how long the line is looked for; after that the file alone is named
ONE_SECS = 2.0  #: For one attempt: a beginning that takes longer is not a crash


def of_crash(planner: Planner, asked: tuple[object, ...], inputs: JobInputs) -> str | None:
    """`file:line` of what crashes the parser (`asked`: its request), or the file where no line can be found; None when
    none of the files does it. The files that were read last are looked at first."""
    until = time.monotonic() + LOOK_SECS

    def dies(path: str, text: str) -> bool:
        number = next(planner.numbers)
        helper = Files(inputs.with_text(path, text))
        return planner.dies("parse", (number, *asked), helper, secs=ONE_SECS)

    for path, text in reversed(list(inputs.texts().items())):
        if time.monotonic() > until:
            return None
        if dies(path, ""):
            continue
        parts = text.splitlines(keepends=True)
        fine, crash = 0, len(parts)
        while crash - fine > 1:
            if time.monotonic() > until:
                return path
            middle = (fine + crash) // 2
            if dies(path, "".join(parts[:middle])):
                crash = middle
            else:
                fine = middle
        return f"{path}:{crash}"
    return None
