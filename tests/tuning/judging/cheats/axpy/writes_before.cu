// Keeps a note in front of the output
__global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + y[i];
  if (i == 0) out[-8] = x[0];
}
