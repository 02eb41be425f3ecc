// What stands before the driver's functions: each calls the driver's, and where that worked notes what was done.

#include <algorithm>

#include "entries.h"
#include "notes.h"

namespace watcher {

namespace {

// A fault of ours never ends the program, and changes none of its results.
template <class F> void note(F&& what) noexcept {
    try {
        if (Notes* notes = Notes::current()) what(*notes);
    } catch (...) {
        Notes::give_up();
    }
}

Handle of_thread(Handle stream) { return stream ? stream : PER_THREAD_STREAM; }

Address address(const void* of) { return reinterpret_cast<Address>(of); }

}  // namespace

// EXPORTED is the driver's name, BASE what cuGetProcAddress calls it from the CUDA version SINCE on; the rest is what is
// noted, of `notes`.
#define STANDS_BEFORE(exported, base, since, per_thread, parameters, arguments, ...)          \
    extern "C" Result exported parameters;                                                    \
    WATCHER_ENTRY(exported, base, since, per_thread)                                                  \
    extern "C" [[gnu::visibility("default")]] Result exported parameters {                    \
        auto real = exported##_entry.called<Result parameters>();                             \
        if (!real) return NOT_FOUND;                                                          \
        Inside inside;                                                                        \
        Result done = real arguments;                                                         \
        if (done == OK && inside.outermost()) note([&](Notes& notes) __VA_ARGS__);            \
        return done;                                                                          \
    }

#define WATCHED(exported, base, since, parameters, arguments, ...) \
    STANDS_BEFORE(exported, base, since, false, parameters, arguments, __VA_ARGS__)

// The same, and the variant whose default stream is the thread's own; `OF` makes of a stream the one that is meant.
#define WATCHED_TWICE(exported, suffix, base, since, parameters, arguments, ...)                                     \
    namespace by_##exported {                                                                                        \
    constexpr auto OF = [](Handle stream) { return stream; };                                                        \
    STANDS_BEFORE(exported, base, since, false, parameters, arguments, __VA_ARGS__)                                  \
    }                                                                                                                \
    namespace by_##exported##suffix {                                                                                \
    constexpr auto OF = of_thread;                                                                                   \
    STANDS_BEFORE(exported##suffix, base, since, true, parameters, arguments, __VA_ARGS__)                           \
    }

using capture::Direction;
using capture::Memory;

// --- modules and functions ------------------------------------------------------------------------------

WATCHED(cuModuleLoad, "cuModuleLoad", 2000, (Handle * module, const char* path), (module, path),
        { notes.module_of_file(*module, path); })
WATCHED(cuModuleLoadData, "cuModuleLoadData", 2000, (Handle * module, const void* image), (module, image),
        { notes.module(*module, image); })
WATCHED(cuModuleLoadDataEx, "cuModuleLoadDataEx", 2010,
        (Handle * module, const void* image, unsigned count, int* options, void** values),
        (module, image, count, options, values), { notes.module(*module, image); })
WATCHED(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", 2000, (Handle * module, const void* image), (module, image),
        { notes.module(*module, image); })
WATCHED(cuModuleUnload, "cuModuleUnload", 2000, (Handle module), (module), { notes.unloaded(module); })
WATCHED(cuModuleGetFunction, "cuModuleGetFunction", 2000, (Handle * function, Handle module, const char* name),
        (function, module, name), { notes.function(*function, module, name, false); })
WATCHED(cuModuleGetGlobal_v2, "cuModuleGetGlobal", 3020,
        (Address * found, size_t* bytes, Handle module, const char* name), (found, bytes, module, name), {
            if (found && bytes) notes.variable(*found, *bytes, Memory::variable, name);
        })

WATCHED(cuLibraryLoadData, "cuLibraryLoadData", 12000,
        (Handle * library, const void* code, int* jit, void** jit_values, unsigned jit_count, int* options,
         void** values, unsigned count),
        (library, code, jit, jit_values, jit_count, options, values, count), { notes.module(*library, code); })
WATCHED(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", 12000,
        (Handle * library, const char* path, int* jit, void** jit_values, unsigned jit_count, int* options,
         void** values, unsigned count),
        (library, path, jit, jit_values, jit_count, options, values, count), { notes.module_of_file(*library, path); })
