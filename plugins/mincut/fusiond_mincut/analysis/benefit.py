"""The benefit of fusing an edge, by the model of Qiao et al. (CGO 2019, section II-C, equations 3 to 12).

A weight is in cycles per pixel: all images of a block have one size, so the paper's iteration space size IS is the
number of images. For an edge from k_s to k_d over the image i_e:

    point-based      k_d reads i_e at its own pixel      w = t_g                                      (4, 5)
    point-to-local   k_d reads a window, k_s is point    w = t_g - cost_op IS(k_s) sz(k_d)            (7, 8)
    local-to-local   k_d reads a window, k_s is local    w = t_g / t_s - cost_op IS(k_s) g(k_s, k_d)  (3, 9 - 11)
    illegal          the two cannot be one block         w_e = epsilon

    cost_op = c_ALU n_ALU + c_SFU n_SFU  (6)        w_e = max(w + gamma, epsilon)  (12)

n_ALU counts the store too, which is what makes it 2 for `dx * dx` in the paper's example. IS(k_s) is the number of
images that k_s reads. sz(k_d) is the number of pixels of i_e that k_d reads: the mask, less its holes. g is the window
of the two masks together, written for rectangles.

Where this differs from the paper: the pattern that counts is how k_d reads *this* image (a local kernel may read a
second image at its own pixel only), and weights are floats, so that a cost above t_g is negative and not a wrapped
unsigned number.
"""

from dataclasses import dataclass

from fusiond_mincut.frontend.graph import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class BenefitModel:
    """The constants of the equations, in cycles (or, where measured, in nanoseconds per pixel)."""

    name: str
    t_g: float  #: Global memory, one pixel
    t_s: float  #: Shared memory, one pixel
    c_alu: float
    c_sfu: float
    gamma: float = 0.0  #: What else a fusion saves: the launch, per pixel
    epsilon: float = 1.0  #: The weight of an edge that must not be fused
    c_shared: float = 2.0  #: c_Mshared of equation 2
    shared_saves_time: bool = False
    """Equation 3 gives a ratio, t_g / t_s. With times that were measured, what is saved is the difference."""

    @property
    def register_gain(self) -> float:
        """Equation 4."""
        return self.t_g

    @property
    def shared_gain(self) -> float:
        """Equation 3."""
        return self.t_g - self.t_s if self.shared_saves_time else self.t_g / self.t_s


PAPER = BenefitModel(name="paper", t_g=400, t_s=2, c_alu=4, c_sfu=16)
"""Section III-B. The paper names no t_s ("a few cycles") and no c_SFU; both are those of the published code."""
PUBLISHED_CODE = BenefitModel(name="published_code", t_g=800, t_s=2, c_alu=2, c_sfu=16, gamma=1)
PRESETS = {each.name: each for each in (PAPER, PUBLISHED_CODE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedEdge:
    """An edge of the pipeline, weighed."""

    producer: str
    consumer: str
    scenario: str
    gain: float | None  #: w + gamma, which may be negative; None when the scenario is `illegal`
    weight: float  #: w_e, which is never below epsilon


def scenario(pipeline: Pipeline, producer: str, consumer: str) -> str:
    """What fusing an edge would be, if it is legal."""
    reader = pipeline.kernel(consumer)
    if not reader.windowed(producer) and producer not in reader.steps:
        return "point_based"
    return "local_to_local" if pipeline.kernel(producer).pattern == "local" else "point_to_local"


def gain(pipeline: Pipeline, producer: str, consumer: str, model: BenefitModel) -> float:
    """w + gamma of an edge that is legal to fuse (equations 5, 8, 11)."""
    question = (gain, producer, consumer, model)
    return pipeline.once(question, lambda: float(_gain(pipeline, producer, consumer, model)))


def _gain(pipeline: Pipeline, producer: str, consumer: str, model: BenefitModel) -> float:
    kind = scenario(pipeline, producer, consumer)
    if kind == "point_based":
        return model.register_gain + model.gamma
    source, target = pipeline.kernel(producer), pipeline.kernel(consumer)
    costs = source.operations
    cost = model.c_alu * (costs.alu + 1) + model.c_sfu * costs.sfu
    images = sum(not pipeline.images[name].single for name in source.reads)
    if kind == "point_to_local":
        pixels = len({(each.dx, each.dy) for each in target.accesses if each.image == producer})
        return model.register_gain - cost * images * pixels + model.gamma
    return model.shared_gain - cost * images * combined_window(source.mask, target.mask) + model.gamma


def combined_window(source: tuple[int, int], target: tuple[int, int]) -> int:
    """g of equation 9: pixels of the window that two masks, one after the other, reach."""
    width = target[0] + source[0] // 2 * 2
    height = target[1] + source[1] // 2 * 2
    return width * height
