// What the programs say: a line for each thing that they check.
#pragma once

#include <cstdio>
#include <cstdlib>

inline int wrong_checks = 0;

inline void expect(bool right, const char* what) {
    std::printf("%s %s\n", right ? "ok" : "WRONG", what);
    wrong_checks += !right;
}

#define EXPECT(CONDITION) expect(CONDITION, #CONDITION)
#define CALL(DONE)                                                                     \
    do {                                                                               \
        const cudaError_t error_of_call = (DONE);                                      \
        if (error_of_call != cudaSuccess) {                                            \
            std::printf("WRONG %s: %s\n", #DONE, cudaGetErrorString(error_of_call));   \
            std::exit(1);                                                              \
        }                                                                              \
    } while (0)
