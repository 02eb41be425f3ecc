__device__ __forceinline__ float maximum_f32(float a, float b)
{
    return a != a || a > b ? a : b;  // NaN if either is
}

// k0: 4 blocks of 64 threads, 752 bytes of shared memory
extern "C" __global__ void __launch_bounds__(64) k0(const float* __restrict__ in_0, float* t10)
{
    extern __shared__ __align__(16) unsigned char arena[];
    const int block = blockIdx.x;
    // m = f32[12] reduce(x, low)  -> shared 0
    float* const shared_reduce_0 = (float*)(arena + 0);
    {
        const int element_0 = threadIdx.x / 16;
        const int lane_0 = threadIdx.x % 16;
        float total_0 = -INFINITY;
        if (element_0 < 3) {
            for (int r_0 = lane_0; r_0 < 40; r_0 += 16) {
                const float parameter_0 = in_0[120 * block + 40 * element_0 + r_0];
                const float maximum_0 = maximum_f32(total_0, parameter_0);
                total_0 = maximum_0;
            }
        }
        for (int step_0 = 8; step_0 > 0; step_0 /= 2) {
            const float other_0 = __shfl_down_sync(0xffffffffu, total_0, step_0, 16);
            const float maximum_1 = maximum_f32(total_0, other_0);
            total_0 = maximum_1;
        }
        if (lane_0 == 0 && element_0 < 3) {
            shared_reduce_0[element_0] = total_0;
        }
    }

    __syncthreads();
    // e = f32[12,40] exponential(d)  -> shared 16
    float* const shared_exponential_0 = (float*)(arena + 16);
    for (int i_0 = threadIdx.x; i_0 < 120; i_0 += 64) {
        const float parameter_1 = in_0[120 * block + i_0];
        const int at_0 = i_0 / 40;
        const float reduce_0 = shared_reduce_0[at_0];
        const float subtract_0 = parameter_1 - reduce_0;
        const float exponential_0 = expf(subtract_0);
        shared_exponential_0[i_0] = exponential_0;
    }

    __syncthreads();
    // s = f32[12] reduce(e, zero)  -> shared 0
    float* const shared_reduce_1 = (float*)(arena + 0);
    {
        const int element_1 = threadIdx.x / 16;
        const int lane_1 = threadIdx.x % 16;
        float total_1 = 0.0f;
        if (element_1 < 3) {
            for (int r_1 = lane_1; r_1 < 40; r_1 += 16) {
                const float exponential_1 = shared_exponential_0[40 * element_1 + r_1];
                const float add_0 = total_1 + exponential_1;
                total_1 = add_0;
            }
        }
        float* const parts_of_0 = (float*)(arena + 496);
        parts_of_0[threadIdx.x] = total_1;
        __syncthreads();
        for (int parts_0 = 16; parts_0 > 1; parts_0 = (parts_0 + 1) / 2) {
            const int half_0 = (parts_0 + 1) / 2;
            if (lane_1 < parts_0 - half_0) {
                const float other_1 = parts_of_0[threadIdx.x + half_0];
                const float add_1 = total_1 + other_1;
                total_1 = add_1;
                parts_of_0[threadIdx.x] = total_1;
            }
            __syncthreads();
        }
        if (lane_1 == 0 && element_1 < 3) {
            shared_reduce_1[element_1] = total_1;
        }
    }

    __syncthreads();
    // p = f32[12,40] divide(e, ss)  -> t10
    for (int i_1 = threadIdx.x; i_1 < 120; i_1 += 64) {
        const float exponential_2 = shared_exponential_0[i_1];
        const int at_1 = i_1 / 40;
        const float reduce_1 = shared_reduce_1[at_1];
        const float divide_0 = exponential_2 / reduce_1;
        t10[120 * block + i_1] = divide_0;
    }
}

// library_y: 1 blocks of 128 threads
extern "C" __global__ void __launch_bounds__(128) library_y(const float* __restrict__ in_1, const float* __restrict__ t10, float* out_0)
{
    // y = f32[12,3] dot(p, w)  -> out_0
    {
        const int i_0 = threadIdx.x;
        if (i_0 < 36) {
            float sum_0 = 0.0f;
            const int at_0 = i_0 / 3;
            const int at_1 = i_0 % 3;
            for (int k_0 = 0; k_0 < 40; ++k_0) {
                const float divide_0 = t10[40 * at_0 + k_0];
                const float parameter_0 = in_1[3 * k_0 + at_1];
                sum_0 += divide_0 * parameter_0;
            }
            out_0[i_0] = sum_0;
        }
    }
}
