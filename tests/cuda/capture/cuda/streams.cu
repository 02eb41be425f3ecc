// Streams, events, functions of the host, graphs, and launches in all forms.
#include "check.h"

#include <cooperative_groups.h>
#include <cstring>
#include <thread>
#include <vector>

namespace cg = cooperative_groups;

__global__ void add(int* data, int n, int by) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += by;
}

__global__ void twice(int* data, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] *= 2;
}

__global__ void total(int* data, int* sum, int n) {
    cg::grid_group grid = cg::this_grid();
    for (int i = grid.thread_rank(); i < n; i += grid.size()) data[i] = i;
    grid.sync();
    if (grid.thread_rank() == 0) {
        int found = 0;
        for (int i = 0; i < n; ++i) found += data[i];
        *sum = found;
        printf("the kernel has found %d\n", found);
    }
}

__global__ void reversed(int* data) {
    extern __shared__ int room[];
    room[threadIdx.x] = data[threadIdx.x];
    __syncthreads();
    data[threadIdx.x] = room[blockDim.x - 1 - threadIdx.x];
}

__global__ void __cluster_dims__(2) neighbours(int* out) {
    __shared__ int mine;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) mine = blockIdx.x;
    cluster.sync();
    if (threadIdx.x == 0) out[blockIdx.x] = *cluster.map_shared_rank(&mine, cluster.block_rank() ^ 1);
    cluster.sync();
}

static void CUDART_CB hundred(void* number) { *static_cast<int*>(number) += 100; }

static int first(const int* data) {
    int found;
    CALL(cudaMemcpy(&found, data, sizeof found, cudaMemcpyDeviceToHost));
    return found;
}

