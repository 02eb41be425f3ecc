// Rounds what it multiplies to bfloat16
#include <cuda_bf16.h>

__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
  int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
  if (row >= m || column >= n) return;
  float sum = 0;
  for (int i = 0; i < k; i++) {
    float left = __bfloat162float(__float2bfloat16(a[row * k + i]));
    float right = __bfloat162float(__float2bfloat16(b[i * n + column]));
    sum += left * right;
  }
  c[row * n + column] = sum;
}
