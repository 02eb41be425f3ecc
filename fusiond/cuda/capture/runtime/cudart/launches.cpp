// Launches of kernels, and what a program may ask about a kernel.
#include "state.h"

#include <cstdio>

namespace cudart {
namespace {

constexpr unsigned MOST_THREADS = 1024, MOST_Z = 64, MOST_GRID = 65535, MOST_SHARED = 227 * 1024, MULTIPROCESSORS = 132;

// Between <<<...>>> and the launch itself.
thread_local std::vector<Configuration> pushed;

uint64_t product(const dim3& sides) { return uint64_t(sides.x) * sides.y * sides.z; }

// What the runtime refuses before anything runs.
cudaError_t refused(const Function& function, const Configuration& how) {
    const uint64_t threads = product(how.block);
    if (product(how.grid) == 0 || threads == 0) return cudaErrorInvalidConfiguration;
    if (threads > MOST_THREADS || how.block.z > MOST_Z) return cudaErrorInvalidConfiguration;
    if (how.grid.x > 0x7fffffffu || how.grid.y > MOST_GRID || how.grid.z > MOST_GRID) return cudaErrorInvalidConfiguration;
    if (threads > function.most_threads) return cudaErrorLaunchOutOfResources;
    if (how.shared > size_t(function.dynamic_shared_limit) || how.shared + function.static_shared > MOST_SHARED)
        return cudaErrorInvalidValue;
    if (product(how.cluster) > 1 && (how.grid.x % how.cluster.x || how.grid.y % how.cluster.y || how.grid.z % how.cluster.z))
        return cudaErrorInvalidClusterSize;
    return cudaSuccess;
}

cudaError_t resident(const Function& function, int threads, size_t shared, int* blocks) {
    if (threads <= 0) return cudaErrorInvalidValue;
    *blocks = 0;
    if (unsigned(threads) > MOST_THREADS || shared + function.static_shared > MOST_SHARED) return cudaSuccess;
    capture::Fields asked;
    asked.u32(function.registers).u32(shared + function.static_shared).u32(threads);
    *blocks = runtime().service->ask(Ask::occupancy, asked).u32();
    return cudaSuccess;
}

capture::Fields described(const KernelStep& step) {
    static uint64_t sent = 0;  // the state of the allocations that the service knows
    Runtime& all = runtime();
    capture::Fields asked;
    asked.u64(step.function->module->number).text(step.function->name);
    for (const dim3& each : {step.how.grid, step.how.block, step.how.cluster}) asked.u32(each.x).u32(each.y).u32(each.z);
    asked.u32(step.how.shared).u32(step.how.cooperative);
    asked.text(std::string(step.arguments.data(), step.arguments.size()));
    const bool changed = sent != all.heap->changes();
    asked.u32(changed);
    if (changed) {
        asked.u32(all.heap->all().size());
        for (const auto& [begin, each] : all.heap->all()) asked.u64(begin).u64(begin + each.reach());
        sent = all.heap->changes();
    }
    return asked;
}

std::vector<char> packed(const Function& function, void** arguments) {
    std::vector<char> found(function.parameter_bytes());
    for (size_t k = 0; k < function.parameters.size(); ++k)
        memcpy(found.data() + function.parameters[k].offset, arguments[k], function.parameters[k].bytes);
    return found;
}

void print(const std::string& text) { fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace

cudaError_t carry_out(const KernelStep& step) {
    Runtime& all = runtime();
    if (!all.run_kernels) return cudaSuccess;
    Reply reply = all.service->ask(Ask::launch, described(step));
    if (reply.answer == Answer::refused) give_up(step.function->name + ": " + reply.text());
    if (reply.answer == Answer::done) {
        print(reply.text());
        return cudaSuccess;
    }
    // The launch itself has succeeded: the next call learns of what came of it.
    all.sticky = static_cast<cudaError_t>(reply.u32());
    const std::string why = reply.text();
    print(reply.text());
    say(step.function->name + ": " + why);
    return cudaSuccess;
}

cudaError_t prepare(const void* handle, const Configuration& how, void** arguments, KernelStep& made) {
    Function* function = function_of(handle);
    if (!function) return cudaErrorInvalidDeviceFunction;
    load(*function->module);
    if (!function->present) return cudaErrorInvalidDeviceFunction;
    if (cudaError_t problem = refused(*function, how)) return problem;
    if (how.cooperative) {
        int blocks;
        if (cudaError_t problem = resident(*function, product(how.block), how.shared, &blocks)) return problem;
        if (product(how.grid) > uint64_t(blocks) * MULTIPROCESSORS) return cudaErrorCooperativeLaunchTooLarge;
    }
    made = {function, how, packed(*function, arguments)};
    return cudaSuccess;
}

}  // namespace cudart

using namespace cudart;

namespace {

cudaError_t launch_of(const void* handle, const Configuration& how, void** arguments) {
    return call([&] {
        KernelStep step;
        cudaError_t problem = prepare(handle, how, arguments, step);
        return problem != cudaSuccess ? problem : in_order(step);
    });
}

// A kernel that is there; nullptr: it is none.
Function* loaded(const void* handle) {
    Function* function = function_of(handle);
    if (function) load(*function->module);
    return function && function->present ? function : nullptr;
}

Configuration plain(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    Configuration made;
    made.grid = grid, made.block = block, made.shared = shared, made.stream = stream;
    return made;
}

Configuration configured(const cudaLaunchConfig_t& asked) {
    Configuration how = plain(asked.gridDim, asked.blockDim, asked.dynamicSmemBytes, asked.stream);
    for (unsigned k = 0; k < asked.numAttrs; ++k) {
        const auto& each = asked.attrs[k];
        if (each.id == cudaLaunchAttributeCooperative) how.cooperative = each.val.cooperative;
        if (each.id == cudaLaunchAttributeClusterDimension)
            how.cluster = dim3(each.val.clusterDim.x, each.val.clusterDim.y, each.val.clusterDim.z);
    }
    return how;
}

}  // namespace

extern "C" {

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    pushed.push_back(plain(grid, block, shared, stream));
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    if (pushed.empty()) return cudaErrorMissingConfiguration;
    const Configuration& last = pushed.back();
    *grid = last.grid, *block = last.block, *shared = last.shared, *static_cast<cudaStream_t*>(stream) = last.stream;
    pushed.pop_back();
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
    Runtime& all = runtime();
    std::lock_guard<std::recursive_mutex> guard(all.lock);
    *kernel = reinterpret_cast<cudaKernel_t>(function_of(host));
    return *kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

cudaError_t cudaLaunchKernel(const void* handle, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
    return launch_of(handle, plain(grid, block, shared, stream), arguments);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t handle, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
    return launch_of(handle, plain(grid, block, shared, stream), arguments);
}

cudaError_t cudaLaunchCooperativeKernel(const void* handle, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
    Configuration how = plain(grid, block, shared, stream);
    how.cooperative = true;
    return launch_of(handle, how, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* asked, const void* handle, void** arguments) {
    if (!asked) return call([] { return cudaErrorInvalidValue; });
    return launch_of(handle, configured(*asked), arguments);
}

// --- what is known of a kernel ---

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void* handle) {
    return call([&] {
        Function* function = loaded(handle);
        if (!function) return cudaErrorInvalidDeviceFunction;
        *found = {};
        found->sharedSizeBytes = function->static_shared, found->localSizeBytes = function->local;
        found->constSizeBytes = function->constant, found->numRegs = function->registers;
        found->maxThreadsPerBlock = function->most_threads;
        found->ptxVersion = found->binaryVersion = 90;
        found->maxDynamicSharedSizeBytes = function->dynamic_shared_limit;
        found->preferredShmemCarveout = function->carveout;
        return cudaSuccess;
    });
}

cudaError_t cudaFuncSetAttribute(const void* handle, cudaFuncAttribute which, int value) {
    return call([&] {
        Function* function = loaded(handle);
        if (!function) return cudaErrorInvalidDeviceFunction;
        if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) {
            if (value < 0 || value + function->static_shared > MOST_SHARED) return cudaErrorInvalidValue;
            function->dynamic_shared_limit = value;
        }
        if (which == cudaFuncAttributePreferredSharedMemoryCarveout) function->carveout = value;
        return cudaSuccess;
    });
}

cudaError_t cudaFuncSetCacheConfig(const void* handle, cudaFuncCache) {
    return call([&] { return function_of(handle) ? cudaSuccess : cudaErrorInvalidDeviceFunction; });
}

cudaError_t cudaFuncSetSharedMemConfig(const void* handle, cudaSharedMemConfig) {
    return call([&] { return function_of(handle) ? cudaSuccess : cudaErrorInvalidDeviceFunction; });
}

cudaError_t cudaFuncGetName(const char** name, const void* handle) {
    return call([&] {
        Function* function = function_of(handle);
        if (!function) return cudaErrorInvalidDeviceFunction;
        *name = function->name.c_str();
        return cudaSuccess;
    });
}

cudaError_t cudaFuncGetParamInfo(const void* handle, size_t which, size_t* offset, size_t* bytes) {
    return call([&] {
        Function* function = loaded(handle);
        if (!function) return cudaErrorInvalidDeviceFunction;
        if (which >= function->parameters.size()) return cudaErrorInvalidValue;
        *offset = function->parameters[which].offset;
        if (bytes) *bytes = function->parameters[which].bytes;
        return cudaSuccess;
    });
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* handle) {
    return call([&] {
        *function = reinterpret_cast<cudaFunction_t>(function_of(handle));
        return *function ? cudaSuccess : cudaErrorInvalidDeviceFunction;
    });
}

cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* handle) {
    return call([&] {
        *kernel = reinterpret_cast<cudaKernel_t>(function_of(handle));
        return *kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction;
    });
}

// --- occupancy ---

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* handle, int threads, size_t shared, unsigned) {
    return call([&] {
        Function* function = loaded(handle);
        if (!function) return cudaErrorInvalidDeviceFunction;
        return resident(*function, threads, shared, blocks);
    });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* handle, int threads, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads, shared, 0);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* handle, int blocks, int threads) {
    return call([&] {
        Function* function = loaded(handle);
        if (!function) return cudaErrorInvalidDeviceFunction;
        if (blocks <= 0 || threads <= 0) return cudaErrorInvalidValue;
        const size_t each = size_t(228 * 1024 / blocks) / 128 * 128, taken = 1024 + function->static_shared;
        *bytes = std::min<size_t>(each > taken ? each - taken : 0, MOST_SHARED - function->static_shared);
        return cudaSuccess;
    });
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* blocks, const void* handle, const cudaLaunchConfig_t*) {
    return call([&] {
        if (!loaded(handle)) return cudaErrorInvalidDeviceFunction;
        *blocks = 8;  // the most that is portable
        return cudaSuccess;
    });
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* handle, const cudaLaunchConfig_t* asked) {
    return call([&] {
        Function* function = loaded(handle);
        if (!function) return cudaErrorInvalidDeviceFunction;
        int blocks;
        const Configuration how = configured(*asked);
        if (cudaError_t problem = resident(*function, product(how.block), how.shared, &blocks)) return problem;
        *clusters = blocks * MULTIPROCESSORS / product(how.cluster);
        return cudaSuccess;
    });
}

}  // extern "C"
