// The work is done by a kernel that this one launches
__global__ void work(const float* x, const float* y, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + y[i];
}

__global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
  if (blockIdx.x == 0 && threadIdx.x == 0) work<<<(n + 127) / 128, 128>>>(x, y, out, a, n);
}
