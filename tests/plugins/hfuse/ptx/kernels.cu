// Kernels for the fusion of PTX: each does something that a fused block has to keep apart.

__constant__ float weights[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__device__ int calls = 3;

// A static shared array, a tree of barriers.
extern "C" __global__ void __launch_bounds__(256) reduce(const float* x, float* y, int n)
{
    __shared__ float partial[256];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    partial[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = partial[0];
}

// Two dimensions, a tile with a border, blocks beyond the edge.
extern "C" __global__ void stencil(const float* x, float* y, int width, int height)
{
    __shared__ float tile[10][34];
    const int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
    for (int r = threadIdx.y; r < 10; r += blockDim.y)
        for (int c = threadIdx.x; c < 34; c += blockDim.x) {
            const int at = min(max(static_cast<int>(blockIdx.y) * 8 + r - 1, 0), height - 1);
            tile[r][c] = x[at * width + min(max(static_cast<int>(blockIdx.x) * 32 + c - 1, 0), width - 1)];
        }
    __syncthreads();
    if (column >= width || row >= height) return;
    const int r = threadIdx.y + 1, c = threadIdx.x + 1;
    y[row * width + column] = tile[r][c] + tile[r - 1][c] + tile[r + 1][c] + tile[r][c - 1] + tile[r][c + 1];
}

// Some threads leave before a barrier that the others reach; dynamic shared memory.
extern "C" __global__ void leavers(const int* x, int* y, int n)
{
    extern __shared__ int room[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    room[threadIdx.x] = 0;
    if (i >= n) return;
    room[threadIdx.x] = x[i];
    __syncthreads();
    const int next = (threadIdx.x + 1) % blockDim.x;
    y[i] = room[threadIdx.x] * 3 + room[next] + static_cast<int>(gridDim.x);
}

// A function of its own that sees the block, waits and has shared memory; a variable and constants of the module.
__noinline__ __device__ int rotated(int value, int by)
{
    __shared__ int slots[128];
    slots[threadIdx.x] = value;
    __syncthreads();
    const int found = slots[(threadIdx.x + by) % blockDim.x];
    __syncthreads();
    return found + static_cast<int>(blockIdx.x);
}

extern "C" __global__ void called(const int* x, int* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    int value = x[i];
    for (int k = 0; k < calls; ++k) value = rotated(value, k + 1);
    y[i] = value * static_cast<int>(weights[i % 8]);
}

// Producers and consumers that meet at barriers of their own.
extern "C" __global__ void named(const int* x, int* y)
{
    __shared__ int box[64];
    const int warp = threadIdx.x / 64, lane = threadIdx.x % 64, base = blockIdx.x * 64;
    for (int round = 0; round < 3; ++round) {
        if (warp == 0) {
            asm volatile("bar.sync 3, 128;" ::: "memory");
            box[lane] = x[base + lane] + round;
            asm volatile("bar.arrive 5, 128;" ::: "memory");
        } else {
            asm volatile("bar.arrive 3, 128;" ::: "memory");
            asm volatile("bar.sync 5, 128;" ::: "memory");
            y[base + lane] = (round ? y[base + lane] : 0) + box[63 - lane];
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) y[base] += 1000;
}

// Three dimensions of both, shuffles, a local array, atomics on the whole grid.
extern "C" __global__ void spread(const unsigned* x, unsigned* y, unsigned* total)
{
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned queue[8];
    for (int k = 0; k < 8; ++k) queue[k] = x[(block * 60 + thread + k) % 4096];
    unsigned value = queue[x[thread] % 8] + queue[block % 8];
    const int votes = __syncthreads_count(value & 1);
    value += __shfl_xor_sync(0xffffffffu, value, 5);
    y[block * blockDim.x * blockDim.y * blockDim.z + thread] = value + votes;
    if (thread == 0) atomicAdd(total, block + 1);
}

// Threads leave, others of their warp shuffle and then wait: only in blocks of its own.
extern "C" __global__ void gone(const int* x, int* y, int n)
{
    __shared__ int kept[128];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    kept[threadIdx.x] = 1;
    if (i >= n) return;
    const unsigned here = __activemask();
    int value = x[i] + __shfl_sync(here, x[i], 0);
    kept[threadIdx.x] = value;
    __syncthreads();
    y[i] = value + kept[threadIdx.x / 2];
}

// No block at all: one grid-stride loop.
extern "C" __global__ void scale(const double* x, double* y, long long n, double factor)
{
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] * factor;
}
