// Errors: the last one of a thread, names and texts.
#include "state.h"

using namespace cudart;

namespace {

struct Error {
    int number;
    const char *name, *text;
};

const Error ERRORS[] = {
#include "errors.inc"
};

const Error* of(cudaError_t number) {
    for (const Error& each : ERRORS)
        if (each.number == number) return &each;
    return nullptr;
}

// The last error, or that of a kernel that has failed since; it is not a call that can fail itself.
cudaError_t current() {
    Runtime& all = runtime();
    std::lock_guard<std::recursive_mutex> guard(all.lock);
    return all.sticky != cudaSuccess ? all.sticky : last_error();
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() {
    cudaError_t found = current();
    last_error() = cudaSuccess;
    return found;
}

cudaError_t cudaPeekAtLastError() { return current(); }

const char* cudaGetErrorName(cudaError_t error) {
    const Error* found = of(error);
    return found ? found->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
    const Error* found = of(error);
    return found ? found->text : "unrecognized error code";
}

}  // extern "C"
