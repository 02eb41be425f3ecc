// Copies and fills: of bytes in a row, and of boxes (rows and layers of them) in pitched memory and arrays.
#include "arrays.h"

namespace cudart {
namespace {

// A box in memory: its first byte, and how far its rows and layers lie apart.
struct Box {
    char* begin;
    size_t row, layer;

    char* at(size_t y, size_t z) const { return begin + z * layer + y * row; }
};

struct Size {
    size_t width, height, depth;  // in bytes, rows, layers

    size_t bytes() const { return width * height * depth; }
};

// Whether so many bytes are there: all of them in one allocation where the address is the device's.
bool there(const void* pointer, size_t bytes) {
    const Heap& heap = *runtime().heap;
    const Allocation* found = heap.find(pointer);
    if (!found) return !heap.inside(pointer);
    return reinterpret_cast<uint64_t>(pointer) + bytes <= found->begin + found->bytes;
}

bool there(const Box& box, const Size& size) {
    return there(box.begin, size_t(box.at(size.height - 1, size.depth - 1) - box.begin) + size.width);
}

bool of_device(const void* pointer) { return runtime().heap->find(pointer) != nullptr; }

cudaError_t wrong_way(const void* to, const void* from, cudaMemcpyKind kind) {
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    if (!to || !from) return cudaErrorInvalidValue;
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return (to_device && !of_device(to)) || (from_device && !of_device(from)) ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t copying(const Box& to, const Box& from, const Size& size, cudaMemcpyKind kind, cudaStream_t stream, Work& work) {
    work = [] { return cudaSuccess; };
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    if (size.bytes() == 0) return cudaSuccess;
    if (cudaError_t problem = wrong_way(to.begin, from.begin, kind)) return problem;
    if (!there(to, size) || !there(from, size)) return cudaErrorInvalidValue;
    work = [=] {
        note_copy(to.begin, from.begin, size.bytes(), stream);
        for (size_t z = 0; z < size.depth; ++z)
            for (size_t y = 0; y < size.height; ++y) memmove(to.at(y, z), from.at(y, z), size.width);
        return cudaSuccess;
    };
    return cudaSuccess;
}

cudaError_t copy(const Box& to, const Box& from, const Size& size, cudaMemcpyKind kind, cudaStream_t stream) {
    return call([&] {
        Work work;
        cudaError_t problem = copying(to, from, size, kind, stream, work);
        if (problem != cudaSuccess || size.bytes() == 0) return problem;
        return in_order(stream, cudaGraphNodeTypeMemcpy, std::move(work));
    });
}

Box row(const void* pointer) { return {static_cast<char*>(const_cast<void*>(pointer)), 0, 0}; }
Box plane(const void* pointer, size_t pitch) { return {static_cast<char*>(const_cast<void*>(pointer)), pitch, 0}; }

// A place in an array: x in bytes, y in rows.
Box within(cudaArray_const_t array, size_t x, size_t y, size_t z = 0) {
    Box box = {array->data, array->row(), array->row() * array->rows()};
    box.begin = box.at(y, z) + x;
    return box;
}

cudaError_t copy_plane(const Box& to, const Box& from, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    if (height > 1 && ((to.row && to.row < width) || (from.row && from.row < width)))
        return call([] { return cudaErrorInvalidPitchValue; });
    return copy(to, from, {width, height, 1}, kind, stream);
}

void write(char* to, int value, unsigned element, size_t bytes) {
    if (element == 1) memset(to, value, bytes);
    else
        for (size_t at = 0; at + element <= bytes; at += element) memcpy(to + at, &value, element);
}

cudaError_t fill(const cudaPitchedPtr& to, int value, cudaExtent extent, cudaStream_t stream) {
    return call([&] {
        if (extent.width * extent.height * extent.depth == 0) return cudaSuccess;
        Work work;
        if (cudaError_t problem = fill_box(to, value, 1, extent, work, stream)) return problem;
        return in_order(stream, cudaGraphNodeTypeMemset, std::move(work));
    });
}

}  // namespace

cudaError_t fill_box(const cudaPitchedPtr& to, int value, unsigned element, cudaExtent extent, Work& work, cudaStream_t stream) {
    const size_t layer = to.pitch * (to.ysize ? to.ysize : extent.height);
    const Box box = {static_cast<char*>(to.ptr), to.pitch, layer};
    const Size size = {extent.width, extent.height, extent.depth};
    if (!to.ptr || !of_device(to.ptr) || !there(box, size)) return cudaErrorInvalidValue;
    work = [=] {
        note_fill(box.begin, size.bytes(), stream, value, element);
        for (size_t z = 0; z < size.depth; ++z)
            for (size_t y = 0; y < size.height; ++y) write(box.at(y, z), value, element, size.width);
        return cudaSuccess;
    };
    return cudaSuccess;
}

// Where an array takes part, positions and the width are in its elements.
cudaError_t copy_box(const cudaMemcpy3DParms& what, Work& work, cudaStream_t stream) {
    const size_t element = what.srcArray ? what.srcArray->element() : what.dstArray ? what.dstArray->element() : 1;
    const auto side = [&](cudaArray_t array, const cudaPitchedPtr& pointer, const cudaPos& at) {
        if (array) return within(array, at.x * element, at.y, at.z);
        Box box = {static_cast<char*>(pointer.ptr), pointer.pitch, pointer.pitch * pointer.ysize};
        box.begin = box.at(at.y, at.z) + at.x;
        return box;
    };
    const Size size = {what.extent.width * element, what.extent.height, what.extent.depth};
    return copying(side(what.dstArray, what.dstPtr, what.dstPos), side(what.srcArray, what.srcPtr, what.srcPos), size, what.kind, stream, work);
}

}  // namespace cudart

using namespace cudart;

extern "C" {

// --- in a row ---

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy(row(to), row(from), {bytes, 1, 1}, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return copy(row(to), row(from), {bytes, 1, 1}, kind, nullptr);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
    return copy(row(to), row(from), {bytes, 1, 1}, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t bytes) {
    return copy(row(to), row(from), {bytes, 1, 1}, cudaMemcpyDefault, nullptr);
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes, size_t count, cudaMemcpyAttributes*, size_t*,
                                 size_t, cudaStream_t stream) {
    for (size_t k = 0; k < count; ++k)
        if (cudaError_t problem = cudaMemcpyAsync(to[k], from[k], bytes[k], cudaMemcpyDefault, stream)) return problem;
    return cudaSuccess;
}
#endif

// --- in rows ---

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    if (width > to_pitch || width > from_pitch) return call([] { return cudaErrorInvalidPitchValue; });
    return copy_plane(plane(to, to_pitch), plane(from, from_pitch), width, height, kind, stream);
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind) {
    return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
}
cudaError_t cudaMemcpy2DToArrayAsync(cudaArray_t to, size_t x, size_t y, const void* from, size_t pitch, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy_plane(within(to, x, y), plane(from, pitch), width, height, kind, stream);
}
cudaError_t cudaMemcpy2DToArray(cudaArray_t to, size_t x, size_t y, const void* from, size_t pitch, size_t width, size_t height, cudaMemcpyKind kind) {
    return cudaMemcpy2DToArrayAsync(to, x, y, from, pitch, width, height, kind, nullptr);
}
cudaError_t cudaMemcpy2DFromArrayAsync(void* to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy_plane(plane(to, pitch), within(from, x, y), width, height, kind, stream);
}
cudaError_t cudaMemcpy2DFromArray(void* to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t width, size_t height, cudaMemcpyKind kind) {
    return cudaMemcpy2DFromArrayAsync(to, pitch, from, x, y, width, height, kind, nullptr);
}
cudaError_t cudaMemcpy2DArrayToArray(cudaArray_t to, size_t to_x, size_t to_y, cudaArray_const_t from, size_t x, size_t y, size_t width, size_t height, cudaMemcpyKind kind) {
    return copy_plane(within(to, to_x, to_y), within(from, x, y), width, height, kind, nullptr);
}

// Rows of an array lie one behind the other here, so that bytes in a row may go over several of them.
cudaError_t cudaMemcpyToArrayAsync(cudaArray_t to, size_t x, size_t y, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy(within(to, x, y), row(from), {bytes, 1, 1}, kind, stream);
}
cudaError_t cudaMemcpyToArray(cudaArray_t to, size_t x, size_t y, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyToArrayAsync(to, x, y, from, bytes, kind, nullptr);
}
cudaError_t cudaMemcpyFromArrayAsync(void* to, cudaArray_const_t from, size_t x, size_t y, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return copy(row(to), within(from, x, y), {bytes, 1, 1}, kind, stream);
}
cudaError_t cudaMemcpyFromArray(void* to, cudaArray_const_t from, size_t x, size_t y, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyFromArrayAsync(to, from, x, y, bytes, kind, nullptr);
}

// --- in layers ---

cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* what, cudaStream_t stream) {
    return call([&] {
        Work work;
        if (!what) return cudaErrorInvalidValue;
        if (cudaError_t problem = copy_box(*what, work, stream)) return problem;
        return in_order(stream, cudaGraphNodeTypeMemcpy, std::move(work));
    });
}
cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* what) { return cudaMemcpy3DAsync(what, nullptr); }

cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms* what, cudaStream_t stream) {
    if (!what) return call([] { return cudaErrorInvalidValue; });
    const cudaMemcpy3DParms same = {what->srcArray, what->srcPos, what->srcPtr, what->dstArray, what->dstPos, what->dstPtr, what->extent, cudaMemcpyDefault};
    return cudaMemcpy3DAsync(&same, stream);
}
cudaError_t cudaMemcpy3DPeer(const cudaMemcpy3DPeerParms* what) { return cudaMemcpy3DPeerAsync(what, nullptr); }

// --- fills ---

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) { return fill({to, bytes, 0, 0}, value, {bytes, 1, 1}, stream); }
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }
cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
    return fill({to, pitch, 0, 0}, value, {width, height, 1}, stream);
}
cudaError_t cudaMemset2D(void* to, size_t pitch, int value, size_t width, size_t height) { return cudaMemset2DAsync(to, pitch, value, width, height, nullptr); }
cudaError_t cudaMemset3DAsync(cudaPitchedPtr to, int value, cudaExtent extent, cudaStream_t stream) { return fill(to, value, extent, stream); }
cudaError_t cudaMemset3D(cudaPitchedPtr to, int value, cudaExtent extent) { return fill(to, value, extent, nullptr); }

}  // extern "C"
