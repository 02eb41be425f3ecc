// <cuda/barrier>: 8 bytes in shared memory.
namespace cuda {
struct fusiond_no_completion {};
template <thread_scope Scope, class Completion = fusiond_no_completion> struct barrier {
    typedef unsigned long arrival_token;
    unsigned long word;
    barrier() = default;
    __device__ explicit barrier(ptrdiff_t);
    __device__ static constexpr ptrdiff_t max() { return 1048575; }
    __device__ arrival_token arrive(ptrdiff_t = 1);
    __device__ void wait(arrival_token&&) const;
    __device__ void wait(arrival_token&) const;
    __device__ bool try_wait(arrival_token&&) const;
    __device__ void wait_parity(bool) const;
    __device__ void arrive_and_wait();
    __device__ void arrive_and_drop();
};
template <thread_scope Scope, class C> __device__ void init(barrier<Scope, C>*, ptrdiff_t);
template <size_t Alignment> struct aligned_size_t {
    static constexpr size_t align = Alignment;
    size_t value;
    __host__ __device__ explicit constexpr aligned_size_t(size_t bytes) : value(bytes) {}
    __host__ __device__ constexpr operator size_t() const { return value; }
};
template <thread_scope Scope, class C, class T, class Size>
__device__ void memcpy_async(T*, const T*, Size, barrier<Scope, C>&);
template <class Group, thread_scope Scope, class C, class T, class Size>
__device__ void memcpy_async(const Group&, T*, const T*, Size, barrier<Scope, C>&);
}
