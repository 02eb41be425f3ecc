// Kernels whose SASS is compared with their PTX; sass.ptx and sass.listing are what these make of it:
//     nvcc -ptx -arch=sm_90 -lineinfo -o sass.ptx sass.cu
//     ptxas -arch=sm_90 -lineinfo -o sass.cubin sass.ptx
//     nvdisasm --print-code --print-line-info-ptx sass.cubin > sass.listing
extern "C" {
__global__ void straight(const float* x, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = 2.0f * x[i] + 1.0f;
}
__global__ void divide_integers(const int* x, int* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] / x[i + 1];
}
__global__ void divide_long(const long long* x, long long* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] / x[i + 1];
}
__global__ void divide_double(const double* x, double* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] / x[i + 1];
}
__global__ void exp_divide(const float* x, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = expf(x[i]) / x[i + 1];
}

// A branch that becomes predicates, and one that stays.
__global__ void either(const float* x, float* y, int n) {
    const int i = threadIdx.x;
    y[i] = i < n ? x[i] * 2.0f : x[i] + y[i + 64];
}
__global__ void branch(const float* x, float* y, int n) {
    const int i = threadIdx.x;
    float value = x[i];
    if (i < n) {
        #pragma unroll 1
        for (int k = 0; k < 10; ++k) value = value * value + x[i + k];
    }
    y[i] = value;
}

// Loops that nobody unrolls, nested; `inner` ones of a thread are as many as its number says.
__global__ void nested(const float* x, float* y, int outer, int inner) {
    float sum = 0;
    #pragma unroll 1
    for (int j = 0; j < outer; ++j) {
        #pragma unroll 1
        for (int k = 0; k < inner + static_cast<int>(threadIdx.x & 3); ++k) sum += x[j + k];
        sum *= 0.5f;
    }
    y[threadIdx.x] = sum;
}

// Loops that nvcc unrolls by 4 and ptxas by 4 once more; and one of integers, with nothing in it but arithmetic.
__global__ void unrolled(const float* x, float* y, int n) {
    float sum = 0;
    for (int k = threadIdx.x; k < n; k += 32) sum += x[k];
    y[threadIdx.x] = sum;
}
__global__ void hash(const unsigned* x, unsigned* y, int n) {
    unsigned value = x[threadIdx.x];
    for (int k = 0; k < n; ++k) {
        value ^= value << 13;
        value ^= value >> 17;
        value ^= value << 5;
        value = value * 0x9E3779B9u + k;
    }
    y[threadIdx.x] = value;
}

__global__ void reduce(const float* x, float* y) {
    __shared__ float total[1];
    float sum = x[threadIdx.x];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffff, sum, by);
    if (threadIdx.x == 0) total[0] = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
    __syncthreads();
    y[threadIdx.x] = total[0];
}

// Stores that few threads make, under predicates, in a loop.
__global__ void seldom(const float* x, float* y, int n) {
    #pragma unroll 1
    for (int k = 0; k < n; ++k) {
        const float value = x[64 * k + threadIdx.x];
        if (value > 2.0f) y[threadIdx.x] = value;
        if (value > 3.0f) y[threadIdx.x + 64] = value;
    }
}
}
