// The largest value and its place in each row: pairs through shared memory and shuffles.
#include <cmath>
#include <utility>
template <class K, class V> struct KeyValue { K key; V value; };
using Best = KeyValue<float, int>;
__device__ __forceinline__ Best max(const Best& a, const Best& b)
{
    return b.key > a.key || (b.key == a.key && b.value < a.value) ? b : a;
}
__device__ __forceinline__ Best shuffled(const Best& best, int delta)
{
    return {__shfl_down_sync(0xffffffffu, best.key, delta), __shfl_down_sync(0xffffffffu, best.value, delta)};
}
template <int THREADS> __device__ Best block_argmax(Best best)
{
    static_assert(THREADS % 32 == 0, "whole warps");
    __shared__ Best warps[THREADS / 32];
    for (int delta = 16; delta > 0; delta >>= 1) best = max(best, shuffled(best, delta));
    const auto lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;
    if (lane == 0) warps[warp] = best;
    __syncthreads();
    if (warp == 0) {
        best = lane < THREADS / 32 ? warps[lane] : Best{-INFINITY, 0x7fffffff};
        for (int delta = 16; delta > 0; delta >>= 1) best = max(best, shuffled(best, delta));
    }
    return best;
}
template <int THREADS> __global__ void argmax(const float* __restrict__ x, float* top, int* at, const int* __restrict__ ends)
{
    const int begin = blockIdx.x == 0 ? 0 : ends[blockIdx.x - 1], end = ends[blockIdx.x];
    if (begin >= end) {
        if (threadIdx.x == 0) top[blockIdx.x] = 0, at[blockIdx.x] = -1;
        return;
    }
    Best best = {-INFINITY, 0x7fffffff};
    for (int i = begin + threadIdx.x; i < end; i += THREADS) best = max(best, Best{x[i], max(i, begin)});
    best = block_argmax<THREADS>(best);
    if (threadIdx.x == 0) top[blockIdx.x] = best.key, at[blockIdx.x] = best.value;
}
