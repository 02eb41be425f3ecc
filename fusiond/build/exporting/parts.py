"""Parts of the implementation that are the same in every export, but for a few names; those with places are for
`str.format`."""

STATE = """\
struct Launcher::State {
    std::map<int, cudaStream_t> streams;
    std::map<int, cudaEvent_t> events;
    struct Graph {
        std::vector<std::uintptr_t> key;
        cudaGraph_t graph;
        cudaGraphExec_t executable;
    };
    std::vector<Graph> graphs;
    std::string problem;
    cudaStream_t last = nullptr;
    bool launched = false;

    ~State() {
        for (auto& each : graphs) {
            cudaGraphExecDestroy(each.executable);
            cudaGraphDestroy(each.graph);
        }
        for (auto& each : events) cudaEventDestroy(each.second);
        for (auto& each : streams) cudaStreamDestroy(each.second);
    }

    cudaError_t stream(int number, cudaStream_t* found) {
        if (!streams.count(number)) {
            cudaStream_t made = nullptr;
            TRY(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
            streams[number] = made;
        }
        *found = streams[number];
        return cudaSuccess;
    }

    cudaError_t make_event(int number) {
        if (events.count(number)) return cudaSuccess;
        cudaEvent_t made = nullptr;
        TRY(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
        events[number] = made;
        return cudaSuccess;
    }

    /// Events are made before anything is captured.
    cudaError_t make_events(int count) {
        for (int number = -3; number < count; ++number) TRY(make_event(number));
        return cudaSuccess;
    }

    cudaEvent_t event(int number) { return events.at(number); }

    /// Nothing that is enqueued on `after` from here on begins before what is on `before`.
    cudaError_t hand_over(cudaStream_t before, cudaStream_t after, int number) {
        TRY(cudaEventRecord(event(number), before));
        return cudaStreamWaitEvent(after, event(number), 0);
    }

    cudaError_t fork(cudaStream_t* all, int count) {
        for (int i = 1; i < count; ++i) TRY(hand_over(all[0], all[i], FORKED));
        return cudaSuccess;
    }

    cudaError_t join(cudaStream_t* all, int count) {
        for (int i = 1; i < count; ++i) TRY(hand_over(all[i], all[0], FORKED));
        return cudaSuccess;
    }
};
"""

COPY_BATCH = """\
/// Several copies as one call, in no order among themselves: cudaMemcpyBatchAsync from CUDA 12.8 on. Before that, and
/// while a graph is captured, they are made one by one.
cudaError_t copy_batch(void** targets, const void** sources, std::size_t* lengths, std::size_t count,
                       cudaMemcpyKind kind, cudaStream_t stream, bool capturing) {
#if CUDART_VERSION >= 12080
    if (!capturing) {
        cudaMemcpyAttributes attributes = {};
        attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
        std::size_t first = 0;
#if CUDART_VERSION >= 13000
        return cudaMemcpyBatchAsync(targets, sources, lengths, count, &attributes, &first, 1, stream);
#else
        std::size_t failed = 0;
        return cudaMemcpyBatchAsync(targets, const_cast<void**>(sources), lengths, count, &attributes, &first, 1,
                                    &failed, stream);
#endif
    }
#endif
    (void)capturing;
    for (std::size_t i = 0; i < count; ++i) TRY(cudaMemcpyAsync(targets[i], sources[i], lengths[i], kind, stream));
    return cudaSuccess;
}
"""

PREFETCH = """\
/// Managed memory is moved to the current device, or to the host, before it is used there.
cudaError_t prefetch(const void* start, std::size_t size, bool to_device, cudaStream_t stream) {
    int device = 0;
    TRY(cudaGetDevice(&device));
#if CUDART_VERSION >= 13000
    cudaMemLocation where = {};
    where.type = to_device ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost;
    where.id = to_device ? device : 0;
    return cudaMemPrefetchAsync(start, size, where, 0, stream);
#else
    return cudaMemPrefetchAsync(start, size, to_device ? device : cudaCpuDeviceId, stream);
#endif
}
"""

