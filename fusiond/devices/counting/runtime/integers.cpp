// Integer and bit operations.
#include <algorithm>

#include "warp.h"

namespace counting {
namespace {

using u16 = uint16_t;
using s16 = int16_t;
using u32 = uint32_t;
using s32 = int32_t;
using u64 = uint64_t;
using s64 = int64_t;
using u128 = unsigned __int128;
using s128 = __int128;

template <class T>
constexpr int BITS = 8 * sizeof(T);

template <class T>
using Wide = std::conditional_t<
    sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, s128, u128>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, s64, u64>,
                       std::conditional_t<std::is_signed_v<T>, s32, u32>>>;

template <class T>
T divide(T a, T b) {
    if (b == 0) return static_cast<T>(-1);  // unspecified in PTX
    if constexpr (std::is_signed_v<T>)
        if (b == -1) return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a));
    return a / b;
}

template <class T>
T remainder(T a, T b) {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<T>)
        if (b == -1) return 0;
    return a % b;
}

template <class T>
T extract(T a, u32 position, u32 length) {
    const u32 at = position & 0xff, count = length & 0xff;
    T bits = 0;
    u32 top = std::min<u32>(at + count - 1, BITS<T> - 1);
    const auto plain = static_cast<std::make_unsigned_t<T>>(a);
    const bool sign = std::is_signed_v<T> && count != 0 && (plain >> top & 1);
    for (u32 k = 0; k < static_cast<u32>(BITS<T>); ++k) {
        const bool bit = k < count && at + k < static_cast<u32>(BITS<T>) ? (plain >> (at + k) & 1) : sign;
        bits |= static_cast<T>(static_cast<std::make_unsigned_t<T>>(bit) << k);
    }
    return bits;
}

template <class T>
T insert(T field, T into, u32 position, u32 length) {
    const u32 at = position & 0xff, count = std::min<u32>(length & 0xff, BITS<T>);
    if (at >= static_cast<u32>(BITS<T>) || count == 0) return into;
    const T ones = count == static_cast<u32>(BITS<T>) ? ~T(0) : (T(1) << count) - 1;
    return (into & ~(ones << at)) | ((field & ones) << at);
}

u32 permute(u32 a, u32 b, u32 how) {
    const u64 both = static_cast<u64>(b) << 32 | a;
    u32 found = 0;
    for (int k = 0; k < 4; ++k) {
        const u32 selector = how >> (4 * k) & 0xf;
        u32 byte = both >> (8 * (selector & 7)) & 0xff;
        if (selector & 8) byte = byte & 0x80 ? 0xff : 0;
        found |= byte << (8 * k);
    }
    return found;
}

s64 low24(s32 a) { return static_cast<s32>(static_cast<u32>(a) << 8) >> 8; }
u64 low24(u32 a) { return a & 0xffffff; }

u32 field(u32 at, u32 length) { return static_cast<u32>(((u64(1) << length) - 1) << at); }

template <class T>
T reverse(T a) {
    T found = 0;
    for (int k = 0; k < BITS<T>; ++k) found = static_cast<T>(found << 1 | (a >> k & 1));
    return found;
}

template <class T>
void arithmetic(const char* type) {
    using U = std::make_unsigned_t<T>;
    add_operation({"add.", type}, BINARY(U, U, U, a + b));
    add_operation({"sub.", type}, BINARY(U, U, U, a - b));
    add_operation({"mul.lo.", type}, BINARY(U, U, U, static_cast<u64>(a) * b));
    add_operation({"mul.hi.", type}, SELDOM_BINARY(T, T, T, (static_cast<Wide<T>>(a) * b) >> BITS<T>));
    add_operation({"mad.lo.", type}, TERNARY(U, U, U, U, static_cast<u64>(a) * b + c));
    add_operation({"mad.hi.", type}, SELDOM_TERNARY(U, T, T, U, static_cast<U>((static_cast<Wide<T>>(a) * b) >> BITS<T>) + c));
    add_operation({"div.", type}, SELDOM_BINARY(T, T, T, divide<T>(a, b)));
    add_operation({"rem.", type}, SELDOM_BINARY(T, T, T, remainder<T>(a, b)));
    add_operation({"min.", type}, BINARY(T, T, T, std::min(a, b)));
    add_operation({"max.", type}, BINARY(T, T, T, std::max(a, b)));
    add_operation({"sad.", type}, SELDOM_TERNARY(U, T, T, U, c + (a < b ? U(b) - U(a) : U(a) - U(b))));
    add_operation({"shr.", type}, BINARY(T, T, u32, b >= u32(BITS<T>) ? (a < 0 ? T(-1) : T(0)) : T(a >> b)));
    if constexpr (sizeof(T) < 8) {
        add_operation({"mul.wide.", type}, BINARY(Wide<T>, T, T, static_cast<Wide<T>>(a) * b));
        add_operation({"mad.wide.", type}, TERNARY(Wide<T>, T, T, Wide<T>, static_cast<std::make_unsigned_t<Wide<T>>>(static_cast<Wide<T>>(a) * b) + c));
    }
    if constexpr (std::is_signed_v<T>) {
        add_operation({"neg.", type}, UNARY(U, U, 0 - a));
        add_operation({"abs.", type}, UNARY(U, T, a < 0 ? 0 - U(a) : U(a)));
    }
    if constexpr (sizeof(T) >= 4) add_operation({"bfe.", type}, SELDOM_TERNARY(T, T, u32, u32, extract<T>(a, b, c)));
}

