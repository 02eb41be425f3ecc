// <cuda/pipeline> on the processor: of one thread, or of a block in stages.
#pragma once

#include "cuda_barrier.h"

namespace cuda {

enum class pipeline_role { producer, consumer };

template <thread_scope Scope, uint8_t Stages> struct pipeline_shared_state {
    barrier<Scope> produced[Stages], consumed[Stages];
    uint32_t ready;
};

// Of a block: what the stages' barriers say. Of a thread: its own groups of copies, oldest first.
template <thread_scope Scope> class pipeline {
public:
    pipeline() = default;
    pipeline(pipeline&&) = default;
    void producer_acquire() {
        if (!produced_) return;
        if (issued_ >= stages_) consumed_[issued_ % stages_].wait_parity((issued_ / stages_ - 1) % 2);
    }
    void producer_commit() {
        if (produced_) {
            fusiond_detail::async_wait_all();  // others wait for what this thread has copied
            (void)produced_[issued_ % stages_].arrive();
        } else {
            fusiond_detail::async_commit();
        }
        ++issued_;
    }
    void consumer_wait() {
        if (produced_) {
            produced_[taken_ % stages_].wait_parity(taken_ / stages_ % 2);
        } else {
            ++taken_;
            fusiond_detail::async_wait(issued_ - taken_);
        }
    }
    void consumer_release() {
        if (!produced_) return;
        (void)consumed_[taken_ % stages_].arrive();
        ++taken_;
    }
    bool quit() { return true; }

    void fusiond_attach(barrier<Scope>* produced, barrier<Scope>* consumed, unsigned stages) {
        produced_ = produced, consumed_ = consumed, stages_ = stages;
    }
    unsigned fusiond_issued() const { return issued_; }

private:
    barrier<Scope>* produced_ = nullptr;
    barrier<Scope>* consumed_ = nullptr;
    unsigned stages_ = 0;
    unsigned issued_ = 0, taken_ = 0;  // stages that this thread has committed, and waited for
};

inline pipeline<thread_scope_thread> make_pipeline() { return {}; }

template <class Group, thread_scope Scope, uint8_t Stages>
inline pipeline<Scope> fusiond_pipeline(const Group& group, pipeline_shared_state<Scope, Stages>* state, size_t producers, size_t consumers) {
    group.sync();
    if (group.thread_rank() == 0)
        for (int stage = 0; stage < Stages; ++stage) {
            init(&state->produced[stage], (ptrdiff_t)producers);
            init(&state->consumed[stage], (ptrdiff_t)consumers);
        }
    group.sync();
    pipeline<Scope> made;
    made.fusiond_attach(state->produced, state->consumed, Stages);
    return made;
}
template <class Group, thread_scope Scope, uint8_t Stages>
inline pipeline<Scope> make_pipeline(const Group& group, pipeline_shared_state<Scope, Stages>* state) {
    return fusiond_pipeline(group, state, group.size(), group.size());
}
template <class Group, thread_scope Scope, uint8_t Stages>
inline pipeline<Scope> make_pipeline(const Group& group, pipeline_shared_state<Scope, Stages>* state, size_t producers) {
    return fusiond_pipeline(group, state, producers, group.size() - producers);
}
template <class Group, thread_scope Scope, uint8_t Stages>
inline pipeline<Scope> make_pipeline(const Group& group, pipeline_shared_state<Scope, Stages>* state, pipeline_role role) {
    const size_t producers = (size_t)::__syncthreads_count(role == pipeline_role::producer);
    return fusiond_pipeline(group, state, producers, group.size() - producers);
}

template <uint8_t Prior, thread_scope Scope> inline void pipeline_consumer_wait_prior(pipeline<Scope>&) {
    fusiond_detail::async_wait(Prior);
}

template <class T, class Size, thread_scope Scope> inline void memcpy_async(T* to, const T* from, Size bytes, pipeline<Scope>&) {
    fusiond_detail::async_copy((void*)to, (const void*)from, (unsigned)(size_t)bytes);
}
template <class Group, class T, class Size, thread_scope Scope>
inline void memcpy_async(const Group& group, T* to, const T* from, Size bytes, pipeline<Scope>&) {
    const size_t all = (size_t)bytes, each = all % 16 ? all % 4 ? 1 : 4 : 16;
    for (size_t at = group.thread_rank() * each; at < all; at += group.size() * each)
        fusiond_detail::async_copy((char*)to + at, (const char*)from + at, (unsigned)each);
}

}  // namespace cuda
