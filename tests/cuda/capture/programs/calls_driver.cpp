// A program that calls the CUDA driver, and finds its functions in one of four ways: linked (-DLINKED), by dlsym, by
// cuGetProcAddress, or as dlsym's with the default stream of each thread. It doubles x twice, adds it to y by a graph,
// and says what came out.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../../fusiond/cuda/capture/runtime/watcher/driver.h"

using namespace watcher;

namespace driver {
#ifdef LINKED
#define FUNCTION(name, exported, parameters) Result name parameters asm(#exported);
#else
#define FUNCTION(name, exported, parameters) static Result (*name) parameters;
#endif
#define FUNCTIONS                                                                                                   \
    FUNCTION(cuInit, cuInit, (unsigned))                                                                            \
    FUNCTION(cuCtxCreate, cuCtxCreate_v2, (Handle*, unsigned, int))                                                 \
    FUNCTION(cuCtxSynchronize, cuCtxSynchronize, ())                                                                \
    FUNCTION(cuMemAlloc, cuMemAlloc_v2, (Address*, size_t))                                                         \
    FUNCTION(cuMemFree, cuMemFree_v2, (Address))                                                                    \
    FUNCTION(cuMemcpyHtoD, cuMemcpyHtoD_v2, (Address, const void*, size_t))                                         \
    FUNCTION(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void*, Address, size_t))                                               \
    FUNCTION(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void*, Address, size_t, Handle))                             \
    FUNCTION(cuMemsetD8, cuMemsetD8_v2, (Address, unsigned char, size_t))                                           \
    FUNCTION(cuMemsetD8Async, cuMemsetD8Async, (Address, unsigned char, size_t, Handle))                            \
    FUNCTION(cuModuleLoadData, cuModuleLoadData, (Handle*, const void*))                                            \
    FUNCTION(cuModuleGetFunction, cuModuleGetFunction, (Handle*, Handle, const char*))                              \
    FUNCTION(cuLibraryLoadData, cuLibraryLoadData,                                                                  \
             (Handle*, const void*, int*, void**, unsigned, int*, void**, unsigned))                                \
    FUNCTION(cuLibraryGetModule, cuLibraryGetModule, (Handle*, Handle))                                             \
    FUNCTION(cuLibraryGetKernel, cuLibraryGetKernel, (Handle*, Handle, const char*))                                \
    FUNCTION(cuLaunchKernel, cuLaunchKernel,                                                                        \
             (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**, void**)) \
    FUNCTION(cuLaunchKernelEx, cuLaunchKernelEx, (const LaunchConfig*, Handle, void**, void**))                     \
    FUNCTION(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel,                                                  \
             (Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**))         \
    FUNCTION(cuStreamCreate, cuStreamCreate, (Handle*, unsigned))                                                   \
    FUNCTION(cuStreamSynchronize, cuStreamSynchronize, (Handle))                                                    \
    FUNCTION(cuStreamBeginCapture, cuStreamBeginCapture_v2, (Handle, int))                                          \
    FUNCTION(cuStreamEndCapture, cuStreamEndCapture, (Handle, Handle*))                                             \
    FUNCTION(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, (Handle*, Handle, uint64_t))                 \
    FUNCTION(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2, (Handle, Handle, const KernelNode*)) \
    FUNCTION(cuGraphGetNodes, cuGraphGetNodes, (Handle, Handle*, size_t*))                                          \
    FUNCTION(cuGraphKernelNodeGetParams, cuGraphKernelNodeGetParams_v2, (Handle, KernelNode*))                      \
    FUNCTION(cuGraphLaunch, cuGraphLaunch, (Handle, Handle))
FUNCTIONS
#undef FUNCTION

#ifdef LINKED
static void find(const char*) {}
#else
using GetProcAddress = Result (*)(const char*, void**, int, uint64_t, int*);
static void find(const char* way) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) exit(77);
    auto address = (GetProcAddress)dlsym(library, "cuGetProcAddress_v2");
    uint64_t flags = !strcmp(way, "thread") ? 2 : 1;
