// Memory: plain, in stream order and from pools, pinned, registered, managed, pitched; and what a pointer points to.
#include "state.h"

#include <cstdlib>
#include <sys/mman.h>

// Pools do not keep anything: all of them give from the heap.
struct CUmemPoolHandle_st {
    std::map<int, uint64_t> attributes;
};

namespace cudart {
namespace {

constexpr size_t PITCH = 512, PAGE = 4096;

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

// Memory of the program's own that it has registered: its pages have become pages of the heap, which the service sees at
// another address.
struct Registered {
    char* host;
    size_t bytes;
    char *first, *device;  // of the pages
    size_t pages_bytes;
    unsigned flags;
};

std::map<uint64_t, Registered>& registered() {
    static auto* const all = new std::map<uint64_t, Registered>();
    return *all;
}

const Registered* registered_at(const void* pointer) {
    auto after = registered().upper_bound(reinterpret_cast<uint64_t>(pointer));
    if (after == registered().begin()) return nullptr;
    const Registered& found = std::prev(after)->second;
    return static_cast<const char*>(pointer) < found.host + found.bytes ? &found : nullptr;
}

cudaError_t enrol(void* pointer, size_t bytes, unsigned flags) {
    if (!pointer || bytes == 0) return cudaErrorInvalidValue;
    if (registered_at(pointer)) return cudaErrorHostMemoryAlreadyRegistered;
    const auto at = reinterpret_cast<uint64_t>(pointer), first = at / PAGE * PAGE;
    const size_t length = (at + bytes + PAGE - 1) / PAGE * PAGE - first;
    Heap& heap = *runtime().heap;
    auto device = static_cast<char*>(heap.allocate(length, capture::Memory::pinned, flags, PAGE));
    if (!device) return cudaErrorMemoryAllocation;
    auto pages = reinterpret_cast<char*>(first);
    memcpy(device, pages, length);
    void* there = mmap(pages, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, heap.file(),
                       reinterpret_cast<uint64_t>(device) - heap.begin());
    if (there == MAP_FAILED) {
        heap.release(device);
        return cudaErrorInvalidValue;
    }
    registered()[at] = {static_cast<char*>(pointer), bytes, pages, device, length, flags};
    return cudaSuccess;
}

cudaError_t dismiss(void* pointer) {
    auto found = registered().find(reinterpret_cast<uint64_t>(pointer));
    if (found == registered().end()) return cudaErrorHostMemoryNotRegistered;
    const Registered& known = found->second;
    void* there = mmap(known.first, known.pages_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (there != MAP_FAILED) memcpy(known.first, known.device, known.pages_bytes);
    runtime().heap->release(known.device);
    registered().erase(found);
    return cudaSuccess;
}

cudaMemPool_t pool() {
    static auto* const one = new CUmemPoolHandle_st();
    return one;
}

cudaError_t give_pool(cudaMemPool_t* found) {
    return call([&] {
        if (!found) return cudaErrorInvalidValue;
        *found = pool();
        return cudaSuccess;
    });
}

cudaError_t nothing() {
    return call([] { return cudaSuccess; });
}

}  // namespace
}  // namespace cudart

using namespace cudart;

extern "C" {

// --- allocations ---

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    return call([&] { return allocate(pointer, bytes, capture::Memory::device); });
}

cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags) {
    return call([&] { return bytes ? allocate(pointer, bytes, capture::Memory::managed, flags) : cudaErrorInvalidValue; });
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
    return call([&] { return allocate(pointer, bytes, capture::Memory::pinned, flags); });
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault); }

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
    return call([&] {
        if (!pitch) return cudaErrorInvalidValue;
        *pitch = (width + PITCH - 1) / PITCH * PITCH;
        return allocate(pointer, *pitch * height, capture::Memory::device);
    });
}

cudaError_t cudaMalloc3D(cudaPitchedPtr* made, cudaExtent extent) {
    return call([&] {
        if (!made) return cudaErrorInvalidValue;
        made->pitch = (extent.width + PITCH - 1) / PITCH * PITCH;
        made->xsize = extent.width, made->ysize = extent.height;
        return allocate(&made->ptr, made->pitch * extent.height * extent.depth, capture::Memory::device);
    });
}

cudaError_t cudaFree(void* pointer) {
    return call([&] { return release(pointer); });
}

cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }

