// The contract between three parties: the scheduler library, the shared object of a kernel, and
// whoever launches it (native.py mirrors the structs below field by field). Plain C data only.
#pragma once

#include <stdint.h>

#define FUSIOND_ABI 5

// Static shared arrays and the dynamic arena are as large as on the largest GPU (sm_90: 227 KiB a block).
#define FUSIOND_ARENA_BYTES (227 * 1024)

// The count of a barrier that waits for every live thread of the block: __syncthreads().
#define FUSIOND_WHOLE_BLOCK 0xffffffffu

// What uninitialised shared memory and unanswered shuffles hold, a large number as an integer, so that a program
// which uses it gives a visibly wrong result. With an even seed it is a quiet NaN as float and as double; fmaxf and
// comparisons swallow that, so with an odd seed it is huge and finite (1.3e36f).
#define FUSIOND_POISON_NAN 0x7fffa5a5u
#define FUSIOND_POISON_HUGE 0x7b7b7b7bu

extern "C" {

// Threads that have not blocked yet run one after the other in a plain loop inside the kernel's own
// object; the cursor says which thread is next, and which carrier (stack) owns the loop.
struct fusiond_cursor {
    const void* carrier;
    const uint32_t (*next)[3];
    const uint32_t (*end)[3];
};

// What kernels call. A collective is one of the warp operations listed in collectives.def.
struct fusiond_scheduler {
    void (*barrier)(uint32_t id, uint32_t count);
    uint32_t (*barrier_reduce)(uint32_t kind, uint32_t id, uint32_t count, uint32_t predicate);
    uint64_t (*collective)(uint32_t kind, uint32_t mask, uint64_t value, uint32_t operand, uint32_t width);
    uint32_t (*activemask)(void);
    void (*fence)(void);
    void (*grid_barrier)(void);
    uint32_t (*grid_is_valid)(void);              // is this launch cooperative?
    uint32_t (*is_local)(const void* address);  // does it lie on the stack of a CUDA thread?
    void (*trap)(const char* text, const char* file, uint32_t line) __attribute__((noreturn));
};

// Exported by every kernel object as `fusiond_module`: where its built-in variables and its shared memory lie.
// The scheduler that launches it puts itself into `*scheduler`: nothing is looked up by name, so that several
// schedulers can live in one process.
struct fusiond_module {
    uint32_t abi;
    uint32_t arena_bytes;
    const fusiond_scheduler** scheduler;
    uint32_t* thread_index;
    uint32_t* block_index;
    uint32_t* block_dim;
    uint32_t* grid_dim;
    fusiond_cursor* cursor;
    unsigned char* arena;
    unsigned char* static_begin;
    unsigned char* static_end;
};

// Exported as `fusiond_entry_NAME` for every FUSIOND_ENTRY(NAME, kernel).
struct fusiond_entry {
    void (*run)(void** arguments, const void* carrier);
    const fusiond_module* module;
    uint32_t argument_count;
    const uint32_t* argument_bytes;
};

// Exported as `fusiond_symbol_NAME` for every FUSIOND_SYMBOL(NAME, variable).
struct fusiond_symbol {
    void* address;
    uint64_t bytes;
};

enum fusiond_flag : uint32_t {
    // Shared memory is poisoned when a block starts, and what lies behind the dynamic arena is checked when it ends.
    FUSIOND_CHECKED = 1,
    // All blocks are alive at once and may wait for each other (cooperative_groups::this_grid()).
    FUSIOND_COOPERATIVE = 2,
};

struct fusiond_launch {
    uint32_t abi;
    uint32_t flags;
    const fusiond_entry* entry;
    void** arguments;
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_bytes;
    uint32_t stack_bytes;  // of one CUDA thread; 0: the default
    uint64_t seed;         // 0: in order; any other: a random order, the same for the same seed; odd: huge poison
};

enum fusiond_code : int32_t {
    FUSIOND_OK = 0,
    FUSIOND_BAD_LAUNCH = 1,       // refused before anything ran
    FUSIOND_BARRIER_STUCK = 2,    // every live thread waits, none at a warp operation
    FUSIOND_BARRIER_MISUSE = 3,   // a count, an id or a kind that cannot be right
    FUSIOND_WARP_STUCK = 4,       // every live thread waits, some at a warp operation
    FUSIOND_WARP_MISUSE = 5,      // a mask, a width or a source lane that cannot be right
    FUSIOND_STACK_OVERFLOW = 6,
    FUSIOND_ILLEGAL_ADDRESS = 7,
    FUSIOND_ARITHMETIC = 8,       // an integer division that the processor refuses
    FUSIOND_TRAP = 9,             // assert() or __trap()
    FUSIOND_SHARED_OVERRUN = 10,  // a write behind the dynamic shared memory of the launch
    FUSIOND_MISALIGNED = 11,      // an access at an address that its type does not allow
};

struct fusiond_report {
    int32_t code;
    uint32_t block[3];   // where it went wrong
    uint32_t thread[3];
    uint32_t has_thread;
    uint64_t elapsed_ns;
    uint64_t switches;   // from one suspended thread to another
    char text[2000];
};

__attribute__((visibility("default"))) uint32_t fusiond_abi(void);
__attribute__((visibility("default"))) int32_t fusiond_run(const fusiond_launch* launch, fusiond_report* report);

enum fusiond_barrier_kind : uint32_t {
    FUSIOND_BARRIER_SYNC,
    FUSIOND_BARRIER_COUNT,
    FUSIOND_BARRIER_AND,
    FUSIOND_BARRIER_OR,
};

enum fusiond_collective_kind : uint32_t {
#define FUSIOND_COLLECTIVE(name, spelling) FUSIOND_##name,
#include "collectives.def"
#undef FUSIOND_COLLECTIVE
};

}  // extern "C"
