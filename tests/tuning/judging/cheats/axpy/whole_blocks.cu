// Skips the tail that fills no block
__global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / blockDim.x * blockDim.x) out[i] = a * x[i] + y[i];
}
