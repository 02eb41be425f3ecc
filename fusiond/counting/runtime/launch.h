// A launch: its blocks, what they share, and what is counted of them.
#pragma once

#include <deque>
#include <memory>
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
    std::vector<uint8_t> shared, registers, local;
    std::deque<Warp> warps;  // and behind them the strands that have split off; references to them stay good
    Barrier barriers[16];
    uint32_t index[3];
    uint32_t multiprocessor;  // blocks that run together are dealt out in turn
    int32_t ended;  // warps
    int64_t issued;  // instructions of its warps
};

// What the calls of one launch have touched: of each allocation, a bit for each sector.
struct Footprint {
    std::vector<std::vector<uint8_t>> read, written;
    std::vector<std::unique_ptr<Block>> spare;  // their memory is used again
};

struct Launch {
    Request& request;
    Cache& cache;
    std::vector<Operation> operations;  // of each instruction
    int32_t last = 0;                   // the allocation that was used last
    uint64_t issued = 0;

    Launch(Request& request, Cache& cache);
    Counts& counts(const Instruction& i) { return request.counts[&i - request.code]; }
};

[[noreturn]] void fail(const std::string& text);

// Of an instruction that lanes of other strands must execute together with these: not yet.
struct Elsewhere {};

// Where the lanes' addresses lie on the host; counts the access. `what`: 0 read, 1 write, 2 atomic.
void locate(Warp& w, const Instruction& i, uint32_t mask, int what, uint8_t* (&host)[LANES]);

void add_integers();
void add_floats();
void add_conversions();
void add_memory();
void add_warp();

}  // namespace counting
