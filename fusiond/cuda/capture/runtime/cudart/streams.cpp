// Streams and events. Work is done when it is handed in, so that there is never anything to wait for; in a stream that is
// captured it becomes a node of a graph.
#include "graphs.h"

#include <cstdio>

namespace cudart {
namespace {

std::set<cudaStream_t>& streams() {
    static auto* const all = new std::set<cudaStream_t>();
    return *all;
}

uint64_t captures = 0;

// What a handle stands for; nullptr: nothing.
cudaStream_t known(cudaStream_t handle) {
    static CUstream_st legacy;
    static thread_local CUstream_st own;
    if (!handle || handle == cudaStreamLegacy) return &legacy;
    if (handle == cudaStreamPerThread) {
        streams().insert(&own);
        return &own;
    }
    return streams().count(handle) ? handle : nullptr;
}

cudaGraphNode_t captured(cudaStream_t stream, cudaGraphNodeType type) {
    cudaGraphNode_t node = stream->graph->add(type, stream->tail);
    stream->tail = {node};
    return node;
}

void end_capture(uint64_t capture) {
    for (cudaStream_t each : streams())
        if (each->graph && each->capture == capture) each->graph = nullptr, each->origin = false, each->tail.clear();
}

// What must not be called while the stream is captured.
cudaError_t waitable(cudaStream_t handle) {
    cudaStream_t stream = known(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    return stream->graph ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t begin_capture(cudaStream_t handle, cudaGraph_t graph, std::vector<cudaGraphNode_t> tail) {
    cudaStream_t stream = known(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!streams().count(stream)) return cudaErrorStreamCaptureUnsupported;  // the legacy one
    if (stream->graph) return cudaErrorIllegalState;
    stream->given = graph != nullptr;
    stream->graph = graph ? graph : new CUgraph_st();
    stream->origin = true, stream->capture = ++captures, stream->tail = std::move(tail);
    return cudaSuccess;
}

}  // namespace

cudaStream_t real(cudaStream_t stream) { return stream == cudaStreamLegacy || stream == cudaStreamPerThread ? nullptr : stream; }

bool capturing(cudaStream_t handle) {
    cudaStream_t stream = known(handle);
    return stream && stream->graph;
}

bool capturing_anywhere() {
    for (cudaStream_t each : streams())
        if (each->graph) return true;
    return false;
}

cudaError_t in_order(cudaStream_t handle, cudaGraphNodeType type, Work work) {
    cudaStream_t stream = known(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (!stream->graph) return work();
    captured(stream, type)->work = std::move(work);
    return cudaSuccess;
}

cudaError_t in_order(const KernelStep& step) {
    cudaStream_t stream = known(step.how.stream);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->graph) {
        captured(stream, cudaGraphNodeTypeKernel)->kernel = step;
        return cudaSuccess;
    }
    note_launch(step, 0, step.how.stream);
    return carry_out(step);
}

}  // namespace cudart

using namespace cudart;

extern "C" {

// --- streams ---

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned flags, int priority) {
    return call([&] {
        static uint64_t count = 2;
        if (!made) return cudaErrorInvalidValue;
        *made = new CUstream_st{flags, priority, ++count};
        streams().insert(*made);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamCreate(cudaStream_t* made) { return cudaStreamCreateWithPriority(made, cudaStreamDefault, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned flags) { return cudaStreamCreateWithPriority(made, flags, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return call([&] {
        if (!streams().erase(stream)) return cudaErrorInvalidResourceHandle;
        delete stream;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return call([&] {
        if (cudaError_t problem = waitable(stream)) return problem;
        note_wait(stream);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return call([&] { return waitable(stream); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
    return call([&] {
        cudaStream_t stream = known(handle);
        if (!stream || !event) return cudaErrorInvalidResourceHandle;
        if (!event->graph) return cudaSuccess;
        if (!stream->graph) stream->graph = event->graph, stream->capture = event->capture;
        stream->tail.insert(stream->tail.end(), event->tail.begin(), event->tail.end());
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
    return call([&] {
        cudaStream_t stream = known(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        *priority = stream->priority;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
    return call([&] {
        cudaStream_t stream = known(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        *flags = stream->flags;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* number) {
    return call([&] {
        cudaStream_t stream = known(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        *number = stream->number;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetDevice(cudaStream_t, int* device) { return cudaGetDevice(device); }

cudaError_t cudaStreamCopyAttributes(cudaStream_t, cudaStream_t) {
    return call([] { return cudaSuccess; });
}

cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaLaunchAttributeID, const cudaLaunchAttributeValue*) {
    return call([] { return cudaSuccess; });
}

cudaError_t cudaStreamGetAttribute(cudaStream_t, cudaLaunchAttributeID, cudaLaunchAttributeValue* value) {
    return call([&] {
        *value = {};
        return cudaSuccess;
    });
}

// --- functions of the host ---

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    return call([&] {
        if (!function) return cudaErrorInvalidValue;
        return in_order(stream, cudaGraphNodeTypeHost, [=] {
            function(data);
            return cudaSuccess;
        });
    });
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
    return call([&] {
        if (!function) return cudaErrorInvalidValue;
        if (cudaError_t problem = waitable(stream)) return problem;
        function(stream, cudaSuccess, data);
        return cudaSuccess;
    });
}

// --- captures ---

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    return call([&] { return begin_capture(stream, nullptr, {}); });
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t* after,
                                          const cudaGraphEdgeData*, size_t count, cudaStreamCaptureMode) {
    return call([&] {
        if (!graph) return cudaErrorInvalidValue;
        return begin_capture(stream, graph, std::vector<cudaGraphNode_t>(after, after + count));
    });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* made) {
    return call([&] {
        cudaStream_t stream = known(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        if (!stream->graph) return cudaErrorIllegalState;
        if (!stream->origin) return cudaErrorStreamCaptureUnmatched;
        if (made) *made = stream->graph;
        end_capture(stream->capture);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
    return call([&] {
        *status = capturing(handle) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
        return cudaSuccess;
    });
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* number, cudaGraph_t* graph,
                                     const cudaGraphNode_t** tail, const cudaGraphEdgeData** edges, size_t* count) {
    return call([&] {
        cudaStream_t stream = known(handle);
        if (!stream) return cudaErrorInvalidResourceHandle;
        *status = stream->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
        if (!stream->graph) return cudaSuccess;
        if (number) *number = stream->capture;
        if (graph) *graph = stream->graph;
        if (tail) *tail = stream->tail.data();
        if (edges) *edges = nullptr;
        if (count) *count = stream->tail.size();
        return cudaSuccess;
    });
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t handle, cudaGraphNode_t* nodes, const cudaGraphEdgeData*, size_t count, unsigned flags) {
    return call([&] {
        cudaStream_t stream = known(handle);
        if (!stream || !stream->graph) return cudaErrorIllegalState;
        if (flags == cudaStreamSetCaptureDependencies) stream->tail.clear();
        stream->tail.insert(stream->tail.end(), nodes, nodes + count);
        return cudaSuccess;
    });
}
#endif

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return call([&] {
        static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
        std::swap(current, *mode);
        return cudaSuccess;
    });
}

// --- events ---

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned flags) {
    return call([&] {
        if (!made) return cudaErrorInvalidValue;
        *made = new CUevent_st{flags};
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreate(cudaEvent_t* made) { return cudaEventCreateWithFlags(made, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return call([&] {
        if (!event) return cudaErrorInvalidResourceHandle;
        delete event;
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned) {
    return call([&] {
        cudaStream_t stream = known(handle);
        if (!event || !stream) return cudaErrorInvalidResourceHandle;
        event->graph = stream->graph, event->capture = stream->capture, event->tail = stream->tail;
        if (!stream->graph) event->recorded = true, event->when_ns = capture::now_ns();
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return call([&] { return !event ? cudaErrorInvalidResourceHandle : event->graph ? cudaErrorCapturedEvent : cudaSuccess; });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return call([&] {
        if (!event) return cudaErrorInvalidResourceHandle;
        if (event->graph) return cudaErrorCapturedEvent;
        note_wait(nullptr);
        return cudaSuccess;
    });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    return call([&] {
        if (!ms) return cudaErrorInvalidValue;
        if (!begin || !end || !begin->recorded || !end->recorded) return cudaErrorInvalidResourceHandle;
        if ((begin->flags | end->flags) & cudaEventDisableTiming) return cudaErrorInvalidResourceHandle;
        *ms = float(int64_t(end->when_ns - begin->when_ns)) / 1e6f;
        return cudaSuccess;
    });
}

}  // extern "C"
