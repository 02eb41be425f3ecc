"""Border modes: which pixel an access outside the image means (the paper's index exchange, section IV-B).

An access at offset d from pixel x means pixel `index(mode, x + d, n)` of the image that is read, along each axis by
itself; `constant` means no pixel but a value. The maps are total: an offset may be many times the image's size, so
masks larger than the image are exact.

    mode      a b c d with what lies outside      SciPy (ndimage)   OpenCV
    clamp         a a a | a b c d | d d d         nearest           BORDER_REPLICATE
    mirror        d c b | a b c d | c b a         mirror            BORDER_REFLECT_101
    reflect       c b a | a b c d | d c b         reflect           BORDER_REFLECT
    repeat        b c d | a b c d | a b c         grid-wrap         BORDER_WRAP
    constant      v v v | a b c d | v v v         constant          BORDER_CONSTANT
"""

MAPPED = ("clamp", "mirror", "reflect", "repeat")  #: The modes that exchange the index; `constant` does not

MODES = (*MAPPED, "constant")


def index(mode: str, i: int, n: int) -> int | None:
    """The pixel of a line of `n` >= 1 pixels that position `i` means; None when it means the constant."""
    if 0 <= i < n:
        return i
    if mode == "clamp":
        return min(max(i, 0), n - 1)
    if mode == "repeat":
        return i % n
    if mode == "mirror":
        period = max(2 * n - 2, 1)
        i %= period
        return i if i < n else period - i
    if mode == "reflect":
        i %= 2 * n
        return i if i < n else 2 * n - 1 - i
    if mode == "constant":
        return None
    raise ValueError(f"{mode!r} is not a border mode")


def stays_near(mode: str, reach: tuple[int, int], halo: tuple[int, int], length: int) -> bool:
    """Whether the exchanged index of every access lies in the reader's tile again, whatever the image's size.

    Along one axis, a block of `length` positions that begins inside the image has a tile with `halo` pixels (before,
    after) round it, and some pixel of the image is read with offsets from -reach[0] to +reach[1] at a position of the
    tile. A clamped index lies between that position and the image. A mirrored one lies as far inside the first or the
    last pixel as the position lies outside (a reflected one, a pixel less), so the tile must reach back as far as the
    access reaches ahead, and the other way round. `repeat` jumps to the far side of the image."""
    if mode in ("mirror", "reflect"):
        less = 1 if mode == "reflect" else 0
        return reach[1] - less <= halo[0] and reach[0] - less <= halo[1] + length - 1
    return mode in ("clamp", "constant")


FUNCTIONS = {
    "clamp": """\
// a a a | a b c d | d d d
__device__ __forceinline__ int clamp_index(int i, int n) { return min(max(i, 0), n - 1); }
""",
    "mirror": """\
// d c b | a b c d | c b a, and so on: the period is 2 n - 2
__device__ __forceinline__ int mirror_index(int i, int n)
{
    if ((unsigned)i < (unsigned)n) return i;
    const int period = max(2 * n - 2, 1);
    i %= period;
    if (i < 0) i += period;
    return i < n ? i : period - i;
}
""",
    "reflect": """\
// c b a | a b c d | d c b, and so on: the period is 2 n
__device__ __forceinline__ int reflect_index(int i, int n)
{
    if ((unsigned)i < (unsigned)n) return i;
    i %= 2 * n;
    if (i < 0) i += 2 * n;
    return i < n ? i : 2 * n - 1 - i;
}
""",
    "repeat": """\
// b c d | a b c d | a b c
__device__ __forceinline__ int repeat_index(int i, int n)
{
    if ((unsigned)i < (unsigned)n) return i;
    i %= n;
    return i < 0 ? i + n : i;
}
""",
}
"""Mode -> the CUDA function `MODE_index(i, n)`, equal to `index`."""
