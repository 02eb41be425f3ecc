// Copies and fills.
#include "state.h"

namespace cudart {
namespace {

// Whether so many bytes are there: all of them in one allocation where the address is the device's.
bool there(const void* pointer, size_t bytes) {
    const Heap& heap = *runtime().heap;
    if (!heap.inside(pointer)) {
        const Allocation* variable = heap.find(pointer);
        return !variable || reinterpret_cast<uint64_t>(pointer) + bytes <= variable->begin + variable->bytes;
    }
    const Allocation* found = heap.find(pointer);
    return found && reinterpret_cast<uint64_t>(pointer) + bytes <= found->begin + found->bytes;
}

bool of_device(const void* pointer) { return runtime().heap->find(pointer) != nullptr; }

cudaError_t checked(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    if (!to || !from || !there(to, bytes) || !there(from, bytes)) return cudaErrorInvalidValue;
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if ((to_device && !of_device(to)) || (from_device && !of_device(from))) return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (bytes == 0) return cudaSuccess;
    if (cudaError_t problem = checked(to, from, bytes, kind)) return problem;
    return in_order(stream, [=] {
        note_copy(to, from, bytes, stream);
        memmove(to, from, bytes);
        return cudaSuccess;
    });
}

cudaError_t fill(void* to, int value, size_t bytes, cudaStream_t stream) {
    if (bytes == 0) return cudaSuccess;
    if (!to || !of_device(to) || !there(to, bytes)) return cudaErrorInvalidValue;
    return in_order(stream, [=] {
        note_fill(to, bytes, stream, value, 1);
        memset(to, value, bytes);
        return cudaSuccess;
    });
}

}  // namespace
}  // namespace cudart

using namespace cudart;

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return call([&] { return copy(to, from, bytes, kind, nullptr); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return call([&] { return copy(to, from, bytes, kind, stream); });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
    return call([&] { return copy(to, from, bytes, cudaMemcpyDefault, stream); });
}

cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) {
    return call([&] { return copy(to, from, bytes, cudaMemcpyDefault, nullptr); });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    return call([&] { return fill(to, value, bytes, nullptr); });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
    return call([&] { return fill(to, value, bytes, stream); });
}

}  // extern "C"
