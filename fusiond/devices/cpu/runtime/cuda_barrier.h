// <cuda/barrier> on the processor: barriers that are objects in shared memory (mbarrier), and asynchronous copies that
// complete on them.
#pragma once

#include "async_copy.h"
#include "cuda_atomic.h"

namespace cuda {

struct fusiond_no_completion {};

// 8 bytes, as on a GPU. From bit 0: what says that it was initialised, how many are expected, how many are still to
// come, the phase.
template <thread_scope Scope, class Completion = fusiond_no_completion> class barrier {
public:
    using arrival_token = uint64_t;

    barrier() = default;
    explicit barrier(ptrdiff_t expected) { start(expected); }
    void start(ptrdiff_t expected) {
        if (expected < 0 || expected > max()) ::fusiond_calls->trap("a cuda::barrier of less than 0 or too many threads", nullptr, 0);
        __atomic_store_n(&word_, initialised | (uint64_t)expected << 20 | (uint64_t)expected << 40, __ATOMIC_RELEASE);
    }
    static constexpr ptrdiff_t max() { return (1 << 20) - 1; }

    arrival_token arrive(ptrdiff_t update = 1) { return count(update, 0); }
    void wait(arrival_token&& token) const { wait_phase(token & phase); }
    void wait(arrival_token& token) const { wait_phase(token & phase); }
    void arrive_and_wait() { wait(arrive()); }
    void arrive_and_drop() { count(1, 1); }
    void wait_parity(bool parity) const { wait_phase(parity ? phase : 0); }
    bool try_wait(arrival_token&& token) const {
        wait_phase(token & phase);
        return true;
    }

private:
    static constexpr uint64_t initialised = 0xba221, field = 0xfffff, phase = uint64_t{1} << 60;

    uint64_t word_;

    arrival_token count(ptrdiff_t update, ptrdiff_t dropped) {
        uint64_t old = __atomic_load_n(&word_, __ATOMIC_ACQUIRE);
        for (;;) {
            if ((old & field) != initialised) ::fusiond_calls->trap("a cuda::barrier that was not initialised", nullptr, 0);
            const uint64_t expected = (old >> 20 & field) - (uint64_t)dropped;
            const uint64_t pending = old >> 40 & field;
            if ((uint64_t)update > pending) ::fusiond_calls->trap("more arrivals than a cuda::barrier expects", nullptr, 0);
            const uint64_t left = pending - (uint64_t)update;
            const uint64_t next = initialised | expected << 20 | (left ? left : expected) << 40 | ((old & phase) ^ (left ? 0 : phase));
            if (__atomic_compare_exchange_n(&word_, &old, next, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return old;
        }
    }
    void wait_phase(uint64_t old) const {
        if ((__atomic_load_n(&word_, __ATOMIC_ACQUIRE) & field) != initialised)
            ::fusiond_calls->trap("a cuda::barrier that was not initialised", nullptr, 0);
        ::fusiond_calls->wait_while(&word_, phase, old);
        (void)__atomic_load_n(&word_, __ATOMIC_ACQUIRE);
    }
};

template <thread_scope Scope, class C> inline void init(barrier<Scope, C>* object, ptrdiff_t expected) { object->start(expected); }

template <size_t Alignment> struct aligned_size_t {
    static constexpr size_t align = Alignment;
    size_t value;
    explicit aligned_size_t(size_t bytes) : value(bytes) {}
    operator size_t() const { return value; }
};

// A copy that completes on a barrier must be done before its thread arrives there, since others wait for that.
template <thread_scope Scope, class C, class T, class Size>
inline void memcpy_async(T* to, const T* from, Size bytes, barrier<Scope, C>&) {
    __builtin_memcpy((void*)to, (const void*)from, (size_t)bytes);
}
template <class Group, thread_scope Scope, class C, class T, class Size>
inline void memcpy_async(const Group& group, T* to, const T* from, Size bytes, barrier<Scope, C>&) {
    if (group.thread_rank() == 0) __builtin_memcpy((void*)to, (const void*)from, (size_t)bytes);
}

}  // namespace cuda
