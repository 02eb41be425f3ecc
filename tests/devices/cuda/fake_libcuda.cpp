// A CUDA driver without a GPU, for tests: device memory is host memory, kernels are C functions (those of
// other cubins: fake_module.h), work is done when it is enqueued (or, during a capture, when the graph is
// launched); when it would have been done on a device says fake_timeline.h. Every call is written to a log.

#include <cstdio>
#include <list>
#include <set>

#include "fake_absent.h"
#include "fake_timeline.h"

#include "fake_data.h"
#include "fake_module.h"

namespace {

std::string call_log;
std::map<std::string, int> failures;  // function -> error code of its next call
std::map<uint64_t, size_t> live;      // address -> bytes
int64_t next_handle = (1ll << 32) + 1;  // as wide as a pointer: whoever passes it as an int is noticed
int stuck = 0;  // what every call answers from now on, as after a fault that breaks the context

struct Node { void* stream; std::function<void()> work; std::function<double(double)> end; };
struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS_v2, and what its pointers point to
    void* function;
    unsigned shape[7];
    void **values, **extra, *kernel, *context;
    std::vector<char> bytes;
    std::vector<void*> places;
};
struct CopyNode {  // CUDA_MEMCPY3D
    size_t source[4];
    int source_type;
    const void* source_host;
    uint64_t source_device;
    void *source_array, *reserved0;
    size_t source_pitch, source_height, target[4];
    int target_type;
    void* target_host;
    uint64_t target_device;
    void *target_array, *reserved1;
    size_t target_pitch, target_height, width, height, depth;
};
struct FillNode { uint64_t to; size_t pitch; unsigned value, element_bytes; size_t width, height; };  // CUDA_MEMSET_NODE_PARAMS
struct Graph {
    std::vector<Node> nodes;
    std::list<KernelNode> kernels;
    std::list<CopyNode> copies;
    std::list<FillNode> fills;
    std::list<std::pair<int, void*>> described;  // (CUgraphNodeType, one of those), in order
    bool uploaded = false;
};
struct LaunchAttribute { int id; char pad[4]; int value; char rest[60]; };
struct LaunchConfig { unsigned grid[3], block[3], shared; void* stream; LaunchAttribute* attributes; unsigned count; };
Graph* capturing = nullptr;
bool spoilt = false;  // the capture: something was called that cannot be in a graph

template <class... A> void say(const char* format, A... values) {
    char line[256];
    snprintf(line, sizeof line, format, values...);
    call_log += line;
    call_log += '\n';
}
int fails(const char* name) {
    if (stuck) return stuck;
    auto found = failures.find(name);
    if (found == failures.end()) return 0;
    int code = found->second;
    failures.erase(found);
    return code;
}
void* handle() { return (void*)next_handle++; }
// Calls that CUDA forbids while a stream is captured break the capture.
int uncapturable() {
    if (!capturing) return 0;
    spoilt = true;
    return 900;
}
void copies(const void* target, const void* source, int target_type, int source_type, size_t bytes) {
    if (!capturing) return;
    auto& node = capturing->copies.emplace_back(CopyNode{});
    node.target_type = target_type, node.source_type = source_type;
    node.source_host = source, node.source_device = (uint64_t)source;
    node.target_host = (void*)target, node.target_device = (uint64_t)target;
    node.width = bytes, node.height = node.depth = 1;
    capturing->described.push_back({1, &node});
}
// `work`: what it does; `end`: when it ends, from when it begins.
void enqueue(void* stream, std::function<void()> work, std::function<double(double)> end) {
    if (capturing) {
        capturing->nodes.push_back({stream, work, end});
        return;
    }
    work();
    timeline::host_us += timeline::knobs.launch_us;
    double enqueued = timeline::host_us;
    timeline::add(stream, [=](double begin) { return end(std::max(begin, enqueued)); });
}
double moved(double begin, size_t bytes, double gbs) { return gbs > 0 ? begin + bytes / gbs / 1e3 : begin; }
std::function<double(double)> across(size_t bytes) {  // read and written
    return [=](double begin) { return moved(begin, 2 * bytes, timeline::knobs.copy_gbs); };
}
std::function<double(double)> up(size_t bytes) {
    return [=](double begin) { return moved(begin, bytes, timeline::knobs.up_gbs); };
}
std::function<double(double)> down(size_t bytes) {
    return [=](double begin) { return moved(begin, bytes, timeline::knobs.down_gbs); };
}

