"""Constants of the model that are measured on the device: five small programs, timed once per device.

    copy     an image read and written            t_g      per pixel and access
    shared   loads from shared memory             t_s      per load
    alu      integer multiplications and sums     c_ALU    per operation
    sfu      exponentials                         c_SFU    per operation
    launch   an empty kernel                      gamma    per launch, spread over the pixels of an image

All constants are nanoseconds per pixel at the device's full throughput, so the weights of `benefit` are nanoseconds per
pixel that a fusion saves. What the arithmetic programs take beyond their loads and stores (the copy's time) is theirs.
"""

from collections.abc import Mapping

from fusiond.model.nouns import DeviceLimits
from fusiond.model.program import EQUAL, Buffer, Fill, Launch, Pointer, Program, Role, Scalar, Source
from fusiond.strategy import Probe
from fusiond_mincut.analysis.benefit import BenefitModel

VERSION = 1
THREADS = 256
ROUNDS = {"copy": 1, "shared": 256, "alu": 256, "sfu": 64, "launch": 1}  #: Operations of each thread

_BODIES = {
    "copy": "    out[i] = in[i];",
    "shared": """    __shared__ int tile[512];
    tile[threadIdx.x] = in[i] & 255;
    tile[threadIdx.x + 256] = (in[i] >> 8) & 255;
    __syncthreads();
    int at = threadIdx.x, sum = 0;
    for (int k = 0; k < ROUNDS; ++k) {
        at = (at + tile[at]) & 511;
        sum ^= at;
    }
    out[i] = sum;""",
    "alu": """    int x = in[i];
    for (int k = 0; k < ROUNDS / 2; ++k) x = x * 1664525 + 1013904223;
    out[i] = x;""",
    "sfu": """    float x = (in[i] & 255) * 0.00390625f;
    for (int k = 0; k < ROUNDS; ++k) x = __expf(-x);
    out[i] = (int)(x * 1000.0f);""",
    "launch": "    (void)i;",
}


def pixels(limits: DeviceLimits) -> int:
    """As many as keep the device busy; few where the processor emulates it."""
    return 1 << 22 if limits.registers_per_sm > 0 else 1 << 13


def keys(limits: DeviceLimits) -> dict[str, str]:
    """Probe -> the key of its answer."""
    return {name: f"mincut-{name}-{pixels(limits)}-v{VERSION}" for name in _BODIES}


def probes(limits: DeviceLimits) -> tuple[Probe, ...]:
    return tuple(Probe(key=key, program=_program(name, pixels(limits))) for name, key in keys(limits).items())


def _program(name: str, count: int) -> Program:
    entry = f"probe_{name}"
    launched = count if name != "launch" else THREADS
    text = (
        f"// A probe of the device: {name}. Written by fusiond.\n"
        f"constexpr int ROUNDS = {ROUNDS[name]};\n\n"
        f'extern "C" __global__ void {entry}(const int* __restrict__ in, int* __restrict__ out, int count)\n'
        "{\n"
        f"    const int i = blockIdx.x * {THREADS} + threadIdx.x;\n"
        f"    if (i >= count) return;  // count is a multiple of the block\n{_BODIES[name]}\n"
        "}\n"
    )
    return Program(
        name=f"probe {name}",
        buffers=(
            Buffer(name="in", dtype="int32", elements=count, role=Role.INPUT,
                   fill=Fill(kind="integers", low=0, high=65535)),
            Buffer(name="out", dtype="int32", elements=count, compare=EQUAL,
                   role=Role.SCRATCH if name == "launch" else Role.OUTPUT),
        ),
        sources=(Source(name=entry, text=text, entries=(entry,)),),
        steps=(
            Launch(
                name=entry, source=entry, entry=entry, grid=(launched // THREADS, 1, 1), block=(THREADS, 1, 1),
                arguments=(Pointer(buffer="in"), Pointer(buffer="out"), Scalar(dtype="int32", value=count)),
            ),
        ),
    )  # fmt: skip


def calibrated(limits: DeviceLimits, known: Mapping[str, object], image_pixels: int) -> BenefitModel | None:
    """The model with this device's constants, for images of so many pixels; None until all probes are answered."""
    spent: dict[str, float] = {}
    for name, key in keys(limits).items():
        found = known.get(key)
        if not isinstance(found, float | int):
            return None
        spent[name] = float(found) * 1000.0
    count = pixels(limits)
    copy = spent["copy"]

    def each(name: str) -> float:
        """Nanoseconds per pixel and operation, beyond what loading and storing takes; never nothing."""
        return max(spent[name] - copy, 0.01 * spent[name]) / (count * ROUNDS[name])

    access = max(copy - spent["launch"], 0.01 * copy) / (2 * count)
    return BenefitModel(
        name="measured",
        t_g=access,
        t_s=min(each("shared"), access),
        c_alu=each("alu"),
        c_sfu=each("sfu"),
        gamma=spent["launch"] / image_pixels,
        epsilon=access * 1e-6,
        shared_saves_time=True,
    )
