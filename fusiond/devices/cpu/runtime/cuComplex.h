// <cuComplex.h> on the processor: complex numbers as pairs. Quotients and magnitudes are scaled, as CUDA's are.
#pragma once

#include "fusiond_cuda.h"

#include <cmath>

typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
typedef cuFloatComplex cuComplex;

#define FUSIOND_COMPLEX(REAL, PAIR, F)                                                                                 \
    static inline REAL cuCreal##F(PAIR a) { return a.x; }                                                              \
    static inline REAL cuCimag##F(PAIR a) { return a.y; }                                                              \
    static inline PAIR cuConj##F(PAIR a) { return {a.x, -a.y}; }                                                       \
    static inline PAIR cuCadd##F(PAIR a, PAIR b) { return {a.x + b.x, a.y + b.y}; }                                    \
    static inline PAIR cuCsub##F(PAIR a, PAIR b) { return {a.x - b.x, a.y - b.y}; }                                    \
    static inline PAIR cuCmul##F(PAIR a, PAIR b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }            \
    static inline PAIR cuCdiv##F(PAIR a, PAIR b) {                                                                     \
        REAL scale = REAL(1) / (std::fabs(b.x) + std::fabs(b.y));                                                      \
        PAIR as = {a.x * scale, a.y * scale}, bs = {b.x * scale, b.y * scale};                                         \
        REAL square = REAL(1) / (bs.x * bs.x + bs.y * bs.y);                                                           \
        return {(as.x * bs.x + as.y * bs.y) * square, (as.y * bs.x - as.x * bs.y) * square};                           \
    }                                                                                                                  \
    static inline PAIR cuCfma##F(PAIR a, PAIR b, PAIR c) {                                                             \
        return {(a.x * b.x + c.x) - a.y * b.y, a.x * b.y + (a.y * b.x + c.y)};                                         \
    }                                                                                                                  \
    static inline REAL cuCabs##F(PAIR a) { return std::hypot(a.x, a.y); }

FUSIOND_COMPLEX(float, cuFloatComplex, f)
FUSIOND_COMPLEX(double, cuDoubleComplex, )
#undef FUSIOND_COMPLEX

static inline cuFloatComplex make_cuFloatComplex(float x, float y) { return {x, y}; }
static inline cuDoubleComplex make_cuDoubleComplex(double x, double y) { return {x, y}; }
static inline cuComplex make_cuComplex(float x, float y) { return {x, y}; }
static inline cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex a) { return {a.x, a.y}; }
static inline cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex a) { return {float(a.x), float(a.y)}; }