// The kernels.
void double_it(void** values, unsigned) {  // (float* x, int n)
    float* x = *(float**)values[0];
    for (int i = 0; i < *(int*)values[1]; i++) x[i] *= 2;
}
void overrun(void** values, unsigned) {  // (float* x, int n): one element too far, and one too early
    float* x = *(float**)values[0];
    x[*(int*)values[1]] = 1;
    x[-2] = 1;
}
void add(void** values, unsigned) {  // (float* x, float* y, int n): x += y
    float *x = *(float**)values[0], *y = *(float**)values[1];
    for (int i = 0; i < *(int*)values[2]; i++) x[i] += y[i];
}
void nothing(void**, unsigned) {}
void gate(void** values, unsigned) { say("gate %s", **(uint32_t**)values[0] ? "open" : "closed"); }
Function functions[] = {
    {"double_it", double_it, {8, 4}, 16, 128, 1024},
    {"overrun", overrun, {8, 4}, 16, 0, 1024},
    {"add", add, {8, 8, 4}, 16, 0, 1024},
    {"hungry", double_it, {8, 4}, 128, 0, 512},
    {"fusiond_gate", gate, {8, 8}, 16, 0, 1024},
    {"fusiond_canary", nothing, {8, 8, 4}, 16, 0, 1024},
    {"fusiond_empty", nothing, {}, 16, 0, 1024},
    {"fusiond_fma", nothing, {8, 4}, 16, 0, 1024},
    FAKE_DATA_KERNELS
};
float weights[4];

std::set<std::string> loaded;  // kernels that were launched before
std::map<void*, int> allowed;  // dynamic shared memory that was asked for, by kernel

// The gate ends when the host has opened it, or gives up.
double end_of_gate(double begin, volatile uint32_t* flags, uint64_t limit_ns) {
    double opened = std::max(begin, timeline::host_us), limit = begin + limit_ns / 1e3;
    bool open = flags[0] && opened <= limit;
    if (!open) flags[1] = 1;
    return timeline::worked(begin, open ? opened + timeline::knobs.release_us : limit);
}
double end_of_canary(double begin, uint64_t* out, uint32_t ticks, uint64_t limit_cycles, unsigned blocks) {
    timeline::Watched seen;
    double end = timeline::watch(begin, ticks, limit_cycles, seen);
    for (unsigned i = 0; i < blocks; i++) memcpy(out + 4 * i, &seen, sizeof seen);
    return end;
}
// When a kernel ends that begins at some time. `bytes` holds its arguments.
std::function<double(double)> end_of_kernel(const Function& it, std::vector<char> bytes, unsigned blocks) {
    std::string name = it.name;
    if (timeline::troubled("hang", name)) return [](double) -> double { for (;;) pause(); };
    if (timeline::troubled("fault", name)) return [](double begin) { stuck = 700; return begin; };
    if (name == "fusiond_gate") {
        auto* flags = *(volatile uint32_t**)&bytes[0];
        uint64_t limit_ns = *(uint64_t*)&bytes[8];
        return [=](double begin) { return end_of_gate(begin, flags, limit_ns); };
    }
    if (name == "fusiond_canary") {
        auto* out = *(uint64_t**)&bytes[0];
        uint64_t limit_cycles = *(uint64_t*)&bytes[8];
        uint32_t ticks = *(uint32_t*)&bytes[16];
        return [=](double begin) { return end_of_canary(begin, out, ticks, limit_cycles, blocks); };
    }
    auto found = timeline::durations.find(name);
    double duration_us = found == timeline::durations.end() ? timeline::knobs.kernel_us : found->second;
    if (name == "fusiond_fma" && timeline::knobs.fma_tflops > 0) {
        // 256 threads a block, 8 chains of so many rounds each, two operations in each
        duration_us = 256.0 * blocks * *(uint32_t*)&bytes[8] * 8 * 2 / timeline::knobs.fma_tflops / 1e6;
    }
    return [=](double begin) {
        double after = begin + timeline::knobs.gap_us;
        return duration_us > 0 ? timeline::end_of(after, timeline::drawn(duration_us) * timeline::knobs.mhz) : after;
    };
}

