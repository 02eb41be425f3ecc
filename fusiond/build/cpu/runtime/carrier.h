// Carriers: the stacks that CUDA threads run on.
//
// A carrier runs threads of the block one after the other in a plain loop. When one of them blocks, the carrier
// is left standing with it, and another carrier goes on with the loop: only then has the thread become a fiber.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if !defined(__x86_64__) && !defined(FUSIOND_UCONTEXT)
#define FUSIOND_UCONTEXT
#endif
#ifdef FUSIOND_UCONTEXT
#include <ucontext.h>
#endif

namespace fusiond {

struct Context {
#ifdef FUSIOND_UCONTEXT
    ucontext_t saved;
#else
    void* stack_pointer;
#endif
};

// Leaves the running context in `from` and continues `to`.
void context_switch(Context& from, Context& to);

struct Carrier {
    Context context;
    char* stack;            // its lowest byte; an inaccessible page lies before it
    uint32_t thread;        // which thread stands on it, once that has blocked
    void* race_fiber;       // ThreadSanitizer's view of the thread that runs on it
};

class CarrierPool {
public:
    // Forgets whatever stands on the stacks; every carrier will start `body` afresh.
    // False: no memory.
    // There are at least `capacity` of them. Stacks are mapped once, and again only when that grows or their size changes.
    bool prepare(uint32_t stack_bytes, uint32_t capacity, void (*body)());
    void start_afresh();
    Carrier* take();
    void give(Carrier* carrier) { free_[free_count_++] = carrier; }

    // The carrier in whose guard page `address` lies, or null.
    const Carrier* overflowed(const void* address) const;

    bool contains(const void* address) const;

    void* memory() const { return memory_; }
    size_t used_bytes() const { return made_ * pitch_; }

private:
    bool resize(uint32_t capacity);

    Carrier* carriers_ = nullptr;
    Carrier** free_ = nullptr;
    uint32_t capacity_ = 0;
    uint32_t free_count_ = 0;
    uint32_t started_ = 0;  // carriers_[started_...] have not started since start_afresh()
    uint32_t made_ = 0;     // carriers_[made_...] have no guard page yet
    char* memory_ = nullptr;
    size_t pitch_ = 0;
    uint32_t stack_bytes_ = 0;
    void (*body_)() = nullptr;
};

}  // namespace fusiond
