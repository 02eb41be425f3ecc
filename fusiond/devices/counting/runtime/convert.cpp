// cvt: between all types, in every rounding.
#include <cfenv>
#include <cmath>
#include <limits>

#include "narrow.h"
#include "warp.h"

namespace counting {
namespace {

template <class T> const char* name_of();
template <> const char* name_of<uint8_t>() { return "u8"; }
template <> const char* name_of<int8_t>() { return "s8"; }
template <> const char* name_of<uint16_t>() { return "u16"; }
template <> const char* name_of<int16_t>() { return "s16"; }
template <> const char* name_of<uint32_t>() { return "u32"; }
template <> const char* name_of<int32_t>() { return "s32"; }
template <> const char* name_of<uint64_t>() { return "u64"; }
template <> const char* name_of<int64_t>() { return "s64"; }
template <> const char* name_of<float>() { return "f32"; }
template <> const char* name_of<double>() { return "f64"; }
template <> const char* name_of<Half>() { return "f16"; }
template <> const char* name_of<Brain>() { return "bf16"; }

template <class T>
double wide(T a) {
    if constexpr (std::is_arithmetic_v<T>) return a;
    else return a.value();
}

template <int ROUNDING>
double whole(double a) {
    if (ROUNDING == FE_TONEAREST) return std::nearbyint(a);
    if (ROUNDING == FE_TOWARDZERO) return std::trunc(a);
    return ROUNDING == FE_DOWNWARD ? std::floor(a) : std::ceil(a);
}

// A narrow integer's result fills its register: signed ones by their sign.
template <class D>
using Filled = std::conditional_t<sizeof(D) == 1, std::conditional_t<std::is_signed_v<D>, int32_t, uint32_t>, D>;

// Out of range: the nearest end; NaN: 0 (of 64 bits, the GPU says the top bit).
template <class D>
[[gnu::noinline]] D to_integer(double found) {
    using Limits = std::numeric_limits<D>;
    if (found != found) return sizeof(D) == 8 ? static_cast<D>(uint64_t(1) << 63) : D(0);
    if (found <= static_cast<double>(Limits::min())) return Limits::min();
    if (found >= static_cast<double>(Limits::max())) return Limits::max();
    return static_cast<D>(found);
}

template <class D, class S, int ROUNDING>
void float_to_integer(const char* rounding) {
    for (const char* flush : {".", ".ftz."})
        for (const char* sat : {"", "sat."})
            add_operation({"cvt.", rounding, flush, sat, name_of<D>(), ".", name_of<S>()},
                          SELDOM_UNARY(Filled<D>, S, to_integer<D>(whole<ROUNDING>(wide(a)))));
}

template <class D, class S, int ROUNDING>
void rounded_by(Warp& w, const Instruction& i, uint32_t mask) {
    std::fesetround(ROUNDING);
    SELDOM_UNARY(D, S, a)(w, i, mask);
    std::fesetround(FE_TONEAREST);
}

template <class D, class S>
void to_float(const char* flush = ".") {
    add_operation({"cvt.rn", flush, name_of<D>(), ".", name_of<S>()}, SELDOM_UNARY(D, S, a));
    add_operation({"cvt.rz", flush, name_of<D>(), ".", name_of<S>()}, &rounded_by<D, S, FE_TOWARDZERO>);
    add_operation({"cvt.rm", flush, name_of<D>(), ".", name_of<S>()}, &rounded_by<D, S, FE_DOWNWARD>);
    add_operation({"cvt.rp", flush, name_of<D>(), ".", name_of<S>()}, &rounded_by<D, S, FE_UPWARD>);
}

template <class H>
H toward_zero(double a) {
    H found = H::nearest(a);
    if (std::fabs(found.value()) > std::fabs(a)) --found.bits;
    return found;
}

// The nearest double to a large integer is odd where it was rounded, so that the second rounding is right.
template <class S>
double as_double(S a) {
    if constexpr (std::is_same_v<S, float> || std::is_same_v<S, double> || sizeof(S) < 8) {
        return a;
    } else {
        const double found = static_cast<double>(a);
        const __int128 rest = static_cast<__int128>(a) - static_cast<__int128>(found);
        return Half::odd(found, static_cast<double>(rest));
    }
}

template <class H, class S>
void to_narrow() {
    add_operation({"cvt.rn.", name_of<H>(), ".", name_of<S>()}, SELDOM_UNARY(H, S, H::nearest(as_double(a))));
    add_operation({"cvt.rz.", name_of<H>(), ".", name_of<S>()}, SELDOM_UNARY(H, S, toward_zero<H>(as_double(a))));
    if constexpr (std::is_same_v<S, float>) {
        // cvt.rn.f16x2.f32 d, a, b: a goes into the upper half.
        add_operation({"cvt.rn.", name_of<H>(), "x2.f32"},
                      SELDOM_BINARY(uint32_t, float, float, uint32_t(H::nearest(a).bits) << 16 | H::nearest(b).bits));
    }
}

// Two at a time, the first operand in the upper half.
template <class E>
uint16_t eights(double upper, double lower) {
    return static_cast<uint16_t>(E::nearest(upper).bits << 8 | E::nearest(lower).bits);
}

template <class E>
uint32_t halves(uint16_t a) {
    const auto half = [](int bits) -> uint32_t { return Half::nearest(E{static_cast<uint8_t>(bits)}.value()).bits; };
    return half(a >> 8) << 16 | half(a & 255);
}

inline double half_value(uint32_t bits) { return Half{static_cast<uint16_t>(bits)}.value(); }

template <class E>
void to_eight(const char* name) {
    add_operation({"cvt.rn.satfinite.", name, "x2.f32"}, SELDOM_BINARY(uint16_t, float, float, eights<E>(a, b)));
    add_operation({"cvt.rn.satfinite.", name, "x2.f16x2"}, SELDOM_UNARY(uint16_t, uint32_t, eights<E>(half_value(a >> 16), half_value(a))));
    add_operation({"cvt.rn.f16x2.", name, "x2"}, SELDOM_UNARY(uint32_t, uint16_t, halves<E>(a)));
}

template <class T>
T saturated(T a) {
    return a > T(0) ? (a < T(1) ? a : T(1)) : T(0);
}

template <class T>
T one_nan(T a) {
    return a == a ? a : sizeof(T) == 4 ? std::bit_cast<float>(0x7fffffffu) : std::numeric_limits<T>::quiet_NaN();
}

template <class T>
void in_place() {
    for (const char* flush : {".", ".ftz."}) {
        const char* type = name_of<T>();
        add_operation({"cvt", flush, type, ".", type}, SELDOM_UNARY(T, T, a));
        add_operation({"cvt", flush, "sat.", type, ".", type}, SELDOM_UNARY(T, T, saturated(a)));
        add_operation({"cvt.rni", flush, type, ".", type}, SELDOM_UNARY(T, T, one_nan<T>(std::nearbyint(a))));
        add_operation({"cvt.rzi", flush, type, ".", type}, SELDOM_UNARY(T, T, one_nan<T>(std::trunc(a))));
        add_operation({"cvt.rmi", flush, type, ".", type}, SELDOM_UNARY(T, T, one_nan<T>(std::floor(a))));
        add_operation({"cvt.rpi", flush, type, ".", type}, SELDOM_UNARY(T, T, one_nan<T>(std::ceil(a))));
    }
}

template <class D, class S>
D clamped(S a) {
    using Limits = std::numeric_limits<D>;
    const __int128 value = a;
    return value < Limits::min() ? Limits::min() : value > Limits::max() ? Limits::max() : static_cast<D>(a);
}

template <class D, class S>
void pair() {
    add_operation({"cvt.", name_of<D>(), ".", name_of<S>()}, SELDOM_UNARY(Filled<D>, S, static_cast<D>(a)));
    add_operation({"cvt.sat.", name_of<D>(), ".", name_of<S>()}, SELDOM_UNARY(Filled<D>, S, (clamped<D, S>(a))));
}

template <class I>
void integer() {
    pair<I, uint8_t>(), pair<I, int8_t>(), pair<I, uint16_t>(), pair<I, int16_t>();
    pair<I, uint32_t>(), pair<I, int32_t>(), pair<I, uint64_t>(), pair<I, int64_t>();
    to_float<float, I>(), to_float<double, I>(), to_narrow<Half, I>(), to_narrow<Brain, I>();
    const auto from = []<class S>(S*) {
        float_to_integer<I, S, FE_TONEAREST>("rni"), float_to_integer<I, S, FE_TOWARDZERO>("rzi");
        float_to_integer<I, S, FE_DOWNWARD>("rmi"), float_to_integer<I, S, FE_UPWARD>("rpi");
    };
    from(static_cast<float*>(nullptr)), from(static_cast<double*>(nullptr));
    from(static_cast<Half*>(nullptr)), from(static_cast<Brain*>(nullptr));
}

}  // namespace

void add_conversions() {
    integer<uint8_t>(), integer<int8_t>(), integer<uint16_t>(), integer<int16_t>();
    integer<uint32_t>(), integer<int32_t>(), integer<uint64_t>(), integer<int64_t>();
    in_place<float>(), in_place<double>();
    to_float<float, double>(), to_float<float, double>(".ftz.");
    add_operation("cvt.f64.f32", SELDOM_UNARY(double, float, a));
    to_narrow<Half, float>(), to_narrow<Half, double>(), to_narrow<Brain, float>(), to_narrow<Brain, double>();
    add_operation("cvt.f32.f16", SELDOM_UNARY(float, Half, a.value()));
    add_operation("cvt.f32.bf16", SELDOM_UNARY(float, Brain, a.value()));
    add_operation("cvt.f64.f16", SELDOM_UNARY(double, Half, a.value()));
    add_operation("cvt.f64.bf16", SELDOM_UNARY(double, Brain, a.value()));
    to_eight<E4m3>("e4m3"), to_eight<E5m2>("e5m2");
}

}  // namespace counting
