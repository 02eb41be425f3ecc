// Arrays, and what is known of them.
#include "arrays.h"

using namespace cudart;

namespace {

cudaError_t make(cudaArray_t* made, const cudaChannelFormatDesc* format, cudaExtent extent, unsigned flags) {
    return call([&] {
        if (!made || !format || extent.width == 0) return cudaErrorInvalidValue;
        auto array = std::make_unique<cudaArray>(cudaArray{*format, extent, flags, nullptr});
        if (array->element() == 0) return cudaErrorInvalidChannelDescriptor;
        const size_t bytes = array->row() * array->rows() * array->layers();
        array->data = static_cast<char*>(runtime().heap->allocate(bytes, capture::Memory::array));
        if (!array->data) return cudaErrorMemoryAllocation;
        *made = array.release();
        return cudaSuccess;
    });
}

}  // namespace

extern "C" {

cudaError_t cudaMallocArray(cudaArray_t* made, const cudaChannelFormatDesc* format, size_t width, size_t height, unsigned flags) {
    return make(made, format, {width, height, 0}, flags);
}

cudaError_t cudaMalloc3DArray(cudaArray_t* made, const cudaChannelFormatDesc* format, cudaExtent extent, unsigned flags) {
    return make(made, format, extent, flags);
}

cudaError_t cudaFreeArray(cudaArray_t array) {
    return call([&] {
        if (!array) return cudaSuccess;
        runtime().heap->release(array->data);
        delete array;
        return cudaSuccess;
    });
}

cudaError_t cudaArrayGetInfo(cudaChannelFormatDesc* format, cudaExtent* extent, unsigned* flags, cudaArray_t array) {
    return call([&] {
        if (!array) return cudaErrorInvalidResourceHandle;
        if (format) *format = array->format;
        if (extent) *extent = array->extent;
        if (flags) *flags = array->flags;
        return cudaSuccess;
    });
}

cudaError_t cudaGetChannelDesc(cudaChannelFormatDesc* format, cudaArray_const_t array) {
    return call([&] {
        if (!array || !format) return cudaErrorInvalidValue;
        *format = array->format;
        return cudaSuccess;
    });
}

cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) { return {x, y, z, w, kind}; }

}  // extern "C"
