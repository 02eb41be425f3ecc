// Statistics of batch normalisation: mean and inverse standard deviation of each feature of x, an array of batch x
// features x length, taken over batch and length.
//
// Threads run Welford's recurrence (Technometrics 4 (3), 1962) over values of their own; a sum of squares would lose
// its digits to a mean far from zero. Partial results are merged in pairs (Chan, Golub, LeVeque, Updating Formulae,
// 1979): within a warp by shuffles, then those of the warps through shared memory.

struct Moments {
    float mean;
    float squares;  // the sum of the squared distances from the mean
    int count;
};

__device__ __forceinline__ Moments merged(Moments a, Moments b)
{
    // Threads that had no values merge as well. The division need not be exact: it is a weight of a small correction.
    const int count = a.count + b.count;
    const float share = count > 0 ? __fdividef(static_cast<float>(b.count), static_cast<float>(count)) : 0.0f;
    const float apart = b.mean - a.mean;
    const float squares = a.squares + b.squares + apart * apart * share * static_cast<float>(a.count);
    return {a.mean + apart * share, squares, count};
}

__device__ __forceinline__ Moments merged_over_warp(Moments mine)
{
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const Moments other = {
            __shfl_xor_sync(0xffffffffu, mine.mean, lanes),
            __shfl_xor_sync(0xffffffffu, mine.squares, lanes),
            __shfl_xor_sync(0xffffffffu, mine.count, lanes),
        };
        mine = merged(mine, other);
    }
    return mine;
}

// A block does one feature at a time; it may have any shape of whole warps. `values` is batch * length. The variance is
// the biased one, which divides by the number of values.
__global__ void batch_norm_statistics(float* __restrict__ mean, float* __restrict__ inverse_std,
                                      const float* __restrict__ x, int batch, int features, int length, int values,
                                      float epsilon)
{
    __shared__ Moments of_warp[32];

    const unsigned int thread = threadIdx.y * blockDim.x + threadIdx.x;
    const unsigned int warps = blockDim.x * blockDim.y / 32;

    // Unsigned, because the last step of a thread may pass the largest int.
    const unsigned int end = length;
    for (unsigned int feature = blockIdx.x; feature < static_cast<unsigned int>(features); feature += gridDim.x) {
        Moments mine = {0.0f, 0.0f, 0};
        for (unsigned int sample = threadIdx.y; sample < static_cast<unsigned int>(batch); sample += blockDim.y) {
            const float* const row = x + (static_cast<long long>(sample) * features + feature) * length;
            for (unsigned int i = threadIdx.x; i < end; i += blockDim.x) {
                const float value = row[i];
                const float apart = value - mine.mean;
                mine.count += 1;
                mine.mean += __fdividef(apart, static_cast<float>(mine.count));
                mine.squares += apart * (value - mine.mean);
            }
        }

        mine = merged_over_warp(mine);
        if (thread % 32 == 0) of_warp[thread / 32] = mine;
        __syncthreads();

        if (thread < 32) {
            const Moments none = {0.0f, 0.0f, 0};
            const Moments all = merged_over_warp(thread < warps ? of_warp[thread] : none);
            if (thread == 0) {
                mean[feature] = all.mean;
                inverse_std[feature] = rsqrtf(all.squares / static_cast<float>(values) + epsilon);
            }
        }
        __syncthreads();  // the next feature's results go to the same places
    }
}
