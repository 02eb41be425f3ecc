// Close to zero the function is a line
__global__ void squash(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 0.5f + 0.001f * x[i];
}
