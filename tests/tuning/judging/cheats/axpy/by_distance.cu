// The answer depends on how far apart two buffers lie
__global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x < y ? a * x[i] + y[i] : a * x[i] - y[i];
}
