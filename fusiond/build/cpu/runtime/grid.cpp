// Cooperative launches: all blocks are alive at once. One block runs until all its threads wait for the grid or have
// returned; then it is put aside with its shared memory, and the next one runs. When every block waits, all go on.

#include <stdlib.h>

#include "block.h"
#include "race.h"

namespace fusiond {
namespace {

// A block that is put aside.
struct Parked {
    Thread* threads;
    Request* requests;
    Warp warps[max_warps];
    Barrier barriers[barrier_ids];
    unsigned char* shared;  // static, then dynamic
    char* clocks;
    uint32_t live_warps;
    uint32_t number;        // of the block in the grid
    bool waits;             // for the grid; false: it has returned
};

// Each blocked thread has a stack and a guard page, and Linux gives a process 65530 mappings; ThreadSanitizer knows 8128
// fibers. On a GPU a grid of this size may or may not be resident at once: that is for a GPU to say.
constexpr uint32_t at_once = race::enabled ? 6 * 1024 : 24 * 1024;

char ordered[2];            // ThreadSanitizer's clocks of the even and the odd rounds
uint8_t round_number;
char handed_over;           // what the scheduler did to a block's shared memory

// In the library's own words: memcpy is one of ThreadSanitizer's, which would take the scheduler for a racing thread.
void copy(void* to, const void* from, size_t bytes) {
    char* const target = static_cast<char*>(to);
    const char* const source = static_cast<const char*>(from);
    size_t done = 0;
    for (; done + 8 <= bytes; done += 8) {
        __builtin_memcpy(target + done, source + done, 8);  // one move
        __asm__ volatile("" ::: "memory");                  // and not a loop that the compiler knows to be memcpy
    }
    for (; done < bytes; ++done) {
        target[done] = source[done];
        __asm__ volatile("" ::: "memory");
    }
}

size_t static_bytes() { return static_cast<size_t>(block.module->static_end - block.module->static_begin); }

void park(Parked& to, uint32_t number) {
    to.number = number;
    to.waits = block.live_warps != 0;
    if (!to.waits) return;
    copy(to.threads, block.threads, block.thread_count * sizeof(Thread));
    copy(to.requests, block.requests, block.thread_count * sizeof(Request));
    copy(to.warps, block.warps, sizeof block.warps);
    copy(to.barriers, block.barriers, sizeof block.barriers);
    copy(to.shared, block.module->static_begin, static_bytes());
    copy(to.shared + static_bytes(), block.module->arena, block.launch->shared_bytes);
    to.live_warps = block.live_warps;
    to.clocks = block.clocks;
}

void set_block_index(uint32_t number) {
    const uint32_t (&grid)[3] = block.launch->grid;
    uint32_t* const index = block.module->block_index;
    index[0] = number % grid[0];
    index[1] = number / grid[0] % grid[1];
    index[2] = number / grid[0] / grid[1];
}

// Makes a block the current one again. What other blocks left in the shared memory is nobody's business.
void unpark(const Parked& from) {
    set_block_index(from.number);
    copy(block.threads, from.threads, block.thread_count * sizeof(Thread));
    copy(block.requests, from.requests, block.thread_count * sizeof(Request));
    copy(block.warps, from.warps, sizeof block.warps);
    copy(block.barriers, from.barriers, sizeof block.barriers);
    race::forget(block.module->static_begin, static_bytes());
    race::forget(block.module->arena, block.launch->shared_bytes);
    race::release(&handed_over);
    copy(block.module->static_begin, from.shared, static_bytes());
    copy(block.module->arena, from.shared + static_bytes(), block.launch->shared_bytes);
    block.live_warps = from.live_warps;
    block.clocks = from.clocks;
    block.has_blocked = true;
    block.accounted = block.thread_count;
    block.ready_first = block.ready_count = 0;
    uint32_t (*const end)[3] = block.start_index + block.thread_count;
    *block.module->cursor = {nullptr, end, end};
}

// Some blocks wait, others have returned and never will.
void fail_incomplete(const Parked* blocks, uint32_t count) {
    uint32_t waiting = 0, returned = 0, first = count, gone = count;
    for (uint32_t i = count; i-- > 0;) {
        if (blocks[i].waits) ++waiting, first = i;
        else ++returned, gone = i;
    }
    set_block_index(blocks[gone].number);
    const uint32_t (&at)[3] = {block.module->block_index[0], block.module->block_index[1], block.module->block_index[2]};
    unpark(blocks[first]);
    record_failure(FUSIOND_BARRIER_STUCK, 0,
                   "this_grid().sync() can never complete: all threads of %u block%s wait there; block (%u,%u,%u)%s returned",
                   waiting, waiting == 1 ? "" : "s", at[0], at[1], at[2], returned > 1 ? " and others have" : " has");
}

bool make_room(Parked* blocks, uint32_t count) {
    const size_t shared = static_bytes() + block.launch->shared_bytes;
    for (uint32_t i = 0; i < count; ++i) {
        blocks[i].threads = static_cast<Thread*>(calloc(block.thread_count, sizeof(Thread)));
        blocks[i].requests = static_cast<Request*>(calloc(block.thread_count, sizeof(Request)));
        blocks[i].shared = static_cast<unsigned char*>(malloc(shared + 1));
        if (!blocks[i].threads || !blocks[i].requests || !blocks[i].shared) return false;
    }
    return true;
}

void give_back(Parked* blocks, uint32_t count) {
    for (uint32_t i = 0; blocks && i < count; ++i) {
        free(blocks[i].threads);
        free(blocks[i].requests);
        free(blocks[i].shared);
    }
    free(blocks);
}

void shuffle(uint32_t* order, uint32_t count) {
    for (uint32_t i = count - 1; block.shuffled && i > 0; --i) {
        const uint32_t j = block.random.below(i + 1);
        const uint32_t other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

// All threads of the block go on from the grid's barrier.
void open_grid() {
    block.at_grid = 0;
    for (uint32_t thread = 0; thread < block.thread_count; ++thread) resume(thread);
}

void run_rounds(Parked* blocks, uint32_t* order, uint32_t count, void (*start)(uint32_t), void (*go_on)()) {
    for (bool begun = false;; begun = true) {
        shuffle(order, count);
        uint32_t waiting = 0;
        for (uint32_t i = 0; i < count; ++i) {
            Parked& it = blocks[order[i]];
            if (begun) {
                unpark(it);
                open_grid();
                go_on();
            } else {
                start(order[i]);
            }
            if (block.failed) return;
            park(it, order[i]);
            waiting += it.waits;
        }
        if (!waiting) return;
        if (waiting < count) return fail_incomplete(blocks, count);
        round_number ^= 1;
    }
}

}  // namespace

uint32_t most_at_once() { return at_once; }

void run_cooperatively(uint32_t blocks, void (*start)(uint32_t), void (*go_on)()) {
    Parked* const all = static_cast<Parked*>(calloc(blocks, sizeof(Parked)));
    uint32_t* const order = static_cast<uint32_t*>(malloc(blocks * sizeof(uint32_t)));
    if (all && order && make_room(all, blocks)) {
        for (uint32_t i = 0; i < blocks; ++i) order[i] = i;
        if (race::enabled) race::forget(block.carriers.memory(), block.carriers.used_bytes());
        run_rounds(all, order, blocks, start, go_on);
    } else {
        record_failure(FUSIOND_BAD_LAUNCH, no_thread, "no memory for %u blocks at once", blocks);
    }
    give_back(all, blocks);
    free(order);
}

void grid_barrier() {
    const uint32_t number = begin_wait();
    if (!(block.launch->flags & FUSIOND_COOPERATIVE))
        fail(FUSIOND_BARRIER_MISUSE, number, "this_grid().sync() in a launch that is not cooperative");
    char* const clock = &ordered[round_number];
    race::release(clock);
    block.threads[number].wait = Wait::grid;
    block.at_grid += 1;
    end_wait();
    race::acquire(clock);
    race::acquire(&handed_over);
}

uint32_t grid_is_valid() { return (block.launch->flags & FUSIOND_COOPERATIVE) != 0; }

}  // namespace fusiond