const struct { int code; const char *name, *text; } errors[] = {
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
};
const char* unknown = "unknown";

}  // namespace

#define CALL(name) if (int code = fails(name)) return code
extern "C" {

const char* fake_log() { return call_log.c_str(); }
void fake_clear() { call_log.clear(); }
void fake_fail(const char* name, int code) { failures[name] = code; }
void fake_stick(int code) { stuck = code; }
int fake_live() { return (int)live.size(); }
int fake_set(const char* name, double value) { return timeline::set(name, value); }
void fake_reset() {  // one library serves many tests
    timeline::wait_for_all();
    timeline::knobs = {};
    timeline::table.clear();
    timeline::durations.clear();
    timeline::troubles.clear();
    timeline::dice.seed(1);
    loaded.clear();
    allowed.clear();
    timeline::set_from_environment();
}
void fake_pass(double us) { timeline::host_us += us; }  // the host does something else
double fake_now() { return timeline::host_us; }
// The clock from now on, by its corners in microseconds from now; none: it stays at `mhz`.
void fake_clock(const double* us, const double* mhz, int corners) {
    timeline::wait_for_all();
    timeline::table.clear();
    for (int i = 0; i < corners; i++) timeline::table.push_back({timeline::host_us + us[i], mhz[i]});
}

int cuInit(unsigned) {
    CALL("cuInit");
    static bool once = (timeline::set_from_environment(), true);
    return !once;
}
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetCount(int* count) { *count = 2; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* name, int, int device) {
    strcpy(name, device == 1 ? "NVIDIA Fake MIG 1g.18gb" : "NVIDIA Fake");
    return 0;
}
int cuDeviceGetUuid_v2(char* uuid, int device) { memset(uuid, 0x11 * (device + 1), 16); return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = 8ull << 30; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 1: *value = 1024; break;
        case 12: case 82: *value = 65536; break;
        case 16: *value = 132; break;
        case 38: *value = 1 << 16; break;
        case 39: *value = 2048; break;
        case 75: *value = 9; break;
        case 76: *value = 0; break;
        case 81: *value = 228 * 1024; break;
        case 89: *value = int(timeline::knobs.prefetches); break;
        case 97: *value = 227 * 1024; break;
        case 106: *value = 32; break;
        case 111: *value = 1024; break;
        default: *value = 0;
    }
    return 0;
}
int cuGetErrorName(int code, const char** name) {
    *name = unknown;
    for (auto& each : errors) if (each.code == code) *name = each.name;
    return 0;
}
int cuGetErrorString(int code, const char** text) {
    *text = unknown;
    for (auto& each : errors) if (each.code == code) *text = each.text;
    return 0;
}

