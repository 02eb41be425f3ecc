// A tile of 16 x 16, filled and read by another thread each
__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float left[16][17], right[16][17];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int from = 0; from < k; from += 16) {
    int at = from + threadIdx.x, down = from + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < m && at < k ? a[row * k + at] : 0;
    right[threadIdx.y][threadIdx.x] = down < k && column < n ? b[down * n + column] : 0;
    __syncthreads();
#pragma unroll
    for (int i = 15; i >= 0; i--) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}
