// Enhancement written by hand: 32 lanes with 4 pixels each, 16 rows a warp, products of rows in registers.
__device__ __forceinline__ float pixel(const float* src, int x, int y, int width, int height)
{
    return src[min(max(y, 0), height - 1) * width + min(max(x, 0), width - 1)];
}

extern "C" __global__ void __launch_bounds__(128) enhance(
    const float* __restrict__ src, float* __restrict__ out, int width, int height)
{
    const int x = blockIdx.x * 120 + ((int)threadIdx.x - 1) * 4, y = blockIdx.y * 64 + threadIdx.y * 16;
    if (y >= height) return;
    const bool stores = threadIdx.x >= 1 && threadIdx.x <= 30;
    const bool inside = blockIdx.x * 120 >= 4 && blockIdx.x * 120 + 124 <= width && width % 4 == 0;
    float across[3][4];
#pragma unroll
    for (int t = -1; t <= 16; ++t) {
        const int row = min(max(y + t, 0), height - 1);
        float v[6];
        if (inside) {
            const float4 four = *reinterpret_cast<const float4*>(src + row * width + x);
            v[1] = four.x; v[2] = four.y; v[3] = four.z; v[4] = four.w;
        } else {
#pragma unroll
            for (int p = 0; p < 4; ++p) v[p + 1] = pixel(src, x + p, row, width, height);
        }
        v[0] = __shfl_up_sync(0xffffffffu, v[4], 1);
        v[5] = __shfl_down_sync(0xffffffffu, v[1], 1);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            across[0][p] = across[1][p];
            across[1][p] = across[2][p];
            across[2][p] = v[p] * v[p + 1] * v[p + 2];
        }
        const int at = y + t - 1;
        if (t < 1 || at >= height || !stores) continue;
        float made[4];
#pragma unroll
        for (int p = 0; p < 4; ++p)
            made[p] = powf(powf(across[0][p] * across[1][p] * across[2][p], 0.11111111f) * 2.0f, 0.6f);
        if (inside) {
            *reinterpret_cast<float4*>(out + at * width + x) = make_float4(made[0], made[1], made[2], made[3]);
        } else {
#pragma unroll
            for (int p = 0; p < 4; ++p)
                if (x + p >= 0 && x + p < width) out[at * width + x + p] = made[p];
        }
    }
}
