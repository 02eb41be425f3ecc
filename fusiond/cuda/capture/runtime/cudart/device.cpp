// The device, of which there is one: what an H100 (SXM, 80 GB) says of itself, limits, and calls that set what has no
// effect here.
#include "state.h"

#include <cstdio>

using namespace cudart;

namespace {

constexpr const char* PCI = "0000:00:00.0";

const int ATTRIBUTES[][2] = {
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 2147483647},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, 48 * 1024},
    {cudaDevAttrTotalConstantMemory, 64 * 1024},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMaxPitch, 2147483647},
    {cudaDevAttrMaxRegistersPerBlock, 65536},
    {cudaDevAttrClockRate, 1980000},
    {cudaDevAttrTextureAlignment, 512},
    {cudaDevAttrGpuOverlap, 1},
    {cudaDevAttrMultiProcessorCount, 132},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrMaxTexture1DWidth, 131072},
    {cudaDevAttrMaxTexture2DWidth, 131072},
    {cudaDevAttrMaxTexture2DHeight, 65536},
    {cudaDevAttrMaxTexture3DWidth, 16384},
    {cudaDevAttrMaxTexture3DHeight, 16384},
    {cudaDevAttrMaxTexture3DDepth, 16384},
    {cudaDevAttrSurfaceAlignment, 512},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrEccEnabled, 1},
    {cudaDevAttrMemoryClockRate, 2619000},
    {cudaDevAttrGlobalMemoryBusWidth, 5120},
    {cudaDevAttrL2CacheSize, 50 * 1024 * 1024},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrAsyncEngineCount, 3},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrTexturePitchAlignment, 32},
    {cudaDevAttrMaxTexture1DLinearWidth, 268435456},
    {cudaDevAttrMaxTexture2DLinearWidth, 131072},
    {cudaDevAttrMaxTexture2DLinearHeight, 65000},
    {cudaDevAttrMaxTexture2DLinearPitch, 2097120},
    {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrGlobalL1CacheSupported, 1},
    {cudaDevAttrLocalL1CacheSupported, 1},
    {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 228 * 1024},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
    {cudaDevAttrManagedMemory, 1},
    {cudaDevAttrSingleToDoublePrecisionPerfRatio, 2},
    {cudaDevAttrConcurrentManagedAccess, 1},
    {cudaDevAttrComputePreemptionSupported, 1},
    {cudaDevAttrCooperativeLaunch, 1},
    {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 * 1024},
    {cudaDevAttrHostRegisterSupported, 1},
    {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
    {cudaDevAttrMaxPersistingL2CacheSize, 32 * 1024 * 1024},
    {cudaDevAttrMaxAccessPolicyWindowSize, 128 * 1024 * 1024},
    {cudaDevAttrReservedSharedMemoryPerBlock, 1024},
    {cudaDevAttrMemoryPoolsSupported, 1},
    {cudaDevAttrClusterLaunch, 1},
    {cudaDevAttrMemSyncDomainCount, 4},
};

int attribute(int which) {
    for (const auto& each : ATTRIBUTES)
        if (each[0] == which) return each[1];
    return 0;
}

