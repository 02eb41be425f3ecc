// What of the CUDA driver's interface is used here, as cuda.h of CUDA 13.0 has it: no toolkit is needed to build this.
// tests/cuda/capture/test_watcher.py compares it with a cuda.h where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace watcher {

using Result = int;
using Address = uint64_t;
using Handle = void*;  // of a context, a stream, a module, a function, ...

constexpr Result OK = 0, NOT_FOUND = 500;

inline const Handle PER_THREAD_STREAM = reinterpret_cast<Handle>(2);

enum FunctionAttribute { SHARED_BYTES = 1, LOCAL_BYTES = 3, REGISTERS = 4, CLUSTER_WIDTH = 11 };  // height and depth after it
enum LaunchAttributeId { COOPERATIVE = 2, CLUSTER_DIMENSION = 4 };
enum MemoryType { HOST = 1, DEVICE = 2, ARRAY = 3, UNIFIED = 4 };
enum NodeType { KERNEL_NODE = 0, COPY_NODE = 1, FILL_NODE = 2, CHILD_GRAPH_NODE = 4, CONDITIONAL_NODE = 13 };
enum DriverLinkInput { LINK_PTX = 1 };
enum LinkInput { OTHER_INPUT = 0, PTX_INPUT = 2, LTO_INPUT = 3 };  // as nvJitLink numbers them
enum CaptureMode { RELAXED = 2 };
enum ProcAddressFlags { PER_THREAD_DEFAULT_STREAM = 2 };

union LaunchAttributeValue {
    char bytes[64];
    int cooperative;
    unsigned cluster[3];
};

struct LaunchAttribute {
    int id;
    char pad[4];
    LaunchAttributeValue value;
};

struct LaunchConfig {
    unsigned grid[3], block[3], shared_bytes;
    Handle stream;
    LaunchAttribute* attributes;
    unsigned attribute_count;
};

struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS_v2; before CUDA 12 without the last two
    Handle function;
    unsigned grid[3], block[3], shared_bytes;
    void **parameters, **extra;
    Handle kernel, context;
};

struct FillNode {  // CUDA_MEMSET_NODE_PARAMS
    Address to;
    size_t pitch;
    unsigned value, element_bytes;
    size_t width, height;
};

struct Copy2D {  // CUDA_MEMCPY2D
    size_t source_x, source_y;
    int source_type;
    const void* source_host;
    Address source_device;
    Handle source_array;
    size_t source_pitch, target_x, target_y;
    int target_type;
    void* target_host;
    Address target_device;
    Handle target_array;
    size_t target_pitch, width_bytes, height;
};

struct Copy3D {  // CUDA_MEMCPY3D
    size_t source_x, source_y, source_z, source_lod;
    int source_type;
    const void* source_host;
    Address source_device;
    Handle source_array;
    void* reserved0;
    size_t source_pitch, source_height, target_x, target_y, target_z, target_lod;
    int target_type;
    void* target_host;
    Address target_device;
    Handle target_array;
    void* reserved1;
    size_t target_pitch, target_height, width_bytes, height, depth;
};

}  // namespace watcher
