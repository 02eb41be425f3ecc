// A warp: 32 lanes as arrays, a mask of those that are active, and a stack of those that wait to join them. Lanes that
// wait at a barrier while others of their warp go on are a strand of their own: a Warp over the same registers.
#pragma once

#include <bit>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include "abi.h"

namespace counting {

constexpr int LANES = 32;
constexpr uint32_t ALL = 0xffffffffu;

struct Launch;
struct Block;

struct Path {
    int32_t pc;
    int32_t until;  // where these lanes meet the entry below; -1: nowhere
    uint32_t mask;
    int64_t id;    // the same in the strands of a warp that share it
    bool meeting;  // where the lanes of one branch meet again, not lanes that wait for their turn
};

// WAITING: at a barrier. JOINING: where the lanes of other strands of the warp are to meet these, and are on their way.
// MEETING: before an instruction that lanes of other strands must execute together with these. ASLEEP: before one that
// waits for what other warps, or other lanes of this one, have yet to do; it sets this state itself.
enum class State : uint8_t { READY, WAITING, JOINING, MEETING, ASLEEP, DONE };

// Registers of up to 32 bits are kept in 32, predicates as one mask.
template <class T>
using Stored = std::conditional_t<sizeof(T) <= 4, uint32_t, uint64_t>;

struct Warp {
    uint8_t* registers;
    const uint8_t* constants;
    Block* block;
    Launch* launch;
    uint8_t* local;
    int32_t pc;
    uint32_t active;  // of the path on top
    uint32_t live;    // have not ended
    uint32_t others;  // of the warp's other strands, those that have not ended
    int32_t until;
    int32_t index;  // in its block
    State state;
    uint8_t barrier;  // while it waits
    std::vector<Path> below;
    bool gave_way;  // at a barrier, to lanes that have not ended since
    bool refused;      // nobody else can go on: what waits is to say that it has waited in vain
    uint32_t stalled;  // paths of it that wait, one after the other
    uint64_t phases, events;  // of the cluster when it fell asleep, of the launch when it was refused last
    uint32_t cluster_phase;   // when it arrived

    const uint8_t* source(int32_t offset) const { return offset >= 0 ? registers + offset : constants + ~offset; }

    template <class T>
    const Stored<T>* in(int32_t offset) const {
        return reinterpret_cast<const Stored<T>*>(source(offset));
    }

    template <class T>
    Stored<T>* out(int32_t offset) {
        return reinterpret_cast<Stored<T>*>(registers + offset);
    }

    uint32_t predicate(int32_t offset) const { return *reinterpret_cast<const uint32_t*>(source(offset)); }

    void set_predicate(int32_t offset, uint32_t value, uint32_t mask) {
        auto* at = reinterpret_cast<uint32_t*>(registers + offset);
        *at = (*at & ~mask) | (value & mask);
    }
};

template <class T>
inline T from_bits(Stored<T> bits) {
    if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(bits);
    } else if constexpr (sizeof(T) < sizeof(Stored<T>)) {
        T value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    } else {
        return std::bit_cast<T>(bits);
    }
}

template <class T>
inline Stored<T> to_bits(T value) {
    if constexpr (std::is_integral_v<T>) {
        return static_cast<Stored<T>>(static_cast<std::make_unsigned_t<T>>(value));
    } else if constexpr (sizeof(T) < sizeof(Stored<T>)) {
        Stored<T> bits = 0;
        std::memcpy(&bits, &value, sizeof value);
        return bits;
    } else {
        return std::bit_cast<Stored<T>>(value);
    }
}

template <class S>
[[gnu::noinline]] void keep_some(S* target, const S* values, uint32_t mask) {
    for (int lane = 0; lane < LANES; ++lane) target[lane] = (mask >> lane & 1) ? values[lane] : target[lane];
}

// The lanes of `mask` take what was computed for all of them.
template <class S>
inline void keep(S* target, const S* values, uint32_t mask) {
    if (mask == ALL) std::memcpy(target, values, LANES * sizeof(S));
    else keep_some(target, values, mask);
}

