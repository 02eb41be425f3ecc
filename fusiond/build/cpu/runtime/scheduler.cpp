// Runs a launch: block after block, and within a block the threads, each until it blocks or returns.

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "block.h"
#include "race.h"
#include "signals.h"

namespace fusiond {

Block block;

namespace {

// A GPU's thread has at most 512 KiB of local memory. Only what a thread touches is ever backed.
constexpr uint32_t default_stack_bytes = 1024 * 1024;
constexpr uint32_t least_stack_bytes = 64 * 1024;
constexpr uint32_t overrun_bytes = 4096;           // checked behind the dynamic shared memory
char launch_order;                                 // ThreadSanitizer: what a thread did happens before the launch's end
char fence_order;                                  // and before what a thread does behind a later __threadfence()

fusiond_cursor& cursor() { return *block.module->cursor; }

bool leads(const Carrier* carrier) { return cursor().carrier == carrier; }

uint32_t starts_left() { return static_cast<uint32_t>(cursor().end - cursor().next); }

void set_words(uint32_t* to, const uint32_t (&from)[3]) { memcpy(to, from, sizeof from); }

void thread_returned(uint32_t number) {
    Warp& warp = warp_of(number);
    warp.live &= ~bit_of(number);
    if (!warp.live) {
        block.live_warps &= ~(1u << (number / warp_size));
        if (block.barriers[0].count == FUSIOND_WHOLE_BLOCK) open_if_complete(block.barriers[0]);
    } else if (warp.at_barrier == warp.live) {
        warp_arrives(number / warp_size);
    }
    const uint32_t first = number - lane_of(number);
    for (uint32_t lanes = warp.in_collective; lanes; lanes &= lanes - 1) {
        const uint32_t waiting = first + static_cast<uint32_t>(__builtin_ctz(lanes));
        const bool asked = block.threads[waiting].wait == Wait::collective;
        if (asked && block.requests[waiting].collective.mask & bit_of(number)) complete_collective(waiting);
    }
}

// The loop inside the kernel's object starts threads without telling: all before the one it stands at have returned.
void note_returned(uint32_t up_to) {
    while (block.accounted < up_to) thread_returned(block.start_order[block.accounted++]);
}

uint32_t loop_position() { return static_cast<uint32_t>(cursor().next - block.start_index) - 1; }

Carrier* start_next_thread() {
    Carrier* carrier = block.carriers.take();
    const uint32_t position = loop_position() + 1;
    set_words(block.module->thread_index, block.start_index[position]);
    cursor().carrier = carrier;
    cursor().next += 1;
    carrier->race_fiber = block.threads[block.start_order[position]].race_fiber;
    return carrier;
}

void push_ready(uint32_t thread) { block.ready[(block.ready_first + block.ready_count++) % max_threads] = thread; }

// A switch costs little more than the cache miss on the stack it switches to.
void prefetch_stack(uint32_t thread) {
#ifndef FUSIOND_UCONTEXT
    const char* const top = static_cast<const char*>(block.threads[thread].carrier->context.stack_pointer);
    __builtin_prefetch(top);
    __builtin_prefetch(top + 64);
#else
    (void)thread;
#endif
}

Carrier* take_ready() {
    // In order: the first of the ring. Shuffled: any, which changes places with the first.
    const uint32_t chosen = block.shuffled ? block.random.below(block.ready_count) : 0;
    uint32_t& first = block.ready[block.ready_first % max_threads];
    uint32_t& any = block.ready[(block.ready_first + chosen) % max_threads];
    const uint32_t thread = any;
    any = first;
    block.ready_first += 1;
    block.ready_count -= 1;
    if (block.ready_count) prefetch_stack(block.ready[block.ready_first % max_threads]);
    set_words(block.module->thread_index, block.index[thread]);
    return block.threads[thread].carrier;
}

// Who runs next: a ready thread, one that has not started, or the scheduler when the block is done.
Carrier* choose() {
    for (;;) {
        const uint32_t starts = starts_left();
        const bool start = block.shuffled ? starts && block.random.below(block.ready_count + 1) == 0 : starts && !block.ready_count;
        if (start) return start_next_thread();
        if (block.ready_count) return take_ready();
        if (starts) continue;
        if (!block.live_warps) return &block.scheduler;
        if (block.at_grid && block.at_grid == block.thread_count) return &block.scheduler;  // the block waits as a whole
        if (!resolve_convergence()) fail_stuck();
    }
}

void switch_to(Carrier* next) {
    Carrier* const from = block.running;
    if (next == from) return;
    block.running = next;
    block.report->switches += 1;
    race::switch_to(*next);
    context_switch(from->context, next->context);
}

// The body of every carrier. A carrier given back to the pool stands inside carrier_idle() until it is taken again.
void carrier_idle() {
    Carrier* const self = block.running;
    race::release(&launch_order);
    if (!leads(self)) {
        thread_returned(self->thread);
    } else if (!block.has_blocked && !starts_left()) {
        block.live_warps = 0;  // the usual end of a block without barriers
    } else {
        note_returned(loop_position() + 1);
    }
    if (leads(self)) cursor().carrier = nullptr;
    if (!race::enabled) block.carriers.give(self);  // a new thread on an old stack would look like a race
    switch_to(choose());
}

void carrier_body() {
    for (;;) {
        block.launch->entry->run(block.launch->arguments, block.running);
        carrier_idle();
    }
}

void shuffle_starts() {
    for (uint32_t i = block.thread_count - 1; i > 0; --i) {
        const uint32_t j = block.random.below(i + 1);
        const uint32_t other = block.start_order[j];
        block.start_order[j] = block.start_order[i];
        block.start_order[i] = other;
    }
    for (uint32_t i = 0; i < block.thread_count; ++i) set_words(block.start_index[i], block.index[block.start_order[i]]);
}

void poison(unsigned char* begin, unsigned char* end) {
    const uint32_t word = block.poison;
    for (; begin < end; begin += sizeof word) memcpy(begin, &word, sizeof word);
}

unsigned char* arena_end() { return block.module->arena + (block.launch->shared_bytes + 3u) / 4 * 4; }

void make_fibers() {
    const uint32_t* const at = block.module->block_index;
    for (uint32_t number = 0; number < block.thread_count; ++number) {
        char thread[64];
        char name[128];
        thread_name(number, thread, sizeof thread);
        snprintf(name, sizeof name, "%s of block (%u,%u,%u)", thread, at[0], at[1], at[2]);
        block.threads[number].race_fiber = race::new_fiber(name);
    }
}

void prepare_memory(uint32_t number) {
    const fusiond_module& module = *block.module;
    if (race::enabled) {
        block.clocks = race::clocks_of(number, clock_bytes);
        race::forget(module.static_begin, static_cast<size_t>(module.static_end - module.static_begin));
        race::forget(module.arena, block.launch->shared_bytes);
        if (!(block.launch->flags & FUSIOND_COOPERATIVE)) {  // there other blocks still stand on the stacks
            race::forget(block.carriers.memory(), block.carriers.used_bytes());
            block.carriers.start_afresh();
        }
        make_fibers();
    }
    if (block.launch->flags & FUSIOND_CHECKED) {
        poison(module.static_begin, module.static_end);
        poison(module.arena, arena_end() + overrun_bytes);
    }
}

void check_overrun() {
    if (!(block.launch->flags & FUSIOND_CHECKED)) return;
    const uint32_t word = block.poison;
    for (uint32_t offset = 0; offset < overrun_bytes; offset += sizeof word)
        if (memcmp(arena_end() + offset, &word, sizeof word) != 0)
            return record_failure(FUSIOND_SHARED_OVERRUN, no_thread, "byte %u behind the %u bytes of dynamic shared memory was written", offset,
                 block.launch->shared_bytes);
}

void prepare_block(uint32_t number) {
    block.live_warps = static_cast<uint32_t>((uint64_t{1} << block.warp_count) - 1);
    for (uint32_t warp = 0; warp < block.warp_count; ++warp) {
        const uint32_t rest = block.thread_count - warp * warp_size;
        block.warps[warp] = {};
        block.warps[warp].live = rest >= warp_size ? 0xffffffffu : (1u << rest) - 1;
    }
    for (Barrier& barrier : block.barriers) barrier.waiting = barrier.arrived = barrier.users = barrier.predicates = 0;
    block.has_blocked = false;
    block.at_grid = 0;
    block.accounted = 0;
    block.ready_first = block.ready_count = 0;
    if (block.shuffled) shuffle_starts();
    cursor() = {nullptr, block.start_index, block.start_index + block.thread_count};
    prepare_memory(number);
}

void run_block(uint32_t number) {
    const uint32_t (&grid)[3] = block.launch->grid;
    uint32_t* const index = block.module->block_index;
    index[0] = number % grid[0];
    index[1] = number / grid[0] % grid[1];
    index[2] = number / grid[0] / grid[1];
    prepare_block(number);
    switch_to(start_next_thread());
    if (!block.failed) check_overrun();
}

// Goes on with a block whose threads have been resumed.
void continue_block() {
    switch_to(choose());
    if (!block.failed) check_overrun();
}

void fence() {
    race::acquire(&fence_order);
    race::release(&fence_order);
}

uint32_t is_local(const void* address) { return block.carriers.contains(address); }

constexpr fusiond_scheduler calls = {barrier, barrier_reduce, collective, activemask, fence, grid_barrier, grid_is_valid, is_local,
                                     trap};

uint32_t common_divisor(uint32_t a, uint32_t b) { return b ? common_divisor(b, a % b) : a; }

// Visits every block once. Shuffled: i -> start + i * stride, a permutation when the stride has no divisor in common with the count.
void run_grid(uint32_t blocks) {
    if (block.launch->flags & FUSIOND_COOPERATIVE) return run_cooperatively(blocks, run_block, continue_block);
    uint32_t at = 0;
    uint32_t stride = 1;
    if (block.shuffled) {
        at = block.random.below(blocks);
        do stride = 1 + block.random.below(blocks);
        while (common_divisor(stride, blocks) != 1);
    }
    for (uint32_t i = 0; i < blocks && !block.failed; ++i) {
        run_block(at);
        at = static_cast<uint32_t>((uint64_t{at} + stride) % blocks);
    }
}

bool refuse(fusiond_report& report, const char* text) {
    report.code = FUSIOND_BAD_LAUNCH;
    snprintf(report.text, sizeof report.text, "%s", text);
    return false;
}

bool check_launch(const fusiond_launch& launch, fusiond_report& report) {
    if (launch.abi != FUSIOND_ABI || launch.entry->module->abi != FUSIOND_ABI)
        return refuse(report, "the kernel, the launcher and the library are of different versions: build them again");
    const uint64_t threads = uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
    if (threads == 0 || launch.block[0] > max_threads || launch.block[1] > max_threads || launch.block[2] > 64 || threads > max_threads)
        return refuse(report, "a block has 1 to 1024 threads, at most 1024 x 1024 x 64 a side");
    if (!launch.grid[0] || !launch.grid[1] || !launch.grid[2] || launch.grid[0] > 0x7fffffff || launch.grid[1] > 65535 || launch.grid[2] > 65535)
        return refuse(report, "a grid has 1 to 2147483647 x 65535 x 65535 blocks");
    if (static_cast<unsigned __int128>(launch.grid[0]) * launch.grid[1] * launch.grid[2] > 0x7fffffff)
        return refuse(report, "more than 2147483647 blocks are not run on a processor");
    if (launch.shared_bytes > launch.entry->module->arena_bytes)
        return refuse(report, "a block has at most 232448 bytes of dynamic shared memory");
    const uint64_t all = threads * launch.grid[0] * launch.grid[1] * launch.grid[2];
    if (launch.flags & FUSIOND_COOPERATIVE && all > most_at_once()) {
        char text[160];
        snprintf(text, sizeof text, "a cooperative launch of %llu threads: the processor keeps at most %u alive at once",
                 static_cast<unsigned long long>(all), most_at_once());
        return refuse(report, text);
    }
    return true;
}

bool prepare_launch(const fusiond_launch& launch, fusiond_report& report) {
    uint32_t stack_bytes = launch.stack_bytes ? launch.stack_bytes : default_stack_bytes;
    uint32_t stacks = max_threads + 1;
    if (launch.flags & FUSIOND_COOPERATIVE) {
        const uint32_t all = launch.grid[0] * launch.grid[1] * launch.grid[2] * launch.block[0] * launch.block[1] * launch.block[2];
        if (all >= stacks) stacks = all + 1;
    }
    while (!block.carriers.prepare(stack_bytes, stacks, carrier_body)) {  // where even untouched memory is limited
        if (launch.stack_bytes || stack_bytes == least_stack_bytes) return refuse(report, "no memory for the stacks of the threads");
        stack_bytes /= 2;
    }
    block.launch = &launch;
    block.module = launch.entry->module;
    block.report = &report;
    *block.module->scheduler = &calls;
    block.thread_count = launch.block[0] * launch.block[1] * launch.block[2];
    block.warp_count = (block.thread_count + warp_size - 1) / warp_size;
    block.shuffled = launch.seed != 0;
    block.random = {launch.seed * 0x9e3779b97f4a7c15u | 1};
    block.failed = false;
    block.poison = launch.seed & 1 ? FUSIOND_POISON_HUGE : FUSIOND_POISON_NAN;
    block.arriving = no_thread;
    block.running = &block.scheduler;
    block.scheduler.race_fiber = race::this_fiber();
    set_words(block.module->block_dim, launch.block);
    set_words(block.module->grid_dim, launch.grid);
    for (uint32_t number = 0; number < block.thread_count; ++number) {
        block.threads[number].wait = Wait::nothing;
        const uint32_t index[3] = {number % launch.block[0], number / launch.block[0] % launch.block[1],
                                   number / launch.block[0] / launch.block[1]};
        set_words(block.index[number], index);
        set_words(block.start_index[number], index);
        block.start_order[number] = number;
    }
    return true;
}

uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);  // a launch is one thread; others on the cores are not its cost
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

uint32_t current_thread() {
    if (block.running == &block.scheduler) return no_thread;
    if (!leads(block.running)) return block.running->thread;
    const uint32_t position = loop_position();
    note_returned(position);
    return block.start_order[position];
}

uint32_t begin_wait() { return block.arriving = current_thread(); }

void end_wait() {
    const uint32_t thread = block.arriving;
    Carrier* const self = block.running;
    block.arriving = no_thread;
    block.threads[thread].carrier = self;
    if (block.threads[thread].wait == Wait::nothing) {
        if (!block.shuffled) return;
        push_ready(thread);
    }
    block.has_blocked = true;
    if (leads(self)) {
        self->thread = thread;
        block.accounted = loop_position() + 1;
        cursor().carrier = nullptr;
    }
    switch_to(choose());
}

void resume(uint32_t thread) {
    block.threads[thread].wait = Wait::nothing;
    if (thread != block.arriving) push_ready(thread);
}

}  // namespace fusiond

using namespace fusiond;

uint32_t fusiond_abi() { return FUSIOND_ABI; }

int32_t fusiond_run(const fusiond_launch* launch, fusiond_report* report) {
    memset(report, 0, sizeof *report);
    if (!check_launch(*launch, *report)) return report->code;
    if (!prepare_launch(*launch, *report)) return report->code;

    const SignalGuard guard;
    const uint64_t start = now_ns();
    run_grid(launch->grid[0] * launch->grid[1] * launch->grid[2]);
    report->elapsed_ns = now_ns() - start;
    race::acquire(&launch_order);
    fflush(stdout);  // device printf appears when the launch is over
    return report->code;
}
