// The structs of watcher/driver.h as cuda.h has them.

#include <cuda.h>

#include "../../../../fusiond/cuda/capture/runtime/watcher/driver.h"

#define SAME(ours, field, theirs, name) \
    static_assert(offsetof(watcher::ours, field) == offsetof(theirs, name) && sizeof(watcher::ours::field) >= sizeof(theirs::name))
#define WHOLE(ours, theirs) static_assert(sizeof(watcher::ours) == sizeof(theirs))
WHOLE(LaunchAttribute, CUlaunchAttribute);
SAME(LaunchAttribute, value, CUlaunchAttribute, value);
WHOLE(LaunchConfig, CUlaunchConfig);
SAME(LaunchConfig, block, CUlaunchConfig, blockDimX);
SAME(LaunchConfig, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME(LaunchConfig, stream, CUlaunchConfig, hStream);
SAME(LaunchConfig, attributes, CUlaunchConfig, attrs);
SAME(LaunchConfig, attribute_count, CUlaunchConfig, numAttrs);
WHOLE(KernelNode, CUDA_KERNEL_NODE_PARAMS_v2);
SAME(KernelNode, grid, CUDA_KERNEL_NODE_PARAMS_v2, gridDimX);
SAME(KernelNode, parameters, CUDA_KERNEL_NODE_PARAMS_v2, kernelParams);
SAME(KernelNode, extra, CUDA_KERNEL_NODE_PARAMS_v2, extra);
SAME(KernelNode, kernel, CUDA_KERNEL_NODE_PARAMS_v2, kern);
WHOLE(FillNode, CUDA_MEMSET_NODE_PARAMS);
SAME(FillNode, value, CUDA_MEMSET_NODE_PARAMS, value);
SAME(FillNode, element_bytes, CUDA_MEMSET_NODE_PARAMS, elementSize);
SAME(FillNode, width, CUDA_MEMSET_NODE_PARAMS, width);
WHOLE(Copy2D, CUDA_MEMCPY2D);
SAME(Copy2D, source_host, CUDA_MEMCPY2D, srcHost);
SAME(Copy2D, target_type, CUDA_MEMCPY2D, dstMemoryType);
SAME(Copy2D, target_pitch, CUDA_MEMCPY2D, dstPitch);
SAME(Copy2D, height, CUDA_MEMCPY2D, Height);
WHOLE(Copy3D, CUDA_MEMCPY3D);
SAME(Copy3D, source_pitch, CUDA_MEMCPY3D, srcPitch);
SAME(Copy3D, target_type, CUDA_MEMCPY3D, dstMemoryType);
SAME(Copy3D, target_height, CUDA_MEMCPY3D, dstHeight);
SAME(Copy3D, depth, CUDA_MEMCPY3D, Depth);
static_assert(int(watcher::SHARED_BYTES) == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
static_assert(int(watcher::LOCAL_BYTES) == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
static_assert(int(watcher::REGISTERS) == CU_FUNC_ATTRIBUTE_NUM_REGS);
static_assert(int(watcher::CLUSTER_WIDTH) == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
static_assert(int(watcher::CLUSTER_WIDTH) + 2 == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
static_assert(int(watcher::COOPERATIVE) == CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
static_assert(int(watcher::CLUSTER_DIMENSION) == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
static_assert(int(watcher::UNIFIED) == CU_MEMORYTYPE_UNIFIED && int(watcher::HOST) == CU_MEMORYTYPE_HOST);
static_assert(int(watcher::CHILD_GRAPH_NODE) == CU_GRAPH_NODE_TYPE_GRAPH);
static_assert(int(watcher::CONDITIONAL_NODE) == CU_GRAPH_NODE_TYPE_CONDITIONAL);
static_assert(int(watcher::LINK_PTX) == CU_JIT_INPUT_PTX);
static_assert(int(watcher::RELAXED) == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(int(watcher::PER_THREAD_DEFAULT_STREAM) == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
static_assert(watcher::OK == CUDA_SUCCESS && watcher::NOT_FOUND == CUDA_ERROR_NOT_FOUND);
