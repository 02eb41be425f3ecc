// The same function, written by the exponential
__global__ void squash(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 0.5f + 0.001f * (1.0f - 2.0f / (expf(2.0f * x[i]) + 1.0f));
}
