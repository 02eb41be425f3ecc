// Loads, stores and atomic operations.
#include <algorithm>

#include "launch.h"
#include "narrow.h"

namespace counting {
namespace {

// The elements' size is known where the loops are compiled: a copy of so many bytes as a variable says costs ten times as
// much.
template <class T, class R>
void load_lanes(Warp& w, const Instruction& i, uint32_t mask, uint8_t* const (&host)[LANES]) {
    for (int k = 0; k < i.elements; ++k) {
        R* const to = w.out<R>(i.vector[k]);
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            T value;
            std::memcpy(&value, host[lane] + k * sizeof(T), sizeof(T));
            to[lane] = static_cast<R>(value);
        }
    }
}

template <class T, class R>
void store_lanes(Warp& w, const Instruction& i, uint32_t mask, uint8_t* const (&host)[LANES]) {
    for (int k = 0; k < i.elements; ++k) {
        const R* const from = w.in<R>(i.vector[k]);
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            const T value = static_cast<T>(from[lane]);
            std::memcpy(host[lane] + k * sizeof(T), &value, sizeof(T));
        }
    }
}

void load(Warp& w, const Instruction& i, uint32_t mask) {
    uint8_t* host[LANES];
    locate(w, i, mask, READ, host);
    const bool sign = i.flags & 1, wide = i.flags & 2;
    const auto as = [&]<class T>(T) {
        using Signed = std::make_signed_t<T>;
        if (sign) wide ? load_lanes<Signed, uint64_t>(w, i, mask, host) : load_lanes<Signed, uint32_t>(w, i, mask, host);
        else wide ? load_lanes<T, uint64_t>(w, i, mask, host) : load_lanes<T, uint32_t>(w, i, mask, host);
    };
    switch (i.bytes) {
        case 1: return as(uint8_t());
        case 2: return as(uint16_t());
        case 4: return as(uint32_t());
        default: return as(uint64_t());
    }
}

void store(Warp& w, const Instruction& i, uint32_t mask) {
    uint8_t* host[LANES];
    locate(w, i, mask, WRITE, host);
    ++w.launch->events;
    const auto as = [&]<class T>(T) {
        if (i.flags & 2) store_lanes<T, uint64_t>(w, i, mask, host);
        else store_lanes<T, uint32_t>(w, i, mask, host);
    };
    switch (i.bytes) {
        case 1: return as(uint8_t());
        case 2: return as(uint16_t());
        case 4: return as(uint32_t());
        default: return as(uint64_t());
    }
}

// The whole number of a type's size, by which the host changes it at once: other threads may run other blocks.
template <class T>
using Word = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

template <class T>
T value(Word<T> held) {
    T found;
    std::memcpy(&found, &held, sizeof found);
    return found;
}

template <class T>
Word<T> word(T given) {
    Word<T> found;
    std::memcpy(&found, &given, sizeof found);
    return found;
}

// Lane after lane, from the lowest: an order that the GPU may take as well.
template <class T, class F>
void atomic(Warp& w, const Instruction& i, uint32_t mask, F change) {
    uint8_t* host[LANES];
    locate(w, i, mask, ATOMIC, host);
    ++w.launch->events;
    const auto *b = w.in<T>(i.b), *c = w.in<T>(i.c);
    auto* d = w.out<T>(i.d);
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        auto* place = reinterpret_cast<Word<T>*>(host[lane]);  // which is aligned
        Word<T> held = __atomic_load_n(place, __ATOMIC_RELAXED), made;
        do made = word<T>(change(value<T>(held), from_bits<T>(b[lane]), from_bits<T>(c[lane])));
        while (!__atomic_compare_exchange_n(place, &held, made, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
        d[lane] = to_bits<T>(value<T>(held));
    }
}

#define ATOMIC(NAME, T, EXPRESSION)                                                                            \
    add_operation("atom." NAME, [](Warp& w, const Instruction& i, uint32_t mask) {                             \
        atomic<T>(w, i, mask, []([[maybe_unused]] T a, T b, [[maybe_unused]] T c) -> T { return static_cast<T>(EXPRESSION); }); \
    })

template <class H>
struct Two {
    H low, high;
};
using Halves = Two<Half>;
using Brains = Two<Brain>;

}  // namespace

