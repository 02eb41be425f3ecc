// Errors as the runtime's documentation has them. The last one stays: it is named on the command line.
#include "check.h"

#include <cassert>
#include <cstring>

__global__ void store(int* data, int at) { data[at] = 1; }

__global__ void stop(int how) {
    if (how == 1) __trap();
    assert(how != 2 && "two is too much");
}

__global__ void __launch_bounds__(128) few(int* data) { data[threadIdx.x] = 1; }

__global__ void big(int* data) {
    extern __shared__ int room[];
    room[threadIdx.x] = 1;
    data[threadIdx.x] = room[threadIdx.x];
}

static cudaError_t after() { return cudaGetLastError(); }

int main(int count, char** words) {
    int* data;
    CALL(cudaMalloc(&data, 1024 * sizeof(int)));
    store<<<0, 32>>>(data, 0);
    EXPECT(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
    EXPECT(after() == cudaErrorInvalidConfiguration);
    EXPECT(after() == cudaSuccess);
    store<<<1, 1025>>>(data, 0);
    EXPECT(after() == cudaErrorInvalidConfiguration);
    store<<<dim3(1, 65536), 32>>>(data, 0);
    EXPECT(after() == cudaErrorInvalidConfiguration);
    few<<<1, 256>>>(data);
    EXPECT(after() == cudaErrorLaunchOutOfResources);
    big<<<1, 256, 60000>>>(data);
    EXPECT(after() == cudaErrorInvalidValue);
    CALL(cudaFuncSetAttribute(big, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
    big<<<1, 256, 60000>>>(data);
    EXPECT(after() == cudaSuccess);
    EXPECT(cudaFuncSetAttribute(big, cudaFuncAttributeMaxDynamicSharedMemorySize, 300000) == cudaErrorInvalidValue);
    EXPECT(cudaMemcpy(data, words, 5000, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    EXPECT(cudaMemcpy(data, words, 8, static_cast<cudaMemcpyKind>(9)) == cudaErrorInvalidMemcpyDirection);
    EXPECT(cudaMemset(&data, 0, 4) == cudaErrorInvalidValue);
    EXPECT(cudaSetDevice(1) == cudaErrorInvalidDevice);
    EXPECT(std::strcmp(cudaGetErrorName(cudaErrorInvalidDevice), "cudaErrorInvalidDevice") == 0);
    EXPECT(std::strcmp(cudaGetErrorString(cudaErrorIllegalAddress), "an illegal memory access was encountered") == 0);
    after();
    CALL(cudaDeviceSynchronize());

    const char* last = count > 1 ? words[1] : "";
    cudaError_t wanted = cudaSuccess;
    if (!std::strcmp(last, "address")) store<<<1, 1>>>(data, 1 << 20), wanted = cudaErrorIllegalAddress;
    if (!std::strcmp(last, "freed")) cudaFree(data), store<<<1, 1>>>(data, 0), wanted = cudaErrorIllegalAddress;
    if (!std::strcmp(last, "trap")) stop<<<1, 32>>>(1), wanted = cudaErrorLaunchFailure;
    if (!std::strcmp(last, "assert")) stop<<<1, 32>>>(2), wanted = cudaErrorAssert;
    if (!std::strcmp(last, "missing")) cudaIpcGetMemHandle(nullptr, data);
    EXPECT(cudaDeviceSynchronize() == wanted);
    EXPECT(cudaMemset(data, 0, 4) == wanted);
    EXPECT(after() == wanted);
    return wrong_checks != 0;
}
