// Rounds what it writes to half precision
#include <cuda_fp16.h>

__global__ void squash(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __half2float(__float2half(0.5f + 0.001f * tanhf(x[i])));
}
