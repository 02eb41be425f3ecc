// Cooperative groups on the processor: the grid, the block, tiles of a warp, coalesced threads, and what they do
// together (reduce, scan, asynchronous copies). A tile takes part with its own lanes only; clusters, tiles of several
// warps and split barriers are not provided.
#pragma once

#include "async_copy.h"
#include "fusiond_cuda.h"

namespace cooperative_groups {

// Values of any type go from lane to lane, in words.
template <bool Record> struct fusiond_lanes {
    template <class T, class F> static T of(T value, F move) { return move(value); }
};
template <> struct fusiond_lanes<true> {
    template <class T, class F> static T of(T value, F move) {
        unsigned words[(sizeof(T) + 3) / 4] = {};
        __builtin_memcpy(words, &value, sizeof(T));
        for (unsigned& each : words) each = move(each);
        __builtin_memcpy(&value, words, sizeof(T));
        return value;
    }
};

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

    template <class T> static T shfl(T value, int rank) { return fusiond_lanes<__is_class(T)>::of(value, [&](auto word) { return ::__shfl_sync(mask(), word, rank, Size); }); }
    template <class T> static T shfl_up(T value, unsigned delta) { return fusiond_lanes<__is_class(T)>::of(value, [&](auto word) { return ::__shfl_up_sync(mask(), word, delta, Size); }); }
    template <class T> static T shfl_down(T value, unsigned delta) { return fusiond_lanes<__is_class(T)>::of(value, [&](auto word) { return ::__shfl_down_sync(mask(), word, delta, Size); }); }
    template <class T> static T shfl_xor(T value, unsigned ranks) { return fusiond_lanes<__is_class(T)>::of(value, [&](auto word) { return ::__shfl_xor_sync(mask(), word, (int)ranks, Size); }); }
    static int any(int predicate) { return ::__any_sync(mask(), predicate); }
    static int all(int predicate) { return ::__all_sync(mask(), predicate); }
    static unsigned ballot(int predicate) { return ::__ballot_sync(mask(), predicate) >> lane() / Size * Size; }
    template <class T> static unsigned match_any(T value) { return ::__match_any_sync(mask(), value) >> lane() / Size * Size; }
};

template <unsigned Size, class Parent> inline thread_block_tile<Size, Parent> tiled_partition(const Parent&) { return {}; }

// The threads that are here together, numbered among themselves.
class coalesced_group {
public:
    explicit coalesced_group(unsigned mask) : mask_(mask) {}

    void sync() const { ::__syncwarp(mask_); }
    unsigned size() const { return (unsigned)__builtin_popcount(mask_); }
    unsigned num_threads() const { return size(); }
    unsigned thread_rank() const { return (unsigned)__builtin_popcount(mask_ & ((1u << lane()) - 1)); }
    unsigned meta_group_rank() const { return 0; }
    unsigned meta_group_size() const { return 1; }
    unsigned mask() const { return mask_; }

    template <class T> T shfl(T value, unsigned rank) const { return from(value, rank % size()); }
    template <class T> T shfl_up(T value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return from(value, rank < delta ? rank : rank - delta);
    }
    template <class T> T shfl_down(T value, unsigned delta) const {
        const unsigned rank = thread_rank();
        return from(value, rank + delta >= size() ? rank : rank + delta);
    }
    int any(int predicate) const { return ::__any_sync(mask_, predicate); }
    int all(int predicate) const { return ::__all_sync(mask_, predicate); }
    unsigned ballot(int predicate) const { return packed(::__ballot_sync(mask_, predicate)); }
    template <class T> unsigned match_any(T value) const { return packed(::__match_any_sync(mask_, value)); }

private:
    unsigned mask_;

    static unsigned lane() { return thread_block::thread_rank() % 32; }
    template <class T> T from(T value, unsigned rank) const {
        const int lane = (int)lane_of(rank);
        return fusiond_lanes<__is_class(T)>::of(value, [&](auto word) { return ::__shfl_sync(mask_, word, lane); });
    }
    unsigned lane_of(unsigned rank) const {
        unsigned rest = mask_;
        while (rank--) rest &= rest - 1;
        return (unsigned)__builtin_ctz(rest);
    }
    unsigned packed(unsigned lanes) const {
        unsigned found = 0;
        for (unsigned rank = 0; rank < size(); ++rank) found |= (lanes >> lane_of(rank) & 1u) << rank;
        return found;
    }
};

__attribute__((always_inline)) inline coalesced_group coalesced_threads() { return coalesced_group(::__activemask()); }

