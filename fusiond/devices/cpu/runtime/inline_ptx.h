// Inline PTX on the processor: what inline_ptx.py calls, an instruction each, by the rules of the PTX manual.
#pragma once

#include <time.h>

#include "async_copy.h"
#include "memory.h"
#include "narrow.h"

namespace fusiond_ptx {

inline unsigned lane() { return ::fusiond_detail::thread_number() % 32; }
inline unsigned long long globaltimer() {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000000u + (unsigned long long)now.tv_nsec;
}

// The bits of `from` as a T; of a wider register the lowest ones.
template <class T, class U> inline T as(U from) {
    T to = T();
    __builtin_memcpy(&to, &from, sizeof(T) < sizeof(U) ? sizeof(T) : sizeof(U));
    return to;
}

// An address in shared memory has 32 bits on a GPU; here these are the lowest ones of where all shared memory lies.
inline uint64_t shared(uint64_t address) {
    const uint64_t base = (uint64_t)(uintptr_t)fusiond_dynamic_shared;
    return base + (uint64_t)(int64_t)(int32_t)(uint32_t)(address - base);
}

template <class Format> struct narrow {
    uint16_t bits;
    narrow() = default;
    narrow(float value) : bits(Format::nearest(value)) {}
    operator float() const { return Format::widen(bits); }
};
using f16 = narrow<::fusiond_detail::HalfFormat>;
using bf16 = narrow<::fusiond_detail::BrainFormat>;

// What a statement hands to a register, and takes back.
template <class W, class T> inline W in(T value) {
    if constexpr (sizeof(W) == sizeof(T)) return as<W>(value);
    else return (W)value;
}
template <class W, class T> inline W in(T* address) { return (W)(uintptr_t)address; }
template <class T, class W> inline void out(T& to, W from) {
    if constexpr (sizeof(T) == sizeof(W)) __builtin_memcpy(&to, &from, sizeof(T));
    else to = (T)from;
}
// A result in its register: a signed one in a wider register is extended.
template <class R, class T> inline void put(R& to, T value) {
    if constexpr (sizeof(R) == sizeof(T)) to = as<R>(value);
    else to = (R)value;
}

template <class R, class... P> inline void unpack(R word, P&... parts) {
    unsigned at = 0;
    ((__builtin_memcpy(&parts, (const char*)&word + at, sizeof parts), at += sizeof parts), ...);
}
template <class R, class... P> inline R pack(P... parts) {
    R word = R();
    unsigned at = 0;
    ((__builtin_memcpy((char*)&word + at, &parts, sizeof parts), at += sizeof parts), ...);
    return word;
}

template <class T> struct widened;
template <> struct widened<uint16_t> { using type = uint32_t; };
template <> struct widened<int16_t> { using type = int32_t; };
template <> struct widened<uint32_t> { using type = uint64_t; };
template <> struct widened<int32_t> { using type = int64_t; };
template <> struct widened<uint64_t> { using type = unsigned __int128; };
template <> struct widened<int64_t> { using type = __int128; };
template <class T> using wider = typename widened<T>::type;

template <class T> constexpr unsigned width = 8 * sizeof(T);

// --- arithmetic ---

template <class T> inline T add_(T a, T b) { return a + b; }
template <class T> inline T sub_(T a, T b) { return a - b; }
template <class T> inline T mul_(T a, T b) { return a * b; }
template <class T> inline T mul_lo_(T a, T b) { return (T)((wider<T>)a * b); }
template <class T> inline T mul_hi_(T a, T b) { return (T)((wider<T>)a * b >> width<T>); }
template <class T> inline wider<T> mul_wide_(T a, T b) { return (wider<T>)a * b; }
template <class T> inline T mad_lo_(T a, T b, T c) { return mul_lo_(a, b) + c; }
template <class T> inline T mad_hi_(T a, T b, T c) { return mul_hi_(a, b) + c; }
template <class T> inline wider<T> mad_wide_(T a, T b, wider<T> c) { return (wider<T>)a * b + c; }
inline float fma_(float a, float b, float c) { return fmaf(a, b, c); }
inline double fma_(double a, double b, double c) { return ::fma(a, b, c); }
inline float mad_(float a, float b, float c) { return fmaf(a, b, c); }
inline double mad_(double a, double b, double c) { return ::fma(a, b, c); }
template <class T> inline T div_(T a, T b) { return a / b; }
template <class T> inline T rem_(T a, T b) { return a % b; }
template <class T> inline T min_(T a, T b) { return b < a ? b : a; }
template <class T> inline T max_(T a, T b) { return a < b ? b : a; }
inline float min_(float a, float b) { return fminf(a, b); }
inline float max_(float a, float b) { return fmaxf(a, b); }
inline double min_(double a, double b) { return fmin(a, b); }
inline double max_(double a, double b) { return fmax(a, b); }
template <class T> inline T neg_(T a) { return -a; }
template <class T> inline T abs_(T a) { return a < 0 ? -a : a; }
inline float abs_(float a) { return fabsf(a); }
inline double abs_(double a) { return fabs(a); }
template <class T> inline T copysign_(T a, T b) { return (T)__builtin_copysign(b, a); }
template <class T> inline T and_(T a, T b) { return a & b; }
template <class T> inline T or_(T a, T b) { return a | b; }
template <class T> inline T xor_(T a, T b) { return a ^ b; }
template <class T> inline T not_(T a) { return (T)~a; }
inline bool not_(bool a) { return !a; }
template <class T> inline T sad_(T a, T b, T c) { return c + (a < b ? b - a : a - b); }
inline float saturated(float x) { return x >= 0 ? x < 1 ? x : 1 : 0; }

template <class T> inline T shl_(T a, uint32_t by) { return by < width<T> ? (T)(a << by) : (T)0; }
template <class T> inline T shr_(T a, uint32_t by) { return by < width<T> ? (T)(a >> by) : (T)(a < 0 ? -1 : 0); }
template <class T> inline T shf_l_wrap_(T lo, T hi, uint32_t by) { return (T)(((uint64_t)hi << 32 | lo) << by % 32 >> 32); }
template <class T> inline T shf_r_wrap_(T lo, T hi, uint32_t by) { return (T)(((uint64_t)hi << 32 | lo) >> by % 32); }
template <class T> inline T shf_l_clamp_(T lo, T hi, uint32_t by) { return (T)(((uint64_t)hi << 32 | lo) << (by < 32 ? by : 32) >> 32); }
template <class T> inline T shf_r_clamp_(T lo, T hi, uint32_t by) { return (T)(((uint64_t)hi << 32 | lo) >> (by < 32 ? by : 32)); }

template <class T> inline uint32_t popc_(T a) { return (uint32_t)__builtin_popcountll(a); }
template <class T> inline uint32_t clz_(T a) { return a ? (uint32_t)__builtin_clzll(a) - (64 - width<T>) : width<T>; }
template <class T> inline T brev_(T a) {
    T back = 0;
    for (unsigned bit = 0; bit < width<T>; ++bit) back |= (T)(a >> bit & 1) << (width<T> - 1 - bit);
    return back;
}
template <class T> inline uint32_t bfind_(T a) {
    if ((T)-1 < 0 && a < 0) a = ~a;
    return a ? 63 - (uint32_t)__builtin_clzll((uint64_t)a & (~0ull >> (64 - width<T>))) : 0xffffffffu;
}
template <class T> inline T bfe_(T a, uint32_t from, uint32_t count) {
    from &= 255, count &= 255;
    T found = 0;
    const unsigned last = from + count - 1 < width<T> - 1 ? from + count - 1 : width<T> - 1;
    const bool sign = (T)-1 < 0 && count && (a >> last & 1);
    for (unsigned bit = 0; bit < width<T>; ++bit) {
        const bool set = bit < count && from + bit < width<T> ? a >> (from + bit) & 1 : sign;
        found |= (T)((T)set << bit);
    }
    return found;
}
template <class T> inline T bfi_(T a, T b, uint32_t to, uint32_t count) {
    to &= 255, count &= 255;
    for (unsigned bit = 0; bit < count && to + bit < width<T>; ++bit)
        b = (T)((b & ~((T)1 << (to + bit))) | (T)((a >> bit & 1) << (to + bit)));
    return b;
}
template <class T> inline T prmt_(T a, T b, T choice) { return (T)__byte_perm(a, b, choice); }
template <class T> inline T lop3_(T a, T b, T c, uint32_t table) {
    T found = 0;
    for (unsigned row = 0; row < 8; ++row)
        if (table >> row & 1) found |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    return found;
}
template <class T> inline T selp_(T a, T b, bool p) { return p ? a : b; }

template <class T> inline T rcp_(T a) { return 1 / a; }
inline float sqrt_(float a) { return sqrtf(a); }
inline double sqrt_(double a) { return ::sqrt(a); }
template <class T> inline T rsqrt_(T a) { return 1 / sqrt_(a); }
inline float ex2_(float a) { return exp2f(a); }
inline float lg2_(float a) { return log2f(a); }
inline float sin_(float a) { return sinf(a); }
inline float cos_(float a) { return cosf(a); }
inline float tanh_(float a) { return tanhf(a); }

// --- with a carry ---

inline bool carry;  // one for all threads: no thread is left between two instructions

template <class T> inline T with_carry(wider<T> value, bool keep) {
    if (keep) carry = value >> width<T> & 1;
    return (T)value;
}
#define FUSIOND_CARRYING(name, in, keep)                                                                            \
    template <class S> inline S add##name(S a, S b) {                                                               \
        using T = uint_of<sizeof(S)>;                                                                               \
        return (S)with_carry<T>((wider<T>)(T)a + (T)b + (in ? carry : 0), keep);                                    \
    }                                                                                                               \
    template <class S> inline S sub##name(S a, S b) {                                                               \
        using T = uint_of<sizeof(S)>;                                                                               \
        return (S)with_carry<T>((wider<T>)(T)a - (T)b - (in ? carry : 0), keep);                                    \
    }
