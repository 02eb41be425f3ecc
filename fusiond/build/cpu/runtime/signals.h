// While a launch runs, a fault of a CUDA thread ends the launch with a report instead of the process.
#pragma once

#include <signal.h>

namespace fusiond {

class SignalGuard {
public:
    SignalGuard();
    ~SignalGuard();
    SignalGuard(const SignalGuard&) = delete;
    SignalGuard& operator=(const SignalGuard&) = delete;
};

}  // namespace fusiond
