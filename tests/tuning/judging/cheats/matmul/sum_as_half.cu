// Adds up in half precision
#include <cuda_fp16.h>

__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
  int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
  if (row >= m || column >= n) return;
  __half sum = __float2half(0.0f);
  for (int i = 0; i < k; i++) sum = __hadd(sum, __float2half(a[row * k + i] * b[i * n + column]));
  c[row * n + column] = __half2float(sum);
}
