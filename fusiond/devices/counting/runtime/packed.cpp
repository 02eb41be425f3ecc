// Several numbers in one register: halves by two, floats by two, bytes by four; and what little else of half precision
// the other files do not have.
#include <algorithm>
#include <cmath>

#include "narrow.h"
#include "warp.h"

namespace counting {
namespace {

double one_nan(double a) { return a != a ? NAN : a; }

double saturated(double a) { return a > 0 ? (a < 1 ? a : 1) : 0; }

double rectified(double a) { return a != a ? a : a > 0 ? a : 0; }

double least(double a, double b) { return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b; }

double most(double a, double b) { return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b; }

template <class H>
H flushed(H a) {
    const uint16_t exponents = sizeof(H) == 2 && std::is_same_v<H, Half> ? 0x7c00 : 0x7f80;
    return a.bits & exponents ? a : H{static_cast<uint16_t>(a.bits & 0x8000)};
}

// One of two halves, or the only one.
template <class H, bool TWO>
[[gnu::noipa]] void each(Warp& w, const Instruction& i, uint32_t mask, H (*f)(H, H, H)) {
    const auto *a = w.in<uint32_t>(i.a), *b = w.in<uint32_t>(i.b), *c = w.in<uint32_t>(i.c);
    uint32_t values[LANES];
    for (int lane = 0; lane < LANES; ++lane) {
        const auto one = [&](int shift) -> uint32_t {
            const auto at = [shift](uint32_t x) { return H{static_cast<uint16_t>(x >> shift)}; };
            return uint32_t(f(at(a[lane]), at(b[lane]), at(c[lane])).bits) << shift;
        };
        values[lane] = TWO ? one(0) | one(16) : one(0);
    }
    keep(w.out<uint32_t>(i.d), values, mask);
}

template <class H, class F>
void one_and_two(const char* name, const char* type, F) {
    add_operation({name, type}, [](Warp& w, const Instruction& i, uint32_t mask) { each<H, false>(w, i, mask, F()); });
    add_operation({name, type, "x2"}, [](Warp& w, const Instruction& i, uint32_t mask) { each<H, true>(w, i, mask, F()); });
}

#define HALVES(NAME, EXPRESSION) one_and_two<H>(NAME, type, [](H x, [[maybe_unused]] H y, [[maybe_unused]] H z) -> H { return EXPRESSION; })

template <class H>
void halves(const char* type) {
    HALVES("add.", H::nearest(one_nan(x.value() + y.value())));
    HALVES("sub.", H::nearest(one_nan(x.value() - y.value())));
    HALVES("mul.", H::nearest(one_nan(x.value() * y.value())));
    HALVES("add.rn.", H::nearest(one_nan(x.value() + y.value())));
    HALVES("sub.rn.", H::nearest(one_nan(x.value() - y.value())));
    HALVES("mul.rn.", H::nearest(one_nan(x.value() * y.value())));
    HALVES("add.sat.", H::nearest(saturated(x.value() + y.value())));
    HALVES("sub.sat.", H::nearest(saturated(x.value() - y.value())));
    HALVES("mul.sat.", H::nearest(saturated(x.value() * y.value())));
    HALVES("add.rn.sat.", H::nearest(saturated(x.value() + y.value())));
    HALVES("sub.rn.sat.", H::nearest(saturated(x.value() - y.value())));
    HALVES("mul.rn.sat.", H::nearest(saturated(x.value() * y.value())));
    HALVES("add.ftz.", flushed(H::nearest(one_nan(flushed(x).value() + flushed(y).value()))));
    HALVES("sub.ftz.", flushed(H::nearest(one_nan(flushed(x).value() - flushed(y).value()))));
    HALVES("mul.ftz.", flushed(H::nearest(one_nan(flushed(x).value() * flushed(y).value()))));
    HALVES("add.rn.ftz.", flushed(H::nearest(one_nan(flushed(x).value() + flushed(y).value()))));
    HALVES("sub.rn.ftz.", flushed(H::nearest(one_nan(flushed(x).value() - flushed(y).value()))));
    HALVES("mul.rn.ftz.", flushed(H::nearest(one_nan(flushed(x).value() * flushed(y).value()))));
    HALVES("fma.rn.", H::fused(x.value(), y.value(), z.value()));
    HALVES("fma.rn.sat.", H::nearest(saturated(H::fused(x.value(), y.value(), z.value()).value())));
    HALVES("fma.rn.relu.", H::nearest(rectified(H::fused(x.value(), y.value(), z.value()).value())));
    HALVES("fma.rn.ftz.", flushed(H::fused(flushed(x).value(), flushed(y).value(), flushed(z).value())));
    HALVES("fma.rn.ftz.relu.", H::nearest(rectified(flushed(H::fused(flushed(x).value(), flushed(y).value(), flushed(z).value())).value())));
    HALVES("neg.", (H{static_cast<uint16_t>(x.bits ^ 0x8000)}));
    HALVES("abs.", (H{static_cast<uint16_t>(x.bits & 0x7fff)}));
    HALVES("min.", H::nearest(least(x.value(), y.value())));
    HALVES("max.", H::nearest(most(x.value(), y.value())));
    HALVES("min.NaN.", H::nearest(x.value() != x.value() || y.value() != y.value() ? NAN : least(x.value(), y.value())));
    HALVES("max.NaN.", H::nearest(x.value() != x.value() || y.value() != y.value() ? NAN : most(x.value(), y.value())));
    HALVES("tanh.approx.", H::nearest(one_nan(std::tanh(x.value()))));
    HALVES("ex2.approx.", H::nearest(one_nan(std::exp2(x.value()))));
    HALVES("ex2.approx.ftz.", flushed(H::nearest(one_nan(std::exp2(flushed(x).value())))));
}

// --- conversions ---

template <class H>
void conversions(const char* type) {
    add_operation({"cvt.rn.relu.", type, "x2.f32"}, SELDOM_BINARY(uint32_t, float, float, (uint32_t(H::nearest(rectified(a)).bits) << 16 | H::nearest(rectified(b)).bits)));
    add_operation({"cvt.rn.relu.", type, ".f32"}, SELDOM_UNARY(H, float, H::nearest(rectified(a))));
    add_operation({"cvt.rn.sat.", type, ".f32"}, SELDOM_UNARY(H, float, H::nearest(saturated(a))));
    for (const char* flush : {".", ".ftz."}) {
        add_operation({"cvt.rni", flush, type, ".", type}, SELDOM_UNARY(H, H, H::nearest(std::nearbyint(a.value()))));
        add_operation({"cvt.rzi", flush, type, ".", type}, SELDOM_UNARY(H, H, H::nearest(std::trunc(a.value()))));
        add_operation({"cvt.rmi", flush, type, ".", type}, SELDOM_UNARY(H, H, H::nearest(std::floor(a.value()))));
        add_operation({"cvt.rpi", flush, type, ".", type}, SELDOM_UNARY(H, H, H::nearest(std::ceil(a.value()))));
        add_operation({"cvt", flush, "f32.", type}, SELDOM_UNARY(float, H, a.value()));
    }
    add_operation({"cvt.", type, ".", type}, SELDOM_UNARY(H, H, a));
    add_operation({"cvt.sat.", type, ".", type}, SELDOM_UNARY(H, H, H::nearest(saturated(a.value()))));
}

// tf32: 10 bits of fraction, ties away from zero or to even.
uint32_t tensor_float(float a, bool even) {
    const uint32_t bits = std::bit_cast<uint32_t>(a);
    if (a != a) return 0x7fffffffu;
    if (std::isinf(a)) return bits;
    return (bits + (even ? 0xfffu + (bits >> 13 & 1) : 0x1000u)) & 0xffffe000u;
}

// --- integers ---

template <class A, class B>
void dot_products(const char* types) {
    using D = std::conditional_t<std::is_signed_v<A> || std::is_signed_v<B>, int32_t, uint32_t>;
    add_operation({"dp4a.", types}, SELDOM_TERNARY(uint32_t, uint32_t, uint32_t, uint32_t, [&] {
        uint32_t sum = c;
        for (int k = 0; k < 4; ++k) sum += static_cast<uint32_t>(D(A(a >> 8 * k)) * D(B(b >> 8 * k)));
        return sum;
    }()));
    using WideA = std::conditional_t<std::is_signed_v<A>, int16_t, uint16_t>;
    add_operation({"dp2a.lo.", types}, SELDOM_TERNARY(uint32_t, uint32_t, uint32_t, uint32_t, (c + uint32_t(D(WideA(a)) * D(B(b))) + uint32_t(D(WideA(a >> 16)) * D(B(b >> 8))))));
    add_operation({"dp2a.hi.", types}, SELDOM_TERNARY(uint32_t, uint32_t, uint32_t, uint32_t, (c + uint32_t(D(WideA(a)) * D(B(b >> 16))) + uint32_t(D(WideA(a >> 16)) * D(B(b >> 24))))));
}

// Video instructions on COUNT parts of a register: v{add,sub,avrg,absdiff,min,max}{2,4}, into parts or into a sum.
enum Video { PLUS, MINUS, MEAN, DISTANCE, LESS, MORE };

template <Video WHAT>
int64_t video(int64_t a, int64_t b) {
    switch (WHAT) {
        case PLUS: return a + b;
        case MINUS: return a - b;
        case MEAN: return (a + b + (a + b >= 0)) >> 1;
        case DISTANCE: return a < b ? b - a : a - b;
        case LESS: return std::min(a, b);
        default: return std::max(a, b);
    }
}

template <int COUNT>
int64_t part_of(uint32_t a, int k, bool is_signed) {
    constexpr int bits = 32 / COUNT;
    const uint32_t part = a >> (bits * k) & ((uint64_t(1) << bits) - 1);
    return is_signed ? static_cast<int32_t>(part << (32 - bits)) >> (32 - bits) : int64_t(part);
}

// flags: 1 the result is signed, 2 a is, 4 b is; 8 saturated; 16 the parts are added up, and c is.
template <Video WHAT, int COUNT>
void video_operation(Warp& w, const Instruction& i, uint32_t mask) {
    constexpr int bits = 32 / COUNT;
    const auto *a = w.in<uint32_t>(i.a), *b = w.in<uint32_t>(i.b), *c = w.in<uint32_t>(i.c);
    const int64_t low = i.flags & 1 ? -(int64_t(1) << (bits - 1)) : 0, high = low + (int64_t(1) << bits) - 1;
    uint32_t values[LANES];
    for (int lane = 0; lane < LANES; ++lane) {
        uint32_t found = i.flags & 16 ? c[lane] : 0;
        for (int k = 0; k < COUNT; ++k) {
            int64_t part = video<WHAT>(part_of<COUNT>(a[lane], k, i.flags & 2), part_of<COUNT>(b[lane], k, i.flags & 4));
            if (i.flags & 8) part = std::clamp(part, low, high);
            if (i.flags & 16) found += static_cast<uint32_t>(part);
            else found |= static_cast<uint32_t>(part & ((int64_t(1) << bits) - 1)) << (bits * k);
        }
        values[lane] = found;
    }
    keep(w.out<uint32_t>(i.d), values, mask);
}

template <Video WHAT>
void videos(const char* name) {
    add_operation({"v", name}, video_operation<WHAT, 1>);
    add_operation({"v", name, "2"}, video_operation<WHAT, 2>);
    add_operation({"v", name, "4"}, video_operation<WHAT, 4>);
}

// A subnormal number is zero.
float plain(float a) { return std::fabs(a) < 0x1p-126f ? std::copysign(0.0f, a) : a; }

// The place of the n-th bit that is set from `base` on, upward or downward; -1: there is none. PTX ISA, "fns".
uint32_t nth_set(uint32_t mask, uint32_t base, int32_t n) {
    if (n == 0) return mask >> (base & 31) & 1 ? base : ~0u;
    const int step = n < 0 ? -1 : 1;
    int left = n < 0 ? -n : n;
    for (int at = static_cast<int>(base & 31); at >= 0 && at < 32; at += step)
        if ((mask >> at & 1) && --left == 0) return static_cast<uint32_t>(at);
    return ~0u;
}

// 16 bits by two.
template <class T, class F>
uint32_t both(uint32_t a, uint32_t b, F f) {
    return static_cast<uint16_t>(f(T(a), T(b))) | static_cast<uint32_t>(static_cast<uint16_t>(f(T(a >> 16), T(b >> 16)))) << 16;
}

template <class T>
void shorts(const char* type) {
    add_operation({"add.", type}, SELDOM_BINARY(uint32_t, uint32_t, uint32_t, both<T>(a, b, [](T x, T y) { return x + y; })));
    add_operation({"min.", type}, SELDOM_BINARY(uint32_t, uint32_t, uint32_t, both<T>(a, b, [](T x, T y) { return std::min(x, y); })));
    add_operation({"max.", type}, SELDOM_BINARY(uint32_t, uint32_t, uint32_t, both<T>(a, b, [](T x, T y) { return std::max(x, y); })));
    add_operation({"min.", type, ".relu"}, SELDOM_BINARY(uint32_t, uint32_t, uint32_t, both<T>(a, b, [](T x, T y) { return std::max(std::min(x, y), T(0)); })));
    add_operation({"max.", type, ".relu"}, SELDOM_BINARY(uint32_t, uint32_t, uint32_t, both<T>(a, b, [](T x, T y) { return std::max(std::max(x, y), T(0)); })));
}

float nan32(float a) { return a != a ? std::bit_cast<float>(0x7fffffffu) : a; }

template <class F>
uint64_t two_floats(uint64_t a, uint64_t b, uint64_t c, F f) {
    const auto at = [](uint64_t x, int k) { return std::bit_cast<float>(static_cast<uint32_t>(x >> 32 * k)); };
    const auto one = [&](int k) { return uint64_t(std::bit_cast<uint32_t>(nan32(f(at(a, k), at(b, k), at(c, k))))); };
    return one(0) | one(1) << 32;
}

#define FLOATS(NAME, TYPE, EXPRESSION)                                                            \
    add_operation({NAME, rounding, TYPE}, SELDOM_TERNARY(uint64_t, uint64_t, uint64_t, uint64_t,                           \
        two_floats(a, b, c, [](float x, float y, [[maybe_unused]] float z) -> float { return EXPRESSION; })))

}  // namespace

void add_packed() {
    halves<Half>("f16"), halves<Brain>("bf16");
    conversions<Half>("f16"), conversions<Brain>("bf16");
    add_operation("cvt.rn.bf16.f16", SELDOM_UNARY(Brain, Half, Brain::nearest(a.value())));
    add_operation("cvt.rn.f16.bf16", SELDOM_UNARY(Half, Brain, Half::nearest(a.value())));
    add_operation("cvt.rna.tf32.f32", SELDOM_UNARY(uint32_t, float, tensor_float(a, false)));
    add_operation("cvt.rn.tf32.f32", SELDOM_UNARY(uint32_t, float, tensor_float(a, true)));
    add_operation("cvt.rz.tf32.f32", SELDOM_UNARY(uint32_t, float, (a != a ? 0x7fffffffu : std::bit_cast<uint32_t>(a) & 0xffffe000u)));
    dot_products<uint8_t, uint8_t>("u32.u32"), dot_products<uint8_t, int8_t>("u32.s32");
    dot_products<int8_t, uint8_t>("s32.u32"), dot_products<int8_t, int8_t>("s32.s32");
    videos<PLUS>("add"), videos<MINUS>("sub"), videos<MEAN>("avrg"), videos<DISTANCE>("absdiff"), videos<LESS>("min"), videos<MORE>("max");
    // Two numbers cut to the ends of a narrower type, the first above; of bytes, what was there is moved up by two.
    add_operation("cvt.pack.sat.u16.s32", SELDOM_BINARY(uint32_t, int32_t, int32_t, uint32_t(std::clamp(a, 0, 65535)) << 16 | uint32_t(std::clamp(b, 0, 65535))));
    add_operation("cvt.pack.sat.s16.s32", SELDOM_BINARY(uint32_t, int32_t, int32_t, uint32_t(std::clamp(a, -32768, 32767)) << 16 | (uint32_t(std::clamp(b, -32768, 32767)) & 65535)));
    add_operation("cvt.pack.sat.u8.s32.b32", SELDOM_TERNARY(uint32_t, int32_t, int32_t, uint32_t, c << 16 | uint32_t(std::clamp(a, 0, 255)) << 8 | uint32_t(std::clamp(b, 0, 255))));
    add_operation("cvt.pack.sat.s8.s32.b32", SELDOM_TERNARY(uint32_t, int32_t, int32_t, uint32_t, c << 16 | (uint32_t(std::clamp(a, -128, 127)) & 255) << 8 | (uint32_t(std::clamp(b, -128, 127)) & 255)));
    shorts<uint16_t>("u16x2"), shorts<int16_t>("s16x2");
    add_operation("min.s32.relu", SELDOM_BINARY(int32_t, int32_t, int32_t, std::max(std::min(a, b), 0)));
    add_operation("max.s32.relu", SELDOM_BINARY(int32_t, int32_t, int32_t, std::max(std::max(a, b), 0)));
    add_operation("fns.b32", SELDOM_TERNARY(uint32_t, uint32_t, uint32_t, int32_t, nth_set(a, b, c)));
    for (const char* rounding : {".", ".rn."}) {
        FLOATS("add", "f32x2", x + y);
        FLOATS("sub", "f32x2", x - y);
        FLOATS("mul", "f32x2", x * y);
        FLOATS("fma", "f32x2", std::fma(x, y, z));
        FLOATS("add", "ftz.f32x2", plain(plain(x) + plain(y)));
        FLOATS("sub", "ftz.f32x2", plain(plain(x) - plain(y)));
        FLOATS("mul", "ftz.f32x2", plain(plain(x) * plain(y)));
        FLOATS("fma", "ftz.f32x2", plain(std::fma(plain(x), plain(y), plain(z))));
    }
}

}  // namespace counting
