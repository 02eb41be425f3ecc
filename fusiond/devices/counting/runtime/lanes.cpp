// What the lanes of a warp do together: shuffles, votes, matches, reductions.
#include <algorithm>
#include <cmath>
#include <limits>

#include "launch.h"

namespace counting {
namespace {

template <int MODE>  // 0 idx, 1 up, 2 down, 3 bfly
void shuffle(Warp& w, const Instruction& i, uint32_t mask) {
    const auto *a = w.in<uint32_t>(i.a), *b = w.in<uint32_t>(i.b), *c = w.in<uint32_t>(i.c), *e = w.in<uint32_t>(i.e);
    uint32_t values[LANES] = {}, inside = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        together(w, mask, e[lane]);
        const int by = b[lane] & 31, clamp = c[lane] & 31, segment = c[lane] >> 8 & 31;
        const int top = (lane & segment) | (clamp & ~segment), bottom = lane & segment;
        int from;
        bool good;
        if (MODE == 1) from = lane - by, good = from >= top;
        else if (MODE == 2) from = lane + by, good = from <= top;
        else if (MODE == 3) from = lane ^ by, good = from <= top;
        else from = bottom | (by & ~segment), good = from <= top;
        if (!good) from = lane;
        values[lane] = a[from];
        inside |= uint32_t(good) << lane;
    }
    keep(w.out<uint32_t>(i.d), values, mask);
    if (i.target >= 0) w.set_predicate(i.target, inside, mask);
}

template <int MODE>  // 0 ballot, 1 any, 2 all, 3 uni
void vote(Warp& w, const Instruction& i, uint32_t mask) {
    const uint32_t named = w.in<uint32_t>(i.b)[__builtin_ctz(mask)];
    together(w, mask, named);
    const uint32_t here = mask & named, yes = w.predicate(i.a) & here;
    if (MODE == 0) {
        uint32_t values[LANES];
        std::fill(values, values + LANES, yes);
        keep(w.out<uint32_t>(i.d), values, mask);
    } else {
        const bool found = MODE == 1 ? yes != 0 : MODE == 2 ? yes == here : yes == here || yes == 0;
        w.set_predicate(i.d, found ? ALL : 0, mask);
    }
}

template <class T>
void match_any(Warp& w, const Instruction& i, uint32_t mask) {
    const auto* a = w.in<T>(i.a);
    const auto* named = w.in<uint32_t>(i.b);
    uint32_t values[LANES] = {};
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        together(w, mask, named[lane]);
        for (int other = 0; other < LANES; ++other)
            values[lane] |= uint32_t((mask & named[lane]) >> other & 1 && a[other] == a[lane]) << other;
    }
    keep(w.out<uint32_t>(i.d), values, mask);
}

// All lanes that are named hold the same: which these are, else none.
template <class T>
void match_all(Warp& w, const Instruction& i, uint32_t mask) {
    const auto* a = w.in<T>(i.a);
    const uint32_t named = w.in<uint32_t>(i.b)[__builtin_ctz(mask)], here = mask & named;
    together(w, mask, named);
    bool same = true;
    for (uint32_t rest = here; rest; rest &= rest - 1) same &= a[__builtin_ctz(rest)] == a[__builtin_ctz(here)];
    uint32_t values[LANES];
    std::fill(values, values + LANES, same ? here : 0);
    keep(w.out<uint32_t>(i.d), values, mask);
    if (i.target >= 0) w.set_predicate(i.target, same ? ALL : 0, mask);
}

// The least or the largest float of the lanes that are named; NaN only if all are, or if one is (NANS).
template <bool LEAST, bool ABSOLUTE, bool NANS>
void extreme(Warp& w, const Instruction& i, uint32_t mask) {
    const auto *a = w.in<uint32_t>(i.a), *named = w.in<uint32_t>(i.b);
    uint32_t values[LANES] = {};
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        together(w, mask, named[lane]);
        float found = std::numeric_limits<float>::quiet_NaN();
        bool none = false;
        for (uint32_t others = mask & named[lane]; others; others &= others - 1) {
            float x = std::bit_cast<float>(a[__builtin_ctz(others)]);
            if (ABSOLUTE) x = std::fabs(x);
            if (x != x) none = true;
            else if (found != found || (LEAST ? x < found || (x == found && std::signbit(x)) : x > found || (x == found && !std::signbit(x)))) found = x;
        }
        values[lane] = (NANS && none) || found != found ? 0x7fffffffu : std::bit_cast<uint32_t>(found);
    }
    keep(w.out<uint32_t>(i.d), values, mask);
}

