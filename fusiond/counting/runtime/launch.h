// A launch: its blocks, what they share, and what is counted of them.
#pragma once

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

struct Block {
    std::vector<uint8_t> shared_room, registers, local;
    uint8_t* shared;  // on a boundary of 1,024 bytes: what swizzles goes by the bits below it
    std::deque<Warp> warps;  // and behind them the strands that have split off; references to them stay good
    Barrier barriers[16];
    uint32_t index[3];
    uint32_t multiprocessor;  // blocks that run together are dealt out in turn
    int32_t ended;  // warps
    uint64_t phases;  // of its mbarriers, that have ended
    uint32_t cluster_arrived[LANES], cluster_phase;  // of barrier.cluster, in a cluster of this block alone: lanes of each warp
    int64_t issued;  // instructions of its warps
};

// What the calls of one launch have touched: of each allocation, a bit for each sector.
struct Footprint {
    std::vector<std::vector<uint8_t>> read, written;
    std::vector<std::unique_ptr<Block>> spare;  // their memory is used again
};

struct Launch {
    uint64_t events = 0;  // what another warp may wait for: stores, arrivals, ends
    Request& request;
    Cache& cache;
    std::vector<Operation> operations;  // of each instruction
    int32_t last = 0;                   // the allocation that was used last
    uint64_t issued = 0;

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

// Whose window a generic address is in.
uint8_t space_of(const Warp& w, int lane, uint64_t address);

// Of an address that must be in shared memory, generic or not.
uint32_t shared_offset(const Warp& w, uint8_t space, uint64_t address);

// The lanes named by a mask must be here: others of a path that waits would have to come first.
inline void together(Warp& w, uint32_t mask, uint32_t named) {
    if (named & w.others) throw Elsewhere();
    if (named & w.live & ~mask) fail("a warp-wide operation whose mask names lanes that are elsewhere");
}

// Ends a phase of barrier.cluster where all threads that live have arrived.
void settle_cluster(Block& block);

void add_integers();
void add_floats();
void add_conversions();
void add_memory();
void add_warp();
void add_packed();
void add_matrices();
void add_transfers();

}  // namespace counting
