// Modules, functions and variables: what nvcc's startup code registers, and how they are found.
#include "state.h"

namespace cudart {
namespace {

constexpr uint32_t WRAPPER_MAGIC = 0x466243b1;

// What nvcc hands over: a head that points to the fat binary.
struct Wrapper {
    uint32_t magic, version;
    const void* image;
    const void* more;
};

Module* module_of(void** handle) { return reinterpret_cast<Module*>(*handle); }

void describe(Function& function, Reply& reply) {
    function.present = true;
    function.registers = reply.u32(), function.static_shared = reply.u32(), function.local = reply.u32();
    function.most_threads = reply.u32();
    uint32_t count = reply.u32();
    for (uint32_t k = 0; k < count; ++k) {
        uint32_t offset = reply.u32();
        function.parameters.push_back({offset, reply.u32()});
    }
}

// Where a module's variables are: the service has made them.
void place(Module& module, Reply& reply) {
    std::map<std::string, uint64_t> addresses;
    const uint32_t count = reply.u32();
    for (uint32_t k = 0; k < count; ++k) {
        std::string name = reply.text();
        addresses[name] = reply.u64();
    }
    for (auto& each : module.variables) {
        auto found = addresses.find(each->name);
        if (found == addresses.end()) continue;
        each->address = reinterpret_cast<void*>(found->second);
        if (each->managed) *each->managed = each->address;
        runtime().heap->add({found->second, each->bytes, each->managed ? capture::Memory::managed : capture::Memory::variable, 0});
        runtime().trace.write(capture::Kind::variable, capture::Fields().u64(found->second).text(each->name));
    }
}

}  // namespace

void load(Module& module) {
    if (module.loaded) return;
    Runtime& all = runtime();
    const size_t bytes = capture::image_bytes(module.image);
    capture::Fields asked;
    asked.u64(module.number).text(std::string(static_cast<const char*>(module.image), bytes));
    Reply reply = all.service->ask(Ask::module, asked);
    if (reply.answer != Answer::done) give_up(reply.text());
    module.loaded = true;
    const std::string file = all.trace.keep("modules", module.image, bytes);
    if (!file.empty()) all.trace.write(capture::Kind::module, capture::Fields().u64(module.number).text(file));
    uint32_t count = reply.u32();
    for (uint32_t k = 0; k < count; ++k) {
        std::string name = reply.text();
        auto& function = module.functions[name];
        if (!function) function.reset(new Function{&module, name});
        describe(*function, reply);
    }
    place(module, reply);
}

Module& new_module(const void* image) {
    auto wrapper = static_cast<const Wrapper*>(image);
    auto& all = runtime().modules;
    all.push_back(std::make_unique<Module>());
    all.back()->number = all.size();
    all.back()->image = wrapper->magic == WRAPPER_MAGIC ? wrapper->image : image;
    return *all.back();
}

Function* function_of(const void* handle) {
    Runtime& all = runtime();
    auto found = all.functions.find(handle);
    return found == all.functions.end() ? nullptr : found->second;
}

namespace {

// A symbol's address, and its length from an offset on.
cudaError_t symbol(const void* handle, size_t offset, size_t bytes, char** address) {
    auto found = runtime().variables.find(handle);
    if (found == runtime().variables.end()) return cudaErrorInvalidSymbol;
    load(*found->second->module);
    if (!found->second->address) return cudaErrorInvalidSymbol;
    if (offset > found->second->bytes || bytes > found->second->bytes - offset) return cudaErrorInvalidValue;
    *address = static_cast<char*>(found->second->address) + offset;
    return cudaSuccess;
}

}  // namespace

}  // namespace cudart

using namespace cudart;

// --- what nvcc's startup code calls ---

extern "C" {

void** __cudaRegisterFatBinary(void* binary) {
    Runtime& all = runtime();
    std::lock_guard<std::recursive_mutex> guard(all.lock);
    return new void*(&new_module(binary));
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}

char __cudaInitModule(void** handle) {
    return call([&] {
               load(*module_of(handle));
               return cudaSuccess;
           }) == cudaSuccess;
}

void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
    Runtime& all = runtime();
    std::lock_guard<std::recursive_mutex> guard(all.lock);
    Module* module = module_of(handle);
    auto& function = module->functions[name];
    if (!function) function.reset(new Function{module, name});
    all.functions[host] = function.get();
    all.functions[function.get()] = function.get();
}

void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, size_t bytes, int constant, int) {
    Runtime& all = runtime();
    std::lock_guard<std::recursive_mutex> guard(all.lock);
    Module* module = module_of(handle);
    module->variables.push_back(std::unique_ptr<Variable>(new Variable{module, name, bytes, constant != 0}));
    all.variables[host] = module->variables.back().get();
}

void __cudaRegisterManagedVar(void** handle, void** pointer, char*, const char* name, int, size_t bytes, int, int) {
    Runtime& all = runtime();
    std::lock_guard<std::recursive_mutex> guard(all.lock);
    Module* module = module_of(handle);
    module->variables.push_back(std::unique_ptr<Variable>(new Variable{module, name, bytes, false, pointer}));
    all.variables[pointer] = module->variables.back().get();
}

void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}

// --- symbols ---

cudaError_t cudaGetSymbolAddress(void** address, const void* handle) {
    return call([&] { return symbol(handle, 0, 0, reinterpret_cast<char**>(address)); });
}

cudaError_t cudaGetSymbolSize(size_t* bytes, const void* handle) {
    return call([&] {
        auto found = runtime().variables.find(handle);
        if (found == runtime().variables.end()) return cudaErrorInvalidSymbol;
        *bytes = found->second->bytes;
        return cudaSuccess;
    });
}

cudaError_t cudaMemcpyToSymbolAsync(const void* handle, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
    char* to;
    cudaError_t found = call([&] { return symbol(handle, offset, bytes, &to); });
    return found != cudaSuccess ? found : cudaMemcpyAsync(to, from, bytes, kind, stream);
}

cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* handle, size_t bytes, size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
    char* from;
    cudaError_t found = call([&] { return symbol(handle, offset, bytes, &from); });
    return found != cudaSuccess ? found : cudaMemcpyAsync(to, from, bytes, kind, stream);
}

cudaError_t cudaMemcpyToSymbol(const void* handle, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind) {
    return cudaMemcpyToSymbolAsync(handle, from, bytes, offset, kind, nullptr);
}

cudaError_t cudaMemcpyFromSymbol(void* to, const void* handle, size_t bytes, size_t offset, cudaMemcpyKind kind) {
    return cudaMemcpyFromSymbolAsync(to, handle, bytes, offset, kind, nullptr);
}

}  // extern "C"
