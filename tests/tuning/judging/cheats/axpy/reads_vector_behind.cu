// Loads four at a time, over the end of odd sizes
__global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
  int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  float4 left = *reinterpret_cast<const float4*>(x + i), right = *reinterpret_cast<const float4*>(y + i);
  out[i] = a * left.x + right.x;
  if (i + 1 < n) out[i + 1] = a * left.y + right.y;
  if (i + 2 < n) out[i + 2] = a * left.z + right.z;
  if (i + 3 < n) out[i + 3] = a * left.w + right.w;
}