// Contexts
struct Context { int device; };
static std::vector<Context*> stack;
static std::map<int, Context*> primary;
static Context* current() { return stack.empty() ? nullptr : stack.back(); }
static void first_context() {
    static bool once = (usleep(unsigned(1000 * timeline::knobs.context_ms)), true);
    (void)once;
}
int cuCtxCreate_v2(void** context, unsigned, int device) {
    first_context();
    auto* made = new Context{device};
    stack.push_back(made);
    *context = made;
    return 0;
}
int cuCtxCreate_v4(void** context, void*, unsigned flags, int device) { return cuCtxCreate_v2(context, flags, device); }
int cuCtxDestroy_v2(void*) { return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
    say("retain the primary context");
    first_context();
    auto& known = primary[device];
    if (!known) known = new Context{device};
    *context = known;
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { say("release the primary context"); return 0; }
int cuCtxAttach(void** context, unsigned) { *context = handle(); return 0; }
int cuCtxDetach(void*) { return 0; }
int cuCtxPushCurrent_v2(void* context) { stack.push_back((Context*)context); return 0; }
int cuCtxPopCurrent_v2(void** context) {
    if (stack.empty()) return 201;  // after an error that sticks, too
    *context = stack.back();
    stack.pop_back();
    return 0;
}
int cuCtxGetCurrent(void** context) { *context = current(); return 0; }
int cuCtxSetCurrent(void* context) {
    say("current is %d", ((Context*)context)->device);
    if (!stack.empty()) stack.pop_back();
    stack.push_back((Context*)context);
    return 0;
}
int cuCtxGetDevice(int* device) { *device = current() ? current()->device : 0; return 0; }
int cuCtxSynchronize() {
    CALL("cuCtxSynchronize");
    if (int error = uncapturable()) return error;
    timeline::wait_for_all();
    return stuck;
}
int cuCtxGetApiVersion(void*, unsigned* version) { *version = 3020; return 0; }

// Memory
int cuMemGetInfo_v2(size_t* there, size_t* all) {
    *there = size_t(timeline::knobs.free_gib * (1ull << 30));
    *all = *there + (1ull << 30);
    return 0;
}
static int take(uint64_t* address, size_t bytes) {
    CALL("cuMemAlloc");
    if (int error = uncapturable()) return error;
    *address = (uint64_t)aligned_alloc(512, (bytes + 511) / 512 * 512);
    memset((void*)*address, 0, bytes);
    live[*address] = bytes;
    return 0;
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    say("allocate %zu", bytes);
    timeline::wait_implicitly();
    if (int error = take(address, bytes)) return error;
    return 0;
}
static int give_back(uint64_t address) {
    auto found = live.find(address);
    if (found != live.end()) {
        blanks::forget(address, found->second);
        live.erase(found);
    }
    free((void*)address);
    return 0;
}
int cuMemFree_v2(uint64_t address) {
    timeline::wait_implicitly();
    return give_back(address);
}
int cuMemHostAlloc(void** address, size_t bytes, unsigned) {
    say("pin %zu", bytes);
    timeline::wait_implicitly();
    return take((uint64_t*)address, bytes);
}
int cuMemAllocManaged(uint64_t* address, size_t bytes, unsigned flags) {
    say("manage %zu", bytes);
    timeline::wait_implicitly();
    return flags == 1 ? take(address, bytes) : 1;
}
int cuMemPrefetchAsync(uint64_t address, size_t bytes, int device, void* stream) {
    if (int error = uncapturable()) return error;
    say("prefetch %zu to %d on %p", bytes, device, stream);
    bool whole = false;
    for (auto& each : live) whole |= each.first <= address && address + bytes <= each.first + each.second;
    if (!whole) return 1;
    enqueue(stream, [] {}, device < 0 ? down(bytes) : up(bytes));
    return 0;
}
int cuMemFreeHost(void* address) { return cuMemFree_v2((uint64_t)address); }
int cuMemHostGetDevicePointer_v2(uint64_t* device, void* host, unsigned) { *device = (uint64_t)host; return 0; }
int cuMemHostGetFlags(unsigned* flags, void*) { *flags = 2; return 0; }
int cuMemAllocAsync(uint64_t* address, size_t bytes, void* stream) { say("allocate %zu on %p", bytes, stream); return take(address, bytes); }
int cuMemFreeAsync(uint64_t address, void* stream) { say("free on %p", stream); return give_back(address); }
// Of the legacy stream: waits for all that was enqueued, and the host waits for it, except within the device.
static int copied(std::function<void()> work, std::function<double(double)> end, bool host) {
    if (int error = uncapturable()) return error;
    enqueue(nullptr, work, end);
    if (host) timeline::wait(nullptr);
    return stuck;
}
int cuMemcpyHtoD_v2(uint64_t target, const void* source, size_t bytes) {
    CALL("cuMemcpyHtoD");
    blanks::uploaded(target, (const char*)source, bytes);
    return copied([=] { memcpy((void*)target, source, bytes); }, up(bytes), true);
}
int cuMemcpyDtoH_v2(void* target, uint64_t source, size_t bytes) {
    CALL("cuMemcpyDtoH");
    if (int error = uncapturable()) return error;
    timeline::wait_for_all();  // some kernels write when their times are known
    return copied([=] { memcpy(target, (void*)source, bytes); }, down(bytes), true);
}
int cuMemcpyDtoD_v2(uint64_t target, uint64_t source, size_t bytes) {
    return copied([=] { memcpy((void*)target, (void*)source, bytes); }, across(bytes), false);
}
int cuMemcpyHtoDAsync_v2(uint64_t target, const void* source, size_t bytes, void* stream) {
    say("up %zu on %p", bytes, stream);
    copies((void*)target, source, 2, 1, bytes);
    enqueue(stream, [=] { memcpy((void*)target, source, bytes); blanks::written(target); }, up(bytes));
    return 0;
}
int cuMemcpyDtoHAsync_v2(void* target, uint64_t source, size_t bytes, void* stream) {
    say("down %zu on %p", bytes, stream);
    copies(target, (void*)source, 1, 2, bytes);
    enqueue(stream, [=] { memcpy(target, (void*)source, bytes); }, down(bytes));
    return 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, void* stream) {
    say("across %zu on %p", bytes, stream);
    enqueue(stream, [=] { memcpy((void*)target, (void*)source, bytes); blanks::written(target); }, across(bytes));
    return 0;
}
int cuMemsetD8_v2(uint64_t target, unsigned char value, size_t bytes) {
    blanks::filled(target, bytes);
    return copied([=] { memset((void*)target, value, bytes); }, across(bytes / 2), false);
}
int cuMemsetD8Async(uint64_t target, unsigned char value, size_t bytes, void* stream) {
    say("fill %zu on %p", bytes, stream);
    if (capturing)
        capturing->described.push_back({2, &capturing->fills.emplace_back(FillNode{target, 0, value, 1, bytes, 1})});
    enqueue(stream, [=] { memset((void*)target, value, bytes); blanks::written(target); }, across(bytes / 2));
    return 0;
}
int cuMemcpyBatchAsync_v2(uint64_t* targets, uint64_t* sources, size_t* sizes, size_t count, void* attributes, size_t* first,
                          size_t attribute_count, void* stream) {
    CALL("cuMemcpyBatchAsync");
    if (attribute_count != 1 || *first != 0 || *(int*)attributes != 1 || !stream) return 1;
    if (int error = uncapturable()) return error;  // a graph has no such node
    say("batch %zu on %p", count, stream);
    std::vector<uint64_t> to(targets, targets + count), from(sources, sources + count);
    std::vector<size_t> bytes(sizes, sizes + count);
    size_t all = 0;
    for (size_t each : bytes) all += each;
    auto copy = [=] {
        for (size_t i = 0; i < count; i++) {
            memcpy((void*)to[i], (void*)from[i], bytes[i]);
            blanks::written(to[i]);
        }
    };
    enqueue(stream, copy, up(all));
    return 0;
}

// Modules
static std::map<void*, void*> library_kernels;  // -> function: a launch takes either
struct Module { cubin::Contents own; std::map<std::string, std::vector<char>> memory; };
int cuModuleLoadData(void** module, const void* image) {
    CALL("cuModuleLoadData");
    timeline::wait_implicitly();
    auto* it = new Module;
    if (cubin::is(image)) it->own = cubin::read(image);
    for (auto& each : it->own.variables) it->memory[each.first].resize(each.second);
    *module = it;
    return 0;
}
int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) { return cuModuleLoadData(module, image); }
int cuModuleUnload(void* module) {
    timeline::settle();
    timeline::wait_implicitly();
    delete (Module*)module;
    return 0;
}
// A kernel that is known by its name is that one, whatever is in the file.
int cuModuleGetFunction(void** function, void* module, const char* name) {
    for (auto& each : functions) if (each.name == name) return *function = &each, 0;
    for (auto& each : ((Module*)module)->own.functions) if (each.name == name) return *function = &each, 0;
    return 500;
}
int cuModuleGetGlobal_v2(uint64_t* address, size_t* bytes, void* module, const char* name) {
    auto& memory = ((Module*)module)->memory;
    auto found = memory.find(name);
    if (found != memory.end()) {
        *address = (uint64_t)found->second.data();
        *bytes = found->second.size();
        return 0;
    }
    if (strcmp(name, "weights")) return 500;
    *address = (uint64_t)weights;
    *bytes = sizeof weights;
    return 0;
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
    auto& it = *(Function*)function;
    *value = attribute == 0 ? it.most_threads : attribute == 1 ? it.shared : attribute == 4 ? it.registers : 0;
    return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    CALL("cuFuncSetAttribute");
    auto& it = *(Function*)function;
    if (attribute == 8 && it.shared + value > 227 * 1024) return 1;
    if (attribute == 8) allowed[function] = value;
    say("attribute %d of %s is %d", attribute, it.name.c_str(), value);
    return 0;
}
int cuFuncSetBlockShape(void*, int, int, int) { return 0; }
// A multiprocessor has room for 2048 threads, 32 blocks and 227 KiB.
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t dynamic) {
    size_t shared = ((Function*)function)->shared + dynamic + 1024;
    size_t fit = 232448 / shared;
    *blocks = 2048 / threads;
    if (*blocks > 32) *blocks = 32;
    if ((size_t)*blocks > fit) *blocks = (int)fit;
    return 0;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** values, void** extra) {
    CALL("cuLaunchKernel");
    if (library_kernels.count(function)) function = library_kernels[function];
    auto& it = *(Function*)function;
    if (shared > unsigned(allowed.count(function) ? allowed[function] : 48 * 1024 - it.shared)) return 1;
    say("launch %s %ux%ux%u %ux%ux%u %u on %p", it.name.c_str(), gx, gy, gz, bx, by, bz, shared, stream);
    std::vector<char> bytes;  // a copy: the caller's values may go
    std::vector<size_t> offsets;
    size_t end = 0;
    for (size_t i = 0; i < it.sizes.size(); i++) {
        size_t natural = (end + it.sizes[i] - 1) / it.sizes[i] * it.sizes[i];
        size_t offset = it.offsets.empty() ? natural : it.offsets[i];
        offsets.push_back(offset);
        end = offset + it.sizes[i];
    }
    bytes.resize(end);
    if (values) for (size_t i = 0; i < it.sizes.size(); i++) memcpy(&bytes[offsets[i]], values[i], it.sizes[i]);
    else if (extra) {
        if (*(size_t*)extra[3] != end) return 1;
        memcpy(bytes.data(), extra[1], end);
    }
    if (!capturing && loaded.insert(it.name).second) {
        timeline::wait_implicitly();
        timeline::host_us += timeline::knobs.load_us;
    }
    if (capturing) {
        auto& node = capturing->kernels.emplace_back(KernelNode{function, {gx, gy, gz, bx, by, bz, shared}});
        node.bytes = bytes;
        for (size_t offset : offsets) node.places.push_back(&node.bytes[offset]);
        node.values = node.places.data();
        capturing->described.push_back({0, &node});
    }
    auto end_of = end_of_kernel(it, bytes, gx * gy * gz);
    auto work = [kernel = it.kernel, bytes, offsets, shared]() mutable {
        std::vector<void*> places;
        for (size_t offset : offsets) places.push_back(&bytes[offset]);
        if (kernel) kernel(places.data(), shared);
        else blanks::write_from(bytes);
    };
    enqueue(stream, work, end_of);
    return 0;
}

int cuLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                              unsigned shared, void* stream, void** values) {
    CALL("cuLaunchCooperativeKernel");
    if (library_kernels.count(function)) function = library_kernels[function];
    int each = 0;
    cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, function, (int)(bx * by * bz), shared);
    if (gx * gy * gz > 132u * each) return 720;
    say("together");
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, values, nullptr);
}

// What is asked of a launch is in the log, and makes no difference here.
int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** values, void** extra) {
    CALL("cuLaunchKernelEx");
    for (unsigned i = 0; i < config->count; i++) say("attribute %d %d", config->attributes[i].id, config->attributes[i].value);
    return cuLaunchKernel(function, config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1],
                          config->block[2], config->shared, config->stream, values, extra);
}

// Green contexts: a resource is 144 bytes, its multiprocessors at byte 96.
int cuDeviceGetDevResource(int, void* resource, int type) {
    CALL("cuDeviceGetDevResource");
    memset(resource, 0, 144);
    *(int*)resource = type;
    *(unsigned*)((char*)resource + 96) = 132;
    return 0;
}
int cuDevSmResourceSplitByCount(void* groups, unsigned* count, const void* whole, void* rest, unsigned, unsigned least) {
    CALL("cuDevSmResourceSplitByCount");
    unsigned all = *(const unsigned*)((const char*)whole + 96), each = (least + 7) / 8 * 8;
    if (!each || each > all) return 1;
    *count = std::min(*count, all / each);
    for (unsigned i = 0; i < *count; i++) {
        memcpy((char*)groups + 144 * i, whole, 144);
        *(unsigned*)((char*)groups + 144 * i + 96) = each;
    }
    memcpy(rest, whole, 144);
    *(unsigned*)((char*)rest + 96) = all - *count * each;
    return 0;
}
int cuDevResourceGenerateDesc(void** description, void* resources, unsigned) { *description = resources; return 0; }
int cuGreenCtxCreate(void** context, void* description, int, unsigned flags) {
    CALL("cuGreenCtxCreate");
    if (flags != 1) return 1;
    say("green context of %u", *(unsigned*)((char*)description + 96));
    *context = handle();
    return 0;
}
int cuGreenCtxStreamCreate(void** stream, void*, unsigned flags, int) {
    if (flags != 1) return 1;
    *stream = handle();
    return 0;
}
int cuGreenCtxDestroy(void*) { say("green context destroyed"); return 0; }

