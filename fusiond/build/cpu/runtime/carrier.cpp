#include "carrier.h"

#include <stdlib.h>
#include <sys/mman.h>

namespace fusiond {
namespace {

constexpr size_t page = 4096;

// Equal stack offsets would put the hot lines of all threads into one cache set.
constexpr size_t dealigned(uint32_t number) { return number * 37 % 64 * 64; }

#ifdef FUSIOND_UCONTEXT

void context_make(Context& context, char* stack, size_t bytes, void (*body)()) {
    getcontext(&context.saved);
    context.saved.uc_stack.ss_sp = stack;
    context.saved.uc_stack.ss_size = bytes;
    context.saved.uc_link = nullptr;
    makecontext(&context.saved, body, 0);
}

#else

extern "C" void fusiond_switch_stacks(void** save, void* load);

// The registers that a function must preserve, in the System V ABI. The rounding mode is never changed here.
__asm__(R"(
    .text
    .type fusiond_switch_stacks, @function
    .hidden fusiond_switch_stacks
    .globl fusiond_switch_stacks
fusiond_switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size fusiond_switch_stacks, . - fusiond_switch_stacks
)");

void context_make(Context& context, char* stack, size_t bytes, void (*body)()) {
    constexpr int saved_registers = 6;
    // What `ret` finds: the body to start, and above it a null return address that ends backtraces.
    void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t{15});
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(body);
    for (int i = 0; i < saved_registers; ++i) *--top = nullptr;
    context.stack_pointer = top;
}

#endif

}  // namespace

#ifdef FUSIOND_UCONTEXT
void context_switch(Context& from, Context& to) { swapcontext(&from.saved, &to.saved); }
#else
void context_switch(Context& from, Context& to) { fusiond_switch_stacks(&from.stack_pointer, to.stack_pointer); }
#endif

bool CarrierPool::resize(uint32_t capacity) {
    free(carriers_);
    free(free_);
    carriers_ = static_cast<Carrier*>(calloc(capacity, sizeof *carriers_));
    free_ = static_cast<Carrier**>(calloc(capacity, sizeof *free_));
    capacity_ = carriers_ && free_ ? capacity : 0;
    return capacity_ != 0;
}

bool CarrierPool::prepare(uint32_t stack_bytes, uint32_t capacity, void (*body)()) {
    body_ = body;
    start_afresh();
    if (stack_bytes == stack_bytes_ && capacity <= capacity_) return true;

    if (memory_) munmap(memory_, capacity_ * pitch_);
    memory_ = nullptr;
    made_ = 0;
    stack_bytes_ = 0;
    if (capacity > capacity_ && !resize(capacity)) return false;
    pitch_ = (stack_bytes + page - 1) / page * page + page;
    void* memory = mmap(nullptr, capacity_ * pitch_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    memory_ = static_cast<char*>(memory);
    stack_bytes_ = stack_bytes;
    return true;
}

void CarrierPool::start_afresh() {
    started_ = 0;
    free_count_ = 0;
}

Carrier* CarrierPool::take() {
    if (free_count_) return free_[--free_count_];

    const uint32_t number = started_++;
    Carrier* carrier = &carriers_[number];
    carrier->stack = memory_ + number * pitch_ + page;
    if (number == made_) {
        mprotect(carrier->stack - page, page, PROT_NONE);
        ++made_;
    }
    context_make(carrier->context, carrier->stack, pitch_ - page - dealigned(number), body_);
    return carrier;
}

bool CarrierPool::contains(const void* address) const {
    const char* at = static_cast<const char*>(address);
    return memory_ && at >= memory_ && at < memory_ + made_ * pitch_;
}

const Carrier* CarrierPool::overflowed(const void* address) const {
    if (!contains(address)) return nullptr;
    const size_t offset = static_cast<size_t>(static_cast<const char*>(address) - memory_);
    return offset % pitch_ < page ? &carriers_[offset / pitch_] : nullptr;
}

}  // namespace fusiond
