// Kernels over an image of int32 pixels from 0 to 255, row by row; at its borders the nearest pixel goes on.
__device__ __forceinline__ int nearest(const int* image, int x, int y, int width, int height) {
    x = x < 0 ? 0 : x >= width ? width - 1 : x;
    y = y < 0 ? 0 : y >= height ? height - 1 : y;
    return image[y * width + x];
}

// A binomial window of 3 x 3; a thread for each pixel.
extern "C" __global__ void smooth(const int* photo, int* smoothed, int width, int height) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    int sum = 0;
    for (int dy = -1; dy <= 1; ++dy)
        for (int dx = -1; dx <= 1; ++dx)
            sum += (dx ? 1 : 2) * (dy ? 1 : 2) * nearest(photo, x + dx, y + dy, width, height);
    smoothed[y * width + x] = sum / 16;
}

// The differences of a pixel's neighbours, across and down, added up without their signs.
extern "C" __global__ void find_edges(const int* photo, int* edges, int width, int height) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const int across = nearest(photo, x + 1, y, width, height) - nearest(photo, x - 1, y, width, height);
    const int down = nearest(photo, x, y + 1, width, height) - nearest(photo, x, y - 1, width, height);
    edges[y * width + x] = (across < 0 ? -across : across) + (down < 0 ? -down : down);
}

// A histogram of each row by itself; a block for each row.
extern "C" __global__ void count(const int* photo, int* partial, int width, int bins) {
    extern __shared__ int counts[];
    for (int bin = threadIdx.x; bin < bins; bin += blockDim.x) counts[bin] = 0;
    __syncthreads();
    for (int x = threadIdx.x; x < width; x += blockDim.x)
        atomicAdd(&counts[photo[blockIdx.x * width + x] * bins / 256], 1);
    __syncthreads();
    for (int bin = threadIdx.x; bin < bins; bin += blockDim.x) partial[blockIdx.x * bins + bin] = counts[bin];
}