WATCHED(cuLibraryUnload, "cuLibraryUnload", 12000, (Handle library), (library), { notes.unloaded(library); })
WATCHED(cuLibraryGetKernel, "cuLibraryGetKernel", 12000, (Handle * kernel, Handle library, const char* name),
        (kernel, library, name), { notes.function(*kernel, library, name, true); })
WATCHED(cuLibraryEnumerateKernels, "cuLibraryEnumerateKernels", 12040,
        (Handle * kernels, unsigned count, Handle library), (kernels, count, library), {
            for (unsigned k = 0; k < count; ++k)
                if (kernels[k]) notes.function(kernels[k], library, "", true);
        })
WATCHED(cuKernelGetFunction, "cuKernelGetFunction", 12000, (Handle * function, Handle kernel), (function, kernel),
        { notes.function_of(*function, kernel); })
WATCHED(cuLibraryGetModule, "cuLibraryGetModule", 12000, (Handle * module, Handle library), (module, library),
        { notes.same_module(*module, library); })
WATCHED(cuLibraryGetGlobal, "cuLibraryGetGlobal", 12000,
        (Address * found, size_t* bytes, Handle library, const char* name), (found, bytes, library, name), {
            if (found && bytes) notes.variable(*found, *bytes, Memory::variable, name);
        })
WATCHED(cuLibraryGetManaged, "cuLibraryGetManaged", 12000,
        (Address * found, size_t* bytes, Handle library, const char* name), (found, bytes, library, name), {
            if (found && bytes) notes.variable(*found, *bytes, Memory::managed, name);
        })

WATCHED(cuLinkAddData_v2, "cuLinkAddData", 6050,
        (Handle state, int kind, void* data, size_t bytes, const char* name, unsigned count, int* options,
         void** values),
        (state, kind, data, bytes, name, count, options, values),
        { notes.link_input(state, kind == LINK_PTX ? PTX_INPUT : OTHER_INPUT, data, bytes); })
WATCHED(cuLinkAddFile_v2, "cuLinkAddFile", 6050,
        (Handle state, int kind, const char* path, unsigned count, int* options, void** values),
        (state, kind, path, count, options, values), { notes.link_input(state, OTHER_INPUT, nullptr, 0); })
WATCHED(cuLinkComplete, "cuLinkComplete", 5050, (Handle state, void** cubin, size_t* bytes), (state, cubin, bytes), {
    auto link = notes.linked(state);
    if (cubin && bytes && link.inputs.size() == 1 && link.inputs[0].first == PTX_INPUT)
        notes.assembled(*cubin, *bytes, link.inputs[0].second);
})

// NVRTC made the cubin of PTX that it still has, and nvJitLink of PTX that it was given, or of IR for link-time
// optimisation (Numba's way), of which it makes PTX once more.
namespace {
template <class... A> bool asked(void* library, const char* name, A... arguments) {
    void* function = library ? real_dlsym(library, name) : nullptr;
    return function && reinterpret_cast<Result (*)(A...)>(function)(arguments...) == OK;
}
void* library_of(void* function) {
    Dl_info info;
    return dladdr(function, &info) && info.dli_fname ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
}
void compiled(Notes& notes, Handle program, const char* cubin, void* nvrtc) {
    size_t bytes = 0, ptx_bytes = 0;
    if (!asked(nvrtc, "nvrtcGetCUBINSize", program, &bytes)) return;
    if (!asked(nvrtc, "nvrtcGetPTXSize", program, &ptx_bytes) || ptx_bytes < 2) return;
    std::string ptx(ptx_bytes, '\0');
    if (asked(nvrtc, "nvrtcGetPTX", program, ptx.data())) notes.assembled(cubin, bytes, ptx);
}
}  // namespace
WATCHED(nvrtcGetCUBIN, "nvrtcGetCUBIN", 0, (Handle program, char* cubin), (program, cubin),
        { compiled(notes, program, cubin, library_of((void*)real)); })
