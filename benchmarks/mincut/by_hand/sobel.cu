// Sobel's magnitude written by hand: 32 lanes with 4 pixels each, 16 rows a warp, differences and sums across by row in
// registers. The border `clamp` repeats pixels of the image, so rows and columns outside need nothing of their own.
__device__ __forceinline__ int pixel(const int* src, int x, int y, int width, int height)
{
    return src[min(max(y, 0), height - 1) * width + min(max(x, 0), width - 1)];
}

extern "C" __global__ void __launch_bounds__(128) sobel(
    const int* __restrict__ src, int* __restrict__ out, int width, int height)
{
    const int x = blockIdx.x * 120 + ((int)threadIdx.x - 1) * 4, y = blockIdx.y * 64 + threadIdx.y * 16;
    if (y >= height) return;
    const bool stores = threadIdx.x >= 1 && threadIdx.x <= 30;
    const bool inside = blockIdx.x * 120 >= 4 && blockIdx.x * 120 + 124 <= width && width % 4 == 0;
    int difference[3][4], sum[3][4];
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
            difference[0][p] = difference[1][p];
            difference[1][p] = difference[2][p];
            difference[2][p] = v[p + 2] - v[p];
            sum[0][p] = sum[1][p];
            sum[1][p] = sum[2][p];
            sum[2][p] = v[p] + 2 * v[p + 1] + v[p + 2];
        }
        const int at = y + t - 1;
        if (t < 1 || at >= height || !stores) continue;
        int made[4];
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            const int dx = difference[0][p] + 2 * difference[1][p] + difference[2][p], dy = sum[2][p] - sum[0][p];
            made[p] = __float2int_rz(sqrtf((float)(dx * dx + dy * dy)));
        }
        if (inside) {
            *reinterpret_cast<int4*>(out + at * width + x) = make_int4(made[0], made[1], made[2], made[3]);
        } else {
#pragma unroll
            for (int p = 0; p < 4; ++p)
                if (x + p >= 0 && x + p < width) out[at * width + x + p] = made[p];
        }
    }
}
