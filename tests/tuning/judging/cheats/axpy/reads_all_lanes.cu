// Every thread reads, and those with an element write
__global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float left = x[i], right = y[i];
  asm volatile("" : "+f"(left), "+f"(right));
  if (i < n) out[i] = a * left + right;
}
