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

// --- in another rounding than the nearest

#define DIRECTED(EXPRESSION)                                                      \
    [](Warp& w, const Instruction& i, uint32_t mask) {                            \
        std::fesetround(ROUNDING);                                                \
        SELDOM_TERNARY(T, T, T, T, one_nan<T>(EXPRESSION))(w, i, mask);           \
        std::fesetround(FE_TONEAREST);                                            \
    }

template <class T, int ROUNDING>
void directed(const char* rounding, const char* type) {
    add_operation({"add", rounding, type}, DIRECTED(a + b));
    add_operation({"sub", rounding, type}, DIRECTED(a - b));
    add_operation({"mul", rounding, type}, DIRECTED(a * b));
    add_operation({"div", rounding, type}, DIRECTED(a / b));
    add_operation({"fma", rounding, type}, DIRECTED(std::fma(a, b, c)));
    add_operation({"rcp", rounding, type}, DIRECTED(T(1) / a));
    add_operation({"sqrt", rounding, type}, DIRECTED(std::sqrt(a)));
}

template <int ROUNDING>
void directed_flushing(const char* rounding) {
    using T = float;
    add_operation({"add", rounding, "ftz.f32"}, DIRECTED(flushed(flushed(a) + flushed(b))));
    add_operation({"sub", rounding, "ftz.f32"}, DIRECTED(flushed(flushed(a) - flushed(b))));
    add_operation({"mul", rounding, "ftz.f32"}, DIRECTED(flushed(flushed(a) * flushed(b))));
    add_operation({"fma", rounding, "ftz.f32"}, DIRECTED(flushed(std::fma(flushed(a), flushed(b), flushed(c)))));
}

template <class T>
void exact(const char* type) {
    for (const char* rounding : {".", ".rn."}) {
        add_operation({"add", rounding, type}, BINARY(T, T, T, one_nan(a + b)));
        add_operation({"sub", rounding, type}, BINARY(T, T, T, one_nan(a - b)));
        add_operation({"mul", rounding, type}, BINARY(T, T, T, one_nan(a * b)));
    }
    for (const char* name : {"fma.rn.", "mad.", "mad.rn."})  // the second as ptxas takes it
        add_operation({name, type}, TERNARY(T, T, T, T, one_nan(std::fma(a, b, c))));
    add_operation({"div.rn.", type}, BINARY(T, T, T, one_nan(a / b)));
    add_operation({"rcp.rn.", type}, SELDOM_UNARY(T, T, one_nan(T(1) / a)));
    add_operation({"sqrt.rn.", type}, SELDOM_UNARY(T, T, one_nan(std::sqrt(a))));
    add_operation({"min.", type}, BINARY(T, T, T, least(a, b)));
    add_operation({"max.", type}, BINARY(T, T, T, most(a, b)));
    add_operation({"min.NaN.", type}, SELDOM_BINARY(T, T, T, a != a || b != b ? quiet<T>() : least(a, b)));
    add_operation({"max.NaN.", type}, SELDOM_BINARY(T, T, T, a != a || b != b ? quiet<T>() : most(a, b)));
    add_operation({"neg.", type}, UNARY(T, T, -a));
    add_operation({"abs.", type}, UNARY(T, T, std::fabs(a)));
    add_operation({"copysign.", type}, SELDOM_BINARY(T, T, T, std::copysign(b, a)));
    directed<T, FE_TOWARDZERO>(".rz.", type);
    directed<T, FE_DOWNWARD>(".rm.", type);
    directed<T, FE_UPWARD>(".rp.", type);
}

void flushing() {
    for (const char* rounding : {".", ".rn."}) {
        add_operation({"add", rounding, "ftz.f32"}, BINARY(float, float, float, flushed(one_nan(flushed(a) + flushed(b)))));
        add_operation({"sub", rounding, "ftz.f32"}, BINARY(float, float, float, flushed(one_nan(flushed(a) - flushed(b)))));
        add_operation({"mul", rounding, "ftz.f32"}, BINARY(float, float, float, flushed(one_nan(flushed(a) * flushed(b)))));
        add_operation({"add", rounding, "sat.f32"}, SELDOM_BINARY(float, float, float, saturated(a + b)));
        add_operation({"mul", rounding, "sat.f32"}, SELDOM_BINARY(float, float, float, saturated(a * b)));
    }
    directed_flushing<FE_TOWARDZERO>(".rz.");
    directed_flushing<FE_DOWNWARD>(".rm.");
    directed_flushing<FE_UPWARD>(".rp.");
    add_operation("fma.rn.sat.f32", SELDOM_TERNARY(float, float, float, float, saturated(std::fma(a, b, c))));
    add_operation("fma.rn.ftz.f32", TERNARY(float, float, float, float, flushed(one_nan(std::fma(flushed(a), flushed(b), flushed(c))))));
    add_operation("div.rn.ftz.f32", SELDOM_BINARY(float, float, float, flushed(one_nan(flushed(a) / flushed(b)))));
    add_operation("sqrt.rn.ftz.f32", SELDOM_UNARY(float, float, one_nan(std::sqrt(flushed(a)))));
    add_operation("rcp.rn.ftz.f32", SELDOM_UNARY(float, float, flushed(one_nan(1.0f / flushed(a)))));
    add_operation("min.ftz.f32", BINARY(float, float, float, least(flushed(a), flushed(b))));
    add_operation("max.ftz.f32", BINARY(float, float, float, most(flushed(a), flushed(b))));
    add_operation("neg.ftz.f32", UNARY(float, float, flushed(-a)));
    add_operation("abs.ftz.f32", UNARY(float, float, flushed(std::fabs(a))));
}

