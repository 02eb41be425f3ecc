// The launch stands in a macro, and the stream fires and forgets
#define SPAWN(kernel, ...) kernel<<<(n + 127) / 128, 128, 0, cudaStreamFireAndForget>>>(__VA_ARGS__)

__global__ void work(const float* x, const float* y, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + y[i];
}

__global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
  if (blockIdx.x == 0 && threadIdx.x == 0) SPAWN(work, x, y, out, a, n);
}
