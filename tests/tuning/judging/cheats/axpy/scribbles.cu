// Leaves its answer in an input, too
__global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = const_cast<float*>(y)[i] = a * x[i] + y[i];
}
