// Floating point: IEEE where PTX is exact; the processor's nearest value where PTX says `.approx`.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>

#include "narrow.h"
#include "warp.h"

namespace counting {
namespace {

template <class T>
T flushed(T a) {
    return std::fpclassify(a) == FP_SUBNORMAL ? std::copysign(T(0), a) : a;
}

template <class T>
T saturated(T a) {
    return a > T(0) ? (a < T(1) ? a : T(1)) : T(0);  // NaN becomes 0
}

template <class T>
T quiet() {
    return sizeof(T) == 4 ? std::bit_cast<float>(0x7fffffffu) : std::numeric_limits<T>::quiet_NaN();
}

// Every NaN that an operation of the GPU makes is the same one.
template <class T>
T one_nan(T a) {
    return a != a ? quiet<T>() : a;
}

template <class T>
T least(T a, T b) {
    if (a != a) return one_nan(b);
    if (b != b) return a;
    if (a == b) return std::signbit(a) ? a : b;
    return a < b ? a : b;
}

template <class T>
T most(T a, T b) {
    if (a != a) return one_nan(b);
    if (b != b) return a;
    if (a == b) return std::signbit(a) ? b : a;
    return a > b ? a : b;
}

// --- in another rounding than the nearest; what is computed stays between the two calls since it goes through memory

template <class T, int ROUNDING, class F>
void directed(Warp& w, const Instruction& i, uint32_t mask, F f) {
    const auto *a = w.in<T>(i.a), *b = w.in<T>(i.b), *c = w.in<T>(i.c);
    auto* d = w.out<T>(i.d);
    std::fesetround(ROUNDING);
    for (int lane = 0; lane < LANES; ++lane)
        if (mask >> lane & 1) {
            volatile T x = from_bits<T>(a[lane]), y = from_bits<T>(b[lane]), z = from_bits<T>(c[lane]);
            volatile T found = f(x, y, z);
            d[lane] = to_bits<T>(one_nan<T>(found));
        }
    std::fesetround(FE_TONEAREST);
}

template <class T, int ROUNDING>
void add_directed(const std::string& rounding, const std::string& type) {
    const std::string of = "." + rounding + "." + type;
    add_operation("add" + of, [](Warp& w, const Instruction& i, uint32_t m) { directed<T, ROUNDING>(w, i, m, [](T a, T b, T) -> T { return a + b; }); });
    add_operation("sub" + of, [](Warp& w, const Instruction& i, uint32_t m) { directed<T, ROUNDING>(w, i, m, [](T a, T b, T) -> T { return a - b; }); });
    add_operation("mul" + of, [](Warp& w, const Instruction& i, uint32_t m) { directed<T, ROUNDING>(w, i, m, [](T a, T b, T) -> T { return a * b; }); });
    add_operation("div" + of, [](Warp& w, const Instruction& i, uint32_t m) { directed<T, ROUNDING>(w, i, m, [](T a, T b, T) -> T { return a / b; }); });
    add_operation("fma" + of, [](Warp& w, const Instruction& i, uint32_t m) { directed<T, ROUNDING>(w, i, m, [](T a, T b, T c) -> T { return std::fma(a, b, c); }); });
    add_operation("rcp" + of, [](Warp& w, const Instruction& i, uint32_t m) { directed<T, ROUNDING>(w, i, m, [](T a, T, T) -> T { return T(1) / a; }); });
    add_operation("sqrt" + of, [](Warp& w, const Instruction& i, uint32_t m) { directed<T, ROUNDING>(w, i, m, [](T a, T, T) -> T { return std::sqrt(a); }); });
}

template <class T>
void exact(const std::string& type) {
    for (const char* rounding : {".", ".rn."}) {
        add_operation("add" + (rounding + type), BINARY(T, T, T, one_nan(a + b)));
        add_operation("sub" + (rounding + type), BINARY(T, T, T, one_nan(a - b)));
        add_operation("mul" + (rounding + type), BINARY(T, T, T, one_nan(a * b)));
    }
    add_operation("fma.rn." + type, TERNARY(T, T, T, T, one_nan(std::fma(a, b, c))));
    add_operation("mad." + type, TERNARY(T, T, T, T, one_nan(std::fma(a, b, c))));  // as ptxas takes it
    add_operation("mad.rn." + type, TERNARY(T, T, T, T, one_nan(std::fma(a, b, c))));
    add_operation("div.rn." + type, BINARY(T, T, T, one_nan(a / b)));
    add_operation("rcp.rn." + type, UNARY(T, T, one_nan(T(1) / a)));
    add_operation("sqrt.rn." + type, UNARY(T, T, one_nan(std::sqrt(a))));
    add_operation("min." + type, BINARY(T, T, T, least(a, b)));
    add_operation("max." + type, BINARY(T, T, T, most(a, b)));
    add_operation("min.NaN." + type, BINARY(T, T, T, a != a || b != b ? quiet<T>() : least(a, b)));
    add_operation("max.NaN." + type, BINARY(T, T, T, a != a || b != b ? quiet<T>() : most(a, b)));
    add_operation("neg." + type, UNARY(T, T, -a));
    add_operation("abs." + type, UNARY(T, T, std::fabs(a)));
    add_operation("copysign." + type, BINARY(T, T, T, std::copysign(b, a)));
    add_directed<T, FE_TOWARDZERO>("rz", type);
    add_directed<T, FE_DOWNWARD>("rm", type);
    add_directed<T, FE_UPWARD>("rp", type);
}

void flushing() {
    for (const char* rounding : {".", ".rn."}) {
        const std::string of = std::string(rounding) + "ftz.f32", sat = std::string(rounding) + "sat.f32";
        add_operation("add" + of, BINARY(float, float, float, flushed(one_nan(flushed(a) + flushed(b)))));
        add_operation("sub" + of, BINARY(float, float, float, flushed(one_nan(flushed(a) - flushed(b)))));
        add_operation("mul" + of, BINARY(float, float, float, flushed(one_nan(flushed(a) * flushed(b)))));
        add_operation("add" + sat, BINARY(float, float, float, saturated(a + b)));
        add_operation("mul" + sat, BINARY(float, float, float, saturated(a * b)));
    }
    add_operation("fma.rn.sat.f32", TERNARY(float, float, float, float, saturated(std::fma(a, b, c))));
    add_operation("fma.rn.ftz.f32", TERNARY(float, float, float, float, flushed(one_nan(std::fma(flushed(a), flushed(b), flushed(c))))));
    add_operation("div.rn.ftz.f32", BINARY(float, float, float, flushed(one_nan(flushed(a) / flushed(b)))));
    add_operation("sqrt.rn.ftz.f32", UNARY(float, float, one_nan(std::sqrt(flushed(a)))));
    add_operation("rcp.rn.ftz.f32", UNARY(float, float, flushed(one_nan(1.0f / flushed(a)))));
    add_operation("min.ftz.f32", BINARY(float, float, float, least(flushed(a), flushed(b))));
    add_operation("max.ftz.f32", BINARY(float, float, float, most(flushed(a), flushed(b))));
    add_operation("neg.ftz.f32", UNARY(float, float, flushed(-a)));
    add_operation("abs.ftz.f32", UNARY(float, float, flushed(std::fabs(a))));
}

void approximate() {
    for (const char* flush : {".approx.f32", ".approx.ftz.f32", ".full.f32", ".full.ftz.f32"})
        add_operation(std::string("div") + flush, BINARY(float, float, float, one_nan(a / b)));
    for (const char* flush : {".approx.f32", ".approx.ftz.f32"}) {
        const std::string of = flush;
        add_operation("rcp" + of, UNARY(float, float, one_nan(1.0f / a)));
        add_operation("sqrt" + of, UNARY(float, float, one_nan(std::sqrt(a))));
        add_operation("rsqrt" + of, UNARY(float, float, one_nan(static_cast<float>(1.0 / std::sqrt(double(a))))));
        add_operation("ex2" + of, UNARY(float, float, one_nan(std::exp2(a))));
        add_operation("lg2" + of, UNARY(float, float, one_nan(std::log2(a))));
        add_operation("sin" + of, UNARY(float, float, one_nan(std::sin(a))));
        add_operation("cos" + of, UNARY(float, float, one_nan(std::cos(a))));
    }
    add_operation("tanh.approx.f32", UNARY(float, float, one_nan(std::tanh(a))));
    add_operation("rsqrt.approx.f64", UNARY(double, double, one_nan(1.0 / std::sqrt(a))));
    add_operation("rcp.approx.ftz.f64", UNARY(double, double, one_nan(1.0 / a)));
    add_operation("rsqrt.approx.ftz.f64", UNARY(double, double, one_nan(1.0 / std::sqrt(a))));
}

// --- comparisons ---

template <class T, class F>
void compared(Warp& w, const Instruction& i, uint32_t mask, F f) {
    const auto *a = w.in<T>(i.a), *b = w.in<T>(i.b);
    uint32_t found = 0;
    for (int lane = 0; lane < LANES; ++lane) found |= uint32_t(f(from_bits<T>(a[lane]), from_bits<T>(b[lane]))) << lane;
    w.set_predicate(i.d, found, mask);
}

#define COMPARE(NAME, EXPRESSION)                                                              \
    add_operation(std::string("setp." NAME ".") + type, [](Warp& w, const Instruction& i, uint32_t m) { \
        compared<T>(w, i, m, [](T x, T y) { const auto a = plain(x), b = plain(y); return bool(EXPRESSION); }); \
    })

template <class T>
auto plain(T x) {
    if constexpr (std::is_arithmetic_v<T>) return x;
    else return x.value();
}

template <class T>
void ordered(const char* type) {
    COMPARE("eq", a == b);
    COMPARE("ne", a != b && a == a && b == b);
    COMPARE("lt", a < b);
    COMPARE("le", a <= b);
    COMPARE("gt", a > b);
    COMPARE("ge", a >= b);
}

template <class T>
void unsigned_names(const char* type) {
    COMPARE("lo", a < b);
    COMPARE("ls", a <= b);
    COMPARE("hi", a > b);
    COMPARE("hs", a >= b);
}

template <class T>
void unordered(const char* type) {
    COMPARE("equ", !(a < b) && !(a > b));
    COMPARE("neu", !(a == b));
    COMPARE("ltu", !(a >= b));
    COMPARE("leu", !(a > b));
    COMPARE("gtu", !(a <= b));
    COMPARE("geu", !(a < b));
    COMPARE("num", a == a && b == b);
    COMPARE("nan", a != a || b != b);
}

void comparisons() {
    ordered<uint16_t>("u16"), ordered<int16_t>("s16"), ordered<uint32_t>("u32"), ordered<int32_t>("s32");
    ordered<uint64_t>("u64"), ordered<int64_t>("s64"), ordered<float>("f32"), ordered<double>("f64");
    unsigned_names<uint16_t>("u16"), unsigned_names<uint32_t>("u32"), unsigned_names<uint64_t>("u64");
    ordered<uint16_t>("b16"), ordered<uint32_t>("b32"), ordered<uint64_t>("b64");
    ordered<Half>("f16"), ordered<Brain>("bf16");
    unordered<float>("f32"), unordered<double>("f64"), unordered<Half>("f16"), unordered<Brain>("bf16");
}

template <class T, class F>
void tested(const std::string& name, F) {
    add_operation("testp." + name, [](Warp& w, const Instruction& i, uint32_t mask) {
        const auto* a = w.in<T>(i.a);
        uint32_t found = 0;
        for (int lane = 0; lane < LANES; ++lane) found |= uint32_t(F()(std::fpclassify(from_bits<T>(a[lane])))) << lane;
        w.set_predicate(i.d, found, mask);
    });
}

template <class T>
void tests(const std::string& type) {
    tested<T>("finite." + type, [](int kind) { return kind != FP_NAN && kind != FP_INFINITE; });
    tested<T>("infinite." + type, [](int kind) { return kind == FP_INFINITE; });
    tested<T>("number." + type, [](int kind) { return kind != FP_NAN; });
    tested<T>("notanumber." + type, [](int kind) { return kind == FP_NAN; });
    tested<T>("normal." + type, [](int kind) { return kind == FP_NORMAL; });
    tested<T>("subnormal." + type, [](int kind) { return kind == FP_SUBNORMAL; });
}

}  // namespace

void add_floats() {
    tests<float>("f32"), tests<double>("f64");
    exact<float>("f32"), exact<double>("f64");
    flushing();
    approximate();
    comparisons();
}

}  // namespace counting
