// Maximum and sum in one pass, by one warp
__global__ void softmax(const float* __restrict__ x, float* __restrict__ y, int n) {
  x += blockIdx.x * n;
  y += blockIdx.x * n;
  float most = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < n; i += 32) {
    float larger = fmaxf(most, x[i]);
    sum = sum * expf(most - larger) + expf(x[i] - larger);
    most = larger;
  }
  for (int half = 16; half > 0; half /= 2) {
    float other = __shfl_xor_sync(0xffffffffu, most, half), larger = fmaxf(most, other);
    float added = __shfl_xor_sync(0xffffffffu, sum, half);
    sum = sum * expf(most - larger) + added * expf(other - larger);
    most = larger;
  }
  for (int i = threadIdx.x; i < n; i += 32) y[i] = expf(x[i] - most) / sum;
}
