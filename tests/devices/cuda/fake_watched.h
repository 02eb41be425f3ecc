// What CUDA's runtime, and whoever watches a program, asks of a driver.

#include <dlfcn.h>

// Functions by their base names: the newest that a program of `version` means.
int cuGetProcAddress_v2(const char* name, void** found, int version, uint64_t flags, int* status) {
    static void* self = [] {
        Dl_info info;
        dladdr((void*)fake_reset, &info);
        return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }();
    static const std::map<std::string, int> second = {{"cuGetProcAddress", 12000}, {"cuGraphExecUpdate", 12000}};
    auto known = second.find(name);
    *found = nullptr;
    if (known == second.end() || version >= known->second) *found = dlsym(self, (std::string(name) + "_v2").c_str());
    if (!*found) *found = dlsym(self, name);
    if (flags & 2)  // a default stream of each thread's own
        if (void* own = dlsym(self, (std::string(name) + "_ptsz").c_str())) *found = own;
    if (status) *status = *found ? 0 : 1;
    return *found ? 0 : 500;
}
int cuGetProcAddress(const char* name, void** found, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, found, version, flags, nullptr);
}

int cuFuncGetName(const char** name, void* function) { *name = ((Function*)function)->name.c_str(); return 0; }
int cuFuncGetParamInfo(void* function, size_t number, size_t* offset, size_t* bytes) {
    auto& it = *(Function*)function;
    if (number >= it.sizes.size()) return 1;
    *offset = 0;
    for (size_t i = 0; i <= number; i++) {
        *offset = (*offset + it.sizes[i] - 1) / it.sizes[i] * it.sizes[i];
        if (i < number) *offset += it.sizes[i];
    }
    if (!it.offsets.empty()) *offset = it.offsets[number];
    *bytes = it.sizes[number];
    return 0;
}
int cuFuncLoad(void*) { return 0; }

// Libraries: modules whose kernels are of no context.
int cuLibraryLoadData(void** library, const void* code, int*, void**, unsigned, int*, void**, unsigned) {
    return cuModuleLoadData(library, code);
}
int cuLibraryGetModule(void** module, void* library) { *module = new Module(*(Module*)library); return 0; }
int cuLibraryUnload(void* library) { return cuModuleUnload(library); }
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    void* function;
    if (int error = cuModuleGetFunction(&function, library, name)) return error;
    *kernel = handle();
    library_kernels[*kernel] = function;
    return 0;
}
int cuKernelGetFunction(void** function, void* kernel) { *function = library_kernels[kernel]; return 0; }
int cuKernelGetParamInfo(void* kernel, size_t number, size_t* offset, size_t* bytes) {
    return cuFuncGetParamInfo(library_kernels[kernel], number, offset, bytes);
}
int cuKernelGetAttribute(int* value, int attribute, void* kernel, int) {
    return cuFuncGetAttribute(value, attribute, library_kernels[kernel]);
}

// The thread's own default stream is one of its own.
int cuLaunchKernel_ptsz(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, void* stream, void** values, void** extra) {
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream ? stream : (void*)2, values, extra);
}
int cuPointerGetAttribute(void* found, int, uint64_t address) { *(uint64_t*)found = address; return 0; }
int cuStreamIsCapturing(void*, int* status) { *status = capturing ? 1 : 0; return 0; }
int cuThreadExchangeStreamCaptureMode(int*) { return 0; }

// The nodes of a graph: kernels, copies and fills.
using Described = std::pair<int, void*>;
int cuGraphGetNodes(void* graph, void** nodes, size_t* count) {
    auto& all = ((Graph*)graph)->described;
    size_t place = 0;
    if (nodes)
        for (auto& each : all) if (place < *count) nodes[place++] = &each;
    *count = nodes ? place : all.size();
    return 0;
}
int cuGraphNodeGetType(void* node, int* type) { *type = ((Described*)node)->first; return 0; }
int cuGraphKernelNodeGetParams_v2(void* node, void* found) {
    memcpy(found, ((Described*)node)->second, offsetof(KernelNode, bytes));
    return 0;
}
int cuGraphMemcpyNodeGetParams(void* node, void* found) {
    memcpy(found, ((Described*)node)->second, sizeof(CopyNode));
    return 0;
}
int cuGraphMemsetNodeGetParams(void* node, void* found) {
    memcpy(found, ((Described*)node)->second, sizeof(FillNode));
    return 0;
}
int cuGraphExecKernelNodeSetParams_v2(void*, void*, const void*) { say("node changed"); return 0; }
