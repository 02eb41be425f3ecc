"""`fusiond.triton.explain()`: which config is launched, and why."""

from collections.abc import Iterator
from dataclasses import dataclass

from fusiond.triton import autotuning
from fusiond.triton.keys import TunedKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedKey:
    """What is launched for a key."""

    name: str  #: The kernel with its key: `softmax n=1000`
    config: str  #: Empty where Triton tunes by itself
    state: str  #: `tuned`, `first`, `nearest`, `unknown`, or `refused`
    reason: str
    speedup: float | None = None  #: Over the first config
    ci95: tuple[float, float] | None = None
    problems: tuple[str, ...] = ()  #: Configs that are not launched, each with why

    def __str__(self) -> str:
        config = f"  {self.config}" if self.config else ""
        gain = f", {self.speedup:.2f}x the first config" if self.speedup else ""
        gain += f" ({self.ci95[0]:.2f} to {self.ci95[1]:.2f})" if self.ci95 else ""
        return "\n    ".join([f"{self.name}{config}  {self.state}{gain}: {self.reason}", *self.problems])


class KeysExplanation(tuple[ExplainedKey, ...]):
    """One line for each key of each kernel."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no kernel was launched"


def explain() -> KeysExplanation:
    """What became of the keys that this process has launched kernels for."""
    return KeysExplanation(sorted(_explained(), key=lambda each: each.name))


def _explained() -> Iterator[ExplainedKey]:
    for kernel in list(autotuning.kernels):
        for tuned in list(kernel.tuned.values()):
            if not isinstance(tuned, TunedKey):
                yield ExplainedKey(name=kernel.base_fn.__name__, config="", state="refused", reason=tuned)
                continue
            choice, standing = tuned.choice, tuned.standing()
            yield ExplainedKey(
                name=tuned.name, config=choice.candidate.label, state=choice.state,
                reason=f"{choice.reason}; {standing}" if standing else choice.reason, speedup=choice.speedup,
                ci95=choice.ci95, problems=tuned.problems(),
            )  # fmt: skip
