// How often each value occurs, added to what was counted before
__global__ void bins(const unsigned* x, unsigned* counts, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&counts[x[i]], 1u);
}