void describe(cudaDeviceProp& found) {
    found = {};
    snprintf(found.name, sizeof found.name, "NVIDIA H100 80GB HBM3 (emulated by fusiond)");
    found.totalGlobalMem = runtime().device_bytes;
    found.major = attribute(cudaDevAttrComputeCapabilityMajor);
    found.sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
    found.regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock);
    found.warpSize = attribute(cudaDevAttrWarpSize);
    found.memPitch = attribute(cudaDevAttrMaxPitch);
    found.maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    for (int side = 0; side < 3; ++side) {
        found.maxThreadsDim[side] = attribute(cudaDevAttrMaxBlockDimX + side);
        found.maxGridSize[side] = attribute(cudaDevAttrMaxGridDimX + side);
        found.maxTexture3D[side] = attribute(cudaDevAttrMaxTexture3DWidth + side);
    }
    found.totalConstMem = attribute(cudaDevAttrTotalConstantMemory);
    found.textureAlignment = attribute(cudaDevAttrTextureAlignment);
    found.texturePitchAlignment = attribute(cudaDevAttrTexturePitchAlignment);
    found.surfaceAlignment = attribute(cudaDevAttrSurfaceAlignment);
    found.multiProcessorCount = attribute(cudaDevAttrMultiProcessorCount);
    found.canMapHostMemory = attribute(cudaDevAttrCanMapHostMemory);
    found.maxTexture1D = attribute(cudaDevAttrMaxTexture1DWidth);
    found.maxTexture2D[0] = attribute(cudaDevAttrMaxTexture2DWidth);
    found.maxTexture2D[1] = attribute(cudaDevAttrMaxTexture2DHeight);
    found.concurrentKernels = attribute(cudaDevAttrConcurrentKernels);
    found.ECCEnabled = attribute(cudaDevAttrEccEnabled);
    found.asyncEngineCount = attribute(cudaDevAttrAsyncEngineCount);
    found.unifiedAddressing = attribute(cudaDevAttrUnifiedAddressing);
    found.memoryBusWidth = attribute(cudaDevAttrGlobalMemoryBusWidth);
    found.l2CacheSize = attribute(cudaDevAttrL2CacheSize);
    found.persistingL2CacheMaxSize = attribute(cudaDevAttrMaxPersistingL2CacheSize);
    found.maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
    found.streamPrioritiesSupported = attribute(cudaDevAttrStreamPrioritiesSupported);
    found.globalL1CacheSupported = attribute(cudaDevAttrGlobalL1CacheSupported);
    found.localL1CacheSupported = attribute(cudaDevAttrLocalL1CacheSupported);
    found.sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    found.regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
    found.managedMemory = attribute(cudaDevAttrManagedMemory);
    found.concurrentManagedAccess = attribute(cudaDevAttrConcurrentManagedAccess);
    found.computePreemptionSupported = attribute(cudaDevAttrComputePreemptionSupported);
    found.cooperativeLaunch = attribute(cudaDevAttrCooperativeLaunch);
    found.sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    found.maxBlocksPerMultiProcessor = attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
    found.accessPolicyMaxWindowSize = attribute(cudaDevAttrMaxAccessPolicyWindowSize);
    found.reservedSharedMemPerBlock = attribute(cudaDevAttrReservedSharedMemoryPerBlock);
    found.hostRegisterSupported = attribute(cudaDevAttrHostRegisterSupported);
    found.memoryPoolsSupported = attribute(cudaDevAttrMemoryPoolsSupported);
    found.clusterLaunch = attribute(cudaDevAttrClusterLaunch);
}

// The only device there is, else an error.
cudaError_t first(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }

template <class T>
cudaError_t give(T* to, T value) {
    return call([&] {
        if (!to) return cudaErrorInvalidValue;
        *to = value;
        return cudaSuccess;
    });
}

size_t& limit(cudaLimit which) {
    static std::map<int, size_t> known = {
        {cudaLimitStackSize, 1024},
        {cudaLimitPrintfFifoSize, 1 << 20},
        {cudaLimitMallocHeapSize, 8 << 20},
        {cudaLimitDevRuntimeSyncDepth, 2},
        {cudaLimitDevRuntimePendingLaunchCount, 2048},
        {cudaLimitMaxL2FetchGranularity, 64},
    };
    return known[which];
}

unsigned device_flags = cudaDeviceMapHost;
cudaFuncCache cache_configuration = cudaFuncCachePreferNone;

}  // namespace

extern "C" {

// --- which one ---

cudaError_t cudaGetDeviceCount(int* count) { return give(count, 1); }
cudaError_t cudaGetDevice(int* device) { return give(device, 0); }
cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp*) { return give(device, 0); }
cudaError_t cudaSetDevice(int device) {
    return call([&] { return first(device); });
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return cudaSetDevice(device); }
cudaError_t cudaSetValidDevices(int* devices, int count) {
    return call([&] { return count < 1 || !devices ? cudaErrorInvalidValue : first(devices[0]); });
}