ALLOCATE_HOST = """\
cudaError_t allocate_host(void** base, std::size_t size) {
    *base = ::operator new(size, std::nothrow);
    return *base ? cudaSuccess : cudaErrorMemoryAllocation;
}
"""

OPT_IN = """\
/// Dynamic shared memory must be asked for that makes more than 48 KiB with what a kernel has itself.
cudaError_t opt_in(const void* kernel, long long shared_bytes) {
    cudaFuncAttributes now;
    TRY(cudaFuncGetAttributes(&now, kernel));
    if (shared_bytes <= now.maxDynamicSharedSizeBytes) return cudaSuccess;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
}
"""

PUT = """\
template <class T> void put(unsigned char* place, T value) { std::memcpy(place, &value, sizeof(T)); }
"""


HELPERS = {
    "copy_batch": COPY_BATCH, "prefetch": PREFETCH, "allocate_host": ALLOCATE_HOST, "put": PUT, "opt_in": OPT_IN,
}  # fmt: skip

TRY = """\
#define TRY(call)                                \\
    do {                                         \\
        const cudaError_t status_of = (call);    \\
        if (status_of != cudaSuccess) return status_of; \\
    } while (0)
"""

WITHIN = """\
[[maybe_unused]] inline bool within(long long value, long long low, long long high) {
    return low <= value && value <= high;
}
"""

MEMBERS = """\
Launcher::Launcher() : state_(new State) {}
Launcher::~Launcher() = default;
const std::string& Launcher::problem() const { return state_->problem; }
"""

CHECKED = """\
State& state = *state_;
state.problem.clear();
if (const char* wrong = check(buffers, sizes{seams})) {{
    state.problem = wrong;
    return cudaErrorInvalidValue;
}}"""

AFTER_LAST = """\
// Launches share the workspace, so this one begins after the last.
if (state.launched && state.last != stream) TRY(cudaStreamWaitEvent(stream, state.event(LAST), 0));"""

LAST = """\
TRY(cudaEventRecord(state.event(LAST), stream));
state.last = stream;
state.launched = true;
return cudaSuccess;"""

OF_THREAD = """\
thread_local std::map<int, Launcher*> launchers;  // kept: a thread may end after the runtime has
int device = 0;
TRY(cudaGetDevice(&device));
Launcher*& launcher = launchers[device];
if (!launcher) launcher = new Launcher;
const cudaError_t status = launcher->launch(buffers, sizes, stream{seams});
if (status != cudaSuccess && problem)
    *problem = launcher->problem().empty() ? cudaGetErrorString(status) : launcher->problem();
return status;"""

OWN_STREAM = """\
cudaStream_t lead = stream;
// Batches of copies are refused on the default streams.
const bool own = stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
if (own) {{
    TRY(state.stream(0, &lead));
    TRY(state.hand_over(stream, lead, HANDED));
}}
TRY(enqueue(state, at{seams}, sizes, lead, false));
if (own) TRY(state.hand_over(lead, stream, HANDED));"""

CAPTURE = """\
cudaStream_t lead = nullptr;
for (int i = {streams}; i-- > 0;) TRY(state.stream(i, &lead));
TRY(cudaStreamBeginCapture(lead, cudaStreamCaptureModeThreadLocal));
const cudaError_t status = enqueue(state, at{seams}, sizes, lead, true);
State::Graph made = {{key, nullptr, nullptr}};
const cudaError_t ended = cudaStreamEndCapture(lead, &made.graph);
TRY(status);
TRY(ended);
TRY(cudaGraphInstantiateWithFlags(&made.executable, made.graph, 0));
if (state.graphs.size() >= 16) {{  // pointers that change with every call must not fill the memory
    cudaGraphExecDestroy(state.graphs.front().executable);
    cudaGraphDestroy(state.graphs.front().graph);
    state.graphs.erase(state.graphs.begin());
}}
state.graphs.push_back(made);
found = state.graphs.end() - 1;"""