template <class T>
void bits(const char* type) {
    add_operation({"and.", type}, BINARY(T, T, T, a & b));
    add_operation({"or.", type}, BINARY(T, T, T, a | b));
    add_operation({"xor.", type}, BINARY(T, T, T, a ^ b));
    add_operation({"not.", type}, UNARY(T, T, ~a));
    add_operation({"cnot.", type}, SELDOM_UNARY(T, T, a == 0 ? 1 : 0));
    add_operation({"shl.", type}, BINARY(T, T, u32, b >= u32(BITS<T>) ? T(0) : T(a << b)));
    add_operation({"shr.", type}, BINARY(T, T, u32, b >= u32(BITS<T>) ? T(0) : T(a >> b)));
    if constexpr (sizeof(T) >= 4) {
        add_operation({"popc.", type}, SELDOM_UNARY(u32, T, __builtin_popcountll(a)));
        add_operation({"clz.", type}, SELDOM_UNARY(u32, T, a == 0 ? BITS<T> : __builtin_clzll(a) - (64 - BITS<T>)));
        add_operation({"brev.", type}, SELDOM_UNARY(T, T, reverse<T>(a)));
        add_operation({"bfi.", type}, [](Warp& w, const Instruction& i, uint32_t mask) {
            const auto* e = w.in<u32>(i.e);
            const auto* a = w.in<T>(i.a);
            const auto* b = w.in<T>(i.b);
            const auto* c = w.in<u32>(i.c);
            Stored<T> values[LANES];
            for (int lane = 0; lane < LANES; ++lane) values[lane] = insert<T>(a[lane], b[lane], c[lane], e[lane]);
            keep(w.out<T>(i.d), values, mask);
        });
    }
}

template <class T>
void moves(const char* type) {
    add_operation({"mov.", type}, UNARY(T, T, a));
    add_operation({"selp.", type}, [](Warp& w, const Instruction& i, uint32_t mask) {
        const auto* a = w.in<T>(i.a);
        const auto* b = w.in<T>(i.b);
        const uint32_t chosen = w.predicate(i.c);
        Stored<T> values[LANES];
        for (int lane = 0; lane < LANES; ++lane) values[lane] = (chosen >> lane & 1) ? a[lane] : b[lane];
        keep(w.out<T>(i.d), values, mask);
    });
}

template <class T>
int leading(T a) {
    using U = std::make_unsigned_t<T>;
    const U plain = std::is_signed_v<T> && a < 0 ? ~static_cast<U>(a) : static_cast<U>(a);
    return plain == 0 ? -1 : 63 - __builtin_clzll(plain);
}

void predicates() {
    const auto combine = [](const char* name, Operation operation) { add_operation(name, operation); };
    combine("and.pred", [](Warp& w, const Instruction& i, uint32_t mask) {
        w.set_predicate(i.d, w.predicate(i.a) & w.predicate(i.b), mask);
    });
    combine("or.pred", [](Warp& w, const Instruction& i, uint32_t mask) {
        w.set_predicate(i.d, w.predicate(i.a) | w.predicate(i.b), mask);
    });
    combine("xor.pred", [](Warp& w, const Instruction& i, uint32_t mask) {
        w.set_predicate(i.d, w.predicate(i.a) ^ w.predicate(i.b), mask);
    });
    combine("not.pred", [](Warp& w, const Instruction& i, uint32_t mask) {
        w.set_predicate(i.d, ~w.predicate(i.a), mask);
    });
    combine("mov.pred", [](Warp& w, const Instruction& i, uint32_t mask) {
        w.set_predicate(i.d, w.predicate(i.a), mask);
    });
}

}  // namespace

