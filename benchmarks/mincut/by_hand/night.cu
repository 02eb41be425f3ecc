// The night filter written by hand: 32 lanes with 4 pixels each, 16 rows a warp. A pixel is one word in registers, red
// in its low byte; rows of the input and of the first filter roll through them. A weight is computed once for the three
// channels, and that of the pixel itself is 1.
__device__ __forceinline__ unsigned pixel(const unsigned char* src, int x, int y, int width, int height)
{
    const unsigned char* at = src + (min(max(y, 0), height - 1) * width + min(max(x, 0), width - 1)) * 3;
    return at[0] | at[1] << 8 | at[2] << 16;
}

__device__ __forceinline__ int channel(unsigned of, int c) { return of >> 8 * c & 255; }
__device__ __forceinline__ unsigned low_byte(float of) { return (unsigned)__float2int_rz(of) & 255u; }

// One row of a filter: three pixels, the middle one of which may be the filtered pixel itself.
struct Sums {
    float colour[3], weight;
};
__device__ __forceinline__ Sums row_of(const unsigned (&v)[3], unsigned centre, bool own, float side, float middle)
{
    Sums sums;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const int r = channel(v[i], 0) - channel(centre, 0), g = channel(v[i], 1) - channel(centre, 1);
        const int b = channel(v[i], 2) - channel(centre, 2);
        const float near = own && i == 1 ? 1.0f : expf(-0.00001537870f * (float)(r * r + g * g + b * b));
        const float factor = i == 1 ? middle : side, weight = factor * near;
        sums.weight = i == 0 ? weight : sums.weight + weight;
#pragma unroll
        for (int c = 0; c < 3; ++c) {
            const float term = factor * ((float)channel(v[i], c) * near);
            sums.colour[c] = i == 0 ? term : sums.colour[c] + term;
        }
    }
    return sums;
}

__device__ __forceinline__ unsigned filtered(const unsigned (&v)[3][3])
{
    const Sums top = row_of(v[0], v[1][1], false, 0.057118f, 0.124758f);
    const Sums own = row_of(v[1], v[1][1], true, 0.124758f, 0.272496f);
    const Sums low = row_of(v[2], v[1][1], false, 0.057118f, 0.124758f);
    unsigned found = 0;
    const float weight = top.weight + own.weight + low.weight;
#pragma unroll
    for (int c = 0; c < 3; ++c)
        found |= low_byte((top.colour[c] + own.colour[c] + low.colour[c]) / weight) << 8 * c;
    return found;
}

__device__ __forceinline__ unsigned scotopic(unsigned of)
{
    const float r = (float)channel(of, 0), g = (float)channel(of, 1), b = (float)channel(of, 2);
    const float x = 0.5149f * r + 0.3244f * g + 0.1607f * b;
    const float y = (0.2654f * r + 0.6704f * g + 0.0642f * b) / 3.0f;
    const float z = 0.0248f * r + 0.1248f * g + 0.8504f * b;
    const float rods = y * (((y + z) / x + 1.0f) * 1.33f - 1.68f);
    const float night = rods * 0.4468f, deep = night / 0.25f - night - night;
    const float red = 2.562263f * night - 1.166107f * night - 0.396157f * deep;
    const float green = -1.021558f * night + 1.977828f * night + 0.043730f * deep;
    const float blue = 0.075196f * night - 0.256248f * night + 1.181053f * deep;
    const auto clamped = [](float value) { return low_byte(fminf(fmaxf(value, 0.0f), 255.0f)); };
    return clamped(red) | clamped(green) << 8 | clamped(blue) << 16;
}

// The pixels beside a lane's own four, `count` on either side, from its neighbours; at the edges of the image the last
// one inside.
template <int count>
__device__ __forceinline__ void neighbours(unsigned (&v)[4 + 2 * count], int x, int width, bool inside)
{
#pragma unroll
    for (int i = 0; i < count; ++i) {
        v[i] = __shfl_up_sync(0xffffffffu, v[i + 4], 1);
        v[4 + count + i] = __shfl_down_sync(0xffffffffu, v[count + i], 1);
    }
    if (inside) return;
#pragma unroll
    for (int i = count - 1; i >= 0; --i)
        if (x + i - count < 0) v[i] = v[i + 1];
#pragma unroll
    for (int i = 1; i < 4 + 2 * count; ++i)
        if (x + i - count >= width) v[i] = v[i - 1];
}

extern "C" __global__ void __launch_bounds__(128) night(
    const unsigned char* __restrict__ src, unsigned char* __restrict__ out, int width, int height)
{
    const int x = blockIdx.x * 120 + ((int)threadIdx.x - 1) * 4, y = blockIdx.y * 64 + threadIdx.y * 16;
    if (y >= height) return;
    const bool stores = threadIdx.x >= 1 && threadIdx.x <= 30;
    const bool inside = blockIdx.x * 120 >= 4 && blockIdx.x * 120 + 124 <= width && width % 4 == 0;
    unsigned first[3][6], second[5][8];
#pragma unroll 1
    for (int t = -3; t <= 18; ++t) {
#pragma unroll
        for (int i = 0; i < 6; ++i) first[0][i] = first[1][i], first[1][i] = first[2][i];
        const int row = min(max(y + t, 0), height - 1);
        if (inside) {
            const unsigned* words = reinterpret_cast<const unsigned*>(src + (row * width + x) * 3);
            const unsigned a = words[0], b = words[1], c = words[2];
            first[2][1] = a & 0xffffff;
            first[2][2] = a >> 24 | (b & 0xffff) << 8;
            first[2][3] = b >> 16 | (c & 0xff) << 16;
            first[2][4] = c >> 8;
        } else {
#pragma unroll
            for (int p = 0; p < 4; ++p) first[2][p + 1] = pixel(src, x + p, row, width, height);
        }
        neighbours<1>(first[2], x, width, inside);
        const int made = y + t - 1;  // of the first filter: rows outside are the last one inside
        if (t < -1) continue;
        if (made < height) {
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int r = 0; r < 4; ++r) second[r][i] = second[r + 1][i];
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                unsigned v[3][3];
#pragma unroll
                for (int j = 0; j < 3; ++j)
#pragma unroll
                    for (int i = 0; i < 3; ++i) v[j][i] = first[j][p + i];
                second[4][p + 2] = filtered(v);
            }
            neighbours<2>(second[4], x, width, inside);
            if (made == 0) {
#pragma unroll
                for (int i = 0; i < 8; ++i) second[2][i] = second[3][i] = second[4][i];
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int r = 0; r < 4; ++r) second[r][i] = second[r + 1][i];
        }
        const int at = made - 2;
        if (t < 3 || at >= height || !stores) continue;
        unsigned found[4];
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            unsigned v[3][3];
#pragma unroll
            for (int j = 0; j < 3; ++j)
#pragma unroll
                for (int i = 0; i < 3; ++i) v[j][i] = second[2 * j][p + 2 * i];
            found[p] = scotopic(filtered(v));
        }
        if (inside) {
            unsigned* words = reinterpret_cast<unsigned*>(out + (at * width + x) * 3);
            words[0] = found[0] | found[1] << 24;
            words[1] = found[1] >> 8 | found[2] << 16;
            words[2] = found[2] >> 16 | found[3] << 8;
        } else {
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                if (x + p < 0 || x + p >= width) continue;
#pragma unroll
                for (int c = 0; c < 3; ++c) out[(at * width + x + p) * 3 + c] = channel(found[p], c);
            }
        }
    }
}
