"""The source that the replay device runs: the recorded outcome of a config.

    // replay 1: conv_A100 block_size_x=32 block_size_y=4
    samples_us 1250.5 1249.75 ...
    warmups 3
    failure compile

A line each; `failure` in place of samples, in the words of T4.
"""

from dataclasses import dataclass

from fusiond_replay.pack import FAILURES

MARK = "// replay 1: "


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayScript:
    """What became of one config."""

    samples_us: tuple[float, ...] = ()
    warmups: int = 0
    failure: str = ""


def write(title: str, script: ReplayScript) -> str:
    """The text of a source; the same for the same script."""
    lines = [f"{MARK}{title}"]
    if script.failure:
        lines.append(f"failure {script.failure}")
    else:
        lines.append(f"samples_us {' '.join(f'{each:.9g}' for each in script.samples_us)}")
        lines.append(f"warmups {script.warmups}")
    return "\n".join(lines) + "\n"


def read(text: str) -> ReplayScript:
    """ValueError with the reason for a text that is not a script."""
    if not text.startswith(MARK):
        raise ValueError("the replay device runs recorded configs only (strategy: replay)")
    words = dict(line.split(None, 1) for line in text.splitlines()[1:] if len(line.split(None, 1)) == 2)
    failure = words.get("failure", "")
    if failure:
        if failure not in FAILURES:
            raise ValueError(f"failure is {failure!r}; it can be {', '.join(FAILURES)}")
        return ReplayScript(failure=failure)
    try:
        samples = tuple(float(each) for each in words.get("samples_us", "").split())
        warmups = int(words.get("warmups", "0"))
    except ValueError:
        raise ValueError("samples_us must be numbers, and warmups a whole number") from None
    if not samples or min(samples) <= 0:
        raise ValueError("samples_us must be positive numbers, one at least")
    return ReplayScript(samples_us=samples, warmups=warmups)
