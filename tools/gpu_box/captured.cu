// A program of CUDA's runtime, linked statically as nvcc does by itself, to be captured on a GPU: plain, cooperative and
// captured launches, a struct with an address in it, managed memory, a variable, two streams. It says what came out,
// and, with a word behind it, how long a launch takes the host.

#include <chrono>
#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>

constexpr int N = 1 << 20;
__device__ float factor;

struct Slice {
    const float* from;
    int first, count;
};

__global__ void scale(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
__global__ void add(float* y, Slice slice) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < slice.count) y[i] += slice.from[slice.first + i];
}
__global__ void turn(float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[n - 1 - i];
    cooperative_groups::this_grid().sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] = y[i];
}
__global__ void nothing(int) {}

#define CHECK(call)                                                                          \
    if (cudaError_t error = call) {                                                          \
        printf("%s: %s\n", #call, cudaGetErrorString(error));                                \
        exit(1);                                                                             \
    }

static double sum(const float* values) {
    double total = 0;
    for (int i = 0; i < N; i++) total += double(values[i]) * (i % 7 + 1);
    return total;
}

int main(int words, char**) {
    float *host = new float[N], *x, *y, *shared, three = 3;
    for (int i = 0; i < N; i++) host[i] = float(i % 1000);
    CHECK(cudaMalloc(&x, N * sizeof(float)));
    CHECK(cudaMalloc(&y, N * sizeof(float)));
    CHECK(cudaMallocManaged(&shared, N * sizeof(float)));
    CHECK(cudaMemcpyToSymbol(factor, &three, sizeof three));
    CHECK(cudaMemcpy(x, host, N * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemset(y, 0, N * sizeof(float)));
    for (int i = 0; i < N; i++) shared[i] = 1;
    cudaStream_t one, other;
    CHECK(cudaStreamCreate(&one));
    CHECK(cudaStreamCreate(&other));
    CHECK(cudaDeviceSynchronize());
    scale<<<N / 256, 256, 0, one>>>(x, N);
    add<<<N / 512, 512, 0, other>>>(y, Slice{shared, 16, N / 2});
    CHECK(cudaDeviceSynchronize());
    int count = N;
    void* arguments[] = {&x, &y, &count};
    CHECK(cudaLaunchCooperativeKernel((void*)turn, dim3(64), dim3(256), arguments, 0, one));
    CHECK(cudaStreamSynchronize(one));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    scale<<<N / 256, 256, 0, one>>>(x, N / 2);
    add<<<N / 512, 512, 0, one>>>(y, Slice{x, 0, N});
    CHECK(cudaStreamEndCapture(one, &graph));
    CHECK(cudaGraphInstantiateWithFlags(&executable, graph, 0));
    for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(executable, one));
    CHECK(cudaMemcpyAsync(host, y, N * sizeof(float), cudaMemcpyDeviceToHost, one));
    CHECK(cudaStreamSynchronize(one));
    printf("y %.0f\n", sum(host));
    CHECK(cudaMemcpy(host, x, N * sizeof(float), cudaMemcpyDeviceToHost));
    printf("x %.0f\n", sum(host));
    constexpr int LAUNCHES = 20000, BATCH = 500;
    double least_us = 1e9;
    for (int i = 0; words > 1 && i < LAUNCHES; i += BATCH) {
        auto begin = std::chrono::steady_clock::now();
        for (int k = 0; k < BATCH; k++) nothing<<<1, 32>>>(k);
        std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
        least_us = took.count() / BATCH < least_us ? took.count() / BATCH : least_us;
        CHECK(cudaDeviceSynchronize());
    }
    if (words > 1) printf("launch_us %.3f\n", least_us);
}
