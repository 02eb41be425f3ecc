// Failures in words: what went wrong, and who waits where.

#include <stdarg.h>
#include <stdio.h>

#include "block.h"
#include "race.h"

namespace fusiond {
namespace {

constexpr uint32_t described_groups = 8;

class Text {
public:
    __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
        va_list arguments;
        va_start(arguments, format);
        const int written = vsnprintf(text_ + used_, sizeof text_ - used_, format, arguments);
        va_end(arguments);
        if (written > 0) used_ += static_cast<uint32_t>(written);
        if (used_ >= sizeof text_) used_ = sizeof text_ - 1;
    }
    const char* get() const { return text_; }

private:
    char text_[sizeof(fusiond_report::text) - 100] = "";
    uint32_t used_ = 0;
};

bool wait_alike(uint32_t a, uint32_t b) {
    const Thread& one = block.threads[a];
    const Thread& other = block.threads[b];
    if (one.wait != other.wait) return false;
    if (one.wait == Wait::grid) return true;
    if (one.wait == Wait::barrier) return warp_of(a).barrier == warp_of(b).barrier;
    const Collective& asked = block.requests[a].collective;
    const Collective& other_asked = block.requests[b].collective;
    return a / warp_size == b / warp_size && asked.kind == other_asked.kind && asked.mask == other_asked.mask;
}

bool returned(uint32_t thread) { return !(warp_of(thread).live & bit_of(thread)); }

bool first_of_its_kind(uint32_t thread) {
    for (uint32_t earlier = 0; earlier < thread; ++earlier)
        if (!returned(earlier) && wait_alike(earlier, thread)) return false;
    return true;
}

void add_who(Text& text, uint32_t first, uint32_t count) {
    char name[64];
    thread_name(first, name, sizeof name);
    text.add("%s", name);
    if (count > 1) text.add(" and %u other%s", count - 1, count > 2 ? "s" : "");
}

void add_returned(Text& text) {
    uint32_t first = no_thread;
    uint32_t count = 0;
    for (uint32_t thread = block.thread_count; thread-- > 0;)
        if (returned(thread)) first = thread, ++count;
    if (!count) return;
    text.add("; ");
    add_who(text, first, count);
    text.add(count > 1 ? " have returned" : " has returned");
}

void add_barrier(Text& text, const Barrier& barrier) {
    const uint32_t arrived = static_cast<uint32_t>(__builtin_popcount(barrier.arrived)) * warp_size;
    if (barrier.count == FUSIOND_WHOLE_BLOCK)
        text.add(" (__syncthreads, expects all threads of the block that have not returned)");
    else
        text.add(" (expects %u threads, %u have arrived)", barrier.count, arrived);
}

void add_group(Text& text, uint32_t first) {
    uint32_t count = 0;
    for (uint32_t thread = first; thread < block.thread_count; ++thread) count += !returned(thread) && wait_alike(first, thread);
    add_who(text, first, count);
    text.add(count > 1 ? " wait at " : " waits at ");
    if (block.threads[first].wait == Wait::barrier) {
        text.add("barrier %u", warp_of(first).barrier);
        add_barrier(text, block.barriers[warp_of(first).barrier]);
    } else if (block.threads[first].wait == Wait::grid) {
        text.add("this_grid().sync()");
    } else {
        const Collective& asked = block.requests[first].collective;
        text.add("%s (mask 0x%08x)", collective_name(asked.kind), asked.mask);
    }
}

// The threads that wait in warp operations first: a thread at a barrier may be stuck only because of them.
uint32_t culprit() {
    uint32_t first = no_thread;
    for (uint32_t thread = block.thread_count; thread-- > 0;)
        if (!returned(thread) && block.threads[thread].wait == Wait::collective) first = thread;
    if (first != no_thread) return first;
    for (first = 0; returned(first);) ++first;
    return first;
}

__attribute__((noreturn)) void leave_block() {
    block.running = &block.scheduler;
    Carrier abandoned;
    race::switch_to(block.scheduler);
    context_switch(abandoned.context, block.scheduler.context);
    __builtin_unreachable();
}

void record(fusiond_code code, uint32_t thread, const char* format, va_list arguments) {
    fusiond_report& report = *block.report;
    const uint32_t* const at = block.module->block_index;
    block.failed = true;
    report.code = code;
    for (int i = 0; i < 3; ++i) report.block[i] = at[i];
    Text text;
    text.add("block (%u,%u,%u)", at[0], at[1], at[2]);
    if (thread != no_thread) {
        char name[64];
        thread_name(thread, name, sizeof name);
        text.add(", %s", name);
        report.has_thread = 1;
        for (int i = 0; i < 3; ++i) report.thread[i] = block.index[thread][i];
    }
    const int used = snprintf(report.text, sizeof report.text, "%s: ", text.get());
    vsnprintf(report.text + used, sizeof report.text - static_cast<uint32_t>(used), format, arguments);
}

}  // namespace

const char* collective_name(uint32_t kind) {
    static const char* const names[] = {
#define FUSIOND_COLLECTIVE(name, spelling) spelling,
#include "collectives.def"
#undef FUSIOND_COLLECTIVE
    };
    return names[kind];
}

void thread_name(uint32_t thread, char* text, uint32_t bytes) {
    const uint32_t (&index)[3] = block.index[thread];
    snprintf(text, bytes, "thread (%u,%u,%u)", index[0], index[1], index[2]);
}

void record_failure(fusiond_code code, uint32_t thread, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record(code, thread, format, arguments);
    va_end(arguments);
}

void fail(fusiond_code code, uint32_t thread, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    record(code, thread, format, arguments);
    va_end(arguments);
    leave_block();
}

void fail_stuck() {
    const uint32_t first = culprit();
    const bool at_warp = block.threads[first].wait == Wait::collective;
    Text text;
    if (at_warp)
        text.add("%s can never complete: ", collective_name(block.requests[first].collective.kind));
    else if (block.threads[first].wait == Wait::grid)
        text.add("this_grid().sync() can never complete: ");
    else
        text.add("barrier %u can never complete: ", warp_of(first).barrier);
    add_group(text, first);
    uint32_t groups = 1;
    for (uint32_t thread = 0; thread < block.thread_count; ++thread) {
        if (returned(thread) || wait_alike(thread, first) || !first_of_its_kind(thread)) continue;
        if (groups++ == described_groups) {
            text.add("; and more");
            break;
        }
        text.add("; ");
        add_group(text, thread);
    }
    add_returned(text);
    fail(at_warp ? FUSIOND_WARP_STUCK : FUSIOND_BARRIER_STUCK, first, "%s", text.get());
}

void trap(const char* text, const char* file, uint32_t line) {
    if (file)
        fail(FUSIOND_TRAP, current_thread(), "assertion `%s` failed at %s:%u", text, file, line);
    fail(FUSIOND_TRAP, current_thread(), "%s", text);
}

}  // namespace fusiond
