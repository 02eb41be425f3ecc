// All threads store the same number to one place, on purpose
__global__ void rowsum(const float* x, float* sums, int n) {
  __shared__ float part[64], scale;
  float sum = 0;
  scale = 2.0f;
  for (int c = threadIdx.x; c < n; c += blockDim.x) sum += x[blockIdx.x * n + c];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s /= 2) {
    if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = part[0] * scale / 2;
}
