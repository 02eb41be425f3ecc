// C = A * B, a tile of 8 x 8 per block
__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float left[8][8], right[8][8];
  int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
  float sum = 0;
  for (int from = 0; from < k; from += 8) {
    int at = from + threadIdx.x, down = from + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < m && at < k ? a[row * k + at] : 0;
    right[threadIdx.y][threadIdx.x] = down < k && column < n ? b[down * n + column] : 0;
    __syncthreads();
    for (int i = 0; i < 8; i++) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}
