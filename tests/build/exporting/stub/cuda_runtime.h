// Stands in for the CUDA runtime where exported C++ is tested on the processor: device memory is memory, and kernels are
// objects of the cpu device, which adapters register.
//
// Nothing is done before somebody waits for it. Then streams are run one at a time, each as far as its events allow, the
// caller's stream last, or first where STUB_EAGER is set: what should have waited for something comes too early, in one
// of the two. Freed memory is filled with another pattern. What real CUDA refuses (batches of copies on the default
// stream or in a capture, an unjoined capture, shared memory that nobody asked for) is refused here.
#pragma once
#include STUB_ABI

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#ifndef CUDART_VERSION
#define CUDART_VERSION 13000
#endif

enum cudaError_t {
    cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorStreamCapture = 900
};
enum cudaMemcpyKind {
    cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault
};
enum cudaMemcpySrcAccessOrder { cudaMemcpySrcAccessOrderInvalid, cudaMemcpySrcAccessOrderStream };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum { cudaEventDisableTiming = 2, cudaStreamNonBlocking = 1 };
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1, cudaMemLocationTypeHost = 2 };
struct cudaMemLocation { cudaMemLocationType type; int id; };
enum { cudaCpuDeviceId = -1 };
struct cudaMemcpyAttributes { cudaMemcpySrcAccessOrder srcAccessOrder; int location[4]; unsigned flags; };
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace stub {
struct Stream { int number; };
struct Op {
    int stream;
    std::function<void()> work;
    std::shared_ptr<Op> waits_for;
    bool done = false;
};
using Queue = std::vector<std::shared_ptr<Op>>;
struct Event { std::shared_ptr<Op> record; };
struct Graph { Queue ops; };
// Dynamic shared memory must be asked for: as if each kernel had 48 KiB of its own.
struct Kernel { const fusiond_entry* entry; std::size_t shared = 0; int carveout_pct = -1; };

inline std::map<const void*, Kernel>& kernels() { static std::map<const void*, Kernel> all; return all; }
inline std::map<const void*, fusiond_symbol>& symbols() { static std::map<const void*, fusiond_symbol> all; return all; }
inline std::map<void*, std::size_t> live;
inline std::set<void*> managed;
inline std::map<int, Queue> queues;
inline std::set<int> capturing;
inline Queue captured;
inline int origin = -1, streams = 0, copies = 0, launches = 0, cooperative = 0, batches = 0, captures = 0, carved = 0;
inline int prefetches = 0;

inline void fail(const char* what) { std::fprintf(stderr, "stub: %s\n", what); std::exit(9); }
inline int number(Stream* stream) { return reinterpret_cast<std::size_t>(stream) <= 2 ? 0 : stream->number; }
inline void enqueue(Stream* stream, std::function<void()> work, std::shared_ptr<Op> waits_for = nullptr) {
    auto op = std::make_shared<Op>(Op{number(stream), std::move(work), std::move(waits_for)});
    if (capturing.count(op->stream)) captured.push_back(op);
    else queues[op->stream].push_back(op);
}
inline bool run(std::map<int, Queue>& of) {
    static const bool eager = std::getenv("STUB_EAGER") != nullptr;
    std::vector<int> order;
    for (auto& each : of) order.push_back(each.first);
    if (!eager) std::reverse(order.begin(), order.end());
    for (int stream : order) {
        Queue& queue = of[stream];
        bool moved = false;
        while (!queue.empty() && (!queue.front()->waits_for || queue.front()->waits_for->done)) {
            auto op = queue.front();
            queue.erase(queue.begin());
            if (op->work) op->work();
            op->done = moved = true;
        }
        if (moved) return true;
    }
    return false;
}
inline void drain() {
    while (run(queues)) {}
    for (auto& each : queues) if (!each.second.empty()) fail("an operation waits for what never comes");
}
inline cudaError_t allocate(void** to, std::size_t size) {
    *to = std::aligned_alloc(256, (size + 511) / 256 * 256);
    std::memset(*to, 0xA5, size);
    live[*to] = size;
    return cudaSuccess;
}
inline void release(void* of) {
    if (!live.count(of)) fail("freed what is not allocated");
    std::memset(of, 0xDD, live[of]);  // kept, so that whoever still reads it sees this
    live.erase(of);
    managed.erase(of);
}
inline cudaError_t launch(const void* kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared, Stream* stream,
                          std::uint32_t flags) {
    if (!kernels().count(kernel)) return cudaErrorInvalidValue;
    const Kernel& of = kernels()[kernel];
    if (shared > of.shared) return cudaErrorInvalidValue;
    auto values = std::make_shared<std::vector<std::vector<std::max_align_t>>>();
    for (std::uint32_t i = 0; i < of.entry->argument_count; ++i) {
        values->emplace_back(of.entry->argument_bytes[i] / sizeof(std::max_align_t) + 1);
        std::memcpy(values->back().data(), arguments[i], of.entry->argument_bytes[i]);
    }
    ++launches;
    carved += of.carveout_pct == 29;
    cooperative += flags != 0;
    enqueue(stream, [=, entry = of.entry] {
        std::vector<void*> places;
        for (auto& each : *values) places.push_back(each.data());
        fusiond_launch request = {FUSIOND_ABI, FUSIOND_CHECKED | flags, entry, places.data(), {grid.x, grid.y, grid.z},
                                  {block.x, block.y, block.z}, static_cast<std::uint32_t>(shared), 0, 0};
        fusiond_report report = {};
        fusiond_run(&request, &report);
        if (report.code) fail(report.text);
    });
    return cudaSuccess;
}
}  // namespace stub

