// The state of the one block that runs, and what the parts of the scheduler offer each other.
#pragma once

#include <stdint.h>

#include "abi.h"
#include "carrier.h"

namespace fusiond {

constexpr uint32_t max_threads = 1024;
constexpr uint32_t warp_size = 32;
constexpr uint32_t max_warps = max_threads / warp_size;
constexpr uint32_t barrier_ids = 16;
constexpr uint32_t no_thread = 0xffffffff;

enum class Wait : uint8_t { nothing, barrier, collective, convergence, grid };

struct Collective {
    uint32_t kind;
    uint32_t mask;
    uint32_t operand;  // of a shuffle: the source lane, the distance or the lane mask
    uint32_t width;
    uint64_t value;
};

// Every switch touches this one: it is kept within half a cache line.
struct alignas(32) Thread {
    Carrier* carrier;          // what it stands on while it waits
    uint64_t result;           // of what it waits for
    void* race_fiber;          // ThreadSanitizer's view of it
    Wait wait;
};

// What a thread asks of its warp.
struct Request {
    Collective collective;
    const void* call_site;     // of __activemask
    uint8_t round;
};

// Sets of lanes are bit masks.
struct Warp {
    uint32_t live;
    uint32_t at_barrier;
    uint32_t in_collective;
    uint32_t barrier;          // the id, while at_barrier is not empty
};

// Sets of warps are bit masks. A warp arrives when all its live threads wait at the barrier.
struct Barrier {
    uint32_t waiting;          // threads
    uint32_t count;            // threads, as its users state it
    fusiond_barrier_kind kind;
    uint32_t arrived;
    uint32_t users;            // since the last barrier of the whole block
    uint32_t predicates;       // how many waiting threads said true
    uint8_t round;
};

struct Random {
    uint64_t state;
    uint32_t below(uint32_t limit) {  // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return static_cast<uint32_t>((state * 2685821657736338717u >> 32) * limit >> 32);
    }
};

struct Block {
    const fusiond_launch* launch;
    const fusiond_module* module;
    fusiond_report* report;
    uint32_t thread_count;
    uint32_t warp_count;
    bool shuffled;                              // seed other than 0
    bool failed;
    char* clocks;                               // ThreadSanitizer's, of this block alone: see clock_at()
    uint32_t poison;                            // a word of what nobody has written
    Random random;

    uint32_t index[max_threads][3];             // threadIdx by thread number
    uint32_t start_index[max_threads][3];       // the same in the order in which threads start
    uint32_t start_order[max_threads];
    uint32_t accounted;                         // so many of start_order have blocked or are known to have returned

    Thread threads[max_threads];
    Request requests[max_threads];
    Warp warps[max_warps];
    Barrier barriers[barrier_ids];
    uint32_t live_warps;
    bool has_blocked;                           // some thread of this block
    uint32_t at_grid;                           // threads of this block that wait for the grid

    uint32_t ready[max_threads];                // a ring
    uint32_t ready_first;
    uint32_t ready_count;

    Carrier scheduler;                          // the launching thread itself
    Carrier* running;
    uint32_t arriving;                          // the thread between begin_wait() and end_wait(), or none
    CarrierPool carriers;
};

extern Block block;

// What kernels call (abi.h).
void barrier(uint32_t id, uint32_t count);
uint32_t barrier_reduce(uint32_t kind, uint32_t id, uint32_t count, uint32_t predicate);
uint64_t collective(uint32_t kind, uint32_t mask, uint64_t value, uint32_t operand, uint32_t width);
uint32_t activemask();
void grid_barrier();
uint32_t grid_is_valid();
__attribute__((noreturn)) void trap(const char* text, const char* file, uint32_t line);

// Clocks for the even and the odd rounds of each barrier, and of __syncwarp for each thread (its mask's lowest lane). Every
// block has its own: with shared ones what an earlier block did would seem to be ordered before it.
constexpr uint32_t clock_bytes = 4096;
inline char* clock_at(uint32_t number, uint8_t round) { return block.clocks + 2 * number + round; }

inline uint32_t lane_of(uint32_t thread) { return thread % warp_size; }
inline uint32_t bit_of(uint32_t thread) { return 1u << lane_of(thread); }
inline Warp& warp_of(uint32_t thread) { return block.warps[thread / warp_size]; }

// scheduler.cpp
uint32_t current_thread();           // no_thread: the scheduler itself runs
uint32_t begin_wait();               // the current thread is about to wait
void end_wait();                     // it does, unless it has been resumed already
void resume(uint32_t thread);        // what it waits for has come

uint32_t live_threads();             // of the current block

// grid.cpp
uint32_t most_at_once();              // threads of a cooperative launch
void run_cooperatively(uint32_t blocks, void (*start)(uint32_t), void (*go_on)());

// barrier.cpp
void warp_arrives(uint32_t warp);
void open_if_complete(Barrier& barrier);

// warp.cpp
void complete_collective(uint32_t thread);   // if all that must take part in the thread's operation wait
bool resolve_convergence();                  // false: nobody waits in __activemask

// failure.cpp
const char* collective_name(uint32_t kind);
void thread_name(uint32_t thread, char* text, uint32_t bytes);
__attribute__((format(printf, 3, 4))) void record_failure(fusiond_code code, uint32_t thread, const char* format, ...);
// These abandon the block: whatever stands on its stacks is never continued.
__attribute__((noreturn, format(printf, 3, 4))) void fail(fusiond_code code, uint32_t thread, const char* format, ...);
__attribute__((noreturn)) void fail_stuck();

}  // namespace fusiond
