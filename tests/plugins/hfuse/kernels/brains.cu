// A residual added to a row in bfloat16, and the row scaled by its root mean square, two elements at a time.
#include <cuda_bf16.h>
__device__ nv_bfloat162 added(__nv_bfloat162 a, nv_bfloat162 b, __nv_bfloat16 by)
{
    return __hfma2(b, __bfloat162bfloat162(by), a);
}
__global__ void rms(__nv_bfloat16* out, const nv_bfloat16* __restrict__ x, const nv_bfloat162* __restrict__ residual,
                    nv_bfloat16 by, float epsilon, int n)
{
    __shared__ float s[64];
    const nv_bfloat162* row = reinterpret_cast<const nv_bfloat162*>(x) + blockIdx.x * (n / 2);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
        const nv_bfloat162 v = added(row[i], residual[blockIdx.x * (n / 2) + i], by);
        reinterpret_cast<nv_bfloat162*>(out)[blockIdx.x * (n / 2) + i] = v;
        sum += __low2float(v) * __low2float(v) + float(v.y) * __bfloat162float(v.y);
    }
    s[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
        __syncthreads();
    }
    const float scale = rsqrtf(s[0] / n + epsilon);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        out[blockIdx.x * n + i] = __float2bfloat16(__bfloat162float(out[blockIdx.x * n + i]) * scale);
}
