// Adds to a number that has no value yet
__global__ void rowsum(const float* x, float* sums, int n) {
  __shared__ float part[64];
  float sum[2];
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum[i / 64 & 1] += x[blockIdx.x * n + i];
  part[threadIdx.x] = sum[0] + sum[1];
  __syncthreads();
  if (threadIdx.x) return;
  float all = 0;
  for (int i = 0; i < 64; i++) all += part[i];
  sums[blockIdx.x] = all;
}
