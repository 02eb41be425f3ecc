// Copies that go on by themselves, and the mbarriers in shared memory that wait for them. A copy is done when it is begun:
// an order that the GPU may take as well.
#include <algorithm>

#include "launch.h"

namespace counting {
namespace {

// --- mbarriers ---

// An mbarrier's 64 bits, which PTX leaves open: arrivals that are missing, arrivals of a phase, bytes that are missing,
// a mark, and the parity of the phase.
struct Mbarrier {
    uint64_t bits;

    static constexpr uint64_t MOST = (1 << 20) - 1, MARK = uint64_t(1) << 61;

    int64_t pending() const { return bits & MOST; }
    int64_t expected() const { return bits >> 20 & MOST; }
    int64_t bytes() const { return static_cast<int64_t>(bits << 3) >> 43; }
    uint64_t parity() const { return bits >> 63; }
    bool valid() const { return (bits >> 61 & 3) == 1; }

    static Mbarrier made(int64_t pending, int64_t expected, int64_t bytes, uint64_t parity) {
        if (pending < 0 || expected < 0) fail("more arrivals at an mbarrier than it counts");
        if (bytes >= 1 << 20 || bytes <= -(1 << 20)) fail("more bytes at an mbarrier than it counts");
        return {static_cast<uint64_t>(pending) | static_cast<uint64_t>(expected) << 20 | (static_cast<uint64_t>(bytes) & 0x1fffff) << 40 | MARK | parity << 63};
    }
};

struct Place {
    uint8_t* at;

    Mbarrier read() const {
        Mbarrier found;
        std::memcpy(&found, at, 8);
        if (!found.valid()) fail("an mbarrier that is not initialised");
        return found;
    }

    void write(Mbarrier value) const { std::memcpy(at, &value, 8); }
};

Place place(Warp& w, uint8_t space, uint64_t address) {
    const uint32_t offset = shared_address(w, space, address);
    if (offset & 7) fail("an mbarrier that is not aligned to 8 bytes");
    return {plain(w, 0, SHARED, offset, 8)};
}

// Some arrivals, some bytes more (or fewer) to wait for; a phase that is complete ends.
void change(Warp& w, Place at, int64_t arrivals, int64_t bytes, int64_t dropped = 0) {
    Mbarrier now = at.read();
    now = Mbarrier::made(now.pending() - arrivals, now.expected() - dropped, now.bytes() + bytes, now.parity());
    if (now.pending() == 0 && now.bytes() == 0) {
        now = Mbarrier::made(now.expected(), now.expected(), 0, now.parity() ^ 1);
        ++w.block->cluster->phases;
    }
    at.write(now);
    ++w.launch->events;
}

template <class F>
void each_lane(Warp& w, const Instruction& i, uint32_t mask, F f) {
    uint64_t address[LANES];
    addresses(w, i.a, i.flags & 4, i.immediate, address);
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        f(lane, place(w, i.space, address[lane]));
    }
}

// b: the number of arrivals; c: bytes to expect before. elements: 1 without arrival, 2 dropped for good, 4 bytes that have
// come.
void arrive(Warp& w, const Instruction& i, uint32_t mask) {
    uint64_t states[LANES] = {};
    each_lane(w, i, mask, [&](int lane, Place at) {
        states[lane] = at.read().bits;
        const int64_t count = i.elements & 1 ? 0 : w.in<uint32_t>(i.b)[lane], bytes = w.in<uint32_t>(i.c)[lane];
        change(w, at, count, i.elements & 4 ? -bytes : bytes, i.elements & 2 ? count : 0);
    });
    keep(w.out<uint64_t>(i.d), states, mask);
}

// Whether the phase that `state` was of, or the one of this parity, has ended. Sleeps until one has.
template <bool PARITY>
void wait(Warp& w, const Instruction& i, uint32_t mask) {
    uint32_t done = 0;
    each_lane(w, i, mask, [&](int lane, Place at) {
        const uint64_t waited = PARITY ? w.in<uint32_t>(i.b)[lane] & 1 : w.in<uint64_t>(i.b)[lane] >> 63;
        done |= uint32_t(at.read().parity() != waited) << lane;
    });
    if (!done && !w.refused) {
        w.state = State::ASLEEP;
        return;
    }
    w.refused = false;
    w.set_predicate(i.d, done, mask);
}

// --- barrier.cluster ---

void cluster_arrive(Warp& w, const Instruction&, uint32_t mask) {
    w.cluster_phase = w.block->cluster->phase;
    w.block->cluster_arrived[w.index] |= mask;
    settle_cluster(*w.block->cluster);
    ++w.launch->events;
}

void cluster_wait(Warp& w, const Instruction&, uint32_t) {
    if (w.block->cluster->phase == w.cluster_phase) w.state = State::ASLEEP, w.refused = false;
}

// --- copies ---

// Of a copy, further places in `vector`: 0 and 1 the offsets behind the source's and the mbarrier's addresses. flags: 4, 8
// and 16 the addresses of the target, the source and the mbarrier have 64 bits.
uint64_t address_of(const Warp& w, int32_t at, bool wide, int lane) { return wide ? w.in<uint64_t>(at)[lane] : w.in<uint32_t>(at)[lane]; }

// cp.async: `bytes` from b to a, of which those behind c (a number of bytes) are zeros; e: lanes that read nothing.
void copy(Warp& w, const Instruction& i, uint32_t mask) {
    uint64_t from[LANES], to[LANES];
    uint8_t *source[LANES], *target[LANES];
    addresses(w, i.a, i.flags & 4, i.immediate, to);
    addresses(w, i.b, i.flags & 8, i.vector[0], from);
    const uint32_t ignoring = i.e == INT32_MIN ? 0 : w.predicate(i.e) & mask;
    uint32_t size[LANES], reading = 0;
    for (int lane = 0; lane < LANES; ++lane) {
        size[lane] = ignoring >> lane & 1 ? 0 : i.c == INT32_MIN ? i.bytes : std::min<uint32_t>(w.in<uint32_t>(i.c)[lane], i.bytes);
        reading |= uint32_t(size[lane] > 0) << lane;
    }
    reading &= mask;
    if (reading) spread(w, i, reading, READ, GLOBAL, i.bytes, from, source);
    spread(w, i, mask, WRITE, i.space, i.bytes, to, target);
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        std::memset(target[lane], 0, i.bytes);
        if (size[lane]) std::memcpy(target[lane], source[lane], size[lane]);
    }
    ++w.launch->events;
}

