// Of cooperative groups what has a counterpart in the scheduler: the block, and the grid of a cooperative launch. A text
// that uses more does not compile here, and is run as nvcc's PTX.
#pragma once

#include "fusiond_cuda.h"

namespace cooperative_groups {

struct thread_block {
    static void sync() { ::__syncthreads(); }
    static unsigned thread_rank() { return ::fusiond_detail::thread_number(); }
    static unsigned num_threads() { return ::blockDim.x * ::blockDim.y * ::blockDim.z; }
    static unsigned size() { return num_threads(); }
    static dim3 group_index() { return ::blockIdx; }
    static dim3 thread_index() { return ::threadIdx; }
    static dim3 group_dim() { return ::blockDim; }
    static dim3 dim_threads() { return ::blockDim; }
};

inline thread_block this_thread_block() { return {}; }

// All threads of a cooperative launch; `sync` in any other launch is an error.
struct grid_group {
    static void sync() { ::fusiond_calls->grid_barrier(); }
    static bool is_valid() { return ::fusiond_calls->grid_is_valid() != 0; }
    static unsigned long long num_blocks() { return (unsigned long long)::gridDim.x * ::gridDim.y * ::gridDim.z; }
    static unsigned long long block_rank() {
        return ::blockIdx.x + (unsigned long long)::gridDim.x * (::blockIdx.y + (unsigned long long)::gridDim.y * ::blockIdx.z);
    }
    static unsigned long long num_threads() { return num_blocks() * thread_block::num_threads(); }
    static unsigned long long size() { return num_threads(); }
    static unsigned long long thread_rank() { return block_rank() * thread_block::num_threads() + thread_block::thread_rank(); }
    static dim3 group_dim() { return ::gridDim; }
    static dim3 dim_blocks() { return ::gridDim; }
    static dim3 block_index() { return ::blockIdx; }
};

inline grid_group this_grid() { return {}; }

template <class Group> inline void sync(const Group& group) { group.sync(); }

}  // namespace cooperative_groups
