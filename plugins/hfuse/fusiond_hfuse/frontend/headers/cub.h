namespace cub {
// What kernels take from cub's primitives of blocks and warps, over the side's threads and the side's barrier.
struct Sum {
    template <class T> __host__ __device__ __forceinline__ T operator()(const T& a, const T& b) const { return a + b; }
};
struct Difference {
    template <class T> __host__ __device__ __forceinline__ T operator()(const T& a, const T& b) const { return a - b; }
};
struct Division {
    template <class T> __host__ __device__ __forceinline__ T operator()(const T& a, const T& b) const { return a / b; }
};
struct Max {
    template <class T> __host__ __device__ __forceinline__ T operator()(const T& a, const T& b) const {
        return b > a ? b : a;
    }
};
struct Min {
    template <class T> __host__ __device__ __forceinline__ T operator()(const T& a, const T& b) const {
        return a > b ? b : a;
    }
};
struct Equality {
    template <class T> __host__ __device__ __forceinline__ bool operator()(const T& a, const T& b) const {
        return a == b;
    }
};
struct Inequality {
    template <class T> __host__ __device__ __forceinline__ bool operator()(const T& a, const T& b) const {
        return a != b;
    }
};
template <typename Key, typename Value> struct KeyValuePair {
    typedef Key Key_;
    typedef Value Value_;
    Key key;
    Value value;
    __host__ __device__ __forceinline__ KeyValuePair() {}
    __host__ __device__ __forceinline__ KeyValuePair(Key const& key, Value const& value) : key(key), value(value) {}
};
struct ArgMax {
    template <class T> __host__ __device__ __forceinline__ T operator()(const T& a, const T& b) const {
        return b.value > a.value || (a.value == b.value && b.key < a.key) ? b : a;
    }
};
struct ArgMin {
    template <class T> __host__ __device__ __forceinline__ T operator()(const T& a, const T& b) const {
        return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
    }
};

__device__ __forceinline__ unsigned int LaneId() {
    unsigned int lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

// Values of any type go from lane to lane, in words, and lie in shared memory without being made there.
struct fusiond_words {
    template <class T, class F> __device__ __forceinline__ static T moved(const T& value, F move) {
        unsigned int words[(sizeof(T) + 3) / 4] = {};
        T result;
        memcpy(words, &value, sizeof(T));
        for (unsigned int& each : words) each = move(each);
        memcpy(&result, words, sizeof(T));
        return result;
    }
    template <class T> __device__ __forceinline__ static T down(unsigned int mask, const T& value, int by, int width) {
        return moved(value, [=](unsigned int word) { return __shfl_down_sync(mask, word, by, width); });
    }
    template <class T> __device__ __forceinline__ static T up(unsigned int mask, const T& value, int by, int width) {
        return moved(value, [=](unsigned int word) { return __shfl_up_sync(mask, word, by, width); });
    }
    template <class T> __device__ __forceinline__ static T from(unsigned int mask, const T& value, int lane, int width) {
        return moved(value, [=](unsigned int word) { return __shfl_sync(mask, word, lane, width); });
    }
};
template <class T, int Count> struct alignas(alignof(T)) fusiond_raw {
    unsigned char fusiond_bytes[sizeof(T) * Count];
    __device__ __forceinline__ T& operator[](int at) { return reinterpret_cast<T*>(fusiond_bytes)[at]; }
};

template <typename T, int LOGICAL_WARP_THREADS = 32, int LEGACY_PTX_ARCH = 0> class WarpReduce {
public:
    struct TempStorage { unsigned char fusiond_unused; };

    __device__ __forceinline__ WarpReduce(TempStorage&) {}
    __device__ __forceinline__ T Sum(T input) { return fusiond_reduce(input, cub::Sum(), LOGICAL_WARP_THREADS); }
    __device__ __forceinline__ T Sum(T input, int valid_items) {
        return fusiond_reduce(input, cub::Sum(), valid_items);
    }
    template <typename Operator> __device__ __forceinline__ T Reduce(T input, Operator with) {
        return fusiond_reduce(input, with, LOGICAL_WARP_THREADS);
    }
    template <typename Operator> __device__ __forceinline__ T Reduce(T input, Operator with, int valid_items) {
        return fusiond_reduce(input, with, valid_items);
    }

private:
    template <typename Operator> __device__ __forceinline__ static T fusiond_reduce(T input, Operator with, int valid) {
        const unsigned int lane = LaneId() % LOGICAL_WARP_THREADS, first = LaneId() - lane;
        const unsigned int mask = (0xffffffffu >> (32 - LOGICAL_WARP_THREADS)) << first;
        for (int by = 1; by < LOGICAL_WARP_THREADS; by *= 2) {
            const T other = fusiond_words::down(mask, input, by, 32);
            if (static_cast<int>(lane) + by < valid && static_cast<int>(lane) + by < LOGICAL_WARP_THREADS)
                input = with(input, other);
        }
        return input;
    }
};

template <typename T, int LOGICAL_WARP_THREADS = 32, int LEGACY_PTX_ARCH = 0> class WarpScan {
public:
    struct TempStorage { unsigned char fusiond_unused; };

    __device__ __forceinline__ WarpScan(TempStorage&) {}
    __device__ __forceinline__ void InclusiveSum(T input, T& inclusive_output) {
        inclusive_output = fusiond_scan(input, cub::Sum());
    }
    __device__ __forceinline__ void InclusiveSum(T input, T& inclusive_output, T& warp_aggregate) {
        inclusive_output = fusiond_scan(input, cub::Sum());
        warp_aggregate = fusiond_from(inclusive_output, LOGICAL_WARP_THREADS - 1);
    }
    template <typename Operator> __device__ __forceinline__ void InclusiveScan(T input, T& output, Operator with) {
        output = fusiond_scan(input, with);
    }
    template <typename Operator>
    __device__ __forceinline__ void InclusiveScan(T input, T& output, Operator with, T& warp_aggregate) {
        output = fusiond_scan(input, with);
        warp_aggregate = fusiond_from(output, LOGICAL_WARP_THREADS - 1);
    }
    __device__ __forceinline__ void ExclusiveSum(T input, T& exclusive_output) {
        ExclusiveScan(input, exclusive_output, T(0), cub::Sum());
    }
    __device__ __forceinline__ void ExclusiveSum(T input, T& exclusive_output, T& warp_aggregate) {
        ExclusiveScan(input, exclusive_output, T(0), cub::Sum(), warp_aggregate);
    }
    template <typename Operator>
    __device__ __forceinline__ void ExclusiveScan(T input, T& output, T initial_value, Operator with) {
        T unused;
        ExclusiveScan(input, output, initial_value, with, unused);
    }
    template <typename Operator>
    __device__ __forceinline__ void ExclusiveScan(
        T input, T& output, T initial_value, Operator with, T& warp_aggregate) {
        const T inclusive = fusiond_scan(input, with);
        const T before = fusiond_words::up(fusiond_mask(), inclusive, 1, LOGICAL_WARP_THREADS);
        output = fusiond_lane() == 0 ? initial_value : with(initial_value, before);
        warp_aggregate = fusiond_from(inclusive, LOGICAL_WARP_THREADS - 1);
    }
    __device__ __forceinline__ T Broadcast(T input, unsigned int src_lane) {
        return fusiond_from(input, static_cast<int>(src_lane));
    }

private:
    __device__ __forceinline__ static unsigned int fusiond_lane() { return LaneId() % LOGICAL_WARP_THREADS; }
    __device__ __forceinline__ static unsigned int fusiond_mask() {
        return (0xffffffffu >> (32 - LOGICAL_WARP_THREADS)) << (LaneId() - fusiond_lane());
    }
    __device__ __forceinline__ static T fusiond_from(const T& value, int lane) {
        return fusiond_words::from(fusiond_mask(), value, lane, LOGICAL_WARP_THREADS);
    }
    template <typename Operator> __device__ __forceinline__ static T fusiond_scan(T input, Operator with) {
        for (int by = 1; by < LOGICAL_WARP_THREADS; by *= 2) {
            const T before = fusiond_words::up(fusiond_mask(), input, by, LOGICAL_WARP_THREADS);
            if (static_cast<int>(fusiond_lane()) >= by) input = with(before, input);
        }
        return input;
    }
};

enum BlockReduceAlgorithm {
    BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS,
};
template <
    typename T, int BLOCK_DIM_X, BlockReduceAlgorithm ALGORITHM = BLOCK_REDUCE_WARP_REDUCTIONS, int BLOCK_DIM_Y = 1,
    int BLOCK_DIM_Z = 1, int LEGACY_PTX_ARCH = 0>
class BlockReduce {
    static constexpr int fusiond_threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;
    static constexpr int fusiond_warps = (fusiond_threads + 31) / 32;

public:
    struct TempStorage { fusiond_raw<T, fusiond_warps> fusiond_partial; };

    __device__ __forceinline__ BlockReduce(TempStorage& temp_storage) : fusiond_temp(temp_storage) {}
    template <typename Operator> __device__ __forceinline__ T Reduce(T input, Operator with) {
        return fusiond_block_reduce(input, with, fusiond_threads);
    }
    template <typename Operator> __device__ __forceinline__ T Reduce(T input, Operator with, int num_valid) {
        return fusiond_block_reduce(input, with, num_valid);
    }
    template <int ITEMS, typename Operator>
    __device__ __forceinline__ T Reduce(T (&inputs)[ITEMS], Operator with) {
        T all = inputs[0];
        for (int at = 1; at < ITEMS; ++at) all = with(all, inputs[at]);
        return fusiond_block_reduce(all, with, fusiond_threads);
    }
    __device__ __forceinline__ T Sum(T input) { return fusiond_block_reduce(input, cub::Sum(), fusiond_threads); }
    __device__ __forceinline__ T Sum(T input, int num_valid) {
        return fusiond_block_reduce(input, cub::Sum(), num_valid);
    }
    template <int ITEMS> __device__ __forceinline__ T Sum(T (&inputs)[ITEMS]) {
        T all = inputs[0];
        for (int at = 1; at < ITEMS; ++at) all = all + inputs[at];
        return fusiond_block_reduce(all, cub::Sum(), fusiond_threads);
    }

private:
    TempStorage& fusiond_temp;

    // The first thread has the result.
    template <typename Operator>
    __device__ __forceinline__ T fusiond_block_reduce(T input, Operator with, int valid) {
        const int thread = (threadIdx.z * BLOCK_DIM_Y + threadIdx.y) * BLOCK_DIM_X + threadIdx.x;
        const int lane = thread % 32, warp = thread / 32;
        const int lanes = fusiond_threads - warp * 32 < 32 ? fusiond_threads - warp * 32 : 32;
        const unsigned int mask = 0xffffffffu >> (32 - lanes);
        for (int by = 1; by < 32; by *= 2) {
            const T other = fusiond_words::down(mask, input, by, 32);
            if (lane + by < lanes && thread + by < valid) input = with(input, other);
        }
        if (lane == 0) fusiond_temp.fusiond_partial[warp] = input;
        __syncthreads();
        if (thread == 0)
            for (int each = 1; each < fusiond_warps; ++each)
                if (each * 32 < valid) input = with(input, fusiond_temp.fusiond_partial[each]);
        return input;
    }
};

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
template <
    typename T, int BLOCK_DIM_X, BlockScanAlgorithm ALGORITHM = BLOCK_SCAN_RAKING, int BLOCK_DIM_Y = 1,
    int BLOCK_DIM_Z = 1, int LEGACY_PTX_ARCH = 0>
class BlockScan {
    static constexpr int fusiond_threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;
    static constexpr int fusiond_warps = (fusiond_threads + 31) / 32;

public:
    struct TempStorage { fusiond_raw<T, fusiond_warps + 1> fusiond_partial; };

    __device__ __forceinline__ BlockScan(TempStorage& temp_storage) : fusiond_temp(temp_storage) {}

    __device__ __forceinline__ void ExclusiveSum(T input, T& output) {
        ExclusiveScan(input, output, T(0), cub::Sum());
    }
    __device__ __forceinline__ void ExclusiveSum(T input, T& output, T& block_aggregate) {
        ExclusiveScan(input, output, T(0), cub::Sum(), block_aggregate);
    }
    template <typename Callback>
    __device__ __forceinline__ void ExclusiveSum(T input, T& output, Callback& block_prefix_callback_op) {
        ExclusiveScan(input, output, cub::Sum(), block_prefix_callback_op);
    }
    template <int ITEMS> __device__ __forceinline__ void ExclusiveSum(T (&input)[ITEMS], T (&output)[ITEMS]) {
        ExclusiveScan(input, output, T(0), cub::Sum());
    }
    template <int ITEMS>
    __device__ __forceinline__ void ExclusiveSum(T (&input)[ITEMS], T (&output)[ITEMS], T& block_aggregate) {
        ExclusiveScan(input, output, T(0), cub::Sum(), block_aggregate);
    }

    template <typename Operator>
    __device__ __forceinline__ void ExclusiveScan(T input, T& output, T initial_value, Operator with) {
        T unused;
        ExclusiveScan(input, output, initial_value, with, unused);
    }
    template <typename Operator>
    __device__ __forceinline__ void ExclusiveScan(
        T input, T& output, T initial_value, Operator with, T& block_aggregate) {
        T before;
        const bool any = fusiond_block_scan(input, before, with, block_aggregate) != 0;
        output = any ? with(initial_value, before) : initial_value;
    }
    template <typename Operator> __device__ __forceinline__ void ExclusiveScan(T input, T& output, Operator with) {
        T unused;
        ExclusiveScan(input, output, with, unused);
    }
    template <typename Operator>
    __device__ __forceinline__ void ExclusiveScan(T input, T& output, Operator with, T& block_aggregate) {
        T before;
        if (fusiond_block_scan(input, before, with, block_aggregate) != 0) output = before;
    }
    template <typename Operator, typename Callback>
    __device__ __forceinline__ void ExclusiveScan(
        T input, T& output, Operator with, Callback& block_prefix_callback_op) {
        T before, all;
        const bool any = fusiond_block_scan(input, before, with, all) != 0;
        const T prefix = fusiond_prefix(all, block_prefix_callback_op);
        output = any ? with(prefix, before) : prefix;
    }
    template <int ITEMS, typename Operator>
    __device__ __forceinline__ void ExclusiveScan(
        T (&input)[ITEMS], T (&output)[ITEMS], T initial_value, Operator with) {
        T unused;
        ExclusiveScan(input, output, initial_value, with, unused);
    }
    template <int ITEMS, typename Operator>
    __device__ __forceinline__ void ExclusiveScan(
        T (&input)[ITEMS], T (&output)[ITEMS], T initial_value, Operator with, T& block_aggregate) {
        T all = input[0], before;
        for (int at = 1; at < ITEMS; ++at) all = with(all, input[at]);
        const bool any = fusiond_block_scan(all, before, with, block_aggregate) != 0;
        T running = any ? with(initial_value, before) : initial_value;
        for (int at = 0; at < ITEMS; ++at) {
            const T own = input[at];
            output[at] = running;
            running = with(running, own);
        }
    }

    __device__ __forceinline__ void InclusiveSum(T input, T& output) { InclusiveScan(input, output, cub::Sum()); }
    __device__ __forceinline__ void InclusiveSum(T input, T& output, T& block_aggregate) {
        InclusiveScan(input, output, cub::Sum(), block_aggregate);
    }
    template <typename Callback>
    __device__ __forceinline__ void InclusiveSum(T input, T& output, Callback& block_prefix_callback_op) {
        InclusiveScan(input, output, cub::Sum(), block_prefix_callback_op);
    }
    template <int ITEMS> __device__ __forceinline__ void InclusiveSum(T (&input)[ITEMS], T (&output)[ITEMS]) {
        InclusiveScan(input, output, cub::Sum());
    }
    template <int ITEMS>
    __device__ __forceinline__ void InclusiveSum(T (&input)[ITEMS], T (&output)[ITEMS], T& block_aggregate) {
        InclusiveScan(input, output, cub::Sum(), block_aggregate);
    }

    template <typename Operator> __device__ __forceinline__ void InclusiveScan(T input, T& output, Operator with) {
        T unused;
        InclusiveScan(input, output, with, unused);
    }
    template <typename Operator>
    __device__ __forceinline__ void InclusiveScan(T input, T& output, Operator with, T& block_aggregate) {
        T before;
        const bool any = fusiond_block_scan(input, before, with, block_aggregate) != 0;
        output = any ? with(before, input) : input;
    }
    template <typename Operator, typename Callback>
    __device__ __forceinline__ void InclusiveScan(
        T input, T& output, Operator with, Callback& block_prefix_callback_op) {
        T before, all;
        const bool any = fusiond_block_scan(input, before, with, all) != 0;
        const T prefix = fusiond_prefix(all, block_prefix_callback_op);
        output = with(any ? with(prefix, before) : prefix, input);
    }
    template <int ITEMS, typename Operator>
    __device__ __forceinline__ void InclusiveScan(T (&input)[ITEMS], T (&output)[ITEMS], Operator with) {
        T unused;
        InclusiveScan(input, output, with, unused);
    }
    template <int ITEMS, typename Operator>
    __device__ __forceinline__ void InclusiveScan(
        T (&input)[ITEMS], T (&output)[ITEMS], Operator with, T& block_aggregate) {
        T all = input[0], before;
        for (int at = 1; at < ITEMS; ++at) all = with(all, input[at]);
        const bool any = fusiond_block_scan(all, before, with, block_aggregate) != 0;
        T running = any ? with(before, input[0]) : input[0];
        output[0] = running;
        for (int at = 1; at < ITEMS; ++at) output[at] = running = with(running, input[at]);
    }

private:
    TempStorage& fusiond_temp;

    // What all threads before this one have, if there are any; and what all have.
    template <typename Operator>
    __device__ __forceinline__ int fusiond_block_scan(const T& input, T& before, Operator with, T& all) {
        const int thread = (threadIdx.z * BLOCK_DIM_Y + threadIdx.y) * BLOCK_DIM_X + threadIdx.x;
        const int lane = thread % 32, warp = thread / 32;
        const int lanes = fusiond_threads - warp * 32 < 32 ? fusiond_threads - warp * 32 : 32;
        const unsigned int mask = 0xffffffffu >> (32 - lanes);
        T inclusive = input;
        for (int by = 1; by < 32; by *= 2) {
            const T other = fusiond_words::up(mask, inclusive, by, 32);
            if (lane >= by) inclusive = with(other, inclusive);
        }
        const T exclusive = fusiond_words::up(mask, inclusive, 1, 32);
        if (lane == lanes - 1) fusiond_temp.fusiond_partial[warp] = inclusive;
        __syncthreads();
        T running = fusiond_temp.fusiond_partial[0], warps_before = running;
        for (int each = 1; each < fusiond_warps; ++each) {
            if (each == warp) warps_before = running;
            running = with(running, fusiond_temp.fusiond_partial[each]);
        }
        all = running;
        if (warp == 0) before = exclusive;
        else before = lane == 0 ? warps_before : with(warps_before, exclusive);
        return thread;
    }
    // The first warp asks for what comes before the block; its first lane's answer counts.
    template <typename Callback> __device__ __forceinline__ T fusiond_prefix(const T& all, Callback& ask) {
        const int thread = (threadIdx.z * BLOCK_DIM_Y + threadIdx.y) * BLOCK_DIM_X + threadIdx.x;
        if (thread < 32) {
            const T prefix = ask(all);
            if (thread == 0) fusiond_temp.fusiond_partial[fusiond_warps] = prefix;
        }
        __syncthreads();
        return fusiond_temp.fusiond_partial[fusiond_warps];
    }
};

// Through shared memory, from one order of the block's items (thread by thread, or striped over the threads) to the
// other.
template <
    typename T, int BLOCK_DIM_X, int ITEMS_PER_THREAD, bool WARP_TIME_SLICING = false, int BLOCK_DIM_Y = 1,
    int BLOCK_DIM_Z = 1, int LEGACY_PTX_ARCH = 0>
class BlockExchange {
    static constexpr int fusiond_threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;

public:
    struct TempStorage { fusiond_raw<T, fusiond_threads * ITEMS_PER_THREAD> fusiond_items; };

    __device__ __forceinline__ BlockExchange(TempStorage& temp_storage) : fusiond_temp(temp_storage) {}
    __device__ __forceinline__ void StripedToBlocked(T (&items)[ITEMS_PER_THREAD]) {
        StripedToBlocked(items, items);
    }
    template <typename To>
    __device__ __forceinline__ void StripedToBlocked(T (&input)[ITEMS_PER_THREAD], To (&output)[ITEMS_PER_THREAD]) {
        const int thread = (threadIdx.z * BLOCK_DIM_Y + threadIdx.y) * BLOCK_DIM_X + threadIdx.x;
        for (int at = 0; at < ITEMS_PER_THREAD; ++at)
            fusiond_temp.fusiond_items[thread + at * fusiond_threads] = input[at];
        __syncthreads();
        for (int at = 0; at < ITEMS_PER_THREAD; ++at)
            output[at] = fusiond_temp.fusiond_items[thread * ITEMS_PER_THREAD + at];
    }
    __device__ __forceinline__ void BlockedToStriped(T (&items)[ITEMS_PER_THREAD]) {
        BlockedToStriped(items, items);
    }
    template <typename To>
    __device__ __forceinline__ void BlockedToStriped(T (&input)[ITEMS_PER_THREAD], To (&output)[ITEMS_PER_THREAD]) {
        const int thread = (threadIdx.z * BLOCK_DIM_Y + threadIdx.y) * BLOCK_DIM_X + threadIdx.x;
        for (int at = 0; at < ITEMS_PER_THREAD; ++at)
            fusiond_temp.fusiond_items[thread * ITEMS_PER_THREAD + at] = input[at];
        __syncthreads();
        for (int at = 0; at < ITEMS_PER_THREAD; ++at)
            output[at] = fusiond_temp.fusiond_items[thread + at * fusiond_threads];
    }

private:
    TempStorage& fusiond_temp;
};

enum BlockLoadAlgorithm {
    BLOCK_LOAD_DIRECT, BLOCK_LOAD_STRIPED, BLOCK_LOAD_VECTORIZE, BLOCK_LOAD_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE,
    BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED,
};
enum BlockStoreAlgorithm {
    BLOCK_STORE_DIRECT, BLOCK_STORE_STRIPED, BLOCK_STORE_VECTORIZE, BLOCK_STORE_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE,
    BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED,
};
// The items of a block in global memory, thread by thread. Transposed, neighbours in memory are neighbours in a warp.
template <typename T, int Threads, int Items, bool Transposed, bool Striped> struct fusiond_tile {
    fusiond_raw<T, Transposed ? Threads * Items : 1> fusiond_items;

    __device__ __forceinline__ static int place(int thread, int at) {
        if (Striped) return thread + at * Threads;
        return thread * Items + at;
    }
    __device__ __forceinline__ static int lanes_place(int thread, int at) {
        const int first = thread / 32 * 32, lanes = Threads - first < 32 ? Threads - first : 32;
        return first * Items + thread % 32 + at * lanes;
    }
    __device__ __forceinline__ static unsigned int lanes_mask(int thread) {
        const int first = thread / 32 * 32, lanes = Threads - first < 32 ? Threads - first : 32;
        return 0xffffffffu >> (32 - lanes);
    }
    template <typename From> __device__ __forceinline__ void read(int thread, From from, T (&items)[Items], int valid) {
        for (int at = 0; at < Items; ++at) {
            const int here = Transposed ? lanes_place(thread, at) : place(thread, at);
            if (here >= valid) continue;
            if (Transposed) fusiond_items[here] = from[here];
            else items[at] = from[here];
        }
        if (!Transposed) return;
        __syncwarp(lanes_mask(thread));
        for (int at = 0; at < Items; ++at)
            if (place(thread, at) < valid) items[at] = fusiond_items[place(thread, at)];
    }
    template <typename To> __device__ __forceinline__ void write(int thread, To to, T (&items)[Items], int valid) {
        if (Transposed) {
            for (int at = 0; at < Items; ++at) fusiond_items[place(thread, at)] = items[at];
            __syncwarp(lanes_mask(thread));
        }
        for (int at = 0; at < Items; ++at) {
            const int here = Transposed ? lanes_place(thread, at) : place(thread, at);
            if (here >= valid) continue;
            if (Transposed) to[here] = fusiond_items[here];
            else to[here] = items[at];
        }
    }
};
template <
    typename T, int BLOCK_DIM_X, int ITEMS_PER_THREAD, BlockLoadAlgorithm ALGORITHM = BLOCK_LOAD_DIRECT,
    int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1, int LEGACY_PTX_ARCH = 0>
class BlockLoad {
    static constexpr int fusiond_threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;

public:
    struct TempStorage {
        fusiond_tile<
            T, fusiond_threads, ITEMS_PER_THREAD, (ALGORITHM >= BLOCK_LOAD_TRANSPOSE), ALGORITHM == BLOCK_LOAD_STRIPED>
            fusiond_of;
    };

    __device__ __forceinline__ BlockLoad(TempStorage& temp_storage) : fusiond_temp(temp_storage) {}
    template <typename From> __device__ __forceinline__ void Load(From block_itr, T (&items)[ITEMS_PER_THREAD]) {
        fusiond_load(block_itr, items, fusiond_threads * ITEMS_PER_THREAD);
    }
    template <typename From>
    __device__ __forceinline__ void Load(From block_itr, T (&items)[ITEMS_PER_THREAD], int valid_items) {
        fusiond_load(block_itr, items, valid_items);
    }
    template <typename From, typename Default>
    __device__ __forceinline__ void Load(
        From block_itr, T (&items)[ITEMS_PER_THREAD], int valid_items, Default oob_default) {
        for (int at = 0; at < ITEMS_PER_THREAD; ++at) items[at] = oob_default;
        fusiond_load(block_itr, items, valid_items);
    }

private:
    TempStorage& fusiond_temp;

    template <typename From>
    __device__ __forceinline__ void fusiond_load(From from, T (&items)[ITEMS_PER_THREAD], int valid) {
        const int thread = (threadIdx.z * BLOCK_DIM_Y + threadIdx.y) * BLOCK_DIM_X + threadIdx.x;
        fusiond_temp.fusiond_of.read(thread, from, items, valid);
    }
};
template <
    typename T, int BLOCK_DIM_X, int ITEMS_PER_THREAD, BlockStoreAlgorithm ALGORITHM = BLOCK_STORE_DIRECT,
    int BLOCK_DIM_Y = 1, int BLOCK_DIM_Z = 1, int LEGACY_PTX_ARCH = 0>
class BlockStore {
    static constexpr int fusiond_threads = BLOCK_DIM_X * BLOCK_DIM_Y * BLOCK_DIM_Z;

public:
    struct TempStorage {
        fusiond_tile<
            T, fusiond_threads, ITEMS_PER_THREAD, (ALGORITHM >= BLOCK_STORE_TRANSPOSE),
            ALGORITHM == BLOCK_STORE_STRIPED>
            fusiond_of;
    };

    __device__ __forceinline__ BlockStore(TempStorage& temp_storage) : fusiond_temp(temp_storage) {}
    template <typename To> __device__ __forceinline__ void Store(To block_itr, T (&items)[ITEMS_PER_THREAD]) {
        fusiond_store(block_itr, items, fusiond_threads * ITEMS_PER_THREAD);
    }
    template <typename To>
    __device__ __forceinline__ void Store(To block_itr, T (&items)[ITEMS_PER_THREAD], int valid_items) {
        fusiond_store(block_itr, items, valid_items);
    }

private:
    TempStorage& fusiond_temp;

    template <typename To>
    __device__ __forceinline__ void fusiond_store(To to, T (&items)[ITEMS_PER_THREAD], int valid) {
        const int thread = (threadIdx.z * BLOCK_DIM_Y + threadIdx.y) * BLOCK_DIM_X + threadIdx.x;
        fusiond_temp.fusiond_of.write(thread, to, items, valid);
    }
};
}
