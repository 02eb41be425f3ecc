// What Python and the library say to one another; fusiond/devices/counting/library.py mirrors it.
#pragma once

#include <cstdint>

namespace counting {

struct Warp;
struct Instruction;
using Operation = void (*)(Warp&, const Instruction&, uint32_t mask);

enum Kind : uint8_t { PLAIN, BRANCH, EXIT, BARRIER };
enum Space : uint8_t { GENERIC, GLOBAL, SHARED, LOCAL, PARAMETER, CONSTANT, ARGUMENT };  // the last: of a call

// Operands are offsets in bytes: from 0 in the warp's registers, below 0 the complement of one in the constants.
struct Instruction {
    int32_t operation;
    uint8_t kind;
    uint8_t negated;   // 1 the guard, 2 the predicate of a barrier; 4: a barrier without .aligned
    uint8_t unused;
    uint8_t counted;   // 0: a further part of the instruction before it
    uint8_t space;
    uint8_t bytes;     // of one element in memory
    uint8_t elements;  // of a vector
    uint8_t flags;     // of an access: 1 signed, 2 its registers have 64 bits, 4 its address has 64 bits
    int32_t guard;     // offset of a predicate; -1: none
    int32_t d, a, b, c, e;
    int32_t target;
    int32_t reconverge;  // -1: only where the threads end
    int64_t immediate;
    int32_t vector[8];
};

// Of one instruction, over a launch.
struct Counts {
    uint64_t warps, lanes;
    uint64_t read_bytes, write_bytes, atomic_bytes;
    uint64_t read_sectors, write_sectors, atomic_sectors;
    uint64_t wavefronts, minimal_wavefronts;
    uint64_t local_bytes;
};

struct Special {
    int32_t offset;
    int32_t which;
};

struct Allocation {
    uint64_t begin, end;
};

struct Footprint;

struct Request {
    Footprint* footprint;  // of the launch, over all of its calls
    const Instruction* code;
    int32_t instructions;
    int32_t register_bytes;
    const uint8_t* constants;
    const Special* specials;
    int32_t special_count;
    const uint8_t* parameters;
    int32_t parameter_bytes;
    const uint8_t* constant_bank;
    int64_t constant_bank_bytes;
    int32_t local_bytes;
    int32_t shared_bytes;
    int32_t dynamic_shared_bytes;
    uint32_t grid[3], block[3], cluster[3];
    const int64_t* blocks;  // which are run, in this order, clusters whole: those of a cluster have numbers in a row
    int64_t block_count;
    int32_t resident;  // blocks that run together
    int32_t multiprocessors;
    int32_t cooperative;
    int32_t turn;      // instructions of a warp until it is the next one's turn
    int32_t backwards;  // 1: the last warp of a block comes first
    int32_t threads;    // 0: all is counted; else nothing below `allocations` is, and so many threads run the blocks
    const Allocation* allocations;  // in the order of their addresses
    int32_t allocation_count;
    int64_t limit;  // instructions of warps until the launch is given up; 0: none
    Counts* counts;
    // All that follow are added to. Of each allocation, sectors that no call of this launch had touched before:
    uint64_t *new_read_sectors, *new_write_sectors;
    int64_t shortest_block;  // instructions of warps, of the blocks of this call
};

}  // namespace counting
