// A reduction as the samples write it: template on the block size, several loads a thread, an unrolled last warp, and a
// struct that stands for the dynamic shared array of any type.
template <class T> struct SharedMemory {
    __device__ inline operator T*() { extern __shared__ int __smem[]; return (T*)__smem; }
    __device__ inline operator const T*() const { extern __shared__ int __smem[]; return (T*)__smem; }
};
template <> struct SharedMemory<double> {
    __device__ inline operator double*() { extern __shared__ double __smem_d[]; return (double*)__smem_d; }
    __device__ inline operator const double*() const { extern __shared__ double __smem_d[]; return (double*)__smem_d; }
};
template <class T, unsigned int blockSize> __device__ void warpReduce(volatile T* sdata, unsigned int tid)
{
    if (blockSize >= 64) { sdata[tid] += sdata[tid + 32]; __syncwarp(); }
    if (blockSize >= 32) { T v = sdata[tid + 16]; __syncwarp(); sdata[tid] += v; __syncwarp(); }
    if (blockSize >= 16) { T v = sdata[tid + 8]; __syncwarp(); sdata[tid] += v; __syncwarp(); }
    if (blockSize >= 8) { T v = sdata[tid + 4]; __syncwarp(); sdata[tid] += v; __syncwarp(); }
    if (blockSize >= 4) { T v = sdata[tid + 2]; __syncwarp(); sdata[tid] += v; __syncwarp(); }
    if (blockSize >= 2) { T v = sdata[tid + 1]; __syncwarp(); sdata[tid] += v; __syncwarp(); }
}
template <class T, unsigned int blockSize, bool nIsPow2>
__global__ void reduce6(T* g_idata, T* g_odata, unsigned int n)
{
    T* sdata = SharedMemory<T>();
    unsigned int tid = threadIdx.x;
    unsigned int i = blockIdx.x * blockSize * 2 + threadIdx.x;
    unsigned int gridSize = blockSize * 2 * gridDim.x;
    T mySum = 0;
    while (i < n) {
        mySum += g_idata[i];
        if (nIsPow2 || i + blockSize < n) mySum += g_idata[i + blockSize];
        i += gridSize;
    }
    sdata[tid] = mySum;
    __syncthreads();
    if (blockSize >= 512) { if (tid < 256) { sdata[tid] = mySum = mySum + sdata[tid + 256]; } __syncthreads(); }
    if (blockSize >= 256) { if (tid < 128) { sdata[tid] = mySum = mySum + sdata[tid + 128]; } __syncthreads(); }
    if (blockSize >= 128) { if (tid < 64) { sdata[tid] = mySum = mySum + sdata[tid + 64]; } __syncthreads(); }
    if (tid < 32) warpReduce<T, blockSize>(sdata, tid);
    if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}