// One loop for all that is seldom executed, or takes long for a lane: it calls `f`. A loop for each operation took most of the
// time until a first launch ran, that of a compiler.
template <class D, class A, class B, class C>
[[gnu::noipa]] void by_lane(Warp& w, const Instruction& i, uint32_t mask, D (*f)(A, B, C)) {
    const auto* a = reinterpret_cast<const A*>(w.source(i.a));
    const auto* b = reinterpret_cast<const B*>(w.source(i.b));
    const auto* c = reinterpret_cast<const C*>(w.source(i.c));
    D values[LANES];
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        values[lane] = f(a[lane], b[lane], c[lane]);
    }
    keep(w.out<D>(i.d), values, mask);
}

// A loop for each operation, for what kernels execute most.
template <class D, class A, class F>
inline void unary(Warp& w, const Instruction& i, uint32_t mask, F f) {
    const auto* a = w.in<A>(i.a);
    Stored<D> values[LANES];
    for (int lane = 0; lane < LANES; ++lane) values[lane] = to_bits<D>(f(from_bits<A>(a[lane])));
    keep(w.out<D>(i.d), values, mask);
}

template <class D, class A, class B, class F>
inline void binary(Warp& w, const Instruction& i, uint32_t mask, F f) {
    const auto* a = w.in<A>(i.a);
    const auto* b = w.in<B>(i.b);
    Stored<D> values[LANES];
    for (int lane = 0; lane < LANES; ++lane)
        values[lane] = to_bits<D>(f(from_bits<A>(a[lane]), from_bits<B>(b[lane])));
    keep(w.out<D>(i.d), values, mask);
}

template <class D, class A, class B, class C, class F>
inline void ternary(Warp& w, const Instruction& i, uint32_t mask, F f) {
    const auto* a = w.in<A>(i.a);
    const auto* b = w.in<B>(i.b);
    const auto* c = w.in<C>(i.c);
    Stored<D> values[LANES];
    for (int lane = 0; lane < LANES; ++lane)
        values[lane] = to_bits<D>(f(from_bits<A>(a[lane]), from_bits<B>(b[lane]), from_bits<C>(c[lane])));
    keep(w.out<D>(i.d), values, mask);
}

// --- the table of operations, by their names in PTX, which may be given in parts ---

void add_operation(std::initializer_list<const char*> name, Operation operation);
inline void add_operation(const char* name, Operation operation) { add_operation({name}, operation); }

}  // namespace counting

#define UNARY(D, A, EXPRESSION)                                                     \
    [](Warp& w, const Instruction& i, uint32_t mask) {                              \
        unary<D, A>(w, i, mask, [](A a) -> D { return static_cast<D>(EXPRESSION); }); \
    }
#define BINARY(D, A, B, EXPRESSION)                                                         \
    [](Warp& w, const Instruction& i, uint32_t mask) {                                      \
        binary<D, A, B>(w, i, mask, [](A a, B b) -> D { return static_cast<D>(EXPRESSION); }); \
    }
#define TERNARY(D, A, B, C, EXPRESSION)                                                             \
    [](Warp& w, const Instruction& i, uint32_t mask) {                                              \
        ternary<D, A, B, C>(w, i, mask, [](A a, B b, C c) -> D { return static_cast<D>(EXPRESSION); }); \
    }
#define SELDOM_TERNARY(D, A, B, C, EXPRESSION)                                                                      \
    [](Warp& w, const Instruction& i, uint32_t mask) {                                                              \
        by_lane<Stored<D>, Stored<A>, Stored<B>, Stored<C>>(w, i, mask, [](Stored<A> x, Stored<B> y, Stored<C> z) { \
            [[maybe_unused]] const A a = from_bits<A>(x);                                                           \
            [[maybe_unused]] const B b = from_bits<B>(y);                                                           \
            [[maybe_unused]] const C c = from_bits<C>(z);                                                           \
            return to_bits<D>(static_cast<D>(EXPRESSION));                                                          \
        });                                                                                                         \
    }
#define SELDOM_BINARY(D, A, B, EXPRESSION) SELDOM_TERNARY(D, A, B, uint32_t, EXPRESSION)
#define SELDOM_UNARY(D, A, EXPRESSION) SELDOM_TERNARY(D, A, uint32_t, uint32_t, EXPRESSION)
