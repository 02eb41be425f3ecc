// The functions that stand before the driver's. Each is told to the linker as an `Entry`, so that the table is there
// before any constructor has run: other libraries' constructors may ask for the driver.
#pragma once

#include <atomic>
#include <dlfcn.h>

#include "driver.h"

namespace watcher {

struct Entry {
    const char* exported;  // cuMemAlloc_v2
    const char* base;      // cuMemAlloc: what cuGetProcAddress is asked for
    int since;             // the CUDA version from which on the base name means this one
    bool per_thread;       // the variant whose default stream is the thread's own
    void* ours;
    std::atomic<void*> real{nullptr};

    // The driver's function, as it was handed out, or else by its name; null where there is none.
    template <class F> F* called() {
        void* found = real.load(std::memory_order_acquire);
        return reinterpret_cast<F*>(found ? found : looked_up());
    }
    void* looked_up();
    // What is handed out in the place of a function of the driver's.
    void* before(void* the_drivers) {
        if (the_drivers != ours) real.store(the_drivers, std::memory_order_release);
        return ours;
    }
};

// Pointers in a section of their own, and no entries or arrays, between which a compiler may leave room.
#ifndef WATCHER_ENTRY  // a test has its own
#define WATCHER_ENTRY(exported, base, since, per_thread)                                           \
    static watcher::Entry exported##_entry{#exported, base, since, per_thread, (void*)exported};   \
    [[gnu::section("watcher_entries"), gnu::used]] static watcher::Entry* const exported##_at = &exported##_entry;
#endif

// dlsym as the C library has it.
void* real_dlsym(void* handle, const char* name);
// A function of the driver that nobody may have asked for yet; null where the driver has none of that name.
void* of_driver(const char* name);

// A function of the driver that is called by us: `Ours<Result(Handle)> synchronize{"cuStreamSynchronize"}`.
template <class F> class Ours;
template <class... A> class Ours<Result(A...)> {
  public:
    constexpr explicit Ours(const char* name) : name_(name) {}
    bool there() { return found() != nullptr; }
    Result operator()(A... arguments) {
        auto function = found();
        return function ? function(arguments...) : NOT_FOUND;
    }

  private:
    using Function = Result (*)(A...);
    Function found() {
        void* known = function_.load(std::memory_order_acquire);
        if (!known) function_.store(known = of_driver(name_), std::memory_order_release);
        return reinterpret_cast<Function>(known);
    }
    const char* name_;
    std::atomic<void*> function_{nullptr};
};

// While one is alive, what the driver calls of itself, and what we call, is not noted.
class Inside {
  public:
    Inside() { ++depth_; }
    ~Inside() { --depth_; }
    Inside(const Inside&) = delete;
    bool outermost() const { return depth_ == 1; }

  private:
    static thread_local constinit int depth_;
};

}  // namespace watcher
