// Atomics and shuffles of PyTorch's Atomic.cuh and DeviceUtils.cuh.
template <class T> __device__ T gpuAtomicAdd(T* address, T value) { return atomicAdd(address, value); }
inline __device__ c10::Half gpuAtomicAdd(c10::Half* address, c10::Half value) {
    return c10::Half(atomicAdd(reinterpret_cast<__half*>(address), static_cast<__half>(value)));
}
template <class T> __device__ void gpuAtomicAddNoReturn(T* address, T value) { gpuAtomicAdd(address, value); }
template <class T> __device__ T WARP_SHFL(T value, int lane, int width = 32, unsigned mask = 0xffffffff) {
    return __shfl_sync(mask, value, lane, width);
}
template <class T> __device__ T WARP_SHFL_XOR(T value, int lanes, int width = 32, unsigned mask = 0xffffffff) {
    return __shfl_xor_sync(mask, value, lanes, width);
}
template <class T> __device__ T WARP_SHFL_UP(T value, unsigned delta, int width = 32, unsigned mask = 0xffffffff) {
    return __shfl_up_sync(mask, value, delta, width);
}
template <class T> __device__ T WARP_SHFL_DOWN(T value, unsigned delta, int width = 32, unsigned mask = 0xffffffff) {
    return __shfl_down_sync(mask, value, delta, width);
}
