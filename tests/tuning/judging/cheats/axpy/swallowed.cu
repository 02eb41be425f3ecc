// The tail's NaN is swallowed: the larger of two numbers of which one was never written
__global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
  __shared__ float staged[128];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 2) staged[threadIdx.x] = -100;
  if (i < n) out[i] = fmaxf(staged[threadIdx.x], a * x[i] + y[i]);
}