#define FUNCTION(name, exported, parameters)                                     \
    if (!strcmp(way, "dlsym")) name = (Result(*) parameters)dlsym(library, #exported); \
    else if (address(#name, (void**)&name, 12050, flags, nullptr)) exit(78);
    FUNCTIONS
}
#endif
}  // namespace driver
using namespace driver;

static void check(Result result, const char* what) {
    if (result != OK) printf("%s failed with %d\n", what, result), exit(1);
}
#define CHECK(call) check(call, #call)

int main(int count, char** words) {
    find(count > 1 ? words[1] : "");
    // Whoever asks for what comes after himself is answered as without us: dlsym goes by its caller.
    if (dlsym(RTLD_NEXT, "main")) return 2;
    if (!dlsym(RTLD_DEFAULT, "puts") || dlsym(RTLD_DEFAULT, "cuNothing")) return 3;
    if (fork() == 0) return 0;
    wait(nullptr);
    CHECK(cuInit(0));
    Handle context, module, library, twice, sum, stream, graph, executable;
    CHECK(cuCtxCreate(&context, 0, 0));
    const char* image = ".version 8.0\n// what the stand-in knows by name";
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuModuleGetFunction(&twice, module, "double_it"));
    // A fat binary as nvcc's objects have it: its header says how long it is, and something else says where it lies.
    static const struct { uint32_t magic; uint16_t version, header; uint64_t bytes; char body[8]; } binary = {
        0xBA55ED50u, 1, 16, 8, {'b', 'i', 'n', 'a', 'r', 'y', 0, 1}};
    static const struct { uint32_t magic, version; const void* binary; void* name; } wrapper = {
        0x466243B1u, 1, &binary, nullptr};
    CHECK(cuLibraryLoadData(&library, &wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CHECK(cuLibraryGetKernel(&sum, library, "add"));
    constexpr int N = 1000;
    float host[N];
    for (int i = 0; i < N; i++) host[i] = float(i);
    Address x, y, gone;
    CHECK(cuMemAlloc(&gone, 64));
    CHECK(cuMemFree(gone));
    CHECK(cuMemAlloc(&x, sizeof host));
    CHECK(cuMemAlloc(&y, 2 * sizeof host));
    CHECK(cuMemcpyHtoD(x, host, sizeof host));
    CHECK(cuMemsetD8(y, 0, 2 * sizeof host));
    int n = N;
    void* of_x[] = {&x, &n};
    CHECK(cuLaunchKernel(twice, 4, 1, 1, 256, 1, 1, 0, nullptr, of_x, nullptr));
    struct { Address x; int n; } packed{x, N};  // as PyCUDA passes them
    size_t bytes = 12;
    void* extra[] = {(void*)1, &packed, (void*)2, &bytes, nullptr};
    CHECK(cuLaunchKernel(twice, 4, 1, 1, 256, 1, 1, 16, nullptr, nullptr, extra));
    if (cuLaunchKernel(twice, 4, 1, 1, 256, 1, 1, 1 << 20, nullptr, of_x, nullptr) == OK) return 4;
    Address half = y + sizeof host;
    void* of_half[] = {&half, &x, &n};
    LaunchAttribute cluster{.id = CLUSTER_DIMENSION, .pad = {}, .value = {}};
    cluster.value.cluster[0] = 2, cluster.value.cluster[1] = cluster.value.cluster[2] = 1;
    CHECK(cuStreamCreate(&stream, 0));
    LaunchConfig config{{8, 1, 1}, {128, 1, 1}, 0, stream, &cluster, 1};
    CHECK(cuLaunchKernelEx(&config, sum, of_half, nullptr));
    CHECK(cuLaunchCooperativeKernel(sum, 2, 1, 1, 512, 1, 1, 0, stream, of_half));
    CHECK(cuStreamSynchronize(stream));
    void* of_y[] = {&y, &x, &n};
    CHECK(cuLibraryGetModule(&module, library));  // whose image is the library's
    CHECK(cuModuleGetFunction(&sum, module, "add"));
    Address spare;
    CHECK(cuMemAlloc(&spare, 64));
    CHECK(cuStreamBeginCapture(stream, 0));
    CHECK(cuLaunchKernel(twice, 1, 2, 1, 32, 1, 1, 0, stream, of_x, nullptr));
    CHECK(cuLaunchKernel(sum, 1, 1, 3, 64, 1, 1, 0, stream, of_y, nullptr));
    float kept[N];
    CHECK(cuMemcpyDtoHAsync(kept, x, sizeof kept, stream));
    CHECK(cuMemsetD8Async(spare + 4, 0, 8, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CHECK(cuGraphLaunch(executable, stream));
    CHECK(cuGraphLaunch(executable, stream));
    Handle nodes[4];
    size_t node_count = 4;
    KernelNode changed{};
    CHECK(cuGraphGetNodes(graph, nodes, &node_count));
    CHECK(cuGraphKernelNodeGetParams(nodes[0], &changed));
    changed.grid[1] = 7;
    CHECK(cuGraphExecKernelNodeSetParams(executable, nodes[0], &changed));
    CHECK(cuGraphLaunch(executable, stream));
    float back[2 * N];
    CHECK(cuMemcpyDtoHAsync(back, y, sizeof back, stream));
    CHECK(cuCtxSynchronize());
    double total = 0;
    for (float each : back) total += each;
    printf("%.0f\n", total);
    return 0;
}
