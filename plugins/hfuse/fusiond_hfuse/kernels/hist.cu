// Counts how many values of x fall into each of `bins` equal parts of [0, 1).
//
// A block counts into shared memory first and adds its counts to the global ones at the end, so that global atomics are
// rare. Values outside [0, 1), NaN among them, are left out.
__global__ void histogram(unsigned int* __restrict__ counts, const float* __restrict__ x, int n, int bins)
{
    extern __shared__ unsigned int local[];

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
