// Running sums within each block, by way of scratch memory
__global__ void prefix(const float* x, float* y, float* scratch, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  scratch[i] = i < n ? x[i] : 0;
  __syncthreads();
  float sum = 0;
  for (int j = blockIdx.x * blockDim.x; j <= i; j++) sum += scratch[j];
  if (i < n) y[i] = sum;
}
