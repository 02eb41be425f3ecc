"""Kernels in Triton whose PTX is kept here; `make.py` compiles them, and no test imports this file."""

# mypy: ignore-errors
# ruff: noqa: N803
import triton
import triton.language as tl


@triton.jit
def softmax(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + column, mask=column < n, other=-float("inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + row * n + column, value / tl.sum(value, 0), mask=column < n)


@triton.jit
def layer_norm(x, weight, bias, y, n, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < n
    value = tl.load(x + row * n + column, mask=inside, other=0.0)
    mean = tl.sum(value, 0) / n
    centred = tl.where(inside, value - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / n + epsilon)
    w = tl.load(weight + column, mask=inside)
    b = tl.load(bias + column, mask=inside)
    tl.store(y + row * n + column, centred * scale * w + b, mask=inside)


@triton.jit
def dropout(x, y, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    kept = tl.rand(seed, at) > p
    tl.store(y + at, tl.where(kept, value / (1 - p), 0.0), mask=at < n)


@triton.jit
def cumsum(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * n + column, mask=column < n, other=0)
    tl.store(y + row * n + column, tl.cumsum(value, 0), mask=column < n)


@triton.jit
def histogram(x, y, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.histogram(tl.load(x + at, mask=at < n, other=0), BINS, mask=at < n)
    tl.atomic_add(y + tl.arange(0, BINS), found)


@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    total = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        left = tl.load(a + rm[:, None] * K + (k + rk)[None, :], mask=rm[:, None] < M, other=0.0)
        right = tl.load(b + (k + rk)[:, None] * N + rn[None, :], mask=rn[None, :] < N, other=0.0)
        total = tl.dot(left, right, total)
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    tl.store(c + rm[:, None] * N + rn[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def gemm_split(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Each block sums a part of K, and adds it with atomics."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.program_id(2) * BK + tl.arange(0, BK)
    left = tl.load(a + rm[:, None] * K + rk[None, :])
    right = tl.load(b + rk[:, None] * N + rn[None, :])
    tl.atomic_add(c + rm[:, None] * N + rn[None, :], tl.dot(left, right))


@triton.jit
def gemm_descriptor(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Tensor descriptors made on the device, in scratch memory."""
    from_a = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    from_b = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    into_c = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(from_a.load([m, k]), from_b.load([k, n]), total)
    into_c.store([m, n], total.to(tl.float16))


@triton.jit
def gemm_host_descriptor(from_a, from_b, into_c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Tensor descriptors as parameters."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(from_a.load([m, k]), from_b.load([k, n]), total)
    into_c.store([m, n], total.to(tl.float16))


@triton.jit
def attention(q, k, v, o, n, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """FlashAttention's forward pass, a head a block of the grid's second dimension; causal."""
    head = tl.program_id(1) * n * D
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    query = tl.load(q + head + rows[:, None] * D + d[None, :], mask=rows[:, None] < n, other=0.0)
    most = tl.full((BM,), -1e30, tl.float32)
    below = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BM, BN):
        columns = start + tl.arange(0, BN)
        key = tl.load(k + head + columns[None, :] * D + d[:, None], mask=columns[None, :] < n, other=0.0)
        value = tl.load(v + head + columns[:, None] * D + d[None, :], mask=columns[:, None] < n, other=0.0)
        score = tl.dot(query, key) * scale
        score = tl.where((rows[:, None] >= columns[None, :]) & (columns[None, :] < n), score, -1e30)
        new = tl.maximum(most, tl.max(score, 1))
        weight = tl.exp(score - new[:, None])
        shrink = tl.exp(most - new)
        below = below * shrink + tl.sum(weight, 1)
        total = tl.dot(weight.to(tl.float16), value, total * shrink[:, None])
        most = new
    tl.store(o + head + rows[:, None] * D + d[None, :], (total / below[:, None]).to(tl.float16), mask=rows[:, None] < n)
