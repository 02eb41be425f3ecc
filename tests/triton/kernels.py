"""Kernels of the kinds that people write in Triton, in our own words; `members.py` says how each is launched."""

# mypy: ignore-errors
# ruff: noqa: N803
import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, row_stride, rows, n, BLOCK: tl.constexpr, num_stages: tl.constexpr):
    """Each program takes every so-manieth row."""
    column = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=num_stages):
        value = tl.load(x + row * row_stride + column, mask=column < n, other=-float("inf"))
        power = tl.exp(value - tl.max(value, 0))
        tl.store(out + row * row_stride + column, power / tl.sum(power, 0), mask=column < n)


@triton.jit
def leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def grouped(number, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Which tile is a program's, so that neighbours share rows and columns."""
    across = tl.cdiv(N, BN)
    first = number // (GROUP * across) * GROUP
    high = tl.minimum(tl.cdiv(M, BM) - first, GROUP)
    return first + number % (GROUP * across) % high, number % (GROUP * across) // high


@triton.jit
def matmul(
    a, b, c, M, N, K, am, ak, bk, bn, cm, cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    i, j = grouped(tl.program_id(0), M, N, BM, BN, GROUP)
    rm = (i * BM + tl.arange(0, BM)) % M
    rn = (j * BN + tl.arange(0, BN)) % N
    rk = tl.arange(0, BK)
    left = a + rm[:, None] * am + rk[None, :] * ak
    right = b + rk[:, None] * bk + rn[None, :] * bn
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(left, mask=rk[None, :] < K - k * BK, other=0.0)
        y = tl.load(right, mask=rk[:, None] < K - k * BK, other=0.0)
        total = tl.dot(x, y, total)
        left += BK * ak
        right += BK * bk
    if ACTIVATION == "leaky":
        total = leaky(total)
    om = i * BM + tl.arange(0, BM)
    on = j * BN + tl.arange(0, BN)
    inside = (om[:, None] < M) & (on[None, :] < N)
    tl.store(c + om[:, None] * cm + on[None, :] * cn, total.to(tl.float16), mask=inside)


@triton.jit
def layer_norm(x, out, weight, bias, mean, scale, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * stride
    sums = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, n, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        sums += tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    middle = tl.sum(sums, 0) / n
    squares = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, n, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
        apart = tl.where(at < n, value - middle, 0.0)
        squares += apart * apart
    factor = 1 / tl.sqrt(tl.sum(squares, 0) / n + eps)
    tl.store(mean + row, middle)
    tl.store(scale + row, factor)
    for begin in range(0, n, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        inside = at < n
        value = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - middle) * factor
        w, b = tl.load(weight + at, mask=inside), tl.load(bias + at, mask=inside)
        tl.store(out + row * stride + at, value * w + b, mask=inside)


@triton.jit
def layer_norm_grad(dx, dy, dw, db, x, weight, mean, scale, stride, n, BLOCK: tl.constexpr):
    """Of the input, and the sums over rows of those of weight and bias, by atomics."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + row * stride + at, mask=inside, other=0).to(tl.float32)
    above = tl.load(dy + row * stride + at, mask=inside, other=0).to(tl.float32)
    w = tl.load(weight + at, mask=inside, other=0).to(tl.float32)
    factor = tl.load(scale + row)
    normal = tl.where(inside, (value - tl.load(mean + row)) * factor, 0.0)
    scaled = tl.where(inside, w * above, 0.0)
    first = tl.sum(normal * scaled, 0) / n
    second = tl.sum(scaled, 0) / n
    tl.store(dx + row * stride + at, (scaled - (normal * first + second)) * factor, mask=inside)
    tl.atomic_add(dw + at, above * normal, mask=inside)
    tl.atomic_add(db + at, above, mask=inside)


@triton.jit
def attention_part(total, below, most, query, k, v, low, high, offset_m, n, scale,
                   BN: tl.constexpr, D: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """The keys from `low` to `high`, online."""
    d = tl.arange(0, D)
    for begin in tl.range(low, high, BN):
        at = begin + tl.arange(0, BN)
        key = tl.load(k + at[None, :] * D + d[:, None], mask=at[None, :] < n, other=0.0)
        score = tl.dot(query, key) * scale
        seen = at[None, :] < n
        if MASKED:
            seen = seen & (offset_m[:, None] >= at[None, :])
        score = tl.where(seen, score, -1.0e6)
        new = tl.maximum(most, tl.max(score, 1))
        weight = tl.math.exp2(score - new[:, None])
        shrink = tl.math.exp2(most - new)
        below = below * shrink + tl.sum(weight, 1)
        value = tl.load(v + at[:, None] * D + d[None, :], mask=at[:, None] < n, other=0.0)
        total = tl.dot(weight.to(tl.float16), value, total * shrink[:, None])
        most = new
    return total, below, most


@triton.jit
def attention(q, k, v, out, scale, n, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    tl.static_assert(BM % BN == 0)
    block, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * n * D
    rows = block * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    query = tl.load(q + base + rows[:, None] * D + d[None, :], mask=rows[:, None] < n, other=0.0)
    most = tl.zeros([BM], tl.float32) - float("inf")
    below = tl.zeros([BM], tl.float32) + 1.0
    total = tl.zeros([BM, D], tl.float32)
    factor = scale * LOG2E
    k += base
    v += base
    if CAUSAL:
        before = block * BM
        total, below, most = attention_part(total, below, most, query, k, v, 0, before, rows, n, factor, BN, D, False)
        total, below, most = attention_part(
            total, below, most, query, k, v, before, before + BM, rows, n, factor, BN, D, True
        )
    else:
        total, below, most = attention_part(total, below, most, query, k, v, 0, n, rows, n, factor, BN, D, False)
    out += base
    tl.store(out + rows[:, None] * D + d[None, :], (total / below[:, None]).to(tl.float16), mask=rows[:, None] < n)


# --- as serving and training code has them --------------------------------------------------------------


@triton.jit
def rms_norm(x, residual, weight, out, stride, n, eps, BLOCK: tl.constexpr, WITH_RESIDUAL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    if WITH_RESIDUAL:
        value += tl.load(residual + row * stride + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * stride + at, value, mask=inside)
    factor = tl.rsqrt(tl.sum(value * value, 0) / n + eps)
    tl.store(out + row * stride + at, value * factor * tl.load(weight + at, mask=inside), mask=inside)


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def swiglu(gate, up, out, stride, n: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    a = tl.load(gate + row * stride + at, mask=inside, other=0).to(tl.float32)
    b = tl.load(up + row * stride + at, mask=inside, other=0)
    tl.store(out + row * stride + at, silu(a).cast(b.dtype) * b, mask=inside)


@triton.jit
def geglu_grad(dout, gate, up, stride, n: tl.constexpr, BLOCK: tl.constexpr):
    """In place: the gradients go where gate and up were. GELU by tanh."""
    row = tl.program_id(0).to(tl.int64)
    at = row * stride + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n
    above = tl.load(dout + at, mask=inside, other=0)
    a = tl.load(gate + at, mask=inside, other=0).to(tl.float32)
    b = tl.load(up + at, mask=inside, other=0)
    inner = 0.7978845608028654 * (a + 0.044715 * a * a * a)
    tanh = 2 * tl.sigmoid(2 * inner) - 1
    value = 0.5 * a * (1 + tanh)
    slope = 0.5 * (1 + tanh) + 0.5 * a * (1 - tanh * tanh) * 0.7978845608028654 * (1 + 3 * 0.044715 * a * a)
    tl.store(up + at, above * value, mask=inside)
    tl.store(gate + at, above * b * slope, mask=inside)


@triton.jit
def rope(q, cos, sin, tokens, heads: tl.constexpr, width: tl.constexpr, BLOCK: tl.constexpr):
    """Rotates the two halves of each head, in place."""
    token = tl.program_id(0)
    head = tl.arange(0, heads)[:, None]
    d = tl.arange(0, BLOCK)[None, :]
    inside = d < width // 2
    c = tl.load(cos + token * (width // 2) + d, mask=inside, other=0)
    s = tl.load(sin + token * (width // 2) + d, mask=inside, other=0)
    first = q + (token * heads + head) * width + d
    x = tl.load(first, mask=inside, other=0)
    y = tl.load(first + width // 2, mask=inside, other=0)
    tl.store(first, x * c - y * s, mask=inside)
    tl.store(first + width // 2, y * c + x * s, mask=inside)


@triton.jit
def cross_entropy(logits, labels, losses, stride, n, ignored, smoothing: tl.constexpr, BLOCK: tl.constexpr):
    """One pass for the maximum and the sum; the gradient goes where the logits were."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    logits += row * stride
    if label == ignored:
        for begin in range(0, n, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            tl.store(logits + at, 0.0, mask=at < n)
        tl.store(losses + row, 0.0)
        return
    most = float("-inf")
    below = 0.0
    for begin in range(0, n, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        value = tl.load(logits + at, mask=at < n, other=float("-inf"))
        new = tl.maximum(most, tl.max(value))
        below = below * tl.exp(most - new) + tl.sum(tl.exp(value - new))
        most = new
    own = tl.load(logits + label)
    tl.debug_barrier()
    for begin in range(0, n, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        value = tl.load(logits + at, mask=at < n, other=float("-inf"))
        share = tl.exp(value - most) / below - smoothing / n
        tl.store(logits + at, tl.where(at == label, share - (1 - smoothing), share), mask=at < n)
    tl.store(losses + row, most + tl.log(below) - own)


@triton.jit
def quantise(x, out, scales, stride, n, BLOCK: tl.constexpr):
    """A row to 8 bits by its largest value."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 0), 1e-10) / 127.0
    tl.store(scales + row, scale)
    tl.store(out + row * stride + at, tl.floor(value / scale + 0.5).to(tl.int8), mask=at < n)


@triton.jit
def dequantise(packed, scales, zeros, out, n, group: tl.constexpr, BLOCK: tl.constexpr):
    """Eight numbers of four bits in a word."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    word = tl.load(packed + at // 8, mask=inside, other=0)
    number = (word >> (at % 8 * 4)) & 0xF
    zero = tl.load(zeros + at // group, mask=inside, other=0)
    scale = tl.load(scales + at // group, mask=inside, other=0.0)
    tl.store(out + at, (number - zero).to(tl.float32) * scale, mask=inside)


@triton.jit
def paged_decode(q, keys, values, table, lengths, out, scale, pages, heads,
                 PAGE: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """One query against keys and values that lie in pages."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, D)
    query = tl.load(q + (sequence * heads + head) * D + d).to(tl.float32)
    length = tl.load(lengths + sequence)
    most = -float("inf")
    below = 0.0
    total = tl.zeros([D], tl.float32)
    for page in range(0, tl.cdiv(length, PAGE)):
        place = tl.load(table + sequence * pages + page).to(tl.int64)
        token = tl.arange(0, PAGE)
        at = ((place * PAGE + token[:, None]) * heads + head) * D + d[None, :]
        seen = page * PAGE + token < length
        key = tl.load(keys + at, mask=seen[:, None], other=0.0).to(tl.float32)
        score = tl.where(seen, tl.sum(query[None, :] * key, 1) * scale, -float("inf"))
        new = tl.maximum(most, tl.max(score, 0))
        weight = tl.exp(score - new)
        shrink = tl.exp(most - new)
        below = below * shrink + tl.sum(weight, 0)
        value = tl.load(values + at, mask=seen[:, None], other=0.0).to(tl.float32)
        total = total * shrink + tl.sum(weight[:, None] * value, 0)
        most = new
    tl.store(out + (sequence * heads + head) * D + d, total / below)


@triton.jit
def into_cache(key, cache, slots, tokens, width: tl.constexpr, BLOCK: tl.constexpr):
    """Rows to the places that a table says; negative ones nowhere."""
    token = tl.program_id(0)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    at = tl.arange(0, BLOCK)
    tl.store(cache + slot * width + at, tl.load(key + token * width + at, mask=at < width), mask=at < width)


@triton.jit
def maximum_pair(value, index, other, other_index):
    better = (other > value) | ((other == value) & (other_index < index))
    return tl.where(better, other, value), tl.where(better, other_index, index)


@triton.jit
def greedy(logits, out, n, BLOCK: tl.constexpr):
    """The place of each row's largest value, the first of equal ones."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(logits + row * n + at, mask=at < n, other=-float("inf"))
    _, place = tl.reduce((value, at), 0, maximum_pair)
    tl.store(out + row, place)


@triton.jit
def scan(x, decay, out, n, BLOCK: tl.constexpr):
    """y[t] = decay[t] y[t - 1] + x[t]"""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    a = tl.load(decay + row * n + at, mask=at < n, other=1.0)
    b = tl.load(x + row * n + at, mask=at < n, other=0.0)
    _, found = tl.associative_scan((a, b), 0, compose)
    tl.store(out + row * n + at, found, mask=at < n)


@triton.jit
def compose(a, b, c, d):
    return a * c, b * c + d
