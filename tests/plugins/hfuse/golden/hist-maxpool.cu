// hist and maxpool, fused horizontally by fusiond (hfuse 1).
//
//   b  max_pool_2d<float>  threads 0..255, as a block of 256 x 1 x 1
//   a  histogram           threads 256..767, as a block of 512 x 1 x 1
//
// Block i runs block i of both, each on threads of its own; a side with fewer sits the others out.
// The kernels stand below word for word; what they take for built-in are parameters of the same names.

// A barrier over `threads` threads of the block (a multiple of 32), under one of the hardware's sixteen ids.
#if defined(__CUDACC__) && !defined(FUSIOND_BARRIER)
#define FUSIOND_BARRIER(id, threads) asm volatile("bar.sync %0, %1;" : : "n"(id), "n"(threads) : "memory")
#endif

// What the kernels see instead of the built-in variables and the block's barrier.
#define FUSIOND_SHADOWS \
    const uint3 threadIdx, const uint3 blockIdx, const dim3 blockDim, const dim3 gridDim, \
    const fusiond_barrier __syncthreads, void* const fusiond_shared

// What only other kernels of a file call is unused here: no warning.
#ifdef __CUDACC__
#pragma nv_diag_suppress 177
#endif

// --- a: hist ----------------------------------------------------------------------------------------

namespace fusiond_a {

// Whatever is not shadowed must not compile: a helper that reads the fused block's index would be wrong.
struct fusiond_leak;
extern fusiond_leak threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads() = delete;

struct fusiond_barrier {
    __device__ __forceinline__ void operator()() const {
        FUSIOND_BARRIER(1, 512);
    }
};

// Counts how many values of x fall into each of `bins` equal parts of [0, 1).
//
// A block counts into shared memory first and adds its counts to the global ones at the end, so that global atomics are
// rare. Values outside [0, 1), NaN among them, are left out.
__device__ __forceinline__ void histogram(FUSIOND_SHADOWS, unsigned int* __restrict__ counts, const float* __restrict__ x, int n, int bins)
{
    unsigned int* const local = reinterpret_cast<unsigned int*>(fusiond_shared);

    for (int bin = threadIdx.x; bin < bins; bin += blockDim.x) local[bin] = 0;
    __syncthreads();

    // Unsigned, because the last step of a thread may pass the largest int.
    const unsigned int end = n;
    const unsigned int step = gridDim.x * blockDim.x;
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        const float value = x[i];
        if (value >= 0.0f && value < 1.0f) {
            // The product may round up to `bins` itself.
            const int bin = min(static_cast<int>(value * static_cast<float>(bins)), bins - 1);
            atomicAdd(&local[bin], 1u);
        }
    }
    __syncthreads();

    for (int bin = threadIdx.x; bin < bins; bin += blockDim.x) {
        if (local[bin] != 0) atomicAdd(&counts[bin], local[bin]);
    }
}

__device__ __forceinline__ void fusiond_side(
    const unsigned int fusiond_thread,
    const unsigned int fusiond_block,
    const unsigned int fusiond_grid_x,
    void* const fusiond_shared,
    unsigned int* __restrict__ a_counts,
    const float* __restrict__ a_x,
    const int a_n,
    const int a_bins)
{
    histogram(
        make_uint3(fusiond_thread, 0, 0),
        make_uint3(fusiond_block, 0, 0),
        dim3(512, 1, 1),
        dim3(fusiond_grid_x),
        fusiond_barrier{},
        fusiond_shared,
        a_counts,
        a_x,
        a_n,
        a_bins);
}

}  // namespace fusiond_a

// --- b: maxpool -------------------------------------------------------------------------------------