// The sum, ... of what is there and what comes, element by element; cp.reduce.async.bulk.
enum : uint8_t { NO_REDUCTION, ADD, LEAST, MOST, INCREASE, DECREASE, AND, OR, EXCLUSIVE };

template <class T>
void reduce_as(uint8_t how, uint8_t* to, const uint8_t* from, uint64_t bytes) {
    for (uint64_t at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
        T a, b;
        std::memcpy(&a, to + at, sizeof a), std::memcpy(&b, from + at, sizeof b);
        switch (how) {
            case ADD: a = a + b; break;
            case LEAST: a = std::min(a, b); break;
            case MOST: a = std::max(a, b); break;
            default:
                if constexpr (std::is_integral_v<T>) {
                    if (how == INCREASE) a = a >= b ? 0 : a + 1;
                    if (how == DECREASE) a = a == 0 || a > b ? b : a - 1;
                    if (how == AND) a &= b;
                    if (how == OR) a |= b;
                    if (how == EXCLUSIVE) a ^= b;
                }
        }
        std::memcpy(to + at, &a, sizeof a);
    }
}

// kind: 0 unsigned, 1 signed, 2 float, of `size` bytes.
void put(uint8_t how, int kind, int size, uint8_t* to, const uint8_t* from, uint64_t bytes) {
    if (how == NO_REDUCTION) std::memmove(to, from, bytes);
    else if (kind == 2) size == 4 ? reduce_as<float>(how, to, from, bytes) : reduce_as<double>(how, to, from, bytes);
    else if (kind == 1) size == 4 ? reduce_as<int32_t>(how, to, from, bytes) : reduce_as<int64_t>(how, to, from, bytes);
    else size == 4 ? reduce_as<uint32_t>(how, to, from, bytes) : reduce_as<uint64_t>(how, to, from, bytes);
}

// The blocks of the cluster that a copy goes to, as a mask (.multicast::cluster); 0: to where its addresses are.
uint32_t targets(const Warp& w, int32_t at, int lane) { return at == INT32_MIN ? 0 : w.in<uint32_t>(at)[lane] & 0xffff; }

// The same place in the lowest of the blocks in a mask.
uint64_t there(const Warp& w, uint64_t address, uint32_t blocks) {
    if (!blocks) return address;
    const auto rank = static_cast<uint32_t>(__builtin_ctz(blocks));
    if (rank >= w.block->cluster->blocks.size()) fail("a copy to block " + std::to_string(rank) + " of a cluster of " + std::to_string(w.block->cluster->blocks.size()));
    owner(w, address);
    return seen_from_others(rank, address);
}