// --- what it is ---

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device) {
    return call([&] {
        if (!found) return cudaErrorInvalidValue;
        if (device != 0) return cudaErrorInvalidDevice;
        describe(*found);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
    return call([&] {
        if (!value || which <= 0 || which >= cudaDevAttrMax) return cudaErrorInvalidValue;
        *value = attribute(which);
        return first(device);
    });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int room, int device) {
    return call([&] {
        if (!text || room < 13) return cudaErrorInvalidValue;
        snprintf(text, room, "%s", PCI);
        return first(device);
    });
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
    return call([&] {
        if (!device || !text) return cudaErrorInvalidValue;
        *device = 0;
        return std::string(text) == PCI ? cudaSuccess : cudaErrorInvalidDevice;
    });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return call([&] {
        if (least) *least = 0;
        if (greatest) *greatest = -5;
        return cudaSuccess;
    });
}

cudaError_t cudaRuntimeGetVersion(int* version) { return give(version, CUDART_VERSION); }
cudaError_t cudaDriverGetVersion(int* version) { return give(version, CUDART_VERSION); }

// --- others, of which there are none ---

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    return call([&] {
        if (!can) return cudaErrorInvalidValue;
        *can = 0;
        return first(device | peer);
    });
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
    return call([] { return cudaErrorInvalidDevice; });
}
cudaError_t cudaDeviceDisablePeerAccess(int) {
    return call([] { return cudaErrorInvalidDevice; });
}
cudaError_t cudaDeviceGetP2PAttribute(int*, cudaDeviceP2PAttr, int, int) {
    return call([] { return cudaErrorInvalidDevice; });
}

// --- what can be set ---

cudaError_t cudaDeviceSynchronize() {
    return call([] {
        if (capturing_anywhere()) return cudaErrorStreamCaptureUnsupported;
        note_wait(nullptr);
        return cudaSuccess;
    });
}

// What a program has allocated is gone, its modules' variables stay as they are.
cudaError_t cudaDeviceReset() {
    return call([] {
        Heap& heap = *runtime().heap;
        std::vector<void*> mine;
        for (const auto& [begin, each] : heap.all())
            if (heap.inside(reinterpret_cast<void*>(begin))) mine.push_back(reinterpret_cast<void*>(begin));
        for (void* each : mine) heap.release(each);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSetLimit(cudaLimit which, size_t value) {
    return call([&] {
        if (which > cudaLimitPersistingL2CacheSize) return cudaErrorUnsupportedLimit;
        limit(which) = value;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit which) {
    return call([&] {
        if (!value) return cudaErrorInvalidValue;
        if (which > cudaLimitPersistingL2CacheSize) return cudaErrorUnsupportedLimit;
        *value = limit(which);
        return cudaSuccess;
    });
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
    return call([&] {
        device_flags = flags | cudaDeviceMapHost;
        return cudaSuccess;
    });
}
cudaError_t cudaGetDeviceFlags(unsigned* flags) { return give(flags, device_flags); }

cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache wanted) {
    return call([&] {
        cache_configuration = wanted;
        return cudaSuccess;
    });
}
cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* found) { return give(found, cache_configuration); }
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) {
    return call([] { return cudaSuccess; });
}
cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* found) { return give(found, cudaSharedMemBankSizeFourByte); }
cudaError_t cudaCtxResetPersistingL2Cache() {
    return call([] { return cudaSuccess; });
}
cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget, cudaFlushGPUDirectRDMAWritesScope) {
    return call([] { return cudaSuccess; });
}
cudaError_t cudaProfilerStart() {
    return call([] { return cudaSuccess; });
}
cudaError_t cudaProfilerStop() {
    return call([] { return cudaSuccess; });
}

}  // extern "C"
