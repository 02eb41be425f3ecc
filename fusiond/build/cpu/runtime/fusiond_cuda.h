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
#include "rounding.h"
#include "bits.h"
#include "packed.h"
#include "memory.h"

// assert() names the CUDA thread and ends the launch instead of the process.
extern "C" FUSIOND_HIDDEN inline void __assert_fail(const char* text, const char* file, unsigned line, const char*) noexcept {
    ::fusiond_calls->trap(text, file, line);
}

// The compiler that device source believes to see: nvcc's pass for the device. Not before this line: glibc's headers,
// which are all above, look at __CUDACC__ too. `-DFUSIOND_CUDA_ARCH=700` makes it another architecture.
#ifndef FUSIOND_CUDA_ARCH
#define FUSIOND_CUDA_ARCH 900
#endif
#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDA_ARCH__ FUSIOND_CUDA_ARCH
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 8
#define CUDART_VERSION 12080
#define CUDA_VERSION 12080
