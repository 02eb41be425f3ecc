// The runtime as a whole: how it begins, what it says, and what it writes into the trace.
#include "state.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

namespace cudart {
namespace {

const char* variable(const char* name) {
    const char* found = getenv(name);
    return found && *found ? found : nullptr;
}

Runtime*& existing() {
    static Runtime* one = nullptr;
    return one;
}

bool keeps_data() {
    static const bool found = variable("FUSIOND_CAPTURE_DATA");
    return found;
}

// What lies behind each argument that is an address, and in the variables of the kernel's module.
void keep_data(Runtime& all, const Function& function, const char* arguments) {
    std::set<uint64_t> kept;
    auto keep = [&](uint64_t address, size_t bytes) {
        if (!kept.insert(address).second) return;
        std::string file = all.trace.keep("data", reinterpret_cast<void*>(address), bytes);
        if (!file.empty()) all.trace.write(capture::Kind::data, capture::Fields().u64(address).u64(bytes).text(file));
    };
    for (size_t at = 0; at + 8 <= function.parameter_bytes(); at += 8) {
        uint64_t word;
        memcpy(&word, arguments + at, 8);
        const Allocation* memory = all.heap->find(reinterpret_cast<void*>(word));
        if (memory) keep(word, memory->begin + memory->bytes - word);
    }
    for (auto& each : function.module->variables)
        if (each->address) keep(reinterpret_cast<uint64_t>(each->address), each->bytes);
}

void write_function(Runtime& all, const Function& function) {
    capture::Fields fields;
    fields.pointer(&function).u64(function.module->number).text(function.name);
    fields.u32(function.registers).u32(function.static_shared).u32(function.local).u32(function.parameters.size());
    for (const Parameter& each : function.parameters) fields.u32(each.offset).u32(each.bytes);
    all.trace.write(capture::Kind::function, fields);
}

}  // namespace

void say(const std::string& what) {
    fflush(stdout);
    fprintf(stderr, "fusiond: %s\n", what.c_str());
    if (existing()) existing()->trace.write(capture::Kind::note, capture::Fields().text(what));
}

void give_up(const std::string& why) {
    say(why);
    if (existing()) existing()->trace.flush();
    fflush(nullptr);
    _exit(70);
}

Runtime::Runtime() : trace(variable("FUSIOND_CAPTURE_OUT")) {
    if (const char* most = variable("FUSIOND_CAPTURE_LAUNCHES")) most_launches_ = strtoull(most, nullptr, 10);
    if (const char* seconds = variable("FUSIOND_CAPTURE_SECONDS")) until_ns_ = capture::now_ns() + uint64_t(atof(seconds) * 1e9);
    run_kernels = !variable("FUSIOND_CAPTURE_ONLY_NOTE");
}

// It is never destroyed: a program may call after its own destructors.
Runtime& runtime() {
    static Runtime* const made = [] {
        existing() = new Runtime();
        atexit([] { existing()->trace.flush(); });
        return existing();
    }();
    return *made;
}

void Runtime::begin() {
    if (service) return;
    service = std::make_unique<Service>();
    Reply known = service->ask(Ask::hello, capture::Fields().u32(getpid()));
    uint64_t begin = known.u64(), bytes = known.u64(), own = known.u64();
    device_bytes = known.u64();
    int file = service->descriptor();
    void* there = mmap(reinterpret_cast<void*>(begin), bytes, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, file, 0);
    if (file < 0 || there != reinterpret_cast<void*>(begin)) give_up("the memory of the GPU that is not there cannot be mapped");
    heap = std::make_unique<Heap>(begin, own, file);
}

bool Runtime::noting() {
    return trace.open() && (!most_launches_ || launches < most_launches_) && (!until_ns_ || capture::now_ns() < until_ns_);
}

cudaError_t& last_error() {
    static thread_local cudaError_t found = cudaSuccess;
    return found;
}

// --- the trace ---

void note_memory(const Allocation& memory) {
    auto& trace = runtime().trace;
    trace.write(capture::Kind::allocate, capture::Fields().u64(memory.begin).u64(memory.bytes).u32(static_cast<uint32_t>(memory.kind)));
}

void note_release(uint64_t begin) { runtime().trace.write(capture::Kind::release, capture::Fields().u64(begin)); }

void note_wait(cudaStream_t stream) {
    Runtime& all = runtime();
    if (!all.noting()) return;
    all.trace.write(capture::Kind::wait, capture::Fields().pointer(real(stream)));
    all.trace.flush();
}

void note_copy(const void* to, const void* from, size_t bytes, cudaStream_t stream) {
    Runtime& all = runtime();
    if (!all.noting()) return;
    auto on_device = [&](const void* address) {
        const Allocation* found = all.heap->find(address);
        return found && found->kind != capture::Memory::pinned;
    };
    using capture::Direction;
    Direction way = on_device(to) ? on_device(from) ? Direction::on_device : Direction::to_device
                                  : on_device(from) ? Direction::to_host : Direction::on_host;
    all.trace.write(capture::Kind::copy, capture::Fields().pointer(to).pointer(from).u64(bytes).pointer(real(stream)).u32(static_cast<uint32_t>(way)));
}

void note_fill(const void* to, size_t bytes, cudaStream_t stream, int value, uint32_t element) {
    Runtime& all = runtime();
    if (!all.noting()) return;
    all.trace.write(capture::Kind::fill, capture::Fields().pointer(to).u64(bytes).pointer(real(stream)).u32(value).u32(element));
}

void note_launch(const KernelStep& step, uint64_t graph, cudaStream_t stream) {
    Runtime& all = runtime();
    if (!all.noting()) return;
    static std::set<const Function*> written, with_data;
    const Function& function = *step.function;
    const Configuration& how = step.how;
    if (written.insert(&function).second) write_function(all, function);
    if (keeps_data() && with_data.insert(&function).second) keep_data(all, function, step.arguments.data());
    capture::Fields fields;
    fields.pointer(&function).pointer(real(stream));
    for (const dim3& each : {how.grid, how.block, how.cluster}) fields.u32(each.x).u32(each.y).u32(each.z);
    fields.u32(how.shared).u32(how.cooperative ? capture::cooperative : 0).u64(graph);
    fields.u32(function.parameters.size());
    for (const Parameter& each : function.parameters) fields.u32(each.bytes).raw(step.arguments.data() + each.offset, each.bytes);
    all.trace.write(capture::Kind::launch, fields);
    all.trace.flush();
    ++all.launches;
}

}  // namespace cudart