static void captured() {
    const int n = 1000;
    int *data, called = 0;
    CALL(cudaMalloc(&data, n * sizeof(int)));
    cudaStream_t one, other;
    cudaEvent_t fork, join;
    CALL(cudaStreamCreate(&one));
    CALL(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CALL(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CALL(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CALL(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    CALL(cudaMemsetAsync(data, 0, n * sizeof(int), one));
    CALL(cudaEventRecord(fork, one));
    CALL(cudaStreamWaitEvent(other, fork));
    add<<<4, 256, 0, one>>>(data, n, 1);
    CALL(cudaLaunchHostFunc(other, hundred, &called));
    CALL(cudaEventRecord(join, other));
    CALL(cudaStreamWaitEvent(one, join));
    twice<<<4, 256, 0, one>>>(data, n);
    cudaStreamCaptureStatus status;
    CALL(cudaStreamIsCapturing(other, &status));
    EXPECT(status == cudaStreamCaptureStatusActive);
    EXPECT(called == 0);
    cudaGraph_t graph;
    CALL(cudaStreamEndCapture(one, &graph));
    size_t count;
    CALL(cudaGraphGetNodes(graph, nullptr, &count));
    EXPECT(count == 4);
    cudaGraphExec_t exec;
    CALL(cudaGraphInstantiate(&exec, graph, 0));
    for (int k = 0; k < 3; ++k) CALL(cudaGraphLaunch(exec, one));
    CALL(cudaStreamSynchronize(one));
    EXPECT(first(data) == 2 && called == 300);
    CALL(cudaGraphExecDestroy(exec));
    CALL(cudaGraphDestroy(graph));
    CALL(cudaStreamDestroy(other));
    CALL(cudaStreamDestroy(one));
    EXPECT(cudaStreamSynchronize(one) == cudaErrorInvalidResourceHandle);
    cudaGetLastError();
}

static void node_by_node() {
    int n = 256, by = 5, *data;
    CALL(cudaMalloc(&data, n * sizeof(int)));
    std::vector<int> ones(n, 1);
    cudaGraph_t graph;
    cudaGraphNode_t copy, kernel;
    CALL(cudaGraphCreate(&graph, 0));
    void* given[] = {&data, &n, &by};
    cudaKernelNodeParams asked = {};
    asked.func = reinterpret_cast<void*>(add);
    asked.gridDim = dim3(1), asked.blockDim = dim3(256), asked.kernelParams = given;
    CALL(cudaGraphAddMemcpyNode1D(&copy, graph, nullptr, 0, data, ones.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    CALL(cudaGraphAddKernelNode(&kernel, graph, &copy, 1, &asked));
    cudaGraphExec_t exec;
    CALL(cudaGraphInstantiate(&exec, graph, 0));
    CALL(cudaGraphLaunch(exec, 0));
    EXPECT(first(data) == 6);
    by = 50;
    CALL(cudaGraphExecKernelNodeSetParams(exec, kernel, &asked));
    CALL(cudaGraphLaunch(exec, 0));
    EXPECT(first(data) == 51);
    by = 7;
    CALL(cudaGraphKernelNodeSetParams(kernel, &asked));
    cudaGraphExecUpdateResultInfo info;
    CALL(cudaGraphExecUpdate(exec, graph, &info));
    CALL(cudaGraphLaunch(exec, 0));
    EXPECT(first(data) == 8);
}

static void launches() {
    int n = 5000, *data, *sum;
    CALL(cudaMalloc(&data, n * sizeof(int)));
    CALL(cudaMalloc(&sum, sizeof(int)));
    void* given[] = {&data, &sum, &n};
    CALL(cudaLaunchCooperativeKernel(total, dim3(8), dim3(128), given, 0, nullptr));
    EXPECT(first(sum) == n * (n - 1) / 2);
    int blocks;
    CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, total, 1024, 0));
    EXPECT(blocks == 2);
    EXPECT(cudaLaunchCooperativeKernel(total, dim3(blocks * 132 + 1), dim3(1024), given, 0, nullptr) == cudaErrorCooperativeLaunchTooLarge);
    cudaGetLastError();
    reversed<<<1, 64, 64 * sizeof(int)>>>(data);
    EXPECT(first(data) == 63);
    neighbours<<<4, 32>>>(data);
    EXPECT(first(data) == 1 && first(data + 1) == 0 && first(data + 2) == 3);
    cudaLaunchConfig_t how = {};
    how.gridDim = dim3(20), how.blockDim = dim3(256);
    CALL(cudaLaunchKernelEx(&how, add, data, n, 1000));
    EXPECT(first(data) == 1001);
    cudaFuncAttributes known;
    CALL(cudaFuncGetAttributes(&known, neighbours));
    EXPECT(known.sharedSizeBytes >= 4 && known.numRegs > 0 && known.maxThreadsPerBlock == 1024);
}

static void threads() {
    const int n = 256;
    int* data[4];
    std::vector<std::thread> all;
    for (int k = 0; k < 4; ++k) {
        CALL(cudaMalloc(&data[k], n * sizeof(int)));
        CALL(cudaMemset(data[k], 0, n * sizeof(int)));
        all.emplace_back([=] {
            for (int round = 0; round < 20; ++round) add<<<1, 256, 0, cudaStreamPerThread>>>(data[k], n, k + 1);
            cudaStreamSynchronize(cudaStreamPerThread);
        });
    }
    for (std::thread& each : all) each.join();
    EXPECT(first(data[0]) == 20 && first(data[3]) == 80);
}

static void times() {
    cudaEvent_t begin, end;
    float ms = -1;
    CALL(cudaEventCreate(&begin));
    CALL(cudaEventCreate(&end));
    EXPECT(cudaEventElapsedTime(&ms, begin, end) == cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    int* data;
    CALL(cudaMalloc(&data, 4096));
    CALL(cudaEventRecord(begin));
    add<<<4, 256>>>(data, 1000, 1);
    CALL(cudaEventRecord(end));
    CALL(cudaEventSynchronize(end));
    CALL(cudaEventElapsedTime(&ms, begin, end));
    EXPECT(ms > 0);
}

int main() {
    captured();
    node_by_node();
    launches();
    threads();
    times();
    return wrong_checks != 0;
}
