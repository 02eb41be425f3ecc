// With -DCOMPILER what of NVRTC and nvJitLink a program uses; else a program that uses them, and loads what they make.

#include <cstddef>
#include <cstring>
#include <dlfcn.h>
#include <initializer_list>

#ifdef COMPILER
static const char* const cubin = "\177 a cubin of NVRTC's";
static const char* const linked = "\177 a cubin of nvJitLink's";
static const char* const optimised = ".version 8.0\n.visible .entry hungry() { ret; }\n";
static const char* const ptx = ".version 8.0\n.visible .entry add() { ret; }\n";
extern "C" {
int nvrtcGetCUBINSize(void*, size_t* bytes) { *bytes = strlen(cubin) + 1; return 0; }
int nvrtcGetCUBIN(void*, char* to) { strcpy(to, cubin); return 0; }
int nvrtcGetPTXSize(void*, size_t* bytes) { *bytes = strlen(ptx) + 1; return 0; }
int nvrtcGetPTX(void*, char* to) { strcpy(to, ptx); return 0; }
int nvJitLinkCreate(void** state, unsigned count, const char** options) {
    bool as_ptx = count == 2 && !strcmp(options[0], "-arch=sm_90") && !strcmp(options[1], "-ptx");
    *state = new int(as_ptx);
    return 0;
}
int nvJitLinkDestroy(void** state) { delete static_cast<int*>(*state); return 0; }
int nvJitLinkAddData(void*, int, const void*, size_t, const char*) { return 0; }
int nvJitLinkComplete(void*) { return 0; }
int nvJitLinkGetLinkedPtxSize(void* state, size_t* bytes) { *bytes = strlen(optimised) + 1; return *static_cast<int*>(state) != 1; }
int nvJitLinkGetLinkedPtx(void*, char* to) { strcpy(to, optimised); return 0; }
int nvJitLinkGetLinkedCubinSize(void*, size_t* bytes) { *bytes = strlen(linked) + 2; return 0; }
int nvJitLinkGetLinkedCubin(void*, void* to) {  // each another
    static char which = '1';
    strcpy(static_cast<char*>(to), linked);
    static_cast<char*>(to)[strlen(linked)] = which++;
    static_cast<char*>(to)[strlen(linked) + 1] = 0;
    return 0;
}
}
#else
template <class... A> int call(void* library, const char* name, A... arguments) {
    return reinterpret_cast<int (*)(A...)>(dlsym(library, name))(arguments...);
}
void launch(void* driver, const char* image, const char* name) {
    void *module, *function;
    call(driver, "cuModuleLoadData", &module, static_cast<const void*>(image));
    call(driver, "cuModuleGetFunction", &function, module, name);
    unsigned long long x = 0, y = 0;
    int n = 0;
    void* values[] = {&x, &y, &n};
    call(driver, "cuLaunchKernel", function, 1u, 1u, 1u, 32u, 1u, 1u, 0u, (void*)nullptr, (void**)values, (void**)nullptr);
}
int main() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    void* nvrtc = dlopen("libnvrtc.so.13", RTLD_NOW);
    void* linker = dlopen("libnvJitLink.so.13", RTLD_NOW);
    void* context;
    call(driver, "cuCtxCreate_v2", &context, 0u, 0);
    char cubin[64], linked[64];
    call(nvrtc, "nvrtcGetCUBIN", (void*)nullptr, (char*)cubin);
    launch(driver, cubin, "add");
    const char* ptx = ".version 8.0\n.visible .entry double_it() { ret; }\n";
    const char* options[] = {"-arch=sm_90"};
    for (int kind : {2, 3}) {  // PTX; IR for link-time optimisation
        void* state;
        call(linker, "nvJitLinkCreate", &state, 1u, static_cast<const char**>(options));
        call(linker, "nvJitLinkAddData", state, kind, (const void*)ptx, strlen(ptx), "a");
        call(linker, "nvJitLinkGetLinkedCubin", state, (void*)linked);
        launch(driver, linked, kind == 2 ? "double_it" : "hungry");
    }
}
#endif