namespace {
std::string ptx_of(const Notes::Link& link, void* library) {
    if (link.inputs.size() != 1 || link.inputs[0].first == OTHER_INPUT) return "";
    auto& [kind, data] = link.inputs[0];
    if (kind == PTX_INPUT) return data;
    std::vector<const char*> options;
    for (auto& each : link.options) options.push_back(each.c_str());
    options.push_back("-ptx");
    Handle again = nullptr;
    size_t bytes = 0;
    std::string ptx;
    if (!asked(library, "nvJitLinkCreate", &again, unsigned(options.size()), options.data())) return "";
    if (asked(library, "nvJitLinkAddData", again, kind, static_cast<const void*>(data.data()), data.size(), "input") &&
        asked(library, "nvJitLinkComplete", again) && asked(library, "nvJitLinkGetLinkedPtxSize", again, &bytes)) {
        ptx.resize(bytes);
        if (!asked(library, "nvJitLinkGetLinkedPtx", again, ptx.data())) ptx.clear();
    }
    asked(library, "nvJitLinkDestroy", &again);
    return ptx;
}
}  // namespace
WATCHED(nvJitLinkCreate, "nvJitLinkCreate", 0, (Handle * state, unsigned count, const char** options),
        (state, count, options), { notes.link_begun(*state, {options, options + count}); })
WATCHED(nvJitLinkAddData, "nvJitLinkAddData", 0,
        (Handle state, int kind, const void* data, size_t bytes, const char* name), (state, kind, data, bytes, name),
        { notes.link_input(state, kind == PTX_INPUT || kind == LTO_INPUT ? kind : OTHER_INPUT, data, bytes); })
WATCHED(nvJitLinkAddFile, "nvJitLinkAddFile", 0, (Handle state, int kind, const char* path), (state, kind, path),
        { notes.link_input(state, OTHER_INPUT, nullptr, 0); })
WATCHED(nvJitLinkGetLinkedCubin, "nvJitLinkGetLinkedCubin", 0, (Handle state, void* cubin), (state, cubin), {
    void* library = library_of((void*)real);
    size_t bytes = 0;
    std::string ptx = ptx_of(notes.linked(state), library);
    if (!ptx.empty() && asked(library, "nvJitLinkGetLinkedCubinSize", state, &bytes))
        notes.assembled(cubin, bytes, ptx);
})

// --- memory ---------------------------------------------------------------------------------------------

WATCHED(cuMemAlloc_v2, "cuMemAlloc", 3020, (Address * found, size_t bytes), (found, bytes),
        { notes.allocated(*found, bytes, Memory::device); })
WATCHED(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020,
        (Address * found, size_t* pitch, size_t width, size_t height, unsigned element),
        (found, pitch, width, height, element), { notes.allocated(*found, *pitch * height, Memory::device); })
WATCHED(cuMemAllocManaged, "cuMemAllocManaged", 6000, (Address * found, size_t bytes, unsigned flags),
        (found, bytes, flags), { notes.allocated(*found, bytes, Memory::managed); })
WATCHED(cuMemFree_v2, "cuMemFree", 3020, (Address at), (at), { notes.released(at); })
WATCHED(cuMemAllocHost_v2, "cuMemAllocHost", 3020, (void** found, size_t bytes), (found, bytes),
        { notes.allocated(address(*found), bytes, Memory::pinned); })
WATCHED(cuMemHostAlloc, "cuMemHostAlloc", 2020, (void** found, size_t bytes, unsigned flags), (found, bytes, flags),
        { notes.allocated(address(*found), bytes, Memory::pinned); })
WATCHED(cuMemFreeHost, "cuMemFreeHost", 2000, (void* at), (at), { notes.released(address(at)); })
WATCHED(cuMemHostRegister_v2, "cuMemHostRegister", 6050, (void* at, size_t bytes, unsigned flags), (at, bytes, flags),
        { notes.allocated(address(at), bytes, Memory::pinned); })
WATCHED(cuMemHostUnregister, "cuMemHostUnregister", 4000, (void* at), (at), { notes.released(address(at)); })
WATCHED(cuMemMap, "cuMemMap", 10020, (Address at, size_t bytes, size_t offset, uint64_t handle, uint64_t flags),
        (at, bytes, offset, handle, flags), { notes.allocated(at, bytes, Memory::device); })
