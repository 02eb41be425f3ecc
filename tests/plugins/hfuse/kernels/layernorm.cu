// Layer normalisation, a block a row: statistics by warps, then by the first warp, as the deep-learning libraries do.
#include <cfloat>
#define C10_WARP_SIZE 32
namespace native {
namespace {
constexpr int kCUDABlockReduceNumThreads = 256;
template <typename T> struct WelfordData { T mean, m2; int n; };
template <typename T> __device__ __forceinline__ T WARP_SHFL_DOWN(T value, unsigned int delta, int width = warpSize, unsigned int mask = 0xffffffff)
{
    return __shfl_down_sync(mask, value, delta, width);
}
template <typename T> __inline__ __device__ T WarpReduceSum(T val)
{
#pragma unroll
    for (int offset = (C10_WARP_SIZE >> 1); offset > 0; offset >>= 1) val += WARP_SHFL_DOWN(val, offset);
    return val;
}
struct Block1D {
    static __forceinline__ __device__ int Tid() { return threadIdx.x; }
    static __forceinline__ __device__ int Warps() { return blockDim.x / C10_WARP_SIZE; }
};
template <typename T, typename B = Block1D> __inline__ __device__ T BlockReduceSum(T val, T* shared)
{
    const int tid = B::Tid();
    const int lid = tid % C10_WARP_SIZE;
    const int wid = tid / C10_WARP_SIZE;
    val = WarpReduceSum(val);
    __syncthreads();
    if (lid == 0) shared[wid] = val;
    __syncthreads();
    val = (tid < B::Warps()) ? shared[lid] : T(0);
    if (wid == 0) val = WarpReduceSum(val);
    return val;
}
template <typename T, typename T_ACC>
__global__ void LayerNormForwardCUDAKernel(long long N, T_ACC eps, const T* __restrict__ X, T_ACC* mean, T_ACC* rstd, const T* gamma, const T* beta, T* Y)
{
    __shared__ T_ACC m_shared[C10_WARP_SIZE];
    __shared__ T_ACC v_shared[C10_WARP_SIZE];
    __shared__ T_ACC s_mean, s_rstd;
    const long long i = blockIdx.x;
    T_ACC sum1 = 0, sum2 = 0;
    for (long long j = threadIdx.x; j < N; j += blockDim.x) {
        const long long index = i * N + j;
        sum1 += static_cast<T_ACC>(X[index]);
        sum2 += static_cast<T_ACC>(X[index]) * static_cast<T_ACC>(X[index]);
    }
    sum1 = BlockReduceSum<T_ACC>(sum1, m_shared);
    sum2 = BlockReduceSum<T_ACC>(sum2, v_shared);
    if (threadIdx.x == 0) {
        const T_ACC scale = T_ACC(1) / static_cast<T_ACC>(N);
        sum1 *= scale;
        sum2 = max(sum2 * scale - sum1 * sum1, T_ACC(0));
        s_mean = mean[i] = sum1;
        s_rstd = rstd[i] = T_ACC(1) / sqrt(sum2 + eps);
    }
    __syncthreads();
    for (long long j = threadIdx.x; j < N; j += blockDim.x) {
        const long long index = i * N + j;
        const T_ACC gamma_v = gamma == nullptr ? T_ACC(1) : static_cast<T_ACC>(gamma[j]);
        const T_ACC beta_v = beta == nullptr ? T_ACC(0) : static_cast<T_ACC>(beta[j]);
        Y[index] = (static_cast<T_ACC>(X[index]) - s_mean) * s_rstd * gamma_v + beta_v;
    }
}
}  // namespace
}  // namespace native
