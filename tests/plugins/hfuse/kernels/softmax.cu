// Softmax with a warp to a row: registers only, the width a template argument, functors for the reductions.
#include <cmath>
template <typename T> struct Add { __device__ __forceinline__ T operator()(T a, T b) const { return a + b; } };
template <typename T> struct Max { __device__ __forceinline__ T operator()(T a, T b) const { return a < b ? b : a; } };
template <typename acc_t, int WARP_BATCH, int WARP_SIZE, template <typename> class ReduceOp>
__device__ __forceinline__ void warp_reduce(acc_t* sum)
{
    ReduceOp<acc_t> r;
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
#pragma unroll
        for (int i = 0; i < WARP_BATCH; ++i) {
            acc_t b = __shfl_xor_sync(0xffffffff, sum[i], offset, WARP_SIZE);
            sum[i] = r(sum[i], b);
        }
    }
}
template <typename input_t, typename output_t, typename acc_t, int log2_elements, bool is_log_softmax>
__global__ void softmax_warp_forward(output_t* dst, const input_t* src, int batch_size, int stride, int element_count)
{
    constexpr int next_power_of_two = 1 << log2_elements;
    constexpr int WARP_SIZE = (next_power_of_two < 32) ? next_power_of_two : 32;
    constexpr int WARP_ITERATIONS = next_power_of_two / WARP_SIZE;
    constexpr int WARP_BATCH = (next_power_of_two <= 128) ? 2 : 1;
    int first_batch = (blockDim.y * blockIdx.x + threadIdx.y) * WARP_BATCH;
    int local_batches = batch_size - first_batch;
    if (local_batches > WARP_BATCH) local_batches = WARP_BATCH;
    int local_idx = threadIdx.x;
    int idx_offset = first_batch * stride + local_idx;
    src += idx_offset;
    dst += idx_offset;
    acc_t elements[WARP_BATCH][WARP_ITERATIONS];
    for (int i = 0; i < WARP_BATCH; ++i) {
        int batch_element_count = (i >= local_batches) ? 0 : element_count;
        for (int it = 0; it < WARP_ITERATIONS; ++it) {
            int element_index = local_idx + it * WARP_SIZE;
            elements[i][it] = element_index < batch_element_count ? (acc_t)src[i * element_count + it * WARP_SIZE] : -1e30f;
        }
    }
    acc_t max_value[WARP_BATCH];
#pragma unroll
    for (int i = 0; i < WARP_BATCH; ++i) {
        max_value[i] = elements[i][0];
#pragma unroll
        for (int it = 1; it < WARP_ITERATIONS; ++it) max_value[i] = (max_value[i] > elements[i][it]) ? max_value[i] : elements[i][it];
    }
    warp_reduce<acc_t, WARP_BATCH, WARP_SIZE, Max>(max_value);
    acc_t sum[WARP_BATCH]{0.0f};
#pragma unroll
    for (int i = 0; i < WARP_BATCH; ++i) {
        for (int it = 0; it < WARP_ITERATIONS; ++it) {
            if constexpr (is_log_softmax) sum[i] += std::exp(elements[i][it] - max_value[i]);
            else { elements[i][it] = std::exp(elements[i][it] - max_value[i]); sum[i] += elements[i][it]; }
        }
    }
    warp_reduce<acc_t, WARP_BATCH, WARP_SIZE, Add>(sum);
#pragma unroll
    for (int i = 0; i < WARP_BATCH; ++i) {
        if (i >= local_batches) break;
        if (is_log_softmax) sum[i] = std::log(sum[i]);
#pragma unroll
        for (int it = 0; it < WARP_ITERATIONS; ++it) {
            int element_index = local_idx + it * WARP_SIZE;
            if (element_index < element_count) {
                if (is_log_softmax) dst[i * element_count + it * WARP_SIZE] = elements[i][it] - max_value[i] - sum[i];
                else dst[i * element_count + it * WARP_SIZE] = elements[i][it] / sum[i];
            } else {
                break;
            }
        }
    }
}