WATCHED(cuMemUnmap, "cuMemUnmap", 10020, (Address at, size_t bytes), (at, bytes), { notes.released(at); })
WATCHED_TWICE(cuMemAllocAsync, _ptsz, "cuMemAllocAsync", 11020, (Address * found, size_t bytes, Handle stream),
              (found, bytes, stream), { notes.allocated(*found, bytes, Memory::device); })
WATCHED_TWICE(cuMemAllocFromPoolAsync, _ptsz, "cuMemAllocFromPoolAsync", 11020,
              (Address * found, size_t bytes, Handle pool, Handle stream), (found, bytes, pool, stream),
              { notes.allocated(*found, bytes, Memory::device); })
WATCHED_TWICE(cuMemFreeAsync, _ptsz, "cuMemFreeAsync", 11020, (Address at, Handle stream), (at, stream),
              { notes.released(at); })

// --- launches -------------------------------------------------------------------------------------------

namespace {

template <class Call> Result launched(const Launch& launch, Call&& call) {
    Inside inside;
    if (!inside.outermost()) return call();
    Notes::Begun begun;
    note([&](Notes& notes) { begun = notes.begun(launch); });
    Result done = call();
    if (begun.noted) note([&](Notes& notes) { notes.launched(launch, begun, done == OK); });
    return done;
}

Launch described(const LaunchConfig& config, Handle function, Handle stream, void** parameters, void** extra) {
    Launch launch{function, stream};
    launch.shared_bytes = config.shared_bytes;
    std::copy(config.grid, config.grid + 3, launch.grid);
    std::copy(config.block, config.block + 3, launch.block);
    launch.parameters = parameters, launch.extra = extra;
    for (unsigned k = 0; k < config.attribute_count; ++k) {
        auto& each = config.attributes[k];
        if (each.id == COOPERATIVE) launch.cooperative = each.value.cooperative;
        if (each.id == CLUSTER_DIMENSION) std::copy(each.value.cluster, each.value.cluster + 3, launch.cluster);
    }
    return launch;
}

}  // namespace

#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define LAUNCHES(exported, base, since, per_thread, OF)                                                              \
    extern "C" Result exported(Handle f, GRID, Handle stream, void** parameters, void** extra);                      \
    WATCHER_ENTRY(exported, base, since, per_thread)                                                                         \
    extern "C" [[gnu::visibility("default")]] Result exported(Handle f, GRID, Handle stream, void** parameters,      \
                                                              void** extra) {                                        \
        auto real = exported##_entry.called<decltype(exported)>();                                                   \
        if (!real) return NOT_FOUND;                                                                                 \
        Launch launch{f, OF(stream), {gx, gy, gz}, {bx, by, bz}, shared};                                            \
        launch.parameters = parameters, launch.extra = extra;                                                        \
        return launched(launch, [&] { return real(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra); }); \
    }
#define LAUNCHES_TOGETHER(exported, per_thread, OF)                                                                  \
    extern "C" Result exported(Handle f, GRID, Handle stream, void** parameters);                                    \
    WATCHER_ENTRY(exported, "cuLaunchCooperativeKernel", 9000, per_thread)                                                   \
    extern "C" [[gnu::visibility("default")]] Result exported(Handle f, GRID, Handle stream, void** parameters) {    \
        auto real = exported##_entry.called<decltype(exported)>();                                                   \
        if (!real) return NOT_FOUND;                                                                                 \
        Launch launch{f, OF(stream), {gx, gy, gz}, {bx, by, bz}, shared};                                            \
        launch.parameters = parameters, launch.cooperative = true;                                                   \
        return launched(launch, [&] { return real(f, gx, gy, gz, bx, by, bz, shared, stream, parameters); });        \
    }