void completed(Warp& w, const Instruction& i, int lane, int64_t bytes, uint32_t blocks = 0) {
    ++w.launch->events;
    if (i.e != INT32_MIN) change(w, place(w, SHARED, there(w, address_of(w, i.e, i.flags & 16, lane) + i.vector[1], blocks)), 0, -bytes);
}

// cp.async.bulk: c bytes from b (in the space `bytes`) to a (in the space `space`). vector[2..4]: a reduction, its kind, its
// size; vector[5]: once a warp, not once a lane, and aligned to anything; vector[6]: a mask of blocks.
void bulk(Warp& w, const Instruction& i, uint32_t mask) {
    if (i.vector[5]) together(w, mask, ALL), mask &= -mask;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint64_t to = address_of(w, i.a, i.flags & 4, lane) + i.immediate, from = address_of(w, i.b, i.flags & 8, lane) + i.vector[0];
        const uint64_t size = w.in<uint32_t>(i.c)[lane];
        if ((to | from | size) & 15) fail("a bulk copy whose addresses and size are not multiples of 16 bytes");
        const uint8_t* source = stretch(w, i, lane, READ, i.bytes, from, size);
        uint32_t blocks = targets(w, i.vector[6], lane);
        do {
            put(i.vector[2], i.vector[3], i.vector[4], stretch(w, i, lane, i.vector[2] ? ATOMIC : WRITE, i.space, there(w, to, blocks), size), source, size);
            completed(w, i, lane, static_cast<int64_t>(size), blocks);
        } while (blocks &= blocks - 1);
    }
}

// --- tensor maps ---

// The 128 bytes of a CUtensorMap, whose real layout is not public: fusiond/devices/counting/tensor_map.py has the same one.
struct TensorMap {
    uint64_t address;
    uint8_t last_dimension, type, interleave, swizzle, fill, atomicity, unused[2];
    uint32_t box[5], step[5], extent[5], padding;
    uint64_t stride[4];
};
static_assert(sizeof(TensorMap) == 112);

// By the codes of tensormap.replace: u8, u16, u32, s32, u64, s64, f16, f32, f32.ftz, f64, bf16, tf32, tf32.ftz.
constexpr uint8_t TYPE_BYTES[] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4};
constexpr uint8_t TYPE_KINDS[] = {0, 0, 0, 1, 0, 1, 3, 2, 2, 2, 3, 2, 2};

TensorMap map_at(Warp& w, int lane, uint64_t address) {
    TensorMap map;
    std::memcpy(&map, plain(w, lane, GENERIC, address, 128), sizeof map);
    bool good = map.last_dimension < 5 && map.type < sizeof TYPE_BYTES && map.interleave == 0 && map.swizzle < 4 && map.fill < 2;
    for (int k = 0; good && k <= map.last_dimension; ++k) good = map.box[k] >= 1 && map.box[k] <= 256 && map.step[k] >= 1 && map.step[k] <= 8;
    if (!good) fail("a tensor map that is not one of fusiond.devices.counting.tensor_map, or of a form that is not known here");
    return map;
}

// An element that is outside of the tensor: zero, or the NaN that says so.
void fill(const TensorMap& map, uint8_t* at, int size) {
    std::memset(at, 0, size);
    if (!map.fill) return;
    const uint64_t all = size == 8 ? 0x7ff8000000000000u : size == 4 ? 0x7fffffffu : 0x7fffu;
    if (TYPE_KINDS[map.type] >= 2) std::memcpy(at, &all, size);
}

