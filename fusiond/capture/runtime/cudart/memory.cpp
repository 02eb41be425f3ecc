// Memory: plain, in stream order, pinned, managed, pitched; copies and fills of it in a row.
#include "state.h"

#include <cstdlib>

namespace cudart {
namespace {

constexpr size_t PITCH = 512;

cudaError_t allocate(void** pointer, size_t bytes, capture::Memory kind, unsigned flags = 0) {
    if (!pointer) return cudaErrorInvalidValue;
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    *pointer = runtime().heap->allocate(bytes, kind, flags);
    return *pointer ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t release(void* pointer) {
    if (!pointer) return cudaSuccess;
    return runtime().heap->release(pointer) ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace
}  // namespace cudart

using namespace cudart;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    return call([&] { return allocate(pointer, bytes, capture::Memory::device); });
}

cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags) {
    return call([&] { return bytes ? allocate(pointer, bytes, capture::Memory::managed, flags) : cudaErrorInvalidValue; });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
    return call([&] { return allocate(pointer, bytes, capture::Memory::pinned); });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
    return call([&] { return allocate(pointer, bytes, capture::Memory::pinned, flags); });
}

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
    return call([&] {
        *pitch = (width + PITCH - 1) / PITCH * PITCH;
        return allocate(pointer, *pitch * height, capture::Memory::device);
    });
}

cudaError_t cudaMalloc3D(cudaPitchedPtr* made, cudaExtent extent) {
    return call([&] {
        made->pitch = (extent.width + PITCH - 1) / PITCH * PITCH;
        made->xsize = extent.width, made->ysize = extent.height;
        return allocate(&made->ptr, made->pitch * extent.height * extent.depth, capture::Memory::device);
    });
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }

cudaError_t cudaFree(void* pointer) {
    return call([&] { return release(pointer); });
}

cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
    return call([&] { return in_order(stream, [pointer] { return release(pointer); }); });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    return call([&] {
        if (free) *free = runtime().device_bytes - runtime().heap->used();
        if (total) *total = runtime().device_bytes;
        return cudaSuccess;
    });
}

}  // extern "C"
