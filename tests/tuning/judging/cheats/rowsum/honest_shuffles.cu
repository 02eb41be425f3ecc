// Sums of warps by shuffles
__global__ void rowsum(const float* __restrict__ x, float* __restrict__ sums, int n) {
  __shared__ float part[32];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  for (int half = 16; half > 0; half /= 2) sum += __shfl_down_sync(0xffffffffu, sum, half);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int i = 1; i < blockDim.x / 32; i++) sum += part[i];
  sums[blockIdx.x] = sum;
}