// In a graph the memory stays where it is, from launch to launch.
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
    return call([&] {
        cudaError_t found = allocate(pointer, bytes, capture::Memory::device);
        if (found == cudaSuccess && capturing(stream)) in_order(stream, cudaGraphNodeTypeMemAlloc, [] { return cudaSuccess; });
        return found;
    });
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t, cudaStream_t stream) {
    return cudaMallocAsync(pointer, bytes, stream);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
    return call([&] {
        if (capturing(stream)) return in_order(stream, cudaGraphNodeTypeMemFree, [] { return cudaSuccess; });
        return release(pointer);
    });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    return call([&] {
        if (free) *free = runtime().device_bytes - runtime().heap->used();
        if (total) *total = runtime().device_bytes;
        return cudaSuccess;
    });
}

// --- of the host ---

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
    return call([&] { return enrol(pointer, bytes, flags); });
}

cudaError_t cudaHostUnregister(void* pointer) {
    return call([&] { return dismiss(pointer); });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
    return call([&] {
        if (!device) return cudaErrorInvalidValue;
        if (const Registered* known = registered_at(host)) {
            *device = known->device + (static_cast<char*>(host) - known->first);
            return cudaSuccess;
        }
        const Allocation* found = runtime().heap->find(host);
        if (!found || found->kind != capture::Memory::pinned) return cudaErrorInvalidValue;
        *device = host;
        return cudaSuccess;
    });
}

cudaError_t cudaHostGetFlags(unsigned* flags, void* host) {
    return call([&] {
        if (!flags) return cudaErrorInvalidValue;
        const Registered* known = registered_at(host);
        const Allocation* found = runtime().heap->find(host);
        if (!known && (!found || found->kind != capture::Memory::pinned)) return cudaErrorInvalidValue;
        *flags = known ? known->flags : found->flags;
        return cudaSuccess;
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* pointer) {
    return call([&] {
        if (!found) return cudaErrorInvalidValue;
        *found = {};
        found->type = cudaMemoryTypeUnregistered;
        if (const Registered* known = registered_at(pointer)) {
            found->type = cudaMemoryTypeHost;
            found->hostPointer = const_cast<void*>(pointer);
            found->devicePointer = known->device + (static_cast<const char*>(pointer) - known->first);
        } else if (const Allocation* memory = runtime().heap->find(pointer)) {
            const bool pinned = memory->kind == capture::Memory::pinned, managed = memory->kind == capture::Memory::managed;
            found->type = pinned ? cudaMemoryTypeHost : managed ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
            found->devicePointer = const_cast<void*>(pointer);
            if (pinned || managed) found->hostPointer = found->devicePointer;
        } else {
            found->device = -2;
        }
        return cudaSuccess;
    });
}

// --- hints, which change nothing ---

#if CUDART_VERSION >= 13000
cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) { return nothing(); }
cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) { return nothing(); }
cudaError_t cudaMemPrefetchBatchAsync(void**, size_t*, size_t, cudaMemLocation*, size_t*, size_t, unsigned long long, cudaStream_t) {
    return nothing();
}
#else
cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int) { return nothing(); }
cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t) { return nothing(); }
#endif
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void*, size_t, unsigned) { return nothing(); }

// --- pools ---

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* found, int) { return give_pool(found); }
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* found, int) { return give_pool(found); }
cudaError_t cudaDeviceSetMemPool(int, cudaMemPool_t) { return nothing(); }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return nothing(); }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return nothing(); }

cudaError_t cudaMemPoolCreate(cudaMemPool_t* made, const cudaMemPoolProps*) {
    return call([&] {
        if (!made) return cudaErrorInvalidValue;
        *made = new CUmemPoolHandle_st();
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t gone) {
    return call([&] {
        if (!gone || gone == pool()) return cudaErrorInvalidValue;
        delete gone;
        return cudaSuccess;
    });
}

// Of 4 bytes up to the one that is named first, of 8 from there on.
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t of, cudaMemPoolAttr which, void* value) {
    return call([&] {
        if (!of || !value) return cudaErrorInvalidValue;
        memcpy(&of->attributes[which], value, which < cudaMemPoolAttrReleaseThreshold ? 4 : 8);
        return cudaSuccess;
    });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t of, cudaMemPoolAttr which, void* value) {
    return call([&] {
        if (!of || !value) return cudaErrorInvalidValue;
        uint64_t found = of->attributes[which];
        const bool used = which == cudaMemPoolAttrUsedMemCurrent || which == cudaMemPoolAttrReservedMemCurrent;
        if (used) found = runtime().heap->used();
        memcpy(value, &found, which < cudaMemPoolAttrReleaseThreshold ? 4 : 8);
        return cudaSuccess;
    });
}

}  // extern "C"
