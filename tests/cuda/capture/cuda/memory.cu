// Memory in all its kinds, and copies of it: what comes back is what went in.
#include "check.h"

#include <cstring>
#include <vector>

__constant__ float factors[4];
__device__ int hits;
__device__ int table[8] = {0, 10, 20, 30, 40, 50, 60, 70};
__managed__ int shared_with_host[4] = {1, 2, 3, 4};

__global__ void scale(float* y, const float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = factors[i % 4] * x[i] + table[i % 8];
        atomicAdd(&hits, 1);
    }
    if (i < 4) shared_with_host[i] *= 100;
}

__global__ void add(int* data, int n, int by) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += by;
}

__global__ void number_cells(cudaPitchedPtr box, int width, int height, int depth) {
    const int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
    char* layer = static_cast<char*>(box.ptr) + box.pitch * height * z;
    if (x < width) reinterpret_cast<int*>(layer + y * box.pitch)[x] = x + 100 * y + 10000 * z;
}

static void symbols() {
    const int n = 10000;
    std::vector<float> x(n), y(n);
    for (int i = 0; i < n; ++i) x[i] = i % 17;
    const float given[4] = {1, 2, 3, 4}, last = 5;
    float *dx, *dy;
    CALL(cudaMalloc(&dx, n * sizeof(float)));
    CALL(cudaMalloc(&dy, n * sizeof(float)));
    CALL(cudaMemcpyToSymbol(factors, given, sizeof given));
    CALL(cudaMemcpyToSymbol(factors, &last, sizeof last, 3 * sizeof last));
    CALL(cudaMemcpy(dx, x.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    EXPECT(shared_with_host[2] == 3);
    scale<<<(n + 255) / 256, 256>>>(dy, dx, n);
    CALL(cudaDeviceSynchronize());
    CALL(cudaMemcpy(y.data(), dy, n * sizeof(float), cudaMemcpyDeviceToHost));
    int wrong = 0, counted = 0;
    for (int i = 0; i < n; ++i) wrong += y[i] != (i % 4 == 3 ? 5.f : i % 4 + 1.f) * x[i] + 10.f * (i % 8);
    EXPECT(wrong == 0);
    CALL(cudaMemcpyFromSymbol(&counted, hits, sizeof counted));
    EXPECT(counted == n);
    EXPECT(shared_with_host[0] == 100 && shared_with_host[3] == 400);
    void* address;
    size_t bytes;
    CALL(cudaGetSymbolAddress(&address, table));
    CALL(cudaGetSymbolSize(&bytes, table));
    int third;
    CALL(cudaMemcpy(&third, static_cast<int*>(address) + 3, sizeof third, cudaMemcpyDeviceToHost));
    EXPECT(bytes == sizeof table && third == 30);
    CALL(cudaFree(dx));
    CALL(cudaFree(dy));
}

static void pitched() {
    const int width = 20, height = 6, depth = 3;
    cudaPitchedPtr box;
    CALL(cudaMalloc3D(&box, make_cudaExtent(width * sizeof(int), height, depth)));
    EXPECT(box.pitch >= width * sizeof(int) && box.pitch % 32 == 0);
    CALL(cudaMemset3D(box, 0, make_cudaExtent(width * sizeof(int), height, depth)));
    number_cells<<<dim3(height, depth), 32>>>(box, width, height, depth);
    std::vector<int> all(width * height * depth);
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = box;
    copy.dstPtr = make_cudaPitchedPtr(all.data(), width * sizeof(int), width, height);
    copy.extent = make_cudaExtent(width * sizeof(int), height, depth);
    copy.kind = cudaMemcpyDeviceToHost;
    CALL(cudaMemcpy3D(&copy));
    int wrong = 0;
    for (int z = 0; z < depth; ++z)
        for (int y = 0; y < height; ++y)
            for (int x = 0; x < width; ++x) wrong += all[(z * height + y) * width + x] != x + 100 * y + 10000 * z;
    EXPECT(wrong == 0);
    char *plane, back[10 * 100];
    size_t pitch;
    CALL(cudaMallocPitch(&plane, &pitch, 100, 10));
    CALL(cudaMemset2D(plane, pitch, 7, 100, 10));
    CALL(cudaMemcpy2D(back, 100, plane, pitch, 100, 10, cudaMemcpyDeviceToHost));
    int sevens = 0;
    for (char each : back) sevens += each == 7;
    EXPECT(sevens == 1000);
    EXPECT(cudaMemcpy2D(back, 50, plane, pitch, 100, 10, cudaMemcpyDeviceToHost) == cudaErrorInvalidPitchValue);
    cudaGetLastError();
}

static void arrays() {
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<float2>();
    cudaArray_t array;
    CALL(cudaMallocArray(&array, &format, 8, 4));
    std::vector<float2> cells(32), back(32);
    for (int i = 0; i < 32; ++i) cells[i] = make_float2(i, -i);
    CALL(cudaMemcpy2DToArray(array, 0, 0, cells.data(), 64, 64, 4, cudaMemcpyHostToDevice));
    CALL(cudaMemcpy2DFromArray(back.data(), 16, array, 48, 1, 16, 2, cudaMemcpyDeviceToHost));
    EXPECT(back[0].x == 14 && back[1].y == -15 && back[2].x == 22);
    cudaExtent extent;
    cudaChannelFormatDesc found;
    CALL(cudaArrayGetInfo(&found, &extent, nullptr, array));
    EXPECT(found.y == 32 && extent.width == 8 && extent.height == 4 && extent.depth == 0);
    CALL(cudaFreeArray(array));
}

static void of_the_host() {
    int *pinned, *managed, *device, *seen;
    CALL(cudaMallocHost(&pinned, 4000));
    CALL(cudaMallocManaged(&managed, 4000));
    CALL(cudaMallocAsync(&device, 4000, 0));
    for (int i = 0; i < 1000; ++i) pinned[i] = managed[i] = i;
    add<<<4, 256>>>(pinned, 1000, 1);
    add<<<4, 256>>>(managed, 1000, 2);
    CALL(cudaDeviceSynchronize());
    EXPECT(pinned[999] == 1000 && managed[0] == 2);
    cudaPointerAttributes known;
    CALL(cudaPointerGetAttributes(&known, managed + 5));
    EXPECT(known.type == cudaMemoryTypeManaged && known.devicePointer == managed + 5);
    CALL(cudaPointerGetAttributes(&known, device));
    EXPECT(known.type == cudaMemoryTypeDevice && known.hostPointer == nullptr);
    CALL(cudaPointerGetAttributes(&known, &known));
    EXPECT(known.type == cudaMemoryTypeUnregistered);

    const int n = 3000;
    int* own = static_cast<int*>(std::malloc(n * sizeof(int))) + 1;
    for (int i = 0; i < n - 1; ++i) own[i] = i;
    CALL(cudaHostRegister(own, (n - 1) * sizeof(int), cudaHostRegisterMapped));
    EXPECT(cudaHostRegister(own, 4, 0) == cudaErrorHostMemoryAlreadyRegistered);
    CALL(cudaHostGetDevicePointer(&seen, own, 0));
    add<<<12, 256>>>(seen, n - 1, 7);
    CALL(cudaDeviceSynchronize());
    EXPECT(own[0] == 7 && own[n - 2] == n + 5);
    CALL(cudaHostUnregister(own));
    EXPECT(own[0] == 7 && own[n - 2] == n + 5);
    CALL(cudaFreeHost(pinned));
    CALL(cudaFree(managed));
    CALL(cudaFreeAsync(device, 0));
}

static void amounts() {
    size_t before, between, after, total;
    void *much, *more;
    CALL(cudaMemGetInfo(&before, &total));
    CALL(cudaMalloc(&much, size_t(3) << 30));
    CALL(cudaMemGetInfo(&between, &total));
    EXPECT(cudaMalloc(&more, total) == cudaErrorMemoryAllocation && more == nullptr);
    CALL(cudaFree(much));
    CALL(cudaMemGetInfo(&after, &total));
    EXPECT(before - between == size_t(3) << 30 && before == after);
    EXPECT(cudaFree(&total) == cudaErrorInvalidValue);
    EXPECT(cudaGetLastError() == cudaErrorInvalidValue);
    EXPECT(cudaGetLastError() == cudaSuccess);
}

int main() {
    symbols();
    pitched();
    arrays();
    of_the_host();
    amounts();
    return wrong_checks != 0;
}