// Streams, events, graphs
int cuCtxGetStreamPriorityRange(int* least, int* greatest) { *least = 0; *greatest = -5; return 0; }
int cuStreamCreateWithPriority(void** stream, unsigned, int priority) {
    *stream = handle();
    say("stream of priority %d is %p", priority, *stream);
    return 0;
}
int cuStreamCreate(void** stream, unsigned) {
    *stream = handle();
    return 0;
}
int cuStreamDestroy_v2(void*) { return 0; }
int cuStreamSynchronize(void* stream) {
    CALL("cuStreamSynchronize");
    if (int error = uncapturable()) return error;
    say("wait for %p", stream);
    timeline::wait(stream);
    return stuck;
}
int cuStreamQuery(void*) { return 0; }
struct Event { void* number; double at_us; };
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
    auto* it = (Event*)event;
    say("%p waits for event %p", stream, it->number);
    // Two streams of a captured graph are one after the other here.
    if (!capturing) timeline::add(stream, [=](double begin) { return std::max(begin, it->at_us); });
    return 0;
}
int cuEventCreate(void** event, unsigned) {
    *event = new Event{handle(), 0};
    return 0;
}
int cuEventDestroy_v2(void* event) {
    timeline::settle();
    delete (Event*)event;
    return 0;
}
int cuEventRecord(void* event, void* stream) {
    auto* it = (Event*)event;
    say("event %p on %p", it->number, stream);
    if (capturing) return 0;
    timeline::host_us += timeline::knobs.launch_us;
    double enqueued = timeline::host_us;
    timeline::add(stream, [=](double begin) {
        return it->at_us = timeline::recorded(std::max(begin, enqueued));
    });
    return 0;
}
int cuEventQuery(void*) { return 0; }
int cuEventSynchronize(void* event) {
    CALL("cuEventSynchronize");
    if (int error = uncapturable()) return error;
    say("wait for event %p", ((Event*)event)->number);
    timeline::settle();
    timeline::host_us = std::max(timeline::host_us, ((Event*)event)->at_us);
    return stuck;
}
int cuEventElapsedTime(float* ms, void* begin, void* end) {
    timeline::settle();
    *ms = (timeline::stamp(((Event*)end)->at_us) - timeline::stamp(((Event*)begin)->at_us)) / 1000;
    return stuck;
}
int cuEventElapsedTime_v2(float* ms, void* begin, void* end) { return cuEventElapsedTime(ms, begin, end); }
int cuStreamBeginCapture_v2(void* stream, int) {
    say("capture on %p", stream);
    capturing = new Graph;
    spoilt = false;
    return 0;
}
int cuStreamEndCapture(void*, void** graph) {
    say("captured");
    *graph = capturing;
    capturing = nullptr;
    if (!spoilt) return 0;
    delete (Graph*)*graph;
    *graph = nullptr;
    return 901;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
    *executable = new Graph(*(Graph*)graph);
    return 0;
}
int cuGraphLaunch(void* graph, void* stream) {
    say("graph on %p", stream);
    if (!((Graph*)graph)->uploaded) timeline::wait_implicitly();
    ((Graph*)graph)->uploaded = true;
    for (auto& each : ((Graph*)graph)->nodes) {
        each.work();
        auto end = each.end;
        timeline::add(stream, [=](double begin) { return end(begin + timeline::knobs.node_gap_us); });
    }
    timeline::host_us += timeline::knobs.launch_us;
    return 0;
}
int cuGraphExecDestroy(void* graph) { delete (Graph*)graph; return 0; }
int cuGraphDestroy(void* graph) { delete (Graph*)graph; return 0; }

#include "fake_watched.h"
}
