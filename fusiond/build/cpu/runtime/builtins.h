// Qualifiers, built-in variables, barriers, and the macros that export an entry or a symbol.
#pragma once

#include "abi.h"
#include "types.h"

#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __maxnreg__(count)
#define __align__(bytes) __attribute__((aligned(bytes)))
// `__noinline__` is not a macro: glibc and libstdc++ spell attributes that way. lower.py writes this instead.
#define FUSIOND_NOINLINE __attribute__((noinline))

#define FUSIOND_TEXT_OF(x) #x
#define FUSIOND_TEXT(x) FUSIOND_TEXT_OF(x)
// One section a declaration: g++ refuses to put plain and COMDAT variables into one. shared.ld gathers them.
#define __shared__ \
    static __attribute__((used, section(".bss.fusiond_shared." FUSIOND_TEXT(__COUNTER__))))

#define FUSIOND_HIDDEN __attribute__((visibility("hidden")))
#define FUSIOND_VISIBLE __attribute__((visibility("default")))

// A CUDA thread sees its index as a constant, and the compiler may keep it in a register across anything,
// barriers included. The scheduler writes it between two threads, under another name; that is sound because
// a kernel is never inlined (see __global__), so that no compiled function spans two threads.
extern const uint3 threadIdx __asm__("fusiond_thread_index") FUSIOND_HIDDEN;
extern const uint3 blockIdx __asm__("fusiond_block_index") FUSIOND_HIDDEN;
extern const dim3 blockDim __asm__("fusiond_block_dim") FUSIOND_HIDDEN;
extern const dim3 gridDim __asm__("fusiond_grid_dim") FUSIOND_HIDDEN;
constexpr int warpSize = 32;

extern "C" {
extern unsigned char fusiond_static_begin[] FUSIOND_HIDDEN;  // from shared.ld
extern unsigned char fusiond_static_end[] FUSIOND_HIDDEN;
FUSIOND_HIDDEN inline uint32_t fusiond_thread_index_words[3] __asm__("fusiond_thread_index");
FUSIOND_HIDDEN inline uint32_t fusiond_block_index_words[3] __asm__("fusiond_block_index");
FUSIOND_HIDDEN inline uint32_t fusiond_block_dim_words[3] __asm__("fusiond_block_dim");
FUSIOND_HIDDEN inline uint32_t fusiond_grid_dim_words[3] __asm__("fusiond_grid_dim");
FUSIOND_HIDDEN inline fusiond_cursor fusiond_loop;
FUSIOND_HIDDEN inline const fusiond_scheduler* fusiond_calls;
// Whole pages, and one more behind the largest arena to find writes past its end.
alignas(4096) FUSIOND_HIDDEN inline unsigned char fusiond_dynamic_shared[FUSIOND_ARENA_BYTES / 4096 * 4096 + 2 * 4096];

FUSIOND_VISIBLE __attribute__((used)) inline const fusiond_module fusiond_module_description __asm__("fusiond_module") = {
    FUSIOND_ABI,
    FUSIOND_ARENA_BYTES,
    &fusiond_calls,
    fusiond_thread_index_words,
    fusiond_block_index_words,
    fusiond_block_dim_words,
    fusiond_grid_dim_words,
    &fusiond_loop,
    fusiond_dynamic_shared,
    fusiond_static_begin,
    fusiond_static_end,
};
}

namespace fusiond_detail {
inline unsigned thread_number() { return ::threadIdx.x + ::blockDim.x * (::threadIdx.y + ::blockDim.y * ::threadIdx.z); }
}

inline void __syncthreads() { ::fusiond_calls->barrier(0, FUSIOND_WHOLE_BLOCK); }