// A tile between global memory and shared memory, whose address there is `begin`. `again`: what is read was read already.
void tile(Warp& w, const Instruction& i, int lane, const TensorMap& map, uint64_t begin, bool again) {
    const bool store = i.vector[7] & 1;
    const auto how = static_cast<uint8_t>(i.vector[7] >> 8);
    const int rank = map.last_dimension + 1, size = TYPE_BYTES[map.type];
    int64_t count[5] = {1, 1, 1, 1, 1}, start[5] = {};
    for (int k = 0; k < rank; ++k) {
        count[k] = (map.box[k] + map.step[k] - 1) / map.step[k];
        start[k] = static_cast<int32_t>(w.in<uint32_t>(i.vector[2 + k])[lane]);
    }
    const int64_t row_bytes = count[0] * size, rows = count[1] * count[2] * count[3] * count[4];
    stretch(w, i, lane, store ? READ : WRITE, SHARED, begin, static_cast<uint64_t>(row_bytes * rows));
    uint8_t* shared = owner(w, begin).shared;
    const uint32_t swizzled = (1u << map.swizzle) - 1;
    const auto inside = [&](int64_t at) {  // 16 bytes may go elsewhere together, nothing smaller
        const auto place = static_cast<uint32_t>(begin + at);
        return shared + (place ^ ((place >> 7 & swizzled) << 4));
    };
    for (int64_t row = 0; row < rows; ++row) {
        int64_t left = row, offset = 0;
        bool within = true;
        for (int k = 1; k < rank; ++k) {
            const int64_t at = start[k] + left % count[k] * map.step[k];
            left /= count[k];
            within &= at >= 0 && at < map.extent[k];
            offset += at * static_cast<int64_t>(map.stride[k - 1]);
        }
        // The elements of the row that are there.
        const int64_t step = map.step[0], extent = map.extent[0];
        const int64_t first = std::clamp<int64_t>(start[0] >= 0 ? 0 : (-start[0] + step - 1) / step, 0, count[0]);
        const int64_t last = within ? std::clamp<int64_t>(extent > start[0] ? (extent - start[0] + step - 1) / step : 0, first, count[0]) : first;
        const uint64_t line = map.address + static_cast<uint64_t>(offset + (start[0] + first * step) * size);
        const auto bytes = static_cast<uint64_t>(((last - first - 1) * step + 1) * size);
        uint8_t* global = last <= first ? nullptr : again ? plain(w, lane, GLOBAL, line, bytes) : stretch(w, i, lane, how ? ATOMIC : store ? WRITE : READ, GLOBAL, line, bytes);
        for (int64_t k = 0; k < count[0];) {
            const bool there = k >= first && k < last;
            const int64_t at = row * row_bytes + k * size;
            int64_t run = 1;
            if (there && step == 1) run = std::min<int64_t>(last - k, (16 - (at & 15)) / size);
            uint8_t *here = inside(at), *beyond = there ? global + (k - first) * step * size : nullptr;
            if (store && there) put(how, TYPE_KINDS[map.type], size, beyond, here, run * size);
            else if (!store && there) std::memcpy(here, beyond, run * size);
            else if (!store) fill(map, here, size);
            k += run;
        }
    }
}

// a: the address in shared memory; b: of the map; c: a mask of blocks; vector[2..6]: coordinates, the innermost first;
// elements: how many. vector[7]: to global memory, with 256 times a reduction.
void bulk_tensor(Warp& w, const Instruction& i, uint32_t mask) {
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const TensorMap map = map_at(w, lane, address_of(w, i.b, i.flags & 8, lane) + i.vector[0]);
        const int rank = map.last_dimension + 1;
        if (rank != i.elements) fail("a tensor map of " + std::to_string(rank) + " dimensions, not of " + std::to_string(i.elements));
        if (i.vector[7] >> 8 && TYPE_KINDS[map.type] == 3) fail("a reduction of halves");
        const uint64_t begin = shared_address(w, i.space, address_of(w, i.a, i.flags & 4, lane) + i.immediate);
        if (begin & 127) fail("a tensor in shared memory that is not aligned to 128 bytes");
        int64_t bytes = TYPE_BYTES[map.type];
        for (int k = 0; k < rank; ++k) bytes *= (map.box[k] + map.step[k] - 1) / map.step[k];
        const uint32_t all = targets(w, i.c, lane);
        uint32_t blocks = all;
        do {
            tile(w, i, lane, map, there(w, begin, blocks), blocks != all);
            completed(w, i, lane, bytes, blocks);
        } while (blocks &= blocks - 1);
    }
}

// A field of the map at a: `bytes` of b, behind the offset that the address has.
void replace(Warp& w, const Instruction& i, uint32_t mask) {
    uint64_t address[LANES];
    addresses(w, i.a, i.flags & 4, i.immediate, address);
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint64_t value = i.flags & 2 ? w.in<uint64_t>(i.b)[lane] : w.in<uint32_t>(i.b)[lane];
        std::memcpy(plain(w, lane, i.space, address[lane], i.bytes), &value, i.bytes);
    }
}