void add_integers() {
    arithmetic<u16>("u16"), arithmetic<s16>("s16"), arithmetic<u32>("u32"), arithmetic<s32>("s32");
    arithmetic<u64>("u64"), arithmetic<s64>("s64");
    bits<u16>("b16"), bits<u32>("b32"), bits<u64>("b64");
    for (const char* type : {"b16", "u16", "s16", "f16", "bf16"}) moves<u16>(type);
    for (const char* type : {"b32", "u32", "s32", "f32"}) moves<u32>(type);
    for (const char* type : {"b64", "u64", "s64", "f64"}) moves<u64>(type);
    predicates();
    // Of the lower 24 bits: the lower or the upper 32 of a product of 48.
    add_operation("mul24.lo.s32", SELDOM_BINARY(s32, s32, s32, low24(a) * low24(b)));
    add_operation("mul24.hi.s32", SELDOM_BINARY(s32, s32, s32, low24(a) * low24(b) >> 16));
    add_operation("mul24.lo.u32", SELDOM_BINARY(u32, u32, u32, low24(a) * low24(b)));
    add_operation("mul24.hi.u32", SELDOM_BINARY(u32, u32, u32, low24(a) * low24(b) >> 16));
    add_operation("mad24.lo.s32", SELDOM_TERNARY(s32, s32, s32, s32, low24(a) * low24(b) + c));
    add_operation("mad24.lo.u32", SELDOM_TERNARY(u32, u32, u32, u32, low24(a) * low24(b) + c));
    add_operation("prmt.b32", SELDOM_TERNARY(u32, u32, u32, u32, permute(a, b, c)));
    add_operation("shf.l.wrap.b32", TERNARY(u32, u32, u32, u32, (((u64(b) << 32 | a) << (c & 31)) >> 32)));
    add_operation("shf.r.wrap.b32", TERNARY(u32, u32, u32, u32, ((u64(b) << 32 | a) >> (c & 31))));
    add_operation("shf.l.clamp.b32", TERNARY(u32, u32, u32, u32, (((u64(b) << 32 | a) << std::min(c, 32u)) >> 32)));
    add_operation("shf.r.clamp.b32", TERNARY(u32, u32, u32, u32, ((u64(b) << 32 | a) >> std::min(c, 32u))));
    const auto find = []<class T>(const char* type, T*) {
        add_operation({"bfind.", type}, SELDOM_UNARY(u32, T, leading<T>(a)));
        add_operation({"bfind.shiftamt.", type}, SELDOM_UNARY(u32, T, leading<T>(a) < 0 ? -1 : BITS<T> - 1 - leading<T>(a)));
    };
    find("u32", static_cast<u32*>(nullptr)), find("s32", static_cast<s32*>(nullptr));
    find("u64", static_cast<u64*>(nullptr)), find("s64", static_cast<s64*>(nullptr));
    add_operation("lop3.b32", [](Warp& w, const Instruction& i, uint32_t mask) {
        const auto *a = w.in<u32>(i.a), *b = w.in<u32>(i.b), *c = w.in<u32>(i.c), *e = w.in<u32>(i.e);
        u32 values[LANES] = {};
        for (int lane = 0; lane < LANES; ++lane)
            for (int k = 0; k < 8; ++k)
                if (e[lane] >> k & 1)
                    values[lane] |= (k & 4 ? a[lane] : ~a[lane]) & (k & 2 ? b[lane] : ~b[lane]) & (k & 1 ? c[lane] : ~c[lane]);
        keep(w.out<u32>(i.d), values, mask);
    });
    // A field of ones; a number cut to some bits and filled up.
    for (const bool wrap : {false, true}) {
        const char* of = wrap ? ".wrap." : ".clamp.";
        add_operation({"bmsk", of, "b32"}, wrap ? Operation(SELDOM_BINARY(u32, u32, u32, field(a & 31, b & 31))) : Operation(SELDOM_BINARY(u32, u32, u32, field(std::min(a, 32u), std::min(b, 32u)))));
        add_operation({"szext", of, "u32"}, wrap ? Operation(SELDOM_BINARY(u32, u32, u32, extract<u32>(a, 0, b & 31))) : Operation(SELDOM_BINARY(u32, u32, u32, extract<u32>(a, 0, std::min(b, 32u)))));
        add_operation({"szext", of, "s32"}, wrap ? Operation(SELDOM_BINARY(s32, s32, u32, extract<s32>(a, 0, b & 31))) : Operation(SELDOM_BINARY(s32, s32, u32, extract<s32>(a, 0, std::min(b, 32u)))));
    }
    // Vectors of registers to one and back: `mov.b64 %rd1, {%r1, %r2}`.
    add_operation("pack.b32", BINARY(u32, u16, u16, u32(b) << 16 | a));
    add_operation("pack.b64", BINARY(u64, u32, u32, u64(b) << 32 | a));
    add_operation("low.b32", UNARY(u16, u32, a));
    add_operation("high.b32", UNARY(u16, u32, a >> 16));
    add_operation("low.b64", UNARY(u32, u64, a));
    add_operation("high.b64", UNARY(u32, u64, a >> 32));
}

}  // namespace counting
