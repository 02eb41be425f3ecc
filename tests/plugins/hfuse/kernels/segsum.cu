// Sums of segments by a scan of a warp that carries heads along, with votes to find where a segment begins.
__device__ __forceinline__ unsigned lanemask_le() { unsigned lane = threadIdx.x & 31; return 0xffffffffu >> (31 - lane); }
template <typename T> __device__ T segmented_warp_scan(T val, bool head)
{
    const unsigned lane = threadIdx.x & 31;
    const unsigned heads = __ballot_sync(0xffffffffu, head) | 1u;
    const int start = 31 - __clz(heads & lanemask_le());
    for (int d = 1; d < 32; d <<= 1) {
        const T other = __shfl_up_sync(0xffffffffu, val, d);
        if ((int)lane - d >= start) val += other;
    }
    return val;
}
__global__ void segmented_sum(const int* values, const int* keys, int* sums, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int key = i < n ? keys[i] : -1;
    const int before = __shfl_up_sync(0xffffffffu, key, 1);
    const int total = segmented_warp_scan(i < n ? values[i] : 0, key != before);
    const int after = __shfl_down_sync(0xffffffffu, key, 1);
    const bool last = (threadIdx.x & 31) == 31 || after != key;
    if (i < n && last) atomicAdd(&sums[key], total);
}
