// CUDA C++ device source on the processor: include this first, then the text that lower.py gives.
//
// It is kept lean (no <vector>, <thread>, <iostream>): a small kernel compiles in a fraction of a second,
// and everything that schedules threads is in the prebuilt library.
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "builtins.h"
#include "warp.h"
#include "atomics.h"
#include "arithmetic.h"

// assert() names the CUDA thread and ends the launch instead of the process.
extern "C" FUSIOND_HIDDEN inline void __assert_fail(const char* text, const char* file, unsigned line, const char*) noexcept {
    ::fusiond_trap(text, file, line);
}
