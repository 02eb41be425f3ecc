// The kernels of data.cu for the fake driver: the very source, as one thread that does all.

#include <cmath>
#include <cstring>
#include <utility>

namespace fake_data {

struct Dim { unsigned x = 1; };
const Dim gridDim, blockDim;
struct Index { unsigned x = 0; };
const Index blockIdx, threadIdx;

template <class To, class From> To same_bits(From from) {
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline long long __double_as_longlong(double x) { return same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return same_bits<double>(x); }
inline int __float_as_int(float x) { return same_bits<int>(x); }
inline float __int_as_float(int x) { return same_bits<float>(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline void atomicAdd(unsigned long long* place, unsigned long long value) { *place += value; }
inline void atomicMax(unsigned long long* place, unsigned long long value) {
    if (value > *place) *place = value;
}
using std::fabs;

#define __global__
#define __device__ static
#include "../../../fusiond/devices/cuda/data.cu"
#undef __global__
#undef __device__

// A kernel called with its parameters as pointers to values.
template <class... P, size_t... I> void called(void (*kernel)(P...), void** values, std::index_sequence<I...>) {
    kernel(*(P*)values[I]...);
}
template <class... P> void called(void (*kernel)(P...), void** values) {
    called(kernel, values, std::index_sequence_for<P...>());
}

}  // namespace fake_data

inline void draw_data(void** values, unsigned) { fake_data::called(fake_data::fusiond_draw, values); }
inline void compare_data(void** values, unsigned) { fake_data::called(fake_data::fusiond_compare, values); }
inline void guards_data(void** values, unsigned) { fake_data::called(fake_data::fusiond_guards, values); }
#define FAKE_DATA_KERNELS                                                                                       \
    {"fusiond_draw", draw_data, {8, 8, 8, 8, 4, 4, 8, 8, 8, 8, 8, 8, 8}, 16, 0, 1024},                        \
    {"fusiond_compare", compare_data, {8, 8, 8, 4, 4, 8, 8, 8}, 16, 0, 1024},                                 \
    {"fusiond_guards", guards_data, {8, 8, 8, 4, 8}, 16, 0, 1024},
