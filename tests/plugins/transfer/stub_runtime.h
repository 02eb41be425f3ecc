// Stands in for cuda_runtime.h, so that exported C++ runs without a GPU: device memory is memory, streams are done at
// once, a launch is a loop over its threads (of kernels without barriers). Waiting for an event that nobody recorded
// is an error, and so is touching memory after it was freed (it is filled with another pattern).
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>

#define CUDART_VERSION 13000
#define __global__
#define __device__
#define __forceinline__ inline

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

inline unsigned __float_as_uint(float value) { unsigned bits; std::memcpy(&bits, &value, 4); return bits; }
inline long long __double_as_longlong(double value) { long long bits; std::memcpy(&bits, &value, 8); return bits; }

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum { cudaEventDisableTiming, cudaMemcpySrcAccessOrderStream };
using cudaStream_t = int*;
using cudaEvent_t = bool*;
struct cudaMemcpyAttributes { int srcAccessOrder; };

namespace stub {
inline std::map<void*, std::size_t> live;
inline int copies = 0;
inline cudaError_t allocate(void** to, std::size_t size) {
    *to = std::malloc(size);
    std::memset(*to, 0xA5, size);
    live[*to] = size;
    return cudaSuccess;
}
inline cudaError_t release(void* of) {
    if (!live.count(of)) return cudaErrorInvalidValue;
    std::memset(of, 0xDD, live[of]);  // kept, so that whoever still reads it sees this
    live.erase(of);
    return cudaSuccess;
}
template <class Kernel> void launch(dim3 grid, dim3 block, Kernel kernel) {
    gridDim = grid;
    blockDim = block;
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
            for (threadIdx.y = 0; threadIdx.y < block.y; ++threadIdx.y)
                for (threadIdx.x = 0; threadIdx.x < block.x; ++threadIdx.x) kernel();
}
}  // namespace stub

inline cudaError_t cudaMalloc(void** to, std::size_t size) { return stub::allocate(to, size); }
inline cudaError_t cudaMallocHost(void** to, std::size_t size) { return stub::allocate(to, size); }
inline cudaError_t cudaMallocAsync(void** to, std::size_t size, cudaStream_t) { return stub::allocate(to, size); }
inline cudaError_t cudaFree(void* of) { return stub::release(of); }
inline cudaError_t cudaFreeHost(void* of) { return stub::release(of); }
inline cudaError_t cudaFreeAsync(void* of, cudaStream_t) { return stub::release(of); }
inline cudaError_t cudaMemcpyAsync(void* to, const void* of, std::size_t size, cudaMemcpyKind kind, cudaStream_t) {
    stub::copies += kind != cudaMemcpyHostToHost;
    std::memcpy(to, of, size);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyBatchAsync(const void** to, const void** of, const std::size_t* sizes, std::size_t count,
                                        cudaMemcpyAttributes*, std::size_t*, std::size_t, cudaStream_t) {
    stub::copies += 1;
    for (std::size_t i = 0; i < count; ++i) std::memcpy(const_cast<void*>(to[i]), of[i], sizes[i]);
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* to) { *to = new int(0); return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t of) { delete of; return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* to, int) { *to = new bool(false); return cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t of) { delete of; return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) { *event = true; return cudaSuccess; }
inline cudaError_t waited(cudaEvent_t event) { return *event ? cudaSuccess : cudaErrorInvalidValue; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) { return waited(event); }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, int) { return waited(event); }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
