// Arrays: their elements lie row behind row, layer behind layer.
#pragma once

#include "state.h"

struct cudaArray {
    cudaChannelFormatDesc format;
    cudaExtent extent;  // in elements; 0: it has not that dimension
    unsigned flags;
    char* data;

    size_t element() const { return size_t(format.x + format.y + format.z + format.w) / 8; }
    size_t row() const { return extent.width * element(); }
    size_t rows() const { return std::max<size_t>(extent.height, 1); }
    size_t layers() const { return std::max<size_t>(extent.depth, 1); }
};
