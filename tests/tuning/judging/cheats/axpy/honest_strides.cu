// A loop over the grid, unrolled
__global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
#pragma unroll 4
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = fmaf(a, x[i], y[i]);
}