template <unsigned Bytes> struct uint_with;
template <> struct uint_with<4> { using type = uint32_t; };
template <> struct uint_with<8> { using type = uint64_t; };
template <unsigned Bytes> using uint_of = typename uint_with<Bytes>::type;
FUSIOND_CARRYING(_cc_, false, true)
FUSIOND_CARRYING(c_, true, false)
FUSIOND_CARRYING(c_cc_, true, true)
#undef FUSIOND_CARRYING
template <class T> inline T mad_lo_cc_(T a, T b, T c) { return add_cc_(mul_lo_(a, b), c); }
template <class T> inline T mad_hi_cc_(T a, T b, T c) { return add_cc_(mul_hi_(a, b), c); }
template <class T> inline T madc_lo_(T a, T b, T c) { return addc_(mul_lo_(a, b), c); }
template <class T> inline T madc_hi_(T a, T b, T c) { return addc_(mul_hi_(a, b), c); }
template <class T> inline T madc_lo_cc_(T a, T b, T c) { return addc_cc_(mul_lo_(a, b), c); }
template <class T> inline T madc_hi_cc_(T a, T b, T c) { return addc_cc_(mul_hi_(a, b), c); }

// --- conversions ---

struct plain {};
struct nearest {};
struct down {};
struct up {};

