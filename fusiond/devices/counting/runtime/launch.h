// A launch: its blocks, what they share, and what is counted of them.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cache.h"
#include "warp.h"

namespace counting {

struct Barrier {
    int32_t users = 0;     // strands that wait, or have arrived without waiting
    int32_t passed = 0;    // threads that have arrived without waiting
    int32_t expected = 0;  // 0: all of the block's that have not ended
    uint32_t count = 0;    // of bar.red: threads for which the predicate holds
    int32_t voted = 0;
};

struct Cluster;

struct Block {
    Cluster* cluster;
    uint32_t rank;  // in its cluster
    std::vector<uint8_t> shared_room, registers, local;
    uint8_t* shared;  // on a boundary of 1,024 bytes: what swizzles goes by the bits below it
    std::deque<Warp> warps;  // and behind them the strands that have split off; references to them stay good
    Barrier barriers[16];
    uint32_t index[3], place[3];  // in the grid, in the cluster
    uint32_t multiprocessor;  // blocks that run together are dealt out in turn
    int32_t ended;  // warps
    uint32_t cluster_arrived[LANES];  // at barrier.cluster: lanes of each warp
    int64_t issued;  // instructions of its warps

    bool over() const { return ended >= static_cast<int32_t>(warps.size()); }
};

// Blocks that run together and see each other's shared memory: an address of another one's has its rank, and one, above
// these bits.
constexpr int RANK_SHIFT = 24;

struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;  // by rank
    uint64_t phases = 0;  // of their mbarriers, that have ended
    uint32_t phase = 0;   // of barrier.cluster

    bool over() const {
        return std::all_of(blocks.begin(), blocks.end(), [](const auto& block) { return block->over(); });
    }
};

// What the calls of one launch have touched: of each allocation, a bit for each sector.
struct Footprint {
    std::vector<std::vector<uint8_t>> read, written;
};

struct Launch {
    uint64_t events = 0;  // what another warp may wait for: stores, arrivals, ends
    Request& request;
    Cache& cache;
    std::vector<Operation> operations;  // of each instruction
    int32_t last = 0;                   // the allocation that was used last
    uint64_t issued = 0;
    std::string printed;                // by kernels
    std::vector<std::unique_ptr<Block>> spare;  // their memory is used again

    Launch(Request& request, Cache& cache);
    Counts& counts(const Instruction& i) { return request.counts[&i - request.code]; }
};

struct Failure {
    std::string text;
};
[[noreturn]] void fail(const std::string& text);

// Of an instruction that lanes of other strands must execute together with these: not yet.
struct Elsewhere {};

// --- memory: where addresses lie on the host, with a failure where nothing is ---

enum : int { READ, WRITE, ATOMIC };

// The lanes' addresses: a register of 32 or 64 bits, and an offset.
void addresses(Warp& w, int32_t place, bool wide, int64_t offset, uint64_t (&address)[LANES]);

// Those of an access, which is counted.
void locate(Warp& w, const Instruction& i, uint32_t mask, int what, uint8_t* (&host)[LANES]);

// The same of any addresses.
void spread(Warp& w, const Instruction& i, uint32_t mask, int what, uint8_t space, uint32_t size, uint64_t (&address)[LANES], uint8_t* (&host)[LANES]);

// Bytes in a row, counted: each sector once, wavefronts of 128 bytes.
uint8_t* stretch(Warp& w, const Instruction& i, int lane, int what, uint8_t space, uint64_t address, uint64_t size);

// Not counted.
uint8_t* plain(Warp& w, int lane, uint8_t space, uint64_t address, uint64_t size);

// Whose window a generic address is in; it becomes one of that.
uint8_t space_of(const Warp& w, int lane, uint64_t& address);

// Of an address that must be in shared memory, generic or not: that in the space of the cluster.
uint32_t shared_address(const Warp& w, uint8_t space, uint64_t address);

// The block of the cluster that such an address is in; the address becomes one of that block.
Block& owner(const Warp& w, uint64_t& address);

// An address of a block's own shared memory, seen from the others.
inline uint64_t seen_from_others(uint32_t rank, uint64_t offset) { return offset | uint64_t(rank + 1) << RANK_SHIFT; }

// The lanes named by a mask must be here: others of a path that waits would have to come first.
inline void together(Warp& w, uint32_t mask, uint32_t named) {
    if (named & w.others) throw Elsewhere();
    if (named & w.live & ~mask) fail("a warp-wide operation whose mask names lanes that are elsewhere");
}

// Ends a phase of barrier.cluster where all threads that live have arrived.
void settle_cluster(Cluster& cluster);

void add_integers();
void add_floats();
void add_conversions();
void add_memory();
void add_warp();
void add_packed();
void add_matrices();
void add_transfers();
void add_calls();

}  // namespace counting
