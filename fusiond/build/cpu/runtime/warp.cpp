// Warp operations: each waits until all threads that its mask names, and that have not returned, wait in the
// same operation with the same mask. The one that arrives last computes the result of every lane.

#include "block.h"
#include "race.h"

namespace fusiond {
namespace {

uint32_t lowest(uint32_t mask) { return static_cast<uint32_t>(__builtin_ctz(mask)); }

// The lane that a shuffle reads, by the rules of PTX's shfl: beyond its group, a lane reads itself.
uint32_t source_lane(const Collective& shuffle, uint32_t lane) {
    const uint32_t group = lane & ~(shuffle.width - 1);
    const uint32_t last = group + shuffle.width - 1;
    const uint32_t operand = shuffle.operand % warp_size;
    switch (shuffle.kind) {
        case FUSIOND_SHFL: return group + operand % shuffle.width;
        case FUSIOND_SHFL_UP: return lane < group + operand ? lane : lane - operand;
        case FUSIOND_SHFL_DOWN: return lane + operand > last ? lane : lane + operand;
        default: return (lane ^ operand) > last ? lane : lane ^ operand;
    }
}

uint64_t shuffled(uint32_t thread, uint32_t taking_part) {
    const Collective& request = block.requests[thread].collective;
    const uint32_t source = source_lane(request, lane_of(thread));
    const uint32_t source_thread = thread - lane_of(thread) + source;
    if (taking_part >> source & 1) return block.requests[source_thread].collective.value;
    if (request.mask >> source & 1 && source_thread < block.thread_count) {
        char other[64];
        thread_name(source_thread, other, sizeof other);
        fail(FUSIOND_WARP_MISUSE, thread, "%s(mask 0x%08x) reads lane %u, but %s has returned", collective_name(request.kind),
             request.mask, source, other);
    }
    return uint64_t{block.poison} << 32 | block.poison;  // its source takes no part
}

uint32_t reduced(uint32_t kind, uint32_t a, uint32_t b) {
    switch (kind) {
        case FUSIOND_REDUCE_ADD: return a + b;
        case FUSIOND_REDUCE_MIN: return b < a ? b : a;
        case FUSIOND_REDUCE_MAX: return b > a ? b : a;
        case FUSIOND_REDUCE_MIN_SIGNED: return static_cast<int32_t>(b) < static_cast<int32_t>(a) ? b : a;
        case FUSIOND_REDUCE_MAX_SIGNED: return static_cast<int32_t>(b) > static_cast<int32_t>(a) ? b : a;
        case FUSIOND_REDUCE_AND: return a & b;
        case FUSIOND_REDUCE_OR: return a | b;
        default: return a ^ b;
    }
}

// Lanes (of `lanes`, in the warp that starts with thread `first`) which hold `value`.
uint32_t holding(uint64_t value, uint32_t first, uint32_t lanes) {
    uint32_t same = 0;
    for (uint32_t rest = lanes; rest; rest &= rest - 1)
        if (block.requests[first + lowest(rest)].collective.value == value) same |= rest & -rest;
    return same;
}

uint64_t result_of(uint32_t thread, uint32_t lanes) {
    const uint32_t first = thread - lane_of(thread);
    const Collective& request = block.requests[thread].collective;
    switch (request.kind) {
        case FUSIOND_SYNCWARP: return 0;
        case FUSIOND_SHFL:
        case FUSIOND_SHFL_UP:
        case FUSIOND_SHFL_DOWN:
        case FUSIOND_SHFL_XOR: return shuffled(thread, lanes);
        case FUSIOND_BALLOT: return holding(1, first, lanes);
        case FUSIOND_ANY: return holding(1, first, lanes) != 0;
        case FUSIOND_ALL: return holding(1, first, lanes) == lanes;
        case FUSIOND_MATCH_ANY: return holding(request.value, first, lanes);
        case FUSIOND_MATCH_ALL: return holding(request.value, first, lanes) == lanes ? lanes : 0;
        default: break;
    }
    uint32_t total = static_cast<uint32_t>(block.requests[first + lowest(lanes)].collective.value);
    for (uint32_t rest = lanes & (lanes - 1); rest; rest &= rest - 1)
        total = reduced(request.kind, total, static_cast<uint32_t>(block.requests[first + lowest(rest)].collective.value));
    return total;
}

void check_request(uint32_t thread, const Collective& request) {
    const char* name = collective_name(request.kind);
    if (!(request.mask & bit_of(thread)))
        fail(FUSIOND_WARP_MISUSE, thread, "%s(mask 0x%08x) is called by lane %u, which the mask does not name", name, request.mask,
             lane_of(thread));
    if (request.width == 0 || request.width > warp_size || request.width & (request.width - 1))
        fail(FUSIOND_WARP_MISUSE, thread, "%s has width %u, which is not a power of two up to %u", name, request.width, warp_size);
}

// __syncwarp orders memory among those it names; shuffles and votes do not. The clock belongs to the
// lowest lane of the mask, with one for the even rounds and one for the odd.
char* clock_of(uint32_t thread) {
    const uint32_t owner = thread - lane_of(thread) + lowest(block.requests[thread].collective.mask);
    return clock_at(barrier_ids + owner, block.requests[owner].round);
}

uint64_t take_part(const Collective& request) {
    const uint32_t number = begin_wait();
    check_request(number, request);
    Thread& thread = block.threads[number];
    block.requests[number].collective = request;
    char* const ordered = race::enabled && request.kind == FUSIOND_SYNCWARP ? clock_of(number) : nullptr;
    if (ordered) race::release(ordered);

    thread.wait = Wait::collective;
    warp_of(number).in_collective |= bit_of(number);
    complete_collective(number);
    end_wait();

    if (ordered) race::acquire(ordered);
    return thread.result;
}

}  // namespace

void complete_collective(uint32_t thread) {
    Warp& warp = warp_of(thread);
    const Collective& request = block.requests[thread].collective;
    const uint32_t lanes = request.mask & warp.live;
    if (lanes & ~warp.in_collective) return;

    const uint32_t first = thread - lane_of(thread);
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        const Collective& other = block.requests[first + lowest(rest)].collective;
        if (other.kind != request.kind || other.mask != request.mask) return;  // stuck, unless one of them goes on
    }
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        const uint32_t member = first + lowest(rest);
        block.threads[member].result = result_of(member, lanes);
    }
    warp.in_collective &= ~lanes;
    if (request.kind == FUSIOND_SYNCWARP) block.requests[first + lowest(request.mask)].round ^= 1;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) resume(first + lowest(rest));
}

bool resolve_convergence() {
    for (uint32_t number = 0; number < block.thread_count; ++number) {
        if (block.threads[number].wait != Wait::convergence) continue;
        const uint32_t first = number - lane_of(number);
        uint32_t together = 0;
        for (uint32_t other = first; other < first + warp_size && other < block.thread_count; ++other)
            if (block.threads[other].wait == Wait::convergence && block.requests[other].call_site == block.requests[number].call_site)
                together |= bit_of(other);
        for (uint32_t rest = together; rest; rest &= rest - 1) {
            block.threads[first + lowest(rest)].result = together;
            resume(first + lowest(rest));
        }
        return true;
    }
    return false;
}

uint64_t collective(uint32_t kind, uint32_t mask, uint64_t value, uint32_t operand, uint32_t width) {
    return take_part({kind, mask, operand, width, value});
}

uint32_t activemask() {
    const uint32_t number = begin_wait();
    Thread& thread = block.threads[number];
    thread.wait = Wait::convergence;
    block.requests[number].call_site = __builtin_return_address(0);
    end_wait();
    return static_cast<uint32_t>(thread.result);
}

}  // namespace fusiond
