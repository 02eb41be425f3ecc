// Streams and events. Work is done when it is handed in, so that there is never anything to wait for.
#include "state.h"

struct CUevent_st {
    unsigned flags = 0;
    bool recorded = false;
    uint64_t when_ns = 0;
};

namespace cudart {

cudaStream_t real(cudaStream_t stream) { return stream == cudaStreamLegacy || stream == cudaStreamPerThread ? nullptr : stream; }

cudaError_t in_order(cudaStream_t, Work work) { return work(); }

namespace {

std::set<cudaStream_t>& streams() {
    static auto* const all = new std::set<cudaStream_t>();
    return *all;
}

cudaError_t known(cudaStream_t stream) {
    return !real(stream) || streams().count(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

}  // namespace
}  // namespace cudart

using namespace cudart;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned flags, int priority) {
    return call([&] {
        if (!made) return cudaErrorInvalidValue;
        *made = new CUstream_st();
        (*made)->flags = flags, (*made)->priority = priority, (*made)->number = streams().size() + 3;
        streams().insert(*made);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamCreate(cudaStream_t* made) { return cudaStreamCreateWithPriority(made, 0, 0); }
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
        note_wait(stream);
        return known(stream);
    });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return call([&] { return known(stream); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    return call([&] { return event ? known(stream) : cudaErrorInvalidResourceHandle; });
}

// --- events ---

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned flags) {
    return call([&] {
        *made = new CUevent_st();
        (*made)->flags = flags;
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreate(cudaEvent_t* made) { return cudaEventCreateWithFlags(made, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return call([&] {
        if (!event) return cudaErrorInvalidResourceHandle;
        delete event;
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    return call([&] {
        if (!event) return cudaErrorInvalidResourceHandle;
        return in_order(stream, [event] {
            event->recorded = true, event->when_ns = capture::now_ns();
            return cudaSuccess;
        });
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return call([&] { return event ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return call([&] {
        if (!event) return cudaErrorInvalidResourceHandle;
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