// Of a tile, or of coalesced threads.
template <class Group> inline coalesced_group binary_partition(const Group& group, bool predicate) {
    const unsigned mask = group.mask(), yes = ::__ballot_sync(mask, predicate);
    return coalesced_group(predicate ? yes : mask & ~yes);
}
template <class Group, class T> inline coalesced_group labeled_partition(const Group& group, T label) {
    return coalesced_group(::__match_any_sync(group.mask(), label));
}

// Any of the others, when only its rank and size are asked for and its sync.
class thread_group {
public:
    thread_group(const thread_block& group) : size_(group.size()), rank_(group.thread_rank()), mask_(0) {}
    template <unsigned Size, class Parent> thread_group(const thread_block_tile<Size, Parent>& tile)
        : size_(Size), rank_(tile.thread_rank()), mask_(tile.mask()) {}
    thread_group(const thread_group&) = default;
    void sync() const { mask_ ? ::__syncwarp(mask_) : ::__syncthreads(); }
    unsigned size() const { return size_; }
    unsigned num_threads() const { return size_; }
    unsigned thread_rank() const { return rank_; }

private:
    friend thread_group tiled_partition(const thread_group& group, unsigned size);
    thread_group(unsigned size, unsigned rank, unsigned mask) : size_(size), rank_(rank), mask_(mask) {}
    unsigned size_, rank_, mask_;
};

inline thread_group tiled_partition(const thread_group& group, unsigned size) {
    if (size == 0 || size > 32 || size & (size - 1)) ::fusiond_calls->trap("a tile is a power of two of at most 32 threads", nullptr, 0);
    const unsigned lane = thread_block::thread_rank() % 32;
    return thread_group(size, group.thread_rank() % size, (size == 32 ? 0xffffffffu : (1u << size) - 1) << lane / size * size);
}

template <class Group> inline void sync(const Group& group) { group.sync(); }

template <class T> struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { T operator()(T a, T b) const { return a ^ b; } };

template <unsigned Size, class Parent, class T, class Operator>
inline T reduce(const thread_block_tile<Size, Parent>& tile, T value, Operator with) {
    for (unsigned ranks = Size / 2; ranks > 0; ranks /= 2) value = with(value, tile.shfl_xor(value, ranks));
    return value;
}
template <class T, class Operator> inline T reduce(const coalesced_group& group, T value, Operator with) {
    T all = group.shfl(value, 0);
    for (unsigned rank = 1; rank < group.size(); ++rank) all = with(all, group.shfl(value, rank));
    return all;
}

template <class Group, class T, class Operator> inline T inclusive_scan(const Group& group, T value, Operator with) {
    for (unsigned ranks = 1; ranks < group.size(); ranks *= 2) {
        const T before = group.shfl_up(value, ranks);
        if (group.thread_rank() >= ranks) value = with(before, value);
    }
    return value;
}
template <class Group, class T> inline T inclusive_scan(const Group& group, T value) { return inclusive_scan(group, value, plus<T>()); }
template <class Group, class T, class Operator> inline T exclusive_scan(const Group& group, T value, Operator with) {
    const T before = group.shfl_up(inclusive_scan(group, value, with), 1);
    return group.thread_rank() == 0 ? T() : before;
}
template <class Group, class T> inline T exclusive_scan(const Group& group, T value) { return exclusive_scan(group, value, plus<T>()); }

template <class Group, class T, class F, class S, class Size>
inline void memcpy_async(const Group& group, T* to, const F& to_layout, const S* from, const Size& from_layout) {
    const size_t a = (size_t)to_layout * sizeof(T), b = (size_t)from_layout * sizeof(S);
    memcpy_async(group, to, from, a < b ? a : b);
}
template <class Group, class T, class S, class Size>
inline void memcpy_async(const Group& group, T* to, const S* from, const Size& bytes) {
    const size_t all = (size_t)bytes, each = all % 16 ? all % 4 ? 1 : 4 : 16;
    for (size_t at = group.thread_rank() * each; at < all; at += group.size() * each)
        ::fusiond_detail::async_copy((char*)to + at, (const char*)from + at, (unsigned)each);
    ::fusiond_detail::async_commit();
}
template <class Group> inline void wait(const Group& group) {
    ::fusiond_detail::async_wait(0);
    group.sync();
}
template <unsigned Stages, class Group> inline void wait_prior(const Group& group) {
    ::fusiond_detail::async_wait(Stages);
    group.sync();
}

template <class Group, class F> inline auto invoke_one(const Group& group, F function) {
    if (group.thread_rank() == 0) function();
}

}  // namespace cooperative_groups
