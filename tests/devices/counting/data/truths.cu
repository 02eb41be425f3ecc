// Kernels whose counts are known by hand; truths.ptx is what nvcc makes of this:
//     nvcc -ptx -arch=sm_90 -lineinfo -o truths.ptx truths.cu
#include <cuda_fp16.h>

template <class T>
__device__ void copied(const T* x, T* y, int stride, int start) {
    const int i = (blockIdx.x * blockDim.x + threadIdx.x) * stride + start;
    y[i] = x[i];
}

extern "C" {
__global__ void copy_float(const float* x, float* y, int stride, int start) { copied(x, y, stride, start); }
__global__ void copy_float2(const float2* x, float2* y, int stride, int start) { copied(x, y, stride, start); }
__global__ void copy_float4(const float4* x, float4* y, int stride, int start) { copied(x, y, stride, start); }
__global__ void copy_double(const double* x, double* y, int stride, int start) { copied(x, y, stride, start); }
__global__ void copy_half(const __half* x, __half* y, int stride, int start) { copied(x, y, stride, start); }
__global__ void copy_byte(const char* x, char* y, int stride, int start) { copied(x, y, stride, start); }

__global__ void broadcast(const float* x, float* y) { y[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x]; }

// 32 x 8 threads, tiles of 32 x 32, n a multiple of 32.
__global__ void transpose_plain(const float* x, float* y, int n) {
    const int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8) y[column * n + row + k] = x[(row + k) * n + column];
}
}

template <int PAD>
__device__ void transposed(const float* x, float* y, int n) {
    __shared__ float tile[32][32 + PAD];
    const int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8) tile[threadIdx.y + k][threadIdx.x] = x[(row + k) * n + column];
    __syncthreads();
    const int left = blockIdx.y * 32 + threadIdx.x, top = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8) y[(top + k) * n + left] = tile[threadIdx.x][threadIdx.y + k];
}

extern "C" {
__global__ void transpose_tile(const float* x, float* y, int n) { transposed<0>(x, y, n); }
__global__ void transpose_padded(const float* x, float* y, int n) { transposed<1>(x, y, n); }

// A warp for each row; a thread for each column.
__global__ void sum_rows(const float* x, float* y, int n) {
    float sum = 0;
    for (int k = threadIdx.x; k < n; k += 32) sum += x[blockIdx.x * n + k];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffff, sum, by);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
__global__ void sum_columns(const float* x, float* y, int rows, int n) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < rows; ++k) sum += x[k * n + column];
    y[column] = sum;
}

// Of 2 * radius + 1 points; x has a border of `radius` on both sides, and begins at its inner part.
__global__ void stencil(const float* x, float* y, int radius) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = -radius; k <= radius; ++k) sum += x[i + k];
    y[i] = sum;
}
__global__ void stencil_tile(const float* x, float* y, int radius) {
    extern __shared__ float tile[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = threadIdx.x; k < blockDim.x + 2 * radius; k += blockDim.x)
        tile[k] = x[static_cast<int>(blockIdx.x * blockDim.x) - radius + k];
    __syncthreads();
    float sum = 0;
    for (int k = 0; k <= 2 * radius; ++k) sum += tile[threadIdx.x + k];
    y[i] = sum;
}

__global__ void histogram(const int* keys, int* counts) {
    atomicAdd(&counts[keys[blockIdx.x * blockDim.x + threadIdx.x]], 1);
}
__global__ void histogram_shared(const int* keys, int* counts) {
    __shared__ int own[256];
    own[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&own[keys[threadIdx.x]], 1);
    __syncthreads();
    counts[threadIdx.x] = own[threadIdx.x];
}

__global__ void shared_stride(float* y, int stride) {
    extern __shared__ float words[];
    words[threadIdx.x * stride] = threadIdx.x;
    __syncwarp();
    y[threadIdx.x] = words[threadIdx.x * stride];
}
__global__ void shared_wide(float4* y, int stride) {
    extern __shared__ float4 wide[];
    wide[threadIdx.x * stride] = make_float4(threadIdx.x, 1, 2, 3);
    __syncwarp();
    y[threadIdx.x] = wide[threadIdx.x * stride];
}

// Lanes go two ways, more than once, and meet before the store.
__global__ void meet(const int* x, int* y, int n) {
    const int i = threadIdx.x;
    int value = x[i];
    for (int k = 0; k < (i & 3); ++k) {
        if (value & 1) {
            value = 3 * value + 1;
            if (value > n) value -= y[32 + (value & 31)];
        } else {
            value >>= 1;
        }
    }
    y[i] = value;
}

// The block's total by way of bar.red, and a partial barrier among half of the warps.
__global__ void barriers(const int* x, int* y) {
    __shared__ int half[64];
    const int i = threadIdx.x;
    const int odd = __syncthreads_count(x[i] & 1);
    const int any = __syncthreads_or(x[i] == 7), all = __syncthreads_and(x[i] >= 0);
    if (i < 64) {
        half[i] = x[i];
        asm volatile("bar.sync 1, 64;" ::: "memory");
        y[i] = half[63 - i] + 1000 * odd + 100000 * any + 200000 * all;
    } else {
        y[i] = odd;
    }
}

// The last block sums what the others left: needs all of them together.
__global__ void last_block(const int* x, int* y, unsigned* done) {
    y[1 + blockIdx.x] = x[blockIdx.x];
    __threadfence();
    atomicInc(done, gridDim.x);
    while (*(volatile unsigned*)done != gridDim.x) {
    }
    if (blockIdx.x == 0) {
        int sum = 0;
        for (int k = 0; k < gridDim.x; ++k) sum += ((volatile int*)y)[1 + k];
        y[0] = sum;
    }
}

// Reads its row three times over.
__global__ void passes(const float* x, float* y, int n) {
    float most = -1e30f, sum = 0;
    const float* row = x + static_cast<size_t>(blockIdx.x) * n;
    for (int k = threadIdx.x; k < n; k += 32) most = fmaxf(most, row[k]);
    for (int by = 16; by > 0; by /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, by));
    for (int k = threadIdx.x; k < n; k += 32) sum += row[k] - most;
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffff, sum, by);
    for (int k = threadIdx.x; k < n; k += 32) y[static_cast<size_t>(blockIdx.x) * n + k] = row[k] / sum;
}

__global__ void stuck(int* y) {
    if (threadIdx.x < 32) __syncthreads();
    if (threadIdx.x >= 32) asm volatile("bar.sync 1, 64;" ::: "memory");
    y[threadIdx.x] = 1;
}
}