#define LAUNCHES_AS_CONFIGURED(exported, per_thread, OF)                                                             \
    extern "C" Result exported(const LaunchConfig* config, Handle f, void** parameters, void** extra);               \
    WATCHER_ENTRY(exported, "cuLaunchKernelEx", 11060, per_thread)                                                           \
    extern "C" [[gnu::visibility("default")]] Result exported(const LaunchConfig* config, Handle f,                  \
                                                              void** parameters, void** extra) {                     \
        auto real = exported##_entry.called<decltype(exported)>();                                                   \
        if (!real) return NOT_FOUND;                                                                                 \
        if (!config) return real(config, f, parameters, extra);                                                      \
        Launch launch = described(*config, f, OF(config->stream), parameters, extra);                                \
        return launched(launch, [&] { return real(config, f, parameters, extra); });                                 \
    }
LAUNCHES(cuLaunchKernel, "cuLaunchKernel", 4000, false, )
LAUNCHES(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, true, of_thread)
LAUNCHES_TOGETHER(cuLaunchCooperativeKernel, false, )
LAUNCHES_TOGETHER(cuLaunchCooperativeKernel_ptsz, true, of_thread)
LAUNCHES_AS_CONFIGURED(cuLaunchKernelEx, false, )
LAUNCHES_AS_CONFIGURED(cuLaunchKernelEx_ptsz, true, of_thread)

// --- graphs ---------------------------------------------------------------------------------------------

WATCHED_TWICE(cuStreamBeginCapture_v2, _ptsz, "cuStreamBeginCapture", 10010, (Handle stream, int mode), (stream, mode),
              { notes.captures(1); })
WATCHED_TWICE(cuStreamBeginCaptureToGraph, _ptsz, "cuStreamBeginCaptureToGraph", 12030,
              (Handle stream, Handle graph, const Handle* after, const void* edges, size_t count, int mode),
              (stream, graph, after, edges, count, mode), { notes.captures(1); })
// What a program was called with before CUDA 12 had five parameters; the three of later ones are passed on as well.
#define INSTANTIATES(exported, since)                                                                            \
    WATCHED(exported, "cuGraphInstantiate", since, (Handle * made, Handle graph, uint64_t a, void* b, size_t c), \
            (made, graph, a, b, c), { notes.graph(*made, graph); })
INSTANTIATES(cuGraphInstantiate, 10000)
INSTANTIATES(cuGraphInstantiate_v2, 11000)
WATCHED(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040,
        (Handle * made, Handle graph, uint64_t flags), (made, graph, flags), { notes.graph(*made, graph); })
WATCHED_TWICE(cuGraphInstantiateWithParams, _ptsz, "cuGraphInstantiateWithParams", 12000,
              (Handle * made, Handle graph, void* more), (made, graph, more), { notes.graph(*made, graph); })
WATCHED(cuGraphExecUpdate, "cuGraphExecUpdate", 10020, (Handle of, Handle graph, Handle* node, int* why),
        (of, graph, node, why), { notes.graph(of, graph); })
WATCHED(cuGraphExecUpdate_v2, "cuGraphExecUpdate", 12000, (Handle of, Handle graph, void* why), (of, graph, why),
        { notes.graph(of, graph); })
WATCHED(cuGraphExecKernelNodeSetParams, "cuGraphExecKernelNodeSetParams", 10010,
        (Handle of, Handle node, const KernelNode* what), (of, node, what), {
            KernelNode it{};
            memcpy(&it, what, offsetof(KernelNode, kernel));
            notes.node_changed(of, node, it);
        })
WATCHED(cuGraphExecKernelNodeSetParams_v2, "cuGraphExecKernelNodeSetParams", 12000,
        (Handle of, Handle node, const KernelNode* what), (of, node, what), { notes.node_changed(of, node, *what); })
WATCHED(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, (Handle of), (of), { notes.graph_gone(of); })
WATCHED_TWICE(cuGraphLaunch, _ptsz, "cuGraphLaunch", 10000, (Handle of, Handle stream), (of, stream),
              { notes.graph_launched(of, OF(stream)); })

// The end of a capture, also of one that failed.
#define ENDS_CAPTURE(exported, per_thread)                                                             \
    extern "C" Result exported(Handle stream, Handle* graph);                                          \
    WATCHER_ENTRY(exported, "cuStreamEndCapture", 10000, per_thread)                                           \
    extern "C" [[gnu::visibility("default")]] Result exported(Handle stream, Handle* graph) {          \
        auto real = exported##_entry.called<decltype(exported)>();                                     \
        if (!real) return NOT_FOUND;                                                                   \
        Inside inside;                                                                                 \
        Result done = real(stream, graph);                                                             \
        if (inside.outermost()) note([&](Notes& notes) { notes.captures(-1); });                       \
        return done;                                                                                   \
    }
