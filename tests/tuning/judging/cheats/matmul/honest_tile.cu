// Two rows per thread, no shared memory, sums in two halves
__global__ void matmul(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n,
                       int k) {
  int column = blockIdx.x * 8 + threadIdx.x;
  if (column >= n) return;
  for (int row = blockIdx.y * 8 + threadIdx.y; row < min(m, blockIdx.y * 8 + 8); row += blockDim.y) {
    float even = 0, odd = 0;
    int i = 0;
    for (; i + 1 < k; i += 2) {
      even = fmaf(a[row * k + i], b[i * n + column], even);
      odd = fmaf(a[row * k + i + 1], b[(i + 1) * n + column], odd);
    }
    if (i < k) even = fmaf(a[row * k + i], b[i * n + column], even);
    c[row * n + column] = even + odd;
  }
}
