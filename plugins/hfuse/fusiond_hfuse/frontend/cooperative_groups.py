"""Cooperative groups inside a side: the block's group is the side's, and tiles of a warp are what they were.

CUDA's own header reads the thread index and waits at barrier 0 past any shadow; this text stands in each namespace in
its place. Clusters and tiles of several warps are not in it, and of the grid no wait.
"""

from __future__ import annotations

from collections.abc import Collection

NAMES = ("this_thread_block", "this_grid")
"""What sees the block, and is handed the shadows like any function that does."""

TYPES = """\
namespace cooperative_groups {
// Values of any type go from lane to lane, in words.
template <bool Record> struct fusiond_lanes {
    template <class T, class F> __device__ __forceinline__ static T of(T value, F move) { return move(value); }
};
template <> struct fusiond_lanes<true> {
    template <class T, class F> __device__ __forceinline__ static T of(T value, F move) {
        unsigned int words[(sizeof(T) + 3) / 4] = {};
        memcpy(words, &value, sizeof(T));
        for (unsigned int& each : words) each = move(each);
        memcpy(&value, words, sizeof(T));
        return value;
    }
};

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

// The side's blocks, as far as they are numbered; waiting for all of them is refused.
struct grid_group {
    thread_block fusiond_of;

    __device__ void sync() const;
    __device__ __forceinline__ dim3 dim_blocks() const { return fusiond_of.fusiond_blocks; }
    __device__ __forceinline__ dim3 group_dim() const { return fusiond_of.fusiond_blocks; }
    __device__ __forceinline__ dim3 block_index() const {
        const uint3 at = fusiond_of.fusiond_block;
        return dim3(at.x, at.y, at.z);
    }
    __device__ __forceinline__ unsigned long long num_blocks() const {
        const dim3 all = fusiond_of.fusiond_blocks;
        return static_cast<unsigned long long>(all.x) * all.y * all.z;
    }
    __device__ __forceinline__ unsigned long long block_rank() const {
        const uint3 at = fusiond_of.fusiond_block;
        const dim3 all = fusiond_of.fusiond_blocks;
        return at.x + static_cast<unsigned long long>(all.x) * (at.y + static_cast<unsigned long long>(all.y) * at.z);
    }
    __device__ __forceinline__ unsigned long long num_threads() const { return num_blocks() * fusiond_of.size(); }
    __device__ __forceinline__ unsigned long long size() const { return num_threads(); }
    __device__ __forceinline__ unsigned long long thread_rank() const {
        return block_rank() * fusiond_of.size() + fusiond_of.thread_rank();
    }
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
        return fusiond_lanes<__is_class(T)>::of(
            value, [&](auto word) { return __shfl_sync(fusiond_mask(), word, rank, Size); });
    }
    template <class T> __device__ __forceinline__ T shfl_up(T value, unsigned int delta) const {
        return fusiond_lanes<__is_class(T)>::of(
            value, [&](auto word) { return __shfl_up_sync(fusiond_mask(), word, delta, Size); });
    }
    template <class T> __device__ __forceinline__ T shfl_down(T value, unsigned int delta) const {
        return fusiond_lanes<__is_class(T)>::of(
            value, [&](auto word) { return __shfl_down_sync(fusiond_mask(), word, delta, Size); });
    }
    template <class T> __device__ __forceinline__ T shfl_xor(T value, unsigned int lanes) const {
        return fusiond_lanes<__is_class(T)>::of(
            value, [&](auto word) { return __shfl_xor_sync(fusiond_mask(), word, static_cast<int>(lanes), Size); });
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

// The threads of a warp that are here together, numbered among themselves.
struct coalesced_group {
    unsigned int fusiond_mask;

    __device__ __forceinline__ explicit coalesced_group(unsigned int mask) : fusiond_mask(mask) {}
    __device__ __forceinline__ void sync() const { __syncwarp(fusiond_mask); }
    __device__ __forceinline__ unsigned int size() const { return __popc(fusiond_mask); }
    __device__ __forceinline__ unsigned int num_threads() const { return size(); }
    __device__ __forceinline__ unsigned int thread_rank() const {
        return __popc(fusiond_mask & ((1u << fusiond_lane()) - 1));
    }
    __device__ __forceinline__ unsigned int meta_group_rank() const { return 0; }
    __device__ __forceinline__ unsigned int meta_group_size() const { return 1; }
    template <class T> __device__ __forceinline__ T shfl(T value, unsigned int rank) const {
        const int from = fusiond_lane_of(rank % size());
        return fusiond_lanes<__is_class(T)>::of(
            value, [&](auto word) { return __shfl_sync(fusiond_mask, word, from); });
    }
    template <class T> __device__ __forceinline__ T shfl_up(T value, unsigned int delta) const {
        const unsigned int rank = thread_rank();
        const int from = fusiond_lane_of(rank < delta ? rank : rank - delta);
        return fusiond_lanes<__is_class(T)>::of(
            value, [&](auto word) { return __shfl_sync(fusiond_mask, word, from); });
    }
    template <class T> __device__ __forceinline__ T shfl_down(T value, unsigned int delta) const {
        const unsigned int rank = thread_rank();
        const int from = fusiond_lane_of(rank + delta >= size() ? rank : rank + delta);
        return fusiond_lanes<__is_class(T)>::of(
            value, [&](auto word) { return __shfl_sync(fusiond_mask, word, from); });
    }
    __device__ __forceinline__ int any(int predicate) const { return __any_sync(fusiond_mask, predicate); }
    __device__ __forceinline__ int all(int predicate) const { return __all_sync(fusiond_mask, predicate); }
    __device__ __forceinline__ unsigned int ballot(int predicate) const {
        return fusiond_packed(__ballot_sync(fusiond_mask, predicate));
    }
    template <class T> __device__ __forceinline__ unsigned int match_any(T value) const {
        return fusiond_packed(__match_any_sync(fusiond_mask, value));
    }
    __device__ __forceinline__ static unsigned int fusiond_lane() {
        unsigned int lane;
        asm("mov.u32 %0, %%laneid;" : "=r"(lane));
        return lane;
    }
    __device__ __forceinline__ int fusiond_lane_of(unsigned int rank) const {
        return static_cast<int>(fusiond_mask == 0xffffffffu ? rank : __fns(fusiond_mask, 0, rank + 1));
    }
    __device__ __forceinline__ unsigned int fusiond_packed(unsigned int lanes) const {
        if (fusiond_mask == 0xffffffffu) return lanes;
        unsigned int found = 0;
        for (unsigned int rank = 0; rank < size(); ++rank) found |= (lanes >> fusiond_lane_of(rank) & 1u) << rank;
        return found;
    }
};
__device__ __forceinline__ coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }
template <unsigned int Size, class Parent>
__device__ __forceinline__ coalesced_group binary_partition(
    const thread_block_tile<Size, Parent>& tile, bool predicate) {
    const unsigned int yes = __ballot_sync(tile.fusiond_mask(), predicate);
    return coalesced_group(predicate ? yes : tile.fusiond_mask() & ~yes);
}
template <unsigned int Size, class Parent, class T>
__device__ __forceinline__ coalesced_group labeled_partition(const thread_block_tile<Size, Parent>& tile, T label) {
    return coalesced_group(__match_any_sync(tile.fusiond_mask(), label));
}
__device__ __forceinline__ coalesced_group binary_partition(const coalesced_group& group, bool predicate) {
    const unsigned int yes = __ballot_sync(group.fusiond_mask, predicate);
    return coalesced_group(predicate ? yes : group.fusiond_mask & ~yes);
}
template <class T>
__device__ __forceinline__ coalesced_group labeled_partition(const coalesced_group& group, T label) {
    return coalesced_group(__match_any_sync(group.fusiond_mask, label));
}

// Any of the others, when only its rank, its size and its sync are asked for.
class thread_group {
public:
    __device__ __forceinline__ thread_group(const thread_block& block)
        : fusiond_size(block.size()), fusiond_rank(block.thread_rank()), fusiond_in_block(block.thread_rank()),
          fusiond_mask(0), fusiond_wait(block.fusiond_wait) {}
    template <unsigned int Size, class Parent>
    __device__ __forceinline__ thread_group(const thread_block_tile<Size, Parent>& tile)
        : fusiond_size(Size), fusiond_rank(tile.thread_rank()), fusiond_in_block(tile.fusiond_rank),
          fusiond_mask(tile.fusiond_mask()), fusiond_wait() {}
    __device__ __forceinline__ void sync() const {
        if (fusiond_mask != 0) __syncwarp(fusiond_mask);
        else fusiond_wait();
    }
    __device__ __forceinline__ unsigned int size() const { return fusiond_size; }
    __device__ __forceinline__ unsigned int num_threads() const { return fusiond_size; }
    __device__ __forceinline__ unsigned int thread_rank() const { return fusiond_rank; }
    __device__ __forceinline__ thread_group fusiond_cut(unsigned int size) const {
        thread_group cut(*this);
        const unsigned int first = fusiond_in_block % 32 / size * size;
        cut.fusiond_size = size;
        cut.fusiond_rank = fusiond_rank % size;
        cut.fusiond_mask = (0xffffffffu >> (32 - size)) << first;
        return cut;
    }

private:
    unsigned int fusiond_size, fusiond_rank, fusiond_in_block, fusiond_mask;
    fusiond_barrier fusiond_wait;
};
__device__ __forceinline__ thread_group tiled_partition(const thread_group& group, unsigned int size) {
    return group.fusiond_cut(size);
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
template <class T, class Operator>
__device__ __forceinline__ T reduce(const coalesced_group& group, T value, Operator with) {
    const unsigned int rank = group.thread_rank(), size = group.size();
    for (unsigned int ranks = 1; ranks < size; ranks *= 2) {
        const T behind = group.shfl_down(value, ranks);
        if (rank + ranks < size) value = with(value, behind);
    }
    return group.shfl(value, 0);
}
template <class Group, class T, class Operator>
__device__ __forceinline__ T inclusive_scan(const Group& group, T value, Operator with) {
    for (unsigned int ranks = 1; ranks < group.size(); ranks *= 2) {
        const T before = group.shfl_up(value, ranks);
        if (group.thread_rank() >= ranks) value = with(before, value);
    }
    return value;
}
template <class Group, class T> __device__ __forceinline__ T inclusive_scan(const Group& group, T value) {
    return inclusive_scan(group, value, plus<T>());
}
template <class Group, class T, class Operator>
__device__ __forceinline__ T exclusive_scan(const Group& group, T value, Operator with) {
    const T before = group.shfl_up(inclusive_scan(group, value, with), 1);
    return group.thread_rank() == 0 ? T() : before;
}
template <class Group, class T> __device__ __forceinline__ T exclusive_scan(const Group& group, T value) {
    return exclusive_scan(group, value, plus<T>());
}
template <class Group, class F> __device__ __forceinline__ void invoke_one(const Group& group, F function) {
    if (group.thread_rank() == 0) function();
}
"""

