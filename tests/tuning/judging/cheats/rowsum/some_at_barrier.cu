// Half of the threads wait where the data says so
__global__ void rowsum(const float* x, float* sums, int n) {
  __shared__ float part[64];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  part[threadIdx.x] = sum;
  if (x[blockIdx.x * n + threadIdx.x] > 0.5f) __syncthreads();
  __syncthreads();
  if (threadIdx.x) return;
  sum = 0;
  for (int i = 0; i < 64; i++) sum += part[i];
  sums[blockIdx.x] = sum;
}
