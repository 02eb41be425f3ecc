"""The headlines: what is asked, at which size, in the order of their worth to a reader."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.headlines.functions import FUNCTIONS
from benchmarks.headlines.order import ORDER
from benchmarks.hfuse import pairs

PAIRS = {
    "hist+maxpool": "a histogram beside a maximum pooling",
    "batchnorm+hist": "statistics of batch normalisation beside a histogram",
    "maxpool+upsample": "a maximum pooling beside an upsampling",
    "blake2b+ethash": "a hash that computes beside one that waits for memory",
}
SIDE, TINY_SIDE = 8192, 48
PIPELINES = {
    "harris": f"the Harris corner detector, {SIDE} x {SIDE}",
    "unsharp": f"an unsharp mask, {SIDE} x {SIDE}",
    "sobel": f"the Sobel filter, {SIDE} x {SIDE}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    name: str
    strategy: str
    what: str  #: At which size, for a reader of the table
    rivals: tuple[str, ...]  #: Groups of rivals that do the same work (`benchmarks.headlines.rivals`)

    def job(self, *, tiny: bool = False) -> str:
        """A job file."""
        if self.strategy == "hfuse":
            (pair,) = pairs.chosen([self.name])
            return pairs.job_text(pair, [pairs.base(pair, tiny=tiny)], tiny=tiny)
        if self.strategy == "mincut":
            side = TINY_SIDE if tiny else SIDE
            sizes = json.dumps({"width": side, "height": side})
            return f"strategy: mincut\npipeline: {self.name}\nsizes: {sizes}\n"
        text = FUNCTIONS[self.name].hlo(tiny=tiny)
        return f"strategy: stitching\nmodule: |\n{textwrap.indent(text, '  ')}"


def _headlines() -> Mapping[str, Headline]:
    of_rows = ("torch", "triton", "jax")
    groups = [
        *(("hfuse", name, f"{what}, at the paper's sizes", ("issue",)) for name, what in PAIRS.items()),
        *(("stitching", each.name, each.what, of_rows) for each in FUNCTIONS.values()),
        *(("mincut", name, what, ("torch", "cupy", "jax")) for name, what in PIPELINES.items()),
    ]
    made = {
        name: Headline(name=name, strategy=strategy, what=what, rivals=rivals)
        for strategy, name, what, rivals in groups
    }
    return {name: made[name] for name in ORDER}


HEADLINES = _headlines()
