// Rows quantised to 8 bits with a scale of their own, two numbers at a time, and the largest of them.
#include <cuda_fp8.h>
__device__ float largest(const float* row, int n, float* s)
{
    float found = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) found = fmaxf(found, fabsf(row[i]));
    s[threadIdx.x] = found;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half) s[threadIdx.x] = fmaxf(s[threadIdx.x], s[threadIdx.x + half]);
        __syncthreads();
    }
    return s[0];
}
__global__ void quantise(__nv_fp8_e4m3* q, __nv_fp8_e5m2* back, float* scales, const float* __restrict__ x,
                         const __nv_fp8_e5m2* __restrict__ before, int n)
{
    __shared__ float s[64];
    const float* row = x + blockIdx.x * n;
    const float scale = 448.0f / fmaxf(largest(row, n, s), 1e-6f);
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
    for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
        const float2 two = make_float2(row[2 * i] * scale, row[2 * i + 1] * scale);
        reinterpret_cast<__nv_fp8x2_e4m3*>(q)[blockIdx.x * (n / 2) + i] = __nv_fp8x2_e4m3(two);
    }
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        back[blockIdx.x * n + i] = __nv_fp8_e5m2(row[i] + static_cast<float>(before[blockIdx.x * n + i]));
}
