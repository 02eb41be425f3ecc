"""The modules of the search against their oracles, and broken on purpose."""

import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.tuning.search import checks

CHECKS: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "posterior": ("gaussian", checks.posterior),
    "likelihood": ("gaussian", checks.likelihood),
    "improvement": ("gaussian", checks.improvement),
    "distances": ("features", checks.distances),
    "targets": ("asks", checks.targets),
    "searched": ("sampler", checks.searched),
    "safety": ("sampler", checks.safety),
    "moves": ("sampler", checks.moves),
    "told": ("asks", checks.told),
}
MUTANTS = {
    "posterior": [
        ("believed(self", "found[unknown] = covariance[:, unknown].T @ solved", "found[unknown] = 0.0"),
        ("a row explains nothing", "self._explained += np.einsum(\"ij,ij->j\", mine, mine)", "pass"),
        ("as sure of a row as of another", "(self._spread if spreads is None else spreads)", "self._spread"),
        ("several rows forget those before", "among -= known.T @ known", "pass"),
        ("to the pool, too", "solved -= known.T.astype(np.float32) @ self._solved[:n]", "pass"),
        ("a row is exact", "self._lengths.noise + JITTER + (", "(0.0 * "),
        ("trends explain nothing beside the pool", "np.ones(len(extra)) + trends", "np.ones(len(extra))"),
        ("the weights of one feature only", "tables.get(each.column, 0.0) + each", "each"),
        ("levels one off", "pool[:, column] % several", "(pool[:, column] + 1) % several"),
        ("one group of columns only", "distance += part", "pass"),
    ],
    "likelihood": [("no prior in the gradient", "noise) + off / spread", "noise) + 0 * off / spread"),
                   ("half the slope", "-(5 / 6) * (1 + root)", "-(5 / 12) * (1 + root)"),
                   ("no determinant", "        + logs\n", "")],
    "improvement": [("what is below counts", "above * special.ndtr(above) + density", "above + density"),
                    ("the tail underflows", "np.where(above > -5,", "np.where(above > -500,")],
    "distances": [
        ("numbers as they are", "scale = math.log if logs else float", "scale = float"),
        ("labels are one", "table = np.ones(", "table = np.zeros("),
        ("beside the line, and nowhere in space", "= 0.5 + (", "= 1.0 + 0 * ("),
        ("no twos", "found.append(_feature(column, twos))", "pass"),
        ("128 is twice as even as 64", "min(MOST_TWOS, (each & -each).bit_length() - 1)",
         "(each & -each).bit_length() - 1"),
    ],
    "targets": [
        ("slow is slow", "told = np.maximum(np.where(failed, lowest, values)[known], lowest)",
         "told = np.where(failed, lowest, values)[known]"),
        ("failures are middling", "np.where(failed, lowest, values)", "np.where(failed, np.nanmedian(values), values)"),
        ("only the best", "*spread.tolist()", ""),
        ("an error is not a variance", "errors, 0.0) ** 2", "errors, 0.0)"),
        ("as sure of a median as of a mean", "math.sqrt(math.pi / 2 / len(logs))", "math.sqrt(1 / len(logs))"),
        ("samples without what they were paired with", "logs = logs[:pairs] - np.log(", "logs -= 0 * np.log("),
    ],
    "safety": [
        ("failures are sound", "self._told.append((row, sound))", "self._told.append((row, True))"),
        ("nothing is taken for granted", "found: Reals = (sums[1] + 1) / (sums[0] + 1)",
         "found = sums[1] / (sums[0] + 1)"),
    ],
    "searched": [
        ("the worst is chosen", "best = int(np.argmax(score))",
         "best = int(np.argmin(np.where(np.isinf(score), np.inf, score)))"),
        ("what was asked is asked again", "self._taken |= (self._pool == row).all(axis=1)", "pass"),
    ],
    "moves": [("never", "self._asks.seen % MOVES == 0", "False"),
              ("anywhere", "np.where(beside, score, -np.inf)", "score"),
              ("two parameters away", "one_apart(self._pool, row) & ~self._taken", "~one_apart(self._pool, row)"),
              ("beside the slowest", "np.argsort(-np.where(", "np.argsort(np.where(")],
    "told": [
        ("values of others", "self.values[index] = np.nan if value is None else value",
         "self.values[0] = np.nan if value is None else value"),
        ("as they come", "bisect.insort(self.told, index)", "self.told.append(index)"),
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_against_its_oracle(name: str) -> None:
    module, check = CHECKS[name]
    check(importlib.import_module(f"fusiond.tuning.search.{module}"))


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "why", "old", "new"), [(name, *each) for name, several in MUTANTS.items() for each in several]
)
def test_broken_on_purpose_it_is_found_out(name: str, why: str, old: str, new: str) -> None:
    module, check = CHECKS[name]
    source = inspect.getsource(importlib.import_module(f"fusiond.tuning.search.{module}"))
    assert source.count(old) >= 1, why
    broken = ModuleType("broken")
    sys.modules["broken"] = broken  # dataclasses look for it there
    try:
        exec(compile(source.replace(old, new), f"broken {module}", "exec"), vars(broken))
        with pytest.raises((AssertionError, ValueError, IndexError, RuntimeWarning)):
            check(broken)
    finally:
        del sys.modules["broken"]
