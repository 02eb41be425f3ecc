"""The analysis of a module that all configs share."""

import itertools
from dataclasses import dataclass, field

from fusiond.model.nouns import Config, DeviceLimits, Value
from fusiond.model.program import Program
from fusiond_stitching.analysis import forms as module_forms
from fusiond_stitching.analysis import performance_library
from fusiond_stitching.analysis.forms import Forms
from fusiond_stitching.analysis.image_pipelines import ImagePipeline
from fusiond_stitching.analysis.parts import Part
from fusiond_stitching.frontend import scatter_updates
from fusiond_stitching.frontend.graph import HloModule
from fusiond_stitching.requests import StitchingRequest

NOTHING = Config(())


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchingAnalysis:
    """An Analysis' payload."""

    request: StitchingRequest
    limits: DeviceLimits = field(repr=False)
    forms: Forms = field(repr=False)
    text: str = ""
    tuned: Config = field(default_factory=lambda: Config(()))
    """The seed whose schedules the performance library is asked about: rows in registers have none."""
    entries: tuple[performance_library.Key, ...] = ()  #: Those that it looks up
    calls: Program | None = field(default=None, repr=False)
    """The library calls by themselves, timed; None where there are none, or where they are timed in every plan."""
    parts: tuple[tuple[Part, tuple[str, ...]], ...] = field(default=(), repr=False)
    """The groups to measure by themselves, and the roots that each has in the packed plan."""
    images: ImagePipeline | None = field(default=None, repr=False)
    """What another strategy can be asked instead, of a pipeline of images."""

    def module(self, config: Config = NOTHING) -> HloModule:
        """The module that a config fuses."""
        return self.forms(*self._form(config))

    def plain(self, config: Config = NOTHING) -> HloModule:
        """The module of an unfused way."""
        return self.forms.plain(*self._form(config))

    def _form(self, config: Config) -> tuple[Value, Value]:
        likelier = (*self.forms.scatters, module_forms.UPDATES)[0]
        return config.get("reductions", module_forms.WHOLE), config.get("scatters", likelier)


def unplanned(request: StitchingRequest, limits: DeviceLimits) -> StitchingAnalysis:
    """What is known of a module before it is planned: its forms."""
    shaped = module_forms.forms(request.module, limits.multiprocessors, deterministic=request.deterministic)
    return StitchingAnalysis(request=request, limits=limits, forms=shaped)


def one_form(request: StitchingRequest) -> Forms:
    """Of a group: it stays as it is, but for scatters that would not come to an end."""
    only = scatter_updates.rewritten(request.module, all_of_them=False, deterministic=request.deterministic)
    same = dict.fromkeys(
        itertools.product((module_forms.WHOLE, module_forms.SPLIT), (module_forms.UPDATES, module_forms.ELEMENTS)), only
    )
    return Forms(same, same)