// `bar.sync id, threads`, for sources that say `#ifndef FUSIOND_BARRIER`, and then what it is on a GPU.
#define FUSIOND_BARRIER(id, threads) ::fusiond_calls->barrier((id), (threads))
// `bar.red` over `threads` threads, as an expression; `kind` is COUNT, AND or OR.
#define FUSIOND_BARRIER_REDUCE(kind, id, threads, predicate) \
    ((int)::fusiond_calls->barrier_reduce(FUSIOND_BARRIER_##kind, (id), (threads), (predicate) != 0))

inline int __syncthreads_count(int predicate) { return FUSIOND_BARRIER_REDUCE(COUNT, 0, FUSIOND_WHOLE_BLOCK, predicate); }
inline int __syncthreads_and(int predicate) { return FUSIOND_BARRIER_REDUCE(AND, 0, FUSIOND_WHOLE_BLOCK, predicate); }
inline int __syncthreads_or(int predicate) { return FUSIOND_BARRIER_REDUCE(OR, 0, FUSIOND_WHOLE_BLOCK, predicate); }
inline void __barrier_sync(unsigned id) { FUSIOND_BARRIER(id, FUSIOND_WHOLE_BLOCK); }
inline void __barrier_sync_count(unsigned id, unsigned threads) { FUSIOND_BARRIER(id, threads); }

inline void __threadfence() { ::fusiond_calls->fence(); }
inline void __threadfence_block() { ::fusiond_calls->fence(); }
inline void __threadfence_system() { ::fusiond_calls->fence(); }

[[noreturn]] inline void __trap() { ::fusiond_calls->trap("__trap()", nullptr, 0); }
[[noreturn]] inline void __brkpt() { ::fusiond_calls->trap("__brkpt()", nullptr, 0); }
inline void __nanosleep(unsigned) {}
inline void __prof_trigger(int) {}

namespace fusiond_detail {

// Makes the next thread of the block the current one. False at the end of the block, and when this carrier's
// thread has blocked meanwhile: the loop then goes on elsewhere.
inline bool next_thread(const void* carrier) {
#ifdef __SANITIZE_THREAD__
    (void)carrier;
    return false;  // every thread is a fiber of its own, or ThreadSanitizer would see one thread only
#else
    if (fusiond_loop.carrier != carrier || fusiond_loop.next == fusiond_loop.end) return false;
    const uint32_t(&index)[3] = *fusiond_loop.next++;
    fusiond_thread_index_words[0] = index[0];
    fusiond_thread_index_words[1] = index[1];
    fusiond_thread_index_words[2] = index[2];
    __asm__ volatile("" ::: "memory");
    return true;
#endif
}

template <int... I> struct indices {};
template <int N, int... I> struct indices_up_to : indices_up_to<N - 1, N - 1, I...> {};
template <int... I> struct indices_up_to<0, I...> { using type = indices<I...>; };

// Recovers the argument types of a kernel, which the launcher does not know.
template <auto Kernel> struct entry;
template <class... A, void (*Kernel)(A...)> struct entry<Kernel> {
    static constexpr uint32_t count = sizeof...(A);
    static constexpr uint32_t bytes[count + 1] = {sizeof(A)..., 0};

    template <int... I> static void run_each(void** arguments, const void* carrier, indices<I...>) {
        do Kernel(*static_cast<A*>(arguments[I])...);
        while (next_thread(carrier));
    }
    static void run(void** arguments, const void* carrier) {
        run_each(arguments, carrier, typename indices_up_to<count>::type());
    }
};

// Of functions that share a name (a kernel called `norm`, and CUDA's own), the kernel is the one that returns nothing.
template <class... A> constexpr auto kernel_of(void (*kernel)(A...)) { return kernel; }

}  // namespace fusiond_detail

// FUSIOND_ENTRY(hist, histogram)   FUSIOND_ENTRY(pool, maxpool<float, 5>)   FUSIOND_ENTRY(k, fz_a::kernel)
#define FUSIOND_ENTRY(name, ...)                                                                          \
    extern "C" {                                                                                          \
    extern const fusiond_entry fusiond_entry_##name FUSIOND_VISIBLE;                                      \
    const fusiond_entry fusiond_entry_##name = {                                                          \
        &::fusiond_detail::entry<::fusiond_detail::kernel_of(&__VA_ARGS__)>::run,                         \
        &fusiond_module_description,                                                                      \
        ::fusiond_detail::entry<::fusiond_detail::kernel_of(&__VA_ARGS__)>::count,                        \
        ::fusiond_detail::entry<::fusiond_detail::kernel_of(&__VA_ARGS__)>::bytes};                       \
    }

// FUSIOND_SYMBOL(coefficients, fz_a::coefficients): lets the launcher write a __constant__ or __device__ variable.
#define FUSIOND_SYMBOL(name, ...)                                                                         \
    extern "C" {                                                                                          \
    extern const fusiond_symbol fusiond_symbol_##name FUSIOND_VISIBLE;                                    \
    const fusiond_symbol fusiond_symbol_##name = {(void*)&(__VA_ARGS__), sizeof(__VA_ARGS__)};            \
    }