template <class T> constexpr bool real = false;
template <> constexpr bool real<float> = true;
template <> constexpr bool real<double> = true;
template <> constexpr bool real<f16> = true;
template <> constexpr bool real<bf16> = true;

// A real number as an integer: to zero, and what does not fit is the nearest that does.
template <class To> inline To clamped(double value) {
    const double most = (double)(To)(((To)-1 < 0 ? ((uint64_t)1 << (width<To> - 1)) - 1 : ~0ull >> (64 - width<To>)));
    const double least = (To)-1 < 0 ? -(double)((uint64_t)1 << (width<To> - 1)) : 0;
    if (value != value) return 0;
    if (value <= least) return (To)((To)-1 < 0 ? (uint64_t)1 << (width<To> - 1) : 0);
    if (value >= most) return (To)((To)-1 < 0 ? ((uint64_t)1 << (width<To> - 1)) - 1 : ~0ull >> (64 - width<To>));
    return (To)value;
}
template <class To, class How, class From> inline To convert(From value) {
    if constexpr (real<From>) {
        double x = (double)(float)value;
        if constexpr (sizeof(From) == 8) x = (double)value;
        if constexpr (!__is_same(How, plain)) x = __is_same(How, nearest) ? rint(x) : __is_same(How, down) ? floor(x) : ceil(x);
        if constexpr (sizeof(To) == 2 && real<To>) return To((float)x);
        else if constexpr (real<To>) return (To)x;
        else return clamped<To>(x);
    } else {
        return (To)value;
    }
}

// --- memory ---

template <class T, class... R> inline void load(uint64_t address, R&... to) {
    const T* from = (const T*)address;
    (put(to, *from++), ...);
}
template <class T, class... V> inline void store(uint64_t address, V... values) {
    T* to = (T*)address;
    ((*to++ = values), ...);
}
#define FUSIOND_ATOM(name, expression)                                                                    \
    template <class T> inline T atom_##name(uint64_t address, T value) {                                  \
        return ::fusiond_detail::update((T*)address, [=]([[maybe_unused]] T old) -> T { return expression; }); \
    }
FUSIOND_ATOM(add, old + value)
FUSIOND_ATOM(min, value < old ? value : old)
FUSIOND_ATOM(max, value > old ? value : old)
FUSIOND_ATOM(inc, old >= value ? 0 : old + 1)
FUSIOND_ATOM(dec, old == 0 || old > value ? value : old - 1)
FUSIOND_ATOM(and, old & value)
FUSIOND_ATOM(or, old | value)
FUSIOND_ATOM(xor, old ^ value)
FUSIOND_ATOM(exch, value)
#undef FUSIOND_ATOM
template <class T> inline T atom_cas(uint64_t address, T expected, T value) {
    return ::fusiond_detail::update((T*)address, [=](T old) { return old == expected ? value : old; });
}

}  // namespace fusiond_ptx