COPIES = """\
template <class Group, class T, class S, class Size>
__device__ __forceinline__ void memcpy_async(const Group& group, T* to, const S* from, const Size& bytes) {
    const size_t all = static_cast<size_t>(bytes);
    const size_t places = reinterpret_cast<size_t>(to) | reinterpret_cast<size_t>(from) | all;
    char* const a = reinterpret_cast<char*>(to);
    const char* const b = reinterpret_cast<const char*>(from);
    if (places % 16 == 0)
        for (size_t at = group.thread_rank() * 16; at < all; at += group.size() * 16)
            __pipeline_memcpy_async(a + at, b + at, 16);
    else if (places % 4 == 0)
        for (size_t at = group.thread_rank() * 4; at < all; at += group.size() * 4)
            __pipeline_memcpy_async(a + at, b + at, 4);
    else
        for (size_t at = group.thread_rank(); at < all; at += group.size()) a[at] = b[at];
    __pipeline_commit();
}
template <class Group, class T, class F, class S, class Size>
__device__ __forceinline__ void memcpy_async(
    const Group& group, T* to, const F& to_layout, const S* from, const Size& from_layout) {
    const size_t a = static_cast<size_t>(to_layout) * sizeof(T), b = static_cast<size_t>(from_layout) * sizeof(S);
    memcpy_async(group, to, from, a < b ? a : b);
}
template <class Group> __device__ __forceinline__ void wait(const Group& group) {
    __pipeline_wait_prior(0);
    group.sync();
}
template <unsigned int Stages, class Group> __device__ __forceinline__ void wait_prior(const Group& group) {
    __pipeline_wait_prior(Stages);
    group.sync();
}
"""
"""With `cooperative_groups/memcpy_async.h`."""

ENTRY = """\
__device__ __forceinline__ thread_block this_thread_block(FUSIOND_SHADOWS) {
    return {threadIdx, blockIdx, blockDim, gridDim, __syncthreads};
}
__device__ __forceinline__ grid_group this_grid(FUSIOND_SHADOWS) {
    return {{threadIdx, blockIdx, blockDim, gridDim, __syncthreads}};
}
}
"""

_ENTRIES = """\
__device__ grid_group this_grid();
__device__ thread_block this_thread_block();
}
"""


def _copies(system: Collection[str]) -> str:
    return COPIES if "cooperative_groups/memcpy_async.h" in system else ""


def declarations(system: Collection[str]) -> str:
    """For reading a kernel as it stands. `system`: the headers that its file includes."""
    barrier = "struct fusiond_barrier { __device__ void operator()() const; };\n"
    return barrier + TYPES + _copies(system) + _ENTRIES


def text(system: Collection[str]) -> str:
    """For a namespace of the fused source."""
    return TYPES + _copies(system) + ENTRY
