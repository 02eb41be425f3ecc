// A CUDA runtime for a machine without a GPU: what its parts share.
//
// Everything is done when it is called, in the order of the calls, so that streams never overlap. Device memory is
// memory that the program shares with a service, which carries out kernels in it; addresses mean the same to both.
#pragma once

#include "wire.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace cudart {

// Ends the program in one line: for what this runtime does not have.
[[noreturn]] void give_up(const std::string& why);
// A line on stderr, and a note in the trace.
void say(const std::string& what);

// --- memory ---

struct Allocation {
    uint64_t begin;
    size_t bytes;
    capture::Memory kind;
    unsigned flags;  // of pinned memory

    // What a kernel may touch: the driver hands memory out in units of 512 bytes, and what runs over less is not seen.
    size_t reach() const { return kind == capture::Memory::variable ? bytes : (std::max<size_t>(bytes, 1) + 511) / 512 * 512; }
};

// The part of the shared memory that the program allocates from.
class Heap {
  public:
    Heap(uint64_t begin, size_t bytes, int file);
    // nullptr: there is no room. Memory begins as zeros.
    void* allocate(size_t bytes, capture::Memory kind, unsigned flags = 0, size_t alignment = 512);
    bool release(void* begin);
    // The allocation that holds an address; nullptr: none does.
    const Allocation* find(const void* address) const;
    bool inside(const void* address) const;
    // Of device memory, without pinned.
    size_t used() const { return used_; }
    const std::map<uint64_t, Allocation>& all() const { return all_; }
    // A variable of a module: the service has allocated it.
    void add(const Allocation& known);
    void drop(uint64_t begin);
    uint64_t changes() const { return changes_; }
    int file() const { return file_; }
    uint64_t begin() const { return begin_; }

  private:
    uint64_t begin_;
    size_t bytes_;
    int file_;
    size_t used_ = 0;
    uint64_t changes_ = 1;
    std::map<uint64_t, Allocation> all_;
    std::map<uint64_t, size_t> free_;
};

// --- modules ---

struct Module;

struct Parameter {
    uint32_t offset, bytes;
};

struct Function {
    Module* module;
    std::string name;
    // From here on: known when the module is loaded.
    uint32_t registers = 0, static_shared = 0, local = 0, constant = 0, most_threads = 1024;
    std::vector<Parameter> parameters;
    bool present = false;
    int dynamic_shared_limit = 48 * 1024;
    int carveout = -1;
    uint64_t launches = 0;

    size_t parameter_bytes() const {
        return parameters.empty() ? 0 : parameters.back().offset + parameters.back().bytes;
    }
};

struct Variable {
    Module* module;
    std::string name;
    size_t bytes;
    bool constant;
    void** managed = nullptr;  // where the host reads its address
    void* address = nullptr;
};

struct Module {
    uint64_t number;
    const void* image;
    bool loaded = false;
    std::map<std::string, std::unique_ptr<Function>> functions;
    std::vector<std::unique_ptr<Variable>> variables;
};

// --- launches ---

struct Configuration {
    dim3 grid, block, cluster{1, 1, 1};
    size_t shared = 0;
    cudaStream_t stream = nullptr;
    bool cooperative = false;
};

// A launch with its arguments, as the kernel's parameters have them.
struct KernelStep {
    Function* function;
    Configuration how;
    std::vector<char> arguments;
};

// What one step of a stream or a graph does.
using Work = std::function<cudaError_t()>;

// --- the whole ---

class Runtime {
  public:
    Runtime();
    std::recursive_mutex lock;
    std::unique_ptr<Service> service;  // once it was needed
    std::unique_ptr<Heap> heap;
    capture::Writer trace;
    size_t device_bytes = 0;
    bool run_kernels = true;
    cudaError_t sticky = cudaSuccess;
    std::string fault;  // the line that says what

    std::vector<std::unique_ptr<Module>> modules;
    std::unordered_map<const void*, Function*> functions;  // by the host's stub, and by themselves
    std::unordered_map<const void*, Variable*> variables;  // by the host's shadow

    // Connects to the service; what needs the device calls it.
    void begin();
    bool noting();
    uint64_t launches = 0;  // that were noted

  private:
    uint64_t most_launches_ = 0, until_ns_ = 0;
};

Runtime& runtime();
// The last error of this thread.
cudaError_t& last_error();

// Every call of the interface: one at a time, what it returns is remembered.
template <class F>
cudaError_t call(F&& does) {
    Runtime& all = runtime();
    std::lock_guard<std::recursive_mutex> guard(all.lock);
    all.begin();
    cudaError_t found = all.sticky != cudaSuccess ? all.sticky : does();
    if (found != cudaSuccess && found != cudaErrorNotReady) last_error() = found;
    return found;
}

// --- what the parts ask of one another ---

// modules
Function* function_of(const void* handle);  // nullptr: it is none
void load(Module& module);                  // what of it is known later, once
Module& new_module(const void* image);

// launches
cudaError_t prepare(const void* handle, const Configuration& how, void** arguments, KernelStep& made);
cudaError_t carry_out(const KernelStep& step);

// streams: a step is done now, or, where the stream is captured, when the graph is launched
cudaError_t in_order(cudaStream_t stream, cudaGraphNodeType type, Work work);
cudaError_t in_order(const KernelStep& step);
bool capturing(cudaStream_t stream);
bool capturing_anywhere();
cudaStream_t real(cudaStream_t stream);  // the default streams as nullptr

// copies
cudaError_t copy_box(const cudaMemcpy3DParms& what, Work& work, cudaStream_t stream);
cudaError_t fill_box(const cudaPitchedPtr& to, int value, unsigned element, cudaExtent extent, Work& work, cudaStream_t stream);

// the trace
void note_memory(const Allocation& memory);
void note_release(uint64_t begin);
void note_wait(cudaStream_t stream);
void note_copy(const void* to, const void* from, size_t bytes, cudaStream_t stream);
void note_fill(const void* to, size_t bytes, cudaStream_t stream, int value, uint32_t element);
// `graph`: of one of whose nodes it is, 0: none's.
void note_launch(const KernelStep& step, uint64_t graph, cudaStream_t stream);

}  // namespace cudart
