// <cuda/atomic>, and the names of cuda::std that are std's here.
#if !defined(_GLIBCXX_ATOMIC_BASE_H) && !defined(_LIBCPP_VERSION)
namespace std {
enum memory_order {
    memory_order_relaxed, memory_order_consume, memory_order_acquire, memory_order_release, memory_order_acq_rel,
    memory_order_seq_cst
};
}
#endif
namespace cuda {
namespace std = ::std;
using ::std::memory_order;
using ::std::memory_order_relaxed;
using ::std::memory_order_consume;
using ::std::memory_order_acquire;
using ::std::memory_order_release;
using ::std::memory_order_acq_rel;
using ::std::memory_order_seq_cst;
enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };
template <class T> struct fusiond_operations {
    __device__ T load(memory_order = memory_order_seq_cst) const;
    __device__ void store(T, memory_order = memory_order_seq_cst) const;
    __device__ T exchange(T, memory_order = memory_order_seq_cst) const;
    __device__ bool compare_exchange_strong(T&, T, memory_order = memory_order_seq_cst,
                                            memory_order = memory_order_seq_cst) const;
    __device__ bool compare_exchange_weak(T&, T, memory_order = memory_order_seq_cst,
                                          memory_order = memory_order_seq_cst) const;
    __device__ T fetch_add(T, memory_order = memory_order_seq_cst) const;
    __device__ T fetch_sub(T, memory_order = memory_order_seq_cst) const;
    __device__ T fetch_and(T, memory_order = memory_order_seq_cst) const;
    __device__ T fetch_or(T, memory_order = memory_order_seq_cst) const;
    __device__ T fetch_xor(T, memory_order = memory_order_seq_cst) const;
    __device__ T fetch_min(T, memory_order = memory_order_seq_cst) const;
    __device__ T fetch_max(T, memory_order = memory_order_seq_cst) const;
    __device__ operator T() const;
    __device__ T operator=(T) const;
    __device__ T operator+=(T) const;
    __device__ T operator-=(T) const;
    __device__ T operator++() const;
    __device__ T operator++(int) const;
    __device__ T operator--() const;
    __device__ T operator--(int) const;
};
template <class T, thread_scope Scope = thread_scope_system> struct atomic_ref : fusiond_operations<T> {
    __device__ explicit atomic_ref(T&);
    T* at;
};
template <class T, thread_scope Scope = thread_scope_system> struct atomic : fusiond_operations<T> {
    atomic() = default;
    __device__ constexpr atomic(T value) : value(value) {}
    T value;
};
__device__ void atomic_thread_fence(memory_order, thread_scope = thread_scope_system);
}
