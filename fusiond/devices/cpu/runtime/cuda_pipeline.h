// <cuda_pipeline.h> and its primitives on the processor.
#pragma once

#include "async_copy.h"
#include "cuda_barrier.h"

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t filled = 0) {
    if (bytes != 4 && bytes != 8 && bytes != 16)
        ::fusiond_calls->trap("__pipeline_memcpy_async copies 4, 8 or 16 bytes", nullptr, 0);
    if ((uintptr_t)from % bytes)
        ::fusiond_calls->trap("__pipeline_memcpy_async from an address that is not a multiple of its size", nullptr, 0);
    fusiond_detail::async_copy(to, from, (unsigned)bytes, (unsigned)filled);
}
inline void __pipeline_commit() { fusiond_detail::async_commit(); }
inline void __pipeline_wait_prior(size_t prior) { fusiond_detail::async_wait((unsigned)prior); }

namespace nvcuda { namespace experimental {
// Groups of copies in the order of their commits.
class pipeline {
public:
    size_t commit() {
        fusiond_detail::async_commit();
        return fusiond_detail::async_queue().committed - 1;
    }
    void commit_and_wait() { fusiond_detail::async_wait_all(); }
    void wait(size_t group) { fusiond_detail::async_wait(fusiond_detail::async_queue().committed - 1 - (unsigned)group); }
    template <unsigned Prior> void wait_prior() { fusiond_detail::async_wait(Prior); }
};
template <class T> inline void memcpy_async(T& to, const T& from, pipeline&) {
    fusiond_detail::async_copy(&to, &from, sizeof(T));
}
}}  // namespace nvcuda::experimental
