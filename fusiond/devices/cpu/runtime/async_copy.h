// Copies that run on while their thread does: cp.async, <cuda_pipeline.h>, and what is built on them.
//
// A copy may be done at any moment between its issue and the wait for its group. In a launch in order it is done at
// once; in a shuffled one a chance decides, copy by copy, between at once and not before the wait: a program that reads
// too early sees what was there, and one that issues too early overwrites what others still read.
#pragma once

#include "builtins.h"

namespace fusiond_detail {

struct AsyncCopy {
    void* to;
    const void* from;
    unsigned bytes;
    unsigned filled;   // of them, the last ones, which are zeros
    unsigned group;
};

// What one thread has issued and not waited for. Groups are numbered from 0; the open one is `committed`.
struct AsyncQueue {
    AsyncCopy* copies;
    unsigned count, capacity;
    unsigned committed;
    uint64_t run;      // of the block that it is of
};

inline AsyncQueue async_queues[1024];

inline AsyncQueue& async_queue() {
    AsyncQueue& queue = async_queues[thread_number()];
    const uint64_t run = ::fusiond_calls->block_run();
    if (queue.run != run) {  // what an earlier block never waited for has no effect any more
        queue.run = run;
        queue.count = queue.committed = 0;
    }
    return queue;
}

inline void do_copy(const AsyncCopy& copy) {
    __builtin_memcpy(copy.to, copy.from, copy.bytes - copy.filled);
    __builtin_memset((char*)copy.to + (copy.bytes - copy.filled), 0, copy.filled);
}

inline void async_copy(void* to, const void* from, unsigned bytes, unsigned filled = 0) {
    if ((uintptr_t)to % (bytes < 16 && (bytes & (bytes - 1)) == 0 ? bytes : 1))
        ::fusiond_calls->trap("an asynchronous copy to an address that is not a multiple of its size", nullptr, 0);
    AsyncQueue& queue = async_queue();
    const AsyncCopy copy = {to, from, bytes, filled, queue.committed};
    if (!::fusiond_calls->chance() || ::fusiond_calls->grid_is_valid()) return do_copy(copy);
    if (queue.count == queue.capacity) {
        queue.capacity = queue.capacity ? 2 * queue.capacity : 8;
        queue.copies = (AsyncCopy*)::realloc(queue.copies, queue.capacity * sizeof(AsyncCopy));
    }
    queue.copies[queue.count++] = copy;
}

inline void async_commit() { async_queue().committed += 1; }

// Waits for all groups but the last `prior` committed ones.
inline void async_wait(unsigned prior) {
    AsyncQueue& queue = async_queue();
    unsigned done = 0;
    while (done < queue.count && queue.copies[done].group + prior < queue.committed) do_copy(queue.copies[done++]);
    for (unsigned at = done; at < queue.count; ++at) queue.copies[at - done] = queue.copies[at];
    queue.count -= done;
}

inline void async_wait_all() {
    async_commit();
    async_wait(0);
}

}  // namespace fusiond_detail