void add_memory() {
    add_operation("ld", load);
    add_operation("st", store);
    ATOMIC("add.u32", uint32_t, a + b);
    ATOMIC("add.s32", uint32_t, a + b);
    ATOMIC("add.u64", uint64_t, a + b);
    ATOMIC("add.f32", float, a + b);
    ATOMIC("add.f64", double, a + b);
    ATOMIC("add.noftz.f16", Half, Half::nearest(a.value() + b.value()));
    ATOMIC("add.noftz.bf16", Brain, Brain::nearest(a.value() + b.value()));
    ATOMIC("add.noftz.f16x2", Halves, (Halves{Half::nearest(a.low.value() + b.low.value()), Half::nearest(a.high.value() + b.high.value())}));
    ATOMIC("add.noftz.bf16x2", Brains, (Brains{Brain::nearest(a.low.value() + b.low.value()), Brain::nearest(a.high.value() + b.high.value())}));
    ATOMIC("min.u32", uint32_t, std::min(a, b));
    ATOMIC("min.s32", int32_t, std::min(a, b));
    ATOMIC("min.u64", uint64_t, std::min(a, b));
    ATOMIC("min.s64", int64_t, std::min(a, b));
    ATOMIC("max.u32", uint32_t, std::max(a, b));
    ATOMIC("max.s32", int32_t, std::max(a, b));
    ATOMIC("max.u64", uint64_t, std::max(a, b));
    ATOMIC("max.s64", int64_t, std::max(a, b));
    ATOMIC("and.b32", uint32_t, a & b);
    ATOMIC("or.b32", uint32_t, a | b);
    ATOMIC("xor.b32", uint32_t, a ^ b);
    ATOMIC("and.b64", uint64_t, a & b);
    ATOMIC("or.b64", uint64_t, a | b);
    ATOMIC("xor.b64", uint64_t, a ^ b);
    ATOMIC("exch.b32", uint32_t, b);
    ATOMIC("exch.b64", uint64_t, b);
    ATOMIC("cas.b16", uint16_t, a == b ? c : a);
    ATOMIC("cas.b32", uint32_t, a == b ? c : a);
    ATOMIC("cas.b64", uint64_t, a == b ? c : a);
    ATOMIC("inc.u32", uint32_t, a >= b ? 0 : a + 1);
    ATOMIC("dec.u32", uint32_t, a == 0 || a > b ? b : a - 1);
    // Addresses of one space as generic ones, and back. Generic ones are the host's.
    add_operation("cvta.shared", [](Warp& w, const Instruction& i, uint32_t mask) {
        unary<uint64_t, uint64_t>(w, i, mask, [&w](uint64_t a) {
            const Block& block = owner(w, a);
            return a + reinterpret_cast<uint64_t>(block.shared);
        });
    });
    add_operation("cvta.to.shared", [](Warp& w, const Instruction& i, uint32_t mask) {
        const auto base = reinterpret_cast<uint64_t>(w.block->shared);
        unary<uint64_t, uint64_t>(w, i, mask, [&w, base](uint64_t a) {
            const uint64_t there = a;
            return w.block->cluster->blocks.size() > 1 && space_of(w, 0, a) == SHARED ? a : there - base;
        });
    });
    const auto by_lane = [](const char* name, Operation operation) { add_operation(name, operation); };
    by_lane("cvta.local", [](Warp& w, const Instruction& i, uint32_t mask) {
        const auto* a = w.in<uint64_t>(i.a);
        uint64_t values[LANES];
        for (int lane = 0; lane < LANES; ++lane)
            values[lane] = a[lane] + reinterpret_cast<uint64_t>(w.local) + uint64_t(lane) * w.launch->request.local_bytes;
        keep(w.out<uint64_t>(i.d), values, mask);
    });
    by_lane("cvta.to.local", [](Warp& w, const Instruction& i, uint32_t mask) {
        const auto* a = w.in<uint64_t>(i.a);
        uint64_t values[LANES];
        for (int lane = 0; lane < LANES; ++lane)
            values[lane] = a[lane] - reinterpret_cast<uint64_t>(w.local) - uint64_t(lane) * w.launch->request.local_bytes;
        keep(w.out<uint64_t>(i.d), values, mask);
    });
    for (const char* space : {"const", "param"}) {
        const bool constant = space[0] == 'c';
        add_operation({"cvta.", space}, constant ? [](Warp& w, const Instruction& i, uint32_t mask) {
            const auto base = reinterpret_cast<uint64_t>(w.launch->request.constant_bank);
            unary<uint64_t, uint64_t>(w, i, mask, [base](uint64_t a) { return a + base; });
        } : Operation([](Warp& w, const Instruction& i, uint32_t mask) {
            const auto base = reinterpret_cast<uint64_t>(w.launch->request.parameters);
            unary<uint64_t, uint64_t>(w, i, mask, [base](uint64_t a) { return a + base; });
        }));
    }
}

}  // namespace counting
