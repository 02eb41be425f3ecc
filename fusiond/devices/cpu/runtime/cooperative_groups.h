// The part of cooperative groups that maps onto barriers and warp operations: the grid, the block and tiles of a warp.
// A tile takes part with its own lanes only; clusters, coalesced groups and split barriers are not provided.
#pragma once

#include "fusiond_cuda.h"

namespace cooperative_groups {

struct thread_block {
    static void sync() { ::__syncthreads(); }
    static unsigned thread_rank() {
        return ::threadIdx.x + ::blockDim.x * (::threadIdx.y + ::blockDim.y * ::threadIdx.z);
    }
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
    static void sync() { ::fusiond_grid_sync(); }
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

// What the tile was cut from; a type without it, thread_block_tile<32>, stands for a tile of anything.
template <unsigned Size, class Parent = void> struct thread_block_tile;
template <class Parent> struct cut_from { using type = Parent; };
template <> struct cut_from<void> { using type = thread_block; };

template <unsigned Size, class Parent> struct thread_block_tile {
    static_assert(Size >= 1 && Size <= 32 && (Size & (Size - 1)) == 0, "a tile is a power of two of at most 32 threads");

    thread_block_tile() = default;
    template <class Other> thread_block_tile(const thread_block_tile<Size, Other>&) {}

    static unsigned lane() { return thread_block::thread_rank() % 32; }
    static unsigned mask() { return (Size == 32 ? 0xffffffffu : (1u << Size % 32) - 1) << lane() / Size * Size; }

    static void sync() { ::__syncwarp(mask()); }
    static unsigned thread_rank() { return thread_block::thread_rank() % Size; }
    static constexpr unsigned num_threads() { return Size; }
    static constexpr unsigned size() { return Size; }
    static unsigned meta_group_rank() { return cut_from<Parent>::type::thread_rank() / Size; }
    static unsigned meta_group_size() { return (cut_from<Parent>::type::num_threads() + Size - 1) / Size; }

    template <class T> static T shfl(T value, int rank) { return ::__shfl_sync(mask(), value, rank, Size); }
    template <class T> static T shfl_up(T value, unsigned delta) { return ::__shfl_up_sync(mask(), value, delta, Size); }
    template <class T> static T shfl_down(T value, unsigned delta) { return ::__shfl_down_sync(mask(), value, delta, Size); }
    template <class T> static T shfl_xor(T value, unsigned ranks) { return ::__shfl_xor_sync(mask(), value, (int)ranks, Size); }
    static int any(int predicate) { return ::__any_sync(mask(), predicate); }
    static int all(int predicate) { return ::__all_sync(mask(), predicate); }
    static unsigned ballot(int predicate) { return ::__ballot_sync(mask(), predicate) >> lane() / Size * Size; }
    template <class T> static unsigned match_any(T value) { return ::__match_any_sync(mask(), value) >> lane() / Size * Size; }
};

template <unsigned Size, class Parent> inline thread_block_tile<Size, Parent> tiled_partition(const Parent&) { return {}; }
template <class Group> inline void sync(const Group& group) { group.sync(); }

}  // namespace cooperative_groups
