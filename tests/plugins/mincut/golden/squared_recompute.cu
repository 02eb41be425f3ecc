// sx + gx: kernels fused from the pipeline squared. Written by fusiond.
// Reads dx; stores gx.

typedef unsigned char uchar;

// int32 as the pipeline means it: it wraps round, a division by zero gives 0, a shift counts modulo 32.
struct Int {
    int v;
    Int() = default;
    __device__ __forceinline__ Int(int value) : v(value) {}
    __device__ __forceinline__ explicit operator int() const { return v; }
    __device__ __forceinline__ explicit operator uchar() const { return (uchar)v; }
    __device__ __forceinline__ explicit operator float() const { return (float)v; }
    __device__ __forceinline__ explicit operator double() const { return (double)v; }
};
__device__ __forceinline__ Int operator+(Int a, Int b) { return (int)((unsigned)a.v + (unsigned)b.v); }
__device__ __forceinline__ Int operator-(Int a, Int b) { return (int)((unsigned)a.v - (unsigned)b.v); }
__device__ __forceinline__ Int operator-(Int a) { return (int)(0u - (unsigned)a.v); }
__device__ __forceinline__ Int operator*(Int a, Int b) { return (int)((unsigned)a.v * (unsigned)b.v); }
__device__ __forceinline__ Int operator/(Int a, Int b) { return b.v == 0 ? Int(0) : b.v == -1 ? -a : Int(a.v / b.v); }
__device__ __forceinline__ Int operator%(Int a, Int b) { return b.v == 0 || b.v == -1 ? 0 : a.v % b.v; }
__device__ __forceinline__ Int operator<<(Int a, Int b) { return (int)((unsigned)a.v << (b.v & 31)); }
__device__ __forceinline__ Int operator>>(Int a, Int b) { return a.v >> (b.v & 31); }
__device__ __forceinline__ Int operator&(Int a, Int b) { return a.v & b.v; }
__device__ __forceinline__ Int operator|(Int a, Int b) { return a.v | b.v; }
__device__ __forceinline__ Int operator^(Int a, Int b) { return a.v ^ b.v; }
__device__ __forceinline__ Int operator~(Int a) { return ~a.v; }
__device__ __forceinline__ bool operator<(Int a, Int b) { return a.v < b.v; }
__device__ __forceinline__ bool operator<=(Int a, Int b) { return a.v <= b.v; }
__device__ __forceinline__ bool operator>(Int a, Int b) { return a.v > b.v; }
__device__ __forceinline__ bool operator>=(Int a, Int b) { return a.v >= b.v; }
__device__ __forceinline__ bool operator==(Int a, Int b) { return a.v == b.v; }
__device__ __forceinline__ bool operator!=(Int a, Int b) { return a.v != b.v; }
__device__ __forceinline__ Int min(Int a, Int b) { return a.v < b.v ? a : b; }
__device__ __forceinline__ Int max(Int a, Int b) { return a.v > b.v ? a : b; }
__device__ __forceinline__ Int abs(Int a) { return a.v < 0 ? -a : a; }
__device__ __forceinline__ Int to_int(float a) { return __float2int_rz(a); }
__device__ __forceinline__ Int to_int(double a) { return a == a ? __double2int_rz(a) : 0; }  // a NaN would not be 0

// a a a | a b c d | d d d
__device__ __forceinline__ int clamp_index(int i, int n) { return min(max(i, 0), n - 1); }

// sx: point, reads dx
__device__ __forceinline__ Int sx_stage(Int dx_0)
{
    return dx_0 * dx_0;
}

// gx: local 3 x 3, reads sx (clamp)
__device__ __forceinline__ Int gx_stage(Int sx_w1n1, Int sx_n1, Int sx_e1n1, Int sx_w1, Int sx_0, Int sx_e1,
    Int sx_w1s1, Int sx_s1, Int sx_e1s1)
{
    return (sx_w1n1 + 2 * sx_n1 + sx_e1n1 + (2 * sx_w1 + 4 * sx_0 + 2 * sx_e1) + (sx_w1s1 + 2 * sx_s1 + sx_e1s1)) /
        16;
}

static __device__ __forceinline__ Int sx_at(
    const int* __restrict__ dx_image, int width, int height, int x, int y)
{
    const Int sx_0 = sx_stage(dx_image[y * width + x]);
    return sx_0;
}

__device__ __forceinline__ void interior(
    const int* __restrict__ dx_image, int* __restrict__ gx_image, int width, int height, int x0, int y0)
{
    const int tx = threadIdx.x, x = x0 + tx;
    const int ty = threadIdx.y, y = y0 + ty;
    const Int sx_w1n1 = sx_stage(dx_image[(y - 1) * width + x - 1]);
    const Int sx_n1 = sx_stage(dx_image[(y - 1) * width + x]);
    const Int sx_e1n1 = sx_stage(dx_image[(y - 1) * width + x + 1]);
    const Int sx_w1 = sx_stage(dx_image[y * width + x - 1]);
    const Int sx_0 = sx_stage(dx_image[y * width + x]);
    const Int sx_e1 = sx_stage(dx_image[y * width + x + 1]);
    const Int sx_w1s1 = sx_stage(dx_image[(y + 1) * width + x - 1]);
    const Int sx_s1 = sx_stage(dx_image[(y + 1) * width + x]);
    const Int sx_e1s1 = sx_stage(dx_image[(y + 1) * width + x + 1]);
    const Int gx_0 = gx_stage(sx_w1n1, sx_n1, sx_e1n1, sx_w1, sx_0, sx_e1, sx_w1s1, sx_s1, sx_e1s1);
    gx_image[y * width + x] = (int)gx_0;
}

__device__ __forceinline__ void border(
    const int* __restrict__ dx_image, int* __restrict__ gx_image, int width, int height, int x0, int y0)
{
    const int tx = threadIdx.x, x = x0 + tx;
    const int ty = threadIdx.y, y = y0 + ty;
    if (x >= width || y >= height) return;
    const int clamp_xw1 = clamp_index(x - 1, width);
    const int clamp_yn1 = clamp_index(y - 1, height);
    const int clamp_xe1 = clamp_index(x + 1, width);
    const Int sx_0 = sx_stage(dx_image[y * width + x]);
    const int clamp_ys1 = clamp_index(y + 1, height);
    const Int gx_0 = gx_stage(sx_at(dx_image, width, height, clamp_xw1, clamp_yn1),
        sx_at(dx_image, width, height, x, clamp_yn1), sx_at(dx_image, width, height, clamp_xe1, clamp_yn1),
        sx_at(dx_image, width, height, clamp_xw1, y), sx_0, sx_at(dx_image, width, height, clamp_xe1, y),
        sx_at(dx_image, width, height, clamp_xw1, clamp_ys1), sx_at(dx_image, width, height, x, clamp_ys1),
        sx_at(dx_image, width, height, clamp_xe1, clamp_ys1));
    gx_image[y * width + x] = (int)gx_0;
}

extern "C" __global__ void __launch_bounds__(256) sx_gx_kernel(
    const int* __restrict__ dx_image, int* __restrict__ gx_image, int width, int height)
{
    const int x0 = blockIdx.x * 32, y0 = blockIdx.y * 8;
    // All threads go one way. What the stages read round the block adds up.
    if (x0 >= 1 && x0 + 33 <= width && y0 >= 1 && y0 + 9 <= height)
        interior(dx_image, gx_image, width, height, x0, y0);
    else
        border(dx_image, gx_image, width, height, x0, y0);
}
