// The device: an H100 (SXM, 80 GB), of which there is one.
#include "state.h"

using namespace cudart;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    return call([&] {
        *count = 1;
        return cudaSuccess;
    });
}

cudaError_t cudaSetDevice(int device) {
    return call([&] { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; });
}

cudaError_t cudaGetDevice(int* device) {
    return call([&] {
        *device = 0;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceSynchronize() {
    return call([&] {
        note_wait(nullptr);
        return cudaSuccess;
    });
}

}  // extern "C"