void approximate() {
    for (const char* flush : {".approx.f32", ".approx.ftz.f32", ".full.f32", ".full.ftz.f32"})
        add_operation({"div", flush}, SELDOM_BINARY(float, float, float, one_nan(a / b)));
    for (const char* flush : {".approx.f32", ".approx.ftz.f32"}) {
        add_operation({"rcp", flush}, SELDOM_UNARY(float, float, one_nan(1.0f / a)));
        add_operation({"sqrt", flush}, SELDOM_UNARY(float, float, one_nan(std::sqrt(a))));
        add_operation({"rsqrt", flush}, SELDOM_UNARY(float, float, one_nan(static_cast<float>(1.0 / std::sqrt(double(a))))));
        add_operation({"ex2", flush}, SELDOM_UNARY(float, float, one_nan(std::exp2(a))));
        add_operation({"lg2", flush}, SELDOM_UNARY(float, float, one_nan(std::log2(a))));
        add_operation({"sin", flush}, SELDOM_UNARY(float, float, one_nan(std::sin(a))));
        add_operation({"cos", flush}, SELDOM_UNARY(float, float, one_nan(std::cos(a))));
    }
    add_operation("tanh.approx.f32", SELDOM_UNARY(float, float, one_nan(std::tanh(a))));
    add_operation("rsqrt.approx.f64", SELDOM_UNARY(double, double, one_nan(1.0 / std::sqrt(a))));
    add_operation("rcp.approx.ftz.f64", SELDOM_UNARY(double, double, one_nan(1.0 / a)));
    add_operation("rsqrt.approx.ftz.f64", SELDOM_UNARY(double, double, one_nan(1.0 / std::sqrt(a))));
}

// --- comparisons ---

template <class T, class F>
void compared(Warp& w, const Instruction& i, uint32_t mask, F f) {
    const auto *a = w.in<T>(i.a), *b = w.in<T>(i.b);
    uint32_t found = 0;
    for (int lane = 0; lane < LANES; ++lane) found |= uint32_t(f(from_bits<T>(a[lane]), from_bits<T>(b[lane]))) << lane;
    w.set_predicate(i.d, found, mask);
}

template <class T>
[[gnu::noipa]] void compared_by_lane(Warp& w, const Instruction& i, uint32_t mask, bool (*f)(T, T)) {
    compared<T>(w, i, mask, f);
}

template <class T, class F>
void compare(const char* name, const char* type, F, const char* of_unsigned = nullptr) {
    const Operation found = [](Warp& w, const Instruction& i, uint32_t mask) {
        if constexpr (sizeof(T) == 2) compared_by_lane<T>(w, i, mask, F());
        else compared<T>(w, i, mask, F());
    };
    add_operation({"setp.", name, ".", type}, found);
    if (of_unsigned && *type == 'u') add_operation({"setp.", of_unsigned, ".", type}, found);
}

template <class T>
auto plain(T x) {
    if constexpr (std::is_arithmetic_v<T>) return x;
    else return x.value();
}

#define COMPARE(NAME, EXPRESSION, ...) \
    compare<T>(NAME, type, [](T x, T y) { const auto a = plain(x), b = plain(y); return bool(EXPRESSION); } __VA_OPT__(,) __VA_ARGS__)

template <class T>
void ordered(const char* type) {
    COMPARE("eq", a == b);
    COMPARE("ne", a != b && a == a && b == b);
    COMPARE("lt", a < b, "lo");
    COMPARE("le", a <= b, "ls");
    COMPARE("gt", a > b, "hi");
    COMPARE("ge", a >= b, "hs");
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
    ordered<uint16_t>("b16"), ordered<uint32_t>("b32"), ordered<uint64_t>("b64");
    ordered<Half>("f16"), ordered<Brain>("bf16");
    unordered<float>("f32"), unordered<double>("f64"), unordered<Half>("f16"), unordered<Brain>("bf16");
}

template <class T, class F>
void tested(const char* name, const char* type, F) {
    add_operation({"testp.", name, type}, [](Warp& w, const Instruction& i, uint32_t mask) {
        const auto* a = w.in<T>(i.a);
        uint32_t found = 0;
        for (int lane = 0; lane < LANES; ++lane) found |= uint32_t(F()(std::fpclassify(from_bits<T>(a[lane])))) << lane;
        w.set_predicate(i.d, found, mask);
    });
}

template <class T>
void tests(const char* type) {
    tested<T>("finite.", type, [](int kind) { return kind != FP_NAN && kind != FP_INFINITE; });
    tested<T>("infinite.", type, [](int kind) { return kind == FP_INFINITE; });
    tested<T>("number.", type, [](int kind) { return kind != FP_NAN; });
    tested<T>("notanumber.", type, [](int kind) { return kind == FP_NAN; });
    tested<T>("normal.", type, [](int kind) { return kind == FP_NORMAL; });
    tested<T>("subnormal.", type, [](int kind) { return kind == FP_SUBNORMAL; });
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
