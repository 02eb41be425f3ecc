#include "signals.h"

#include "block.h"

namespace fusiond {
namespace {

constexpr int watched[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int watched_count = sizeof watched / sizeof watched[0];

struct sigaction outer_actions[watched_count];
stack_t outer_stack;
char handler_stack[64 * 1024];  // a thread that overflowed its stack has none left

void restore() {
    for (int i = 0; i < watched_count; ++i) sigaction(watched[i], &outer_actions[i], nullptr);
    sigaltstack(&outer_stack, nullptr);
}

void handle(int number, siginfo_t* info, void*) {
    const uint32_t thread = current_thread();
    if (thread == no_thread) {  // the library's own fault: let it fall again, to whoever listened before
        restore();
        return;
    }
    if (number == SIGFPE) fail(FUSIOND_ARITHMETIC, thread, "integer division by zero, or of the least number by -1");
    if (number == SIGILL) fail(FUSIOND_MISALIGNED, thread, "misaligned address (or __builtin_trap())");
    if (block.carriers.overflowed(info->si_addr)) fail(FUSIOND_STACK_OVERFLOW, thread, "the thread's stack has overflowed");
    fail(FUSIOND_ILLEGAL_ADDRESS, thread, "illegal address %p", info->si_addr);
}

}  // namespace

SignalGuard::SignalGuard() {
    stack_t stack = {};
    stack.ss_sp = handler_stack;
    stack.ss_size = sizeof handler_stack;
    sigaltstack(&stack, &outer_stack);

    struct sigaction action = {};
    action.sa_sigaction = handle;
    // The handler never returns when it fails the launch, so the signal must not stay blocked.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < watched_count; ++i) sigaction(watched[i], &action, &outer_actions[i]);
}

SignalGuard::~SignalGuard() { restore(); }

}  // namespace fusiond