template <class T, class F>
void reduce(Warp& w, const Instruction& i, uint32_t mask, F join) {
    const auto *a = w.in<T>(i.a), *named = w.in<uint32_t>(i.b);
    uint32_t values[LANES] = {};
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        together(w, mask, named[lane]);
        T found = static_cast<T>(a[lane]);
        for (uint32_t others = mask & named[lane] & ~(1u << lane); others; others &= others - 1)
            found = join(found, static_cast<T>(a[__builtin_ctz(others)]));
        values[lane] = static_cast<uint32_t>(found);
    }
    keep(w.out<uint32_t>(i.d), values, mask);
}

#define REDUCE(NAME, T, EXPRESSION)                                                     \
    add_operation("redux.sync." NAME, [](Warp& w, const Instruction& i, uint32_t mask) { \
        reduce<T>(w, i, mask, [](T a, T b) -> T { return EXPRESSION; });                \
    })

}  // namespace

void add_warp() {
    add_operation("shfl.sync.idx.b32", shuffle<0>);
    add_operation("shfl.sync.up.b32", shuffle<1>);
    add_operation("shfl.sync.down.b32", shuffle<2>);
    add_operation("shfl.sync.bfly.b32", shuffle<3>);
    add_operation("vote.ballot.sync.b32", vote<0>);  // both orders are written
    add_operation("vote.sync.ballot.b32", vote<0>);
    add_operation("vote.sync.any.pred", vote<1>);
    add_operation("vote.sync.all.pred", vote<2>);
    add_operation("vote.sync.uni.pred", vote<3>);
    add_operation("match.all.sync.b32", match_all<uint32_t>);
    add_operation("match.all.sync.b64", match_all<uint64_t>);
    add_operation("elect.sync", [](Warp& w, const Instruction& i, uint32_t mask) {
        const uint32_t named = w.in<uint32_t>(i.a)[__builtin_ctz(mask)];
        together(w, mask, named);
        uint32_t values[LANES];
        std::fill(values, values + LANES, __builtin_ctz(mask & named ? mask & named : mask));
        keep(w.out<uint32_t>(i.d), values, mask);
        if (i.target >= 0) w.set_predicate(i.target, 1u << values[0], mask);
    });
    add_operation("redux.sync.min.f32", extreme<true, false, false>), add_operation("redux.sync.max.f32", extreme<false, false, false>);
    add_operation("redux.sync.min.NaN.f32", extreme<true, false, true>), add_operation("redux.sync.max.NaN.f32", extreme<false, false, true>);
    add_operation("redux.sync.min.abs.f32", extreme<true, true, false>), add_operation("redux.sync.max.abs.f32", extreme<false, true, false>);
    add_operation("redux.sync.min.abs.NaN.f32", extreme<true, true, true>), add_operation("redux.sync.max.abs.NaN.f32", extreme<false, true, true>);
    add_operation("match.any.sync.b32", match_any<uint32_t>);
    add_operation("match.any.sync.b64", match_any<uint64_t>);
    REDUCE("add.u32", uint32_t, a + b);
    REDUCE("add.s32", uint32_t, a + b);
    REDUCE("min.u32", uint32_t, std::min(a, b));
    REDUCE("min.s32", int32_t, std::min(a, b));
    REDUCE("max.u32", uint32_t, std::max(a, b));
    REDUCE("max.s32", int32_t, std::max(a, b));
    REDUCE("and.b32", uint32_t, a & b);
    REDUCE("or.b32", uint32_t, a | b);
    REDUCE("xor.b32", uint32_t, a ^ b);
    add_operation("activemask.b32", [](Warp& w, const Instruction& i, uint32_t mask) {
        uint32_t values[LANES];
        std::fill(values, values + LANES, mask);
        keep(w.out<uint32_t>(i.d), values, mask);
    });
    add_operation("bar.warp.sync", [](Warp& w, const Instruction& i, uint32_t mask) {
        together(w, mask, w.in<uint32_t>(i.a)[__builtin_ctz(mask)]);
    });
    add_operation("nop", [](Warp&, const Instruction&, uint32_t) {});
    add_operation("trap", [](Warp&, const Instruction&, uint32_t) { fail("trap"); });
    add_operation("trap.call", [](Warp&, const Instruction&, uint32_t) { fail("a call of what is no function here, or calls itself"); });
}

}  // namespace counting