template <uint8_t SPACE, bool OWN = false>
void is_in(Warp& w, const Instruction& i, uint32_t mask) {
    uint32_t found = 0;
    for (int lane = 0; lane < LANES; ++lane) {
        uint64_t address = w.in<uint64_t>(i.a)[lane];
        found |= uint32_t(space_of(w, lane, address) == SPACE && !(OWN && address >> RANK_SHIFT)) << lane;
    }
    w.set_predicate(i.d, found, mask);
}

// The same place in the block of rank b, as an address of the cluster's shared memory (flags: 1) or a generic one.
template <class T>
void mapped(Warp& w, const Instruction& i, uint32_t mask) {
    const auto& all = w.block->cluster->blocks;
    T values[LANES];
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint32_t rank = w.in<uint32_t>(i.b)[lane];
        if (rank >= all.size()) fail("an address in block " + std::to_string(rank) + " of a cluster of " + std::to_string(all.size()));
        uint64_t address = shared_address(w, i.flags & 1 ? SHARED : GENERIC, w.in<T>(i.a)[lane]);
        owner(w, address);
        values[lane] = static_cast<T>(i.flags & 1 ? seen_from_others(rank, address) : reinterpret_cast<uint64_t>(all[rank]->shared) + address);
    }
    keep(w.out<T>(i.d), values, mask);
}

// The rank of the block that an address is in.
void rank_of(Warp& w, const Instruction& i, uint32_t mask) {
    uint32_t values[LANES];
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        uint64_t address = shared_address(w, i.flags & 1 ? SHARED : GENERIC, w.in<uint64_t>(i.a)[lane]);
        values[lane] = owner(w, address).rank;
    }
    keep(w.out<uint32_t>(i.d), values, mask);
}

template <class T>
void clock(Warp& w, const Instruction& i, uint32_t mask) {
    Stored<T> values[LANES];
    std::fill(values, values + LANES, static_cast<T>(w.launch->issued));
    keep(w.out<T>(i.d), values, mask);
    ++w.launch->events;
}

}  // namespace

void settle_cluster(Cluster& cluster) {
    uint32_t missing = 0, arrived = 0;
    for (const auto& block : cluster.blocks)
        for (const Warp& w : block->warps) missing |= w.live & ~block->cluster_arrived[w.index], arrived |= block->cluster_arrived[w.index];
    if (missing || !arrived) return;
    for (const auto& block : cluster.blocks) std::fill(block->cluster_arrived, block->cluster_arrived + LANES, 0);
    ++cluster.phase, ++cluster.phases;
}

void add_transfers() {
    add_operation("mbarrier.init", [](Warp& w, const Instruction& i, uint32_t mask) {
        each_lane(w, i, mask, [&](int lane, Place at) {
            const int64_t count = w.in<uint32_t>(i.b)[lane];
            if (count < 1 || count > static_cast<int64_t>(Mbarrier::MOST)) fail("an mbarrier of " + std::to_string(count) + " arrivals");
            at.write(Mbarrier::made(count, count, 0, 0));
        });
        ++w.launch->events;
    });
    add_operation("mbarrier.inval", [](Warp& w, const Instruction& i, uint32_t mask) {
        each_lane(w, i, mask, [](int, Place at) { at.read(), at.write({0}); });
    });
    add_operation("mbarrier.arrive", arrive);
    add_operation("mbarrier.wait", wait<false>);
    add_operation("mbarrier.wait.parity", wait<true>);
    add_operation("mbarrier.pending_count", UNARY(uint32_t, uint64_t, Mbarrier{a}.pending()));
    add_operation("barrier.cluster.arrive", cluster_arrive);
    add_operation("barrier.cluster.wait", cluster_wait);
    add_operation("cp.async", copy);
    add_operation("cp.async.bulk", bulk);
    add_operation("cp.async.bulk.tensor", bulk_tensor);
    add_operation("tensormap.replace", replace);
    add_operation("isspacep.global", is_in<GLOBAL>);
    add_operation("isspacep.shared", is_in<SHARED, true>);
    add_operation("isspacep.shared::cluster", is_in<SHARED>);
    add_operation("isspacep.local", is_in<LOCAL>);
    add_operation("isspacep.param", is_in<PARAMETER>);
    add_operation("isspacep.const", is_in<CONSTANT>);
    add_operation("mapa.u32", mapped<uint32_t>);
    add_operation("mapa.u64", mapped<uint64_t>);
    add_operation("getctarank", rank_of);
    add_operation("clock.b32", clock<uint32_t>);
    add_operation("clock.b64", clock<uint64_t>);
}

}  // namespace counting
