"""Cooperative groups inside a side: the block's group is the side's, and tiles of a warp are what they were.

CUDA's own header reads the thread index and waits at barrier 0 past any shadow; this text stands in each namespace in
its place. Groups of more than a block (the grid, clusters), of less than is known when compiling (coalesced threads)
and asynchronous copies are not in it.
"""

from __future__ import annotations

NAMES = ("this_thread_block",)
"""What sees the block, and is handed the shadows like any function that does."""

TYPES = """\
namespace cooperative_groups {
struct thread_block {
    uint3 fusiond_thread, fusiond_block;
    dim3 fusiond_threads, fusiond_blocks;
    fusiond_barrier fusiond_wait;

    __device__ __forceinline__ void sync() const { fusiond_wait(); }
    __device__ __forceinline__ unsigned int thread_rank() const {
        return fusiond_thread.x + fusiond_threads.x * (fusiond_thread.y + fusiond_threads.y * fusiond_thread.z);
    }
    __device__ __forceinline__ unsigned int num_threads() const {
        return fusiond_threads.x * fusiond_threads.y * fusiond_threads.z;
    }
    __device__ __forceinline__ unsigned int size() const { return num_threads(); }
    __device__ __forceinline__ uint3 thread_index() const { return fusiond_thread; }
    __device__ __forceinline__ uint3 group_index() const { return fusiond_block; }
    __device__ __forceinline__ dim3 group_dim() const { return fusiond_threads; }
    __device__ __forceinline__ dim3 dim_threads() const { return fusiond_threads; }
};

template <unsigned int Size, class Parent = void> struct thread_block_tile {
    static_assert(Size >= 1 && Size <= 32 && (Size & (Size - 1)) == 0, "a power of two, at most 32 threads");
    unsigned int fusiond_rank, fusiond_within, fusiond_of;  // in the block, in what was cut; its size

    __device__ __forceinline__ thread_block_tile(unsigned int rank, unsigned int within, unsigned int of)
        : fusiond_rank(rank), fusiond_within(within), fusiond_of(of) {}
    template <class Other> __device__ __forceinline__ thread_block_tile(const thread_block_tile<Size, Other>& other)
        : fusiond_rank(other.fusiond_rank), fusiond_within(other.fusiond_within), fusiond_of(other.fusiond_of) {}

    __device__ __forceinline__ unsigned int fusiond_first() const { return fusiond_rank % 32 / Size * Size; }
    __device__ __forceinline__ unsigned int fusiond_mask() const {
        return (0xffffffffu >> (32 - Size)) << fusiond_first();
    }
    __device__ __forceinline__ void sync() const { __syncwarp(fusiond_mask()); }
    __device__ __forceinline__ unsigned int thread_rank() const { return fusiond_rank % Size; }
    __device__ __forceinline__ static constexpr unsigned int num_threads() { return Size; }
    __device__ __forceinline__ static constexpr unsigned int size() { return Size; }
    __device__ __forceinline__ unsigned int meta_group_rank() const { return fusiond_within / Size; }
    __device__ __forceinline__ unsigned int meta_group_size() const { return (fusiond_of + Size - 1) / Size; }
    template <class T> __device__ __forceinline__ T shfl(T value, int rank) const {
        return __shfl_sync(fusiond_mask(), value, rank, Size);
    }
    template <class T> __device__ __forceinline__ T shfl_up(T value, unsigned int delta) const {
        return __shfl_up_sync(fusiond_mask(), value, delta, Size);
    }
    template <class T> __device__ __forceinline__ T shfl_down(T value, unsigned int delta) const {
        return __shfl_down_sync(fusiond_mask(), value, delta, Size);
    }
    template <class T> __device__ __forceinline__ T shfl_xor(T value, unsigned int lanes) const {
        return __shfl_xor_sync(fusiond_mask(), value, static_cast<int>(lanes), Size);
    }
    __device__ __forceinline__ int any(int predicate) const { return __any_sync(fusiond_mask(), predicate); }
    __device__ __forceinline__ int all(int predicate) const { return __all_sync(fusiond_mask(), predicate); }
    __device__ __forceinline__ unsigned int ballot(int predicate) const {
        return __ballot_sync(fusiond_mask(), predicate) >> fusiond_first();
    }
    template <class T> __device__ __forceinline__ unsigned int match_any(T value) const {
        return __match_any_sync(fusiond_mask(), value) >> fusiond_first();
    }
};

template <unsigned int Size> __device__ __forceinline__ thread_block_tile<Size, thread_block> tiled_partition(
    const thread_block& block) {
    return {block.thread_rank(), block.thread_rank(), block.num_threads()};
}
template <unsigned int Size, unsigned int Whole, class Parent>
__device__ __forceinline__ thread_block_tile<Size, thread_block_tile<Whole, Parent>> tiled_partition(
    const thread_block_tile<Whole, Parent>& tile) {
    return {tile.fusiond_rank, tile.thread_rank(), Whole};
}
template <class Group> __device__ __forceinline__ void sync(const Group& group) { group.sync(); }

template <class T> struct plus { __device__ __forceinline__ T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { __device__ __forceinline__ T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { __device__ __forceinline__ T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { __device__ __forceinline__ T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { __device__ __forceinline__ T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { __device__ __forceinline__ T operator()(T a, T b) const { return a ^ b; } };
template <unsigned int Size, class Parent, class T, class Operator>
__device__ __forceinline__ T reduce(const thread_block_tile<Size, Parent>& tile, T value, Operator with) {
    for (unsigned int lanes = Size / 2; lanes > 0; lanes /= 2) value = with(value, tile.shfl_xor(value, lanes));
    return value;
}
"""

ENTRY = """\
__device__ __forceinline__ thread_block this_thread_block(FUSIOND_SHADOWS) {
    return {threadIdx, blockIdx, blockDim, gridDim, __syncthreads};
}
}
"""

STUB = f"""\
struct fusiond_barrier {{ __device__ void operator()() const; }};
{TYPES}
struct grid_group {{
    __device__ void sync() const; __device__ unsigned long long thread_rank() const;
    __device__ unsigned long long size() const; __device__ unsigned long long num_threads() const;
    __device__ bool is_valid() const;
}};
__device__ grid_group this_grid();
__device__ thread_block this_thread_block();
}}
"""
"""For reading the kernel as it stands."""

TEXT = TYPES + ENTRY
"""For a namespace of the fused source."""
