// What the structure tensor of each pixel is worth (`response`), as the kernel KERNEL: 32 lanes with 4 pixels each, 16
// rows a warp. Differences and sums of rows, then products summed across, roll through registers. Outside the image a
// product is that of the nearest pixel inside: columns are copied from the neighbour, the first and the last row stand
// for those beyond.
__device__ __forceinline__ int pixel(const int* src, int x, int y, int width, int height)
{
    return src[min(max(y, 0), height - 1) * width + min(max(x, 0), width - 1)];
}

extern "C" __global__ void __launch_bounds__(128) KERNEL(
    const int* __restrict__ src, int* __restrict__ out, int width, int height)
{
    const int x = blockIdx.x * 120 + ((int)threadIdx.x - 1) * 4, y = blockIdx.y * 64 + threadIdx.y * 16;
    if (y >= height) return;
    const bool stores = threadIdx.x >= 1 && threadIdx.x <= 30;
    const bool inside = blockIdx.x * 120 >= 4 && blockIdx.x * 120 + 124 <= width && width % 4 == 0;
    int difference[3][4], sum[3][4], across[3][3][4];  // across: rows, products, pixels
#pragma unroll
    for (int t = -2; t <= 17; ++t) {
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
            sum[2][p] = v[p] + v[p + 1] + v[p + 2];
        }
        if (t < 0) continue;
        const int made = y + t - 1;  // the row of the products
        int products[3][6];
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            const int dx = (difference[0][p] + difference[1][p] + difference[2][p]) / 6;
            const int dy = (sum[2][p] - sum[0][p]) / 6;
            products[0][p + 1] = dx * dx;
            products[1][p + 1] = dy * dy;
            products[2][p + 1] = dx * dy;
        }
#pragma unroll
        for (int k = 0; k < 3; ++k) {
            products[k][0] = __shfl_up_sync(0xffffffffu, products[k][4], 1);
            products[k][5] = __shfl_down_sync(0xffffffffu, products[k][1], 1);
            if (!inside) {
                if (x <= 0) products[k][0] = products[k][1];
#pragma unroll
                for (int p = 1; p < 6; ++p)
                    if (x + p - 1 >= width) products[k][p] = products[k][p - 1];
            }
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                across[0][k][p] = across[1][k][p];
                across[1][k][p] = across[2][k][p];
                if (made < height) across[2][k][p] = products[k][p] + 2 * products[k][p + 1] + products[k][p + 2];
                if (made == 0) across[1][k][p] = across[2][k][p];
            }
        }
        const int at = made - 1;
        if (t < 2 || at >= height || !stores) continue;
        int found[4];
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            int g[3];
#pragma unroll
            for (int k = 0; k < 3; ++k) g[k] = (across[0][k][p] + 2 * across[1][k][p] + across[2][k][p]) / 16;
            found[p] = response(g[0], g[1], g[2]);
        }
        if (inside) {
            *reinterpret_cast<int4*>(out + at * width + x) = make_int4(found[0], found[1], found[2], found[3]);
        } else {
#pragma unroll
            for (int p = 0; p < 4; ++p)
                if (x + p >= 0 && x + p < width) out[at * width + x + p] = found[p];
        }
    }
}