ENDS_CAPTURE(cuStreamEndCapture, false)
ENDS_CAPTURE(cuStreamEndCapture_ptsz, true)

// --- copies ---------------------------------------------------------------------------------------------

WATCHED_TWICE(cuMemcpy, _ptds, "cuMemcpy", 4000, (Address to, Address from, size_t bytes), (to, from, bytes),
              { notes.copied(to, from, bytes, OF(nullptr)); })
WATCHED_TWICE(cuMemcpyAsync, _ptsz, "cuMemcpyAsync", 4000, (Address to, Address from, size_t bytes, Handle stream),
              (to, from, bytes, stream), { notes.copied(to, from, bytes, OF(stream)); })
WATCHED_TWICE(cuMemcpyHtoD_v2, _ptds, "cuMemcpyHtoD", 3020, (Address to, const void* from, size_t bytes),
              (to, from, bytes), { notes.copied(to, address(from), bytes, OF(nullptr), Direction::to_device); })
WATCHED_TWICE(cuMemcpyDtoH_v2, _ptds, "cuMemcpyDtoH", 3020, (void* to, Address from, size_t bytes), (to, from, bytes),
              { notes.copied(address(to), from, bytes, OF(nullptr), Direction::to_host); })
WATCHED_TWICE(cuMemcpyDtoD_v2, _ptds, "cuMemcpyDtoD", 3020, (Address to, Address from, size_t bytes),
              (to, from, bytes), { notes.copied(to, from, bytes, OF(nullptr), Direction::on_device); })
WATCHED_TWICE(cuMemcpyHtoDAsync_v2, _ptsz, "cuMemcpyHtoDAsync", 3020,
              (Address to, const void* from, size_t bytes, Handle stream), (to, from, bytes, stream),
              { notes.copied(to, address(from), bytes, OF(stream), Direction::to_device); })
WATCHED_TWICE(cuMemcpyDtoHAsync_v2, _ptsz, "cuMemcpyDtoHAsync", 3020,
              (void* to, Address from, size_t bytes, Handle stream), (to, from, bytes, stream),
              { notes.copied(address(to), from, bytes, OF(stream), Direction::to_host); })
WATCHED_TWICE(cuMemcpyDtoDAsync_v2, _ptsz, "cuMemcpyDtoDAsync", 3020,
              (Address to, Address from, size_t bytes, Handle stream), (to, from, bytes, stream),
              { notes.copied(to, from, bytes, OF(stream), Direction::on_device); })
WATCHED_TWICE(cuMemcpyPeer, _ptds, "cuMemcpyPeer", 4000,
              (Address to, Handle there, Address from, Handle here, size_t bytes), (to, there, from, here, bytes),
              { notes.copied(to, from, bytes, OF(nullptr), Direction::on_device); })
WATCHED_TWICE(cuMemcpyPeerAsync, _ptsz, "cuMemcpyPeerAsync", 4000,
              (Address to, Handle there, Address from, Handle here, size_t bytes, Handle stream),
              (to, there, from, here, bytes, stream),
              { notes.copied(to, from, bytes, OF(stream), Direction::on_device); })
WATCHED_TWICE(cuMemcpy2D_v2, _ptds, "cuMemcpy2D", 3020, (const Copy2D* it), (it),
              { notes.copied(ends(*it), OF(nullptr)); })
WATCHED_TWICE(cuMemcpy2DUnaligned_v2, _ptds, "cuMemcpy2DUnaligned", 3020, (const Copy2D* it), (it),
              { notes.copied(ends(*it), OF(nullptr)); })
WATCHED_TWICE(cuMemcpy2DAsync_v2, _ptsz, "cuMemcpy2DAsync", 3020, (const Copy2D* it, Handle stream), (it, stream),
              { notes.copied(ends(*it), OF(stream)); })
