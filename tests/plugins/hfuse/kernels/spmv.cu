// Sparse matrix by vector, a warp to a row, with the loads of a file of one's own; early return of whole warps.
template <typename T> __device__ __forceinline__ T load(const T* p) { return __ldg(p); }
template <typename T> __device__ T warp_sum(T v) { for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o); return v; }
template <typename T, int ROWS_PER_BLOCK> __global__ void spmv_csr_vector(int rows, const int* __restrict__ ptr, const int* __restrict__ col, const T* __restrict__ val, const T* __restrict__ x, T* __restrict__ y)
{
    const int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
    const int row = blockIdx.x * ROWS_PER_BLOCK + warp;
    if (row >= rows) return;
    T sum = 0;
    for (int j = load(ptr + row) + lane; j < load(ptr + row + 1); j += warpSize) sum += load(val + j) * load(x + load(col + j));
    sum = warp_sum(sum);
    if (!lane) y[row] = sum;
}
