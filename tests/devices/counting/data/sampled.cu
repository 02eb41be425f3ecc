// Kernels whose blocks are unlike, or share what they read; sampled.ptx is what nvcc makes of this:
//     nvcc -ptx -arch=sm_90 -lineinfo -o sampled.ptx sampled.cu
extern "C" {
// A block reads as many elements as its index says.
__global__ void triangle(const float* x, float* y) {
    float sum = 0;
    for (unsigned k = threadIdx.x; k < 32 * (blockIdx.x / 4 + 1); k += 32) sum += x[k];
    y[blockIdx.x * 32 + threadIdx.x] = sum;
}

// 5 points, nothing beyond the edges; 32 x 4 threads.
__global__ void image(const float* x, float* y, int width, int height) {
    const int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 4 + threadIdx.y;
    if (column >= width || row >= height) return;
    const float* at = x + row * width + column;
    float sum = *at;
    if (column > 0) sum += at[-1];
    if (column + 1 < width) sum += at[1];
    if (row > 0) sum += at[-width];
    if (row + 1 < height) sum += at[width];
    y[row * width + column] = sum;
}

// Tiles of 16 x 16; n a multiple of 16.
__global__ void product(const float* a, const float* b, float* c, int n) {
    __shared__ float left[16][16], right[16][16];
    const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        left[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int j = 0; j < 16; ++j) sum += left[threadIdx.y][j] * right[j][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

// Every block reads all of the vector.
__global__ void vector(const float* x, const float* v, float* y, int n) {
    float sum = 0;
    for (int k = threadIdx.x; k < n; k += 32) sum += x[blockIdx.x * n + k] * v[k];
    y[blockIdx.x * 32 + threadIdx.x] = sum;
}

// Goes by what it reads, and by what other blocks wrote.
__global__ void gather(const int* index, const float* x, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[index[i]];
}
__global__ void last(const float* x, float* y, unsigned* done) {
    y[blockIdx.x * 32 + threadIdx.x] = x[blockIdx.x * 32 + threadIdx.x];
    __shared__ bool mine;
    if (threadIdx.x == 0) mine = atomicInc(done, gridDim.x) == gridDim.x - 1;
    __syncthreads();
    if (mine) y[threadIdx.x] = 0;
}
}