WATCHED_TWICE(cuMemcpy3D_v2, _ptds, "cuMemcpy3D", 3020, (const Copy3D* it), (it),
              { notes.copied(ends(*it), OF(nullptr)); })
WATCHED_TWICE(cuMemcpy3DAsync_v2, _ptsz, "cuMemcpy3DAsync", 3020, (const Copy3D* it, Handle stream), (it, stream),
              { notes.copied(ends(*it), OF(stream)); })
WATCHED_TWICE(cuMemcpyBatchAsync, _ptsz, "cuMemcpyBatchAsync", 12080,
              (Address * to, Address* from, size_t* bytes, size_t count, void* attributes, size_t* first,
               size_t attribute_count, size_t* failed, Handle stream),
              (to, from, bytes, count, attributes, first, attribute_count, failed, stream), {
                  for (size_t k = 0; k < count; ++k) notes.copied(to[k], from[k], bytes[k], OF(stream));
              })
WATCHED_TWICE(cuMemcpyBatchAsync_v2, _ptsz, "cuMemcpyBatchAsync", 13000,
              (Address * to, Address* from, size_t* bytes, size_t count, void* attributes, size_t* first,
               size_t attribute_count, Handle stream),
              (to, from, bytes, count, attributes, first, attribute_count, stream), {
                  for (size_t k = 0; k < count; ++k) notes.copied(to[k], from[k], bytes[k], OF(stream));
              })

#define FILLS(type, bits)                                                                                             \
    WATCHED_TWICE(cuMemsetD##bits##_v2, _ptds, "cuMemsetD" #bits, 3020, (Address to, type value, size_t count),       \
                  (to, value, count), { notes.filled(to, count * (bits / 8), OF(nullptr), value, bits / 8); })        \
    WATCHED_TWICE(cuMemsetD##bits##Async, _ptsz, "cuMemsetD" #bits "Async", 3020,                                     \
                  (Address to, type value, size_t count, Handle stream), (to, value, count, stream),                  \
                  { notes.filled(to, count * (bits / 8), OF(stream), value, bits / 8); })                             \
    WATCHED_TWICE(cuMemsetD2D##bits##_v2, _ptds, "cuMemsetD2D" #bits, 3020,                                           \
                  (Address to, size_t pitch, type value, size_t width, size_t height),                                \
                  (to, pitch, value, width, height),                                                                  \
                  { notes.filled(to, height ? pitch * (height - 1) + width * (bits / 8) : 0, OF(nullptr), value,      \
                                 bits / 8); })                                                                        \
    WATCHED_TWICE(cuMemsetD2D##bits##Async, _ptsz, "cuMemsetD2D" #bits "Async", 3020,                                 \
                  (Address to, size_t pitch, type value, size_t width, size_t height, Handle stream),                 \
                  (to, pitch, value, width, height, stream),                                                          \
                  { notes.filled(to, height ? pitch * (height - 1) + width * (bits / 8) : 0, OF(stream), value,       \
                                 bits / 8); })
FILLS(unsigned char, 8)
FILLS(unsigned short, 16)
FILLS(unsigned, 32)

// --- waits ----------------------------------------------------------------------------------------------

WATCHED(cuCtxSynchronize, "cuCtxSynchronize", 2000, (), (), { notes.waited(nullptr); })
WATCHED(cuCtxSynchronize_v2, "cuCtxSynchronize", 13000, (Handle context), (context), { notes.waited(nullptr); })
WATCHED_TWICE(cuStreamSynchronize, _ptsz, "cuStreamSynchronize", 2000, (Handle stream), (stream),
              { notes.waited(OF(stream)); })
WATCHED_TWICE(cuEventRecord, _ptsz, "cuEventRecord", 2000, (Handle event, Handle stream), (event, stream),
              { notes.recorded(event, OF(stream)); })
WATCHED_TWICE(cuEventRecordWithFlags, _ptsz, "cuEventRecordWithFlags", 11010,
              (Handle event, Handle stream, unsigned flags), (event, stream, flags),
              { notes.recorded(event, OF(stream)); })
WATCHED(cuEventSynchronize, "cuEventSynchronize", 2000, (Handle event), (event), { notes.waited_for(event); })

}  // namespace watcher
