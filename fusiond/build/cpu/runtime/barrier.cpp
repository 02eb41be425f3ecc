// Barriers count warps, as the hardware does: a warp arrives when all its threads that have not returned
// wait there, and then counts as 32 threads. A warp that has returned as a whole never arrives at a counted
// barrier; __syncthreads() does not wait for it.

#include "block.h"
#include "race.h"

namespace fusiond {
namespace {

uint32_t whole_block() { return block.warp_count * warp_size; }

uint32_t stated(uint32_t count) { return count == FUSIOND_WHOLE_BLOCK ? whole_block() : count; }

const char* spelling(fusiond_barrier_kind kind) {
    static const char* const names[] = {"a plain barrier", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or"};
    return names[kind];
}

uint32_t first_waiting(uint32_t id) {
    for (uint32_t thread = 0; thread < block.thread_count; ++thread)
        if (block.threads[thread].wait == Wait::barrier && warp_of(thread).barrier == id) return thread;
    return no_thread;
}

// The refusals stand apart, not inlined: their buffers would enlarge the frame of every thread that waits.
#define COLD __attribute__((cold, noinline, noreturn))

COLD void refuse_request(uint32_t thread, uint32_t id, uint32_t count) {
    if (id >= barrier_ids)
        fail(FUSIOND_BARRIER_MISUSE, thread, "barrier %u does not exist: the ids are 0 to %u", id, barrier_ids - 1);
    fail(FUSIOND_BARRIER_MISUSE, thread, "barrier %u counts %u threads, which is not a positive multiple of %u", id, count,
         warp_size);
}

COLD void refuse_count(uint32_t thread, uint32_t id, uint32_t count) {
    char other[64];
    thread_name(first_waiting(id), other, sizeof other);
    fail(FUSIOND_BARRIER_MISUSE, thread, "the users of barrier %u disagree about its count: %u threads here, but %u where %s waits",
         id, stated(count), stated(block.barriers[id].count), other);
}

COLD void refuse_kind(uint32_t thread, uint32_t id, fusiond_barrier_kind kind) {
    char other[64];
    thread_name(first_waiting(id), other, sizeof other);
    fail(FUSIOND_BARRIER_MISUSE, thread, "barrier %u is %s here, but %s where %s waits", id, spelling(kind),
         spelling(block.barriers[id].kind), other);
}

COLD void refuse_divergence(uint32_t thread, uint32_t id) {
    const Warp& warp = warp_of(thread);
    char other[64];
    thread_name(thread - lane_of(thread) + static_cast<uint32_t>(__builtin_ctz(warp.at_barrier)), other, sizeof other);
    fail(FUSIOND_BARRIER_MISUSE, thread,
         "threads of one warp wait at different barriers, neither can complete: barrier %u here, but barrier %u where %s waits", id,
         warp.barrier, other);
}

COLD void refuse_users(uint32_t warp, uint32_t id, uint32_t users) {
    const uint32_t thread = warp * warp_size + static_cast<uint32_t>(__builtin_ctz(block.warps[warp].at_barrier));
    fail(FUSIOND_BARRIER_MISUSE, thread, "barrier %u expects %u threads, but %u threads use it", id, block.barriers[id].count, users);
}

#undef COLD

void check(uint32_t thread, uint32_t id, uint32_t count, fusiond_barrier_kind kind) {
    if (id >= barrier_ids || (count != FUSIOND_WHOLE_BLOCK && (count == 0 || count % warp_size != 0)))
        refuse_request(thread, id, count);
    const Barrier& barrier = block.barriers[id];
    if (barrier.waiting && barrier.count != count && stated(barrier.count) != stated(count)) refuse_count(thread, id, count);
    if (barrier.waiting && barrier.kind != kind) refuse_kind(thread, id, kind);
    const Warp& warp = warp_of(thread);
    if (warp.at_barrier && warp.barrier != id) refuse_divergence(thread, id);
}

uint64_t reduced(const Barrier& barrier) {
    switch (barrier.kind) {
        case FUSIOND_BARRIER_COUNT: return barrier.predicates;
        case FUSIOND_BARRIER_AND: return barrier.predicates == barrier.waiting;
        case FUSIOND_BARRIER_OR: return barrier.predicates != 0;
        default: return 0;
    }
}

void open(Barrier& barrier) {
    const uint64_t result = reduced(barrier);
    for (uint32_t warps = barrier.arrived; warps; warps &= warps - 1) {
        const uint32_t number = static_cast<uint32_t>(__builtin_ctz(warps));
        Warp& warp = block.warps[number];
        for (uint32_t lanes = warp.at_barrier; lanes; lanes &= lanes - 1) {
            const uint32_t thread = number * warp_size + static_cast<uint32_t>(__builtin_ctz(lanes));
            block.threads[thread].result = result;
            resume(thread);
        }
        warp.at_barrier = 0;
    }
    if (barrier.arrived == block.live_warps)
        for (Barrier& other : block.barriers) other.users = 0;
    barrier.arrived = 0;
    barrier.waiting = 0;
    barrier.predicates = 0;
    barrier.round ^= 1;
}

uint64_t wait_at(uint32_t id, uint32_t count, fusiond_barrier_kind kind, bool predicate) {
    const uint32_t number = begin_wait();
    check(number, id, count, kind);

    Barrier& barrier = block.barriers[id];
    Thread& thread = block.threads[number];
    Warp& warp = warp_of(number);
    char* const ordered = race::enabled ? clock_at(id, barrier.round) : nullptr;
    race::release(ordered);

    thread.wait = Wait::barrier;
    barrier.count = count;
    barrier.kind = kind;
    barrier.waiting += 1;
    barrier.predicates += predicate;
    warp.barrier = id;
    warp.at_barrier |= bit_of(number);
    if (warp.at_barrier == warp.live) warp_arrives(number / warp_size);
    end_wait();

    race::acquire(ordered);
    return thread.result;
}

}  // namespace

void warp_arrives(uint32_t warp) {
    const uint32_t id = block.warps[warp].barrier;
    Barrier& barrier = block.barriers[id];
    barrier.arrived |= 1u << warp;
    barrier.users |= 1u << warp;
    const uint32_t users = static_cast<uint32_t>(__builtin_popcount(barrier.users)) * warp_size;
    if (barrier.count != FUSIOND_WHOLE_BLOCK && users > barrier.count)
        refuse_users(warp, id, users);
    open_if_complete(barrier);
}

void open_if_complete(Barrier& barrier) {
    if (!barrier.waiting) return;
    const bool complete = barrier.count == FUSIOND_WHOLE_BLOCK
                              ? barrier.arrived == block.live_warps
                              : static_cast<uint32_t>(__builtin_popcount(barrier.arrived)) * warp_size == barrier.count;
    if (complete) open(barrier);
}

void barrier(uint32_t id, uint32_t count) { wait_at(id, count, FUSIOND_BARRIER_SYNC, false); }

uint32_t barrier_reduce(uint32_t kind, uint32_t id, uint32_t count, uint32_t predicate) {
    return static_cast<uint32_t>(wait_at(id, count, static_cast<fusiond_barrier_kind>(kind), predicate != 0));
}

}  // namespace fusiond