using cudaStream_t = stub::Stream*;
using cudaEvent_t = stub::Event*;
using cudaGraph_t = stub::Graph*;
using cudaGraphExec_t = stub::Graph*;
#define cudaStreamLegacy (reinterpret_cast<cudaStream_t>(1))
#define cudaStreamPerThread (reinterpret_cast<cudaStream_t>(2))

inline const char* cudaGetErrorString(cudaError_t) { return "refused by the stub"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
inline cudaError_t cudaMalloc(void** to, std::size_t size) { return stub::allocate(to, size); }
inline cudaError_t cudaMallocHost(void** to, std::size_t size) { return stub::allocate(to, size); }
inline cudaError_t cudaMallocManaged(void** to, std::size_t size) {
    stub::allocate(to, size);
    stub::managed.insert(*to);
    return cudaSuccess;
}
namespace stub {
/// Nothing moves here; but what is not managed, or not as long as that, is refused, and so is a capture.
inline cudaError_t prefetch(const void* start, std::size_t size, Stream* stream) {
    for (void* each : managed) {
        const char *begin = static_cast<char*>(each), *at = static_cast<const char*>(start);
        if (begin <= at && at + size <= begin + live[each] && !capturing.count(number(stream))) {
            ++prefetches;
            return cudaSuccess;
        }
    }
    return cudaErrorInvalidValue;
}
}  // namespace stub
#if CUDART_VERSION >= 13000
inline cudaError_t cudaMemPrefetchAsync(const void* start, std::size_t size, cudaMemLocation where, unsigned,
                                        cudaStream_t stream) {
    if (where.id || !where.type) return cudaErrorInvalidValue;
    return stub::prefetch(start, size, stream);
}
#else
inline cudaError_t cudaMemPrefetchAsync(const void* start, std::size_t size, int device, cudaStream_t stream) {
    return device > 0 ? cudaErrorInvalidValue : stub::prefetch(start, size, stream);
}
#endif
inline cudaError_t cudaMallocAsync(void** to, std::size_t size, cudaStream_t) { return stub::allocate(to, size); }
inline cudaError_t cudaFree(void* of) { stub::drain(); stub::release(of); return cudaSuccess; }
inline cudaError_t cudaFreeHost(void* of) { return cudaFree(of); }
inline cudaError_t cudaFreeAsync(void* of, cudaStream_t stream) {
    stub::enqueue(stream, [=] { stub::release(of); });
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* of, std::size_t size, cudaMemcpyKind, cudaStream_t stream) {
    ++stub::copies;
    stub::enqueue(stream, [=] { std::memcpy(to, of, size); });
    return cudaSuccess;
}
#if CUDART_VERSION >= 13000
inline cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* of, const std::size_t* sizes,
                                        std::size_t count, cudaMemcpyAttributes* how, std::size_t*, std::size_t,
                                        cudaStream_t stream) {
    if (stub::number(stream) == 0 || stub::capturing.count(stub::number(stream))) return cudaErrorInvalidValue;
    if (how->srcAccessOrder != cudaMemcpySrcAccessOrderStream) return cudaErrorInvalidValue;
    ++stub::batches;
    for (std::size_t i = count; i-- > 0;) cudaMemcpyAsync(to[i], of[i], sizes[i], cudaMemcpyDefault, stream);
    return cudaSuccess;
}
#endif
inline cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t size, cudaStream_t stream) {
    stub::enqueue(stream, [=] { std::memset(to, byte, size); });
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* of, std::size_t size, std::size_t,
                                           cudaMemcpyKind kind, cudaStream_t stream) {
    const fusiond_symbol& found = stub::symbols().at(symbol);
    return size > found.bytes ? cudaErrorInvalidValue : cudaMemcpyAsync(found.address, of, size, kind, stream);
}
inline cudaError_t cudaGetSymbolAddress(void** to, const void* symbol) {
    *to = stub::symbols().at(symbol).address;
    return cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
        stub::kernels().at(kernel).carveout_pct = value;
        return value <= 100 ? cudaSuccess : cudaErrorInvalidValue;
    }
    stub::kernels().at(kernel).shared = static_cast<std::size_t>(value);
    return cudaSuccess;
}
struct cudaFuncAttributes { int numRegs, maxDynamicSharedSizeBytes; };
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* into, const void* kernel) {
    if (!stub::kernels().count(kernel)) return cudaErrorInvalidValue;
    *into = {16, static_cast<int>(stub::kernels().at(kernel).shared)};
    return cudaSuccess;
}
inline cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                                    cudaStream_t stream) {
    return stub::launch(kernel, grid, block, arguments, shared, stream, 0);
}
inline cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                               std::size_t shared, cudaStream_t stream) {
    return stub::launch(kernel, grid, block, arguments, shared, stream, FUSIOND_COOPERATIVE);
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* to, unsigned) {
    if (!stub::capturing.empty()) return cudaErrorStreamCapture;
    *to = new stub::Stream{++stub::streams};
    return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t of) { delete of; return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t of) {
    if (stub::capturing.count(stub::number(of))) return cudaErrorStreamCapture;
    stub::drain();
    return cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* to, unsigned) {
    if (!stub::capturing.empty()) return cudaErrorStreamCapture;
    *to = new stub::Event;
    return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t of) { delete of; return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    stub::enqueue(stream, nullptr);
    const bool is_captured = stub::capturing.count(stub::number(stream)) != 0;
    event->record = is_captured ? stub::captured.back() : stub::queues[stub::number(stream)].back();
    return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (!event->record) return cudaSuccess;  // as CUDA has it: nothing to wait for
    const auto& all = stub::captured;
    if (std::find(all.begin(), all.end(), event->record) != all.end()) stub::capturing.insert(stub::number(stream));
    else if (stub::capturing.count(stub::number(stream))) return cudaErrorStreamCapture;
    stub::enqueue(stream, nullptr, event->record);
    return cudaSuccess;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (stub::number(stream) == 0) return cudaErrorStreamCapture;
    stub::origin = stub::number(stream);
    stub::capturing = {stub::origin};
    stub::captured.clear();
    ++stub::captures;
    return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
    std::map<int, std::shared_ptr<stub::Op>> last;
    std::set<std::shared_ptr<stub::Op>> awaited;
    for (auto& op : stub::captured) {
        last[op->stream] = op;
        if (op->stream == stub::origin) awaited.insert(op->waits_for);
    }
    for (auto& each : last)
        if (each.first != stub::origin && !awaited.count(each.second)) return cudaErrorStreamCapture;
    *graph = new stub::Graph{stub::captured};
    stub::captured.clear();
    stub::capturing.clear();
    return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* to, cudaGraph_t of, unsigned long long) {
    *to = new stub::Graph(*of);
    return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    stub::enqueue(stream, [ops = graph->ops] {
        std::map<std::shared_ptr<stub::Op>, std::shared_ptr<stub::Op>> copies;
        std::map<int, stub::Queue> queues;
        for (auto& op : ops) {
            auto copy = std::make_shared<stub::Op>(stub::Op{op->stream, op->work, copies[op->waits_for]});
            copies[op] = copy;
            queues[op->stream].push_back(copy);
        }
        while (stub::run(queues)) {}
    });
    return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t of) { delete of; return cudaSuccess; }
inline cudaError_t cudaGraphDestroy(cudaGraph_t of) { delete of; return cudaSuccess; }