namespace fusiond_b {

// Whatever is not shadowed must not compile: a helper that reads the fused block's index would be wrong.
struct fusiond_leak;
extern fusiond_leak threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads() = delete;

struct fusiond_barrier {
    __device__ __forceinline__ void operator()() const {
        FUSIOND_BARRIER(2, 256);
    }
};

// The largest value under each position of a sliding window over planes of height x width, and where it was.
//
// One thread makes one output at a time. The `pad` cells round a plane belong to no window; a window holds at least one
// cell as long as pad <= window / 2. NaN wins over everything, and the first of equals over the others.
template <typename T>
__device__ __forceinline__ void max_pool_2d(FUSIOND_SHADOWS, T* __restrict__ largest, long long* __restrict__ position, const T* __restrict__ image,
                            int outputs, int height, int width, int out_height, int out_width, int window, int stride,
                            int pad)
{
    // Unsigned, because the last step of a thread may pass the largest int.
    const unsigned int end = outputs;
    const unsigned int step = gridDim.x * blockDim.x;
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        const unsigned int column = i % out_width;
        const unsigned int row = i / out_width % out_height;
        const unsigned int plane = i / out_width / out_height;

        const int top = static_cast<int>(row) * stride - pad;
        const int left = static_cast<int>(column) * stride - pad;
        const int bottom = min(top + window, height);
        const int right = min(left + window, width);
        const int first_row = max(top, 0);
        const int first_column = max(left, 0);

        // A batch of planes may well have more cells than an int can count; one plane has not.
        const T* const cells = image + static_cast<long long>(plane) * height * width;
        int best_cell = first_row * width + first_column;
        T best = cells[best_cell];
        for (int y = first_row; y < bottom; ++y) {
            for (int x = first_column; x < right; ++x) {
                const int cell = y * width + x;
                const T value = cells[cell];
                if (value > best || value != value) {
                    best = value;
                    best_cell = cell;
                }
            }
        }
        largest[i] = best;
        position[i] = best_cell;
    }
}

__device__ __forceinline__ void fusiond_side(
    const unsigned int fusiond_thread,
    const unsigned int fusiond_block,
    const unsigned int fusiond_grid_x,
    void* const fusiond_shared,
    float* __restrict__ b_largest,
    long long* __restrict__ b_position,
    const float* __restrict__ b_image,
    const int b_outputs,
    const int b_height,
    const int b_width,
    const int b_out_height,
    const int b_out_width,
    const int b_window,
    const int b_stride,
    const int b_pad)
{
    max_pool_2d<float>(
        make_uint3(fusiond_thread, 0, 0),
        make_uint3(fusiond_block, 0, 0),
        dim3(256, 1, 1),
        dim3(fusiond_grid_x),
        fusiond_barrier{},
        fusiond_shared,
        b_largest,
        b_position,
        b_image,
        b_outputs,
        b_height,
        b_width,
        b_out_height,
        b_out_width,
        b_window,
        b_stride,
        b_pad);
}

}  // namespace fusiond_b

#undef FUSIOND_SHADOWS

// One arena for both, each part of it as aligned as any of them asks.
extern __shared__ __align__(16) unsigned char fusiond_arena[];

extern "C" __global__ void __launch_bounds__(768) fused_hist_maxpool(
    unsigned int* __restrict__ a_counts,
    const float* __restrict__ a_x,
    const int a_n,
    const int a_bins,
    float* __restrict__ b_largest,
    long long* __restrict__ b_position,
    const float* __restrict__ b_image,
    const int b_outputs,
    const int b_height,
    const int b_width,
    const int b_out_height,
    const int b_out_width,
    const int b_window,
    const int b_stride,
    const int b_pad,
    const unsigned int fusiond_a_grid_x,
    const unsigned int fusiond_b_grid_x)
{
    const unsigned int thread = threadIdx.x;
    const unsigned int block = blockIdx.x;
    if (thread < 256) {
        if (block < fusiond_b_grid_x) {
            fusiond_b::fusiond_side(
                thread,
                block,
                fusiond_b_grid_x,
                nullptr,
                b_largest,
                b_position,
                b_image,
                b_outputs,
                b_height,
                b_width,
                b_out_height,
                b_out_width,
                b_window,
                b_stride,
                b_pad);
        }
    } else {
        if (block < fusiond_a_grid_x) {
            fusiond_a::fusiond_side(
                thread - 256,
                block,
                fusiond_a_grid_x,
                fusiond_arena,
                a_counts,
                a_x,
                a_n,
                a_bins);
        }
    }
}
