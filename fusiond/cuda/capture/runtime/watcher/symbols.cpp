// How programs find the driver's functions, and are handed ours: by being linked with them (this library is before
// libcuda.so.1 then), by dlsym (also CUDA's static runtime, Python's ctypes, Triton, JAX), and by cuGetProcAddress.

#include <cstring>

#include "entries.h"

extern "C" {
extern watcher::Entry* const __start_watcher_entries[];
extern watcher::Entry* const __stop_watcher_entries[];
}

namespace watcher {

thread_local constinit int Inside::depth_ = 0;

namespace {

constexpr int KNOWN_VERSION = 13000;  // whose functions were compared with these
std::atomic<void*> libcuda_handle{nullptr};

Entry* entry_of(const char* exported) {
    if (exported[0] != 'c' && exported[0] != 'n') return nullptr;  // cu..., nvrtc..., nvJitLink...
    for (auto each = __start_watcher_entries; each < __stop_watcher_entries; ++each)
        if (!strcmp((*each)->exported, exported)) return *each;
    return nullptr;
}

// The entry that a base name means to a program of some CUDA version.
Entry* entry_of(const char* base, int version, bool per_thread) {
    Entry *plain = nullptr, *own = nullptr;
    for (auto each = __start_watcher_entries; each < __stop_watcher_entries; ++each) {
        Entry*& best = (*each)->per_thread ? own : plain;
        if (strcmp((*each)->base, base) || (*each)->since > version) continue;
        if (!best || best->since < (*each)->since) best = *each;
    }
    return per_thread && own ? own : plain;
}

void* libcuda() {
    void* found = libcuda_handle.load(std::memory_order_acquire);
    if (found) return found;
    found = dlopen("libcuda.so.1", RTLD_LAZY);
    libcuda_handle.store(found, std::memory_order_release);
    return found;
}

// Remembers the library that a function of the driver is in, which may have been loaded from anywhere.
void learn(void* function) {
    Dl_info info;
    if (libcuda_handle.load(std::memory_order_acquire) || !dladdr(function, &info) || !info.dli_fname) return;
    if (void* handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) libcuda_handle.store(handle);
}

bool of_driver_itself(const char* name) { return name[0] == 'c'; }

// A function of NVRTC or nvJitLink, of which the program has loaded one version.
void* of_compilers(const char* name) {
    for (const char* library : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvJitLink.so.13", "libnvJitLink.so.12"})
        if (void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD))
            if (void* found = real_dlsym(handle, name)) return found;
    return nullptr;
}

void* by_name(const char* name) { return of_driver_itself(name) ? of_driver(name) : of_compilers(name); }

// What a program is handed that found `found` under a name.
void* in_front(Entry* entry, void* found) {
    if (of_driver_itself(entry->exported) && found != entry->ours) learn(found);
    return entry->before(found);
}

// The same that was asked for of cuGetProcAddress.
void* in_front(const char* base, void* found, int version, uint64_t flags) {
    Entry* entry = entry_of(base, version, flags & PER_THREAD_DEFAULT_STREAM);
    if (!entry) return found;
    learn(found);
    // A version that is newer than this may mean another function by the same name, which takes something else.
    if (version > KNOWN_VERSION && found != entry->ours && found != of_driver(entry->exported)) return found;
    return in_front(entry, found);
}

// Looks in the library that is meant; ours comes before what it finds there.
void* asked_for(void* handle, const char* name, Entry* entry) {
    void* found = handle == RTLD_DEFAULT ? nullptr : real_dlsym(handle, name);
    if (handle == RTLD_DEFAULT) found = by_name(name);  // this library has one, too
    return found ? in_front(entry, found) : nullptr;
}

}  // namespace

void* real_dlsym(void* handle, const char* name) {
    using Function = void* (*)(void*, const char*);
    static constinit std::atomic<Function> known{nullptr};
    Function found = known.load(std::memory_order_acquire);
    if (!found) {
        for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"})
            if (!found) found = reinterpret_cast<Function>(dlvsym(RTLD_NEXT, "dlsym", version));
        known.store(found, std::memory_order_release);
    }
    return found(handle, name);  // as a jump: to dlsym, RTLD_NEXT means what comes after its caller
}

void* of_driver(const char* name) {
    void* handle = libcuda();
    return handle ? real_dlsym(handle, name) : nullptr;
}

void* Entry::looked_up() {
    void* found = real_dlsym(RTLD_NEXT, exported);
    if (!found) found = by_name(exported);
    if (found) in_front(this, found);
    return found;
}

// --- what stands before dlsym and cuGetProcAddress ------------------------------------------------------

namespace {

template <class... Status>
Result address(Entry& entry, const char* symbol, void** found, int version, uint64_t flags, Status... status) {
    auto real = entry.called<Result(const char*, void**, int, uint64_t, Status...)>();
    if (!real) return NOT_FOUND;
    Result done = real(symbol, found, version, flags, status...);
    if (done == OK && symbol && found && *found) *found = in_front(symbol, *found, version, flags);
    return done;
}

}  // namespace
}  // namespace watcher

using watcher::Entry;
using watcher::Result;

extern "C" {

[[gnu::visibility("default")]] void* dlsym(void* handle, const char* name) noexcept {
    Entry* entry = handle == RTLD_NEXT ? nullptr : watcher::entry_of(name);
    return entry ? watcher::asked_for(handle, name, entry) : watcher::real_dlsym(handle, name);
}

Result cuGetProcAddress(const char* symbol, void** found, int version, uint64_t flags);
Result cuGetProcAddress_v2(const char* symbol, void** found, int version, uint64_t flags, int* status);

WATCHER_ENTRY(cuGetProcAddress, "cuGetProcAddress", 11030, false)
WATCHER_ENTRY(cuGetProcAddress_v2, "cuGetProcAddress", 12000, false)

[[gnu::visibility("default")]] Result cuGetProcAddress(const char* symbol, void** found, int version, uint64_t flags) {
    return watcher::address(cuGetProcAddress_entry, symbol, found, version, flags);
}
[[gnu::visibility("default")]] Result
cuGetProcAddress_v2(const char* symbol, void** found, int version, uint64_t flags, int* status) {
    return watcher::address(cuGetProcAddress_v2_entry, symbol, found, version, flags, status);
}
}
