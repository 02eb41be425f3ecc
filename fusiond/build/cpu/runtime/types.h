// CUDA's built-in vector types with CUDA's alignments, and dim3.
#pragma once

#define FUSIOND_VECTOR(scalar, name, align2, align4)                                                     \
    struct name##1 { scalar x; };                                                                        \
    struct __attribute__((aligned(align2))) name##2 { scalar x, y; };                                    \
    struct name##3 { scalar x, y, z; };                                                                  \
    struct __attribute__((aligned(align4))) name##4 { scalar x, y, z, w; };                              \
    inline name##1 make_##name##1(scalar x) { return {x}; }                                              \
    inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                                 \
    inline name##3 make_##name##3(scalar x, scalar y, scalar z) { return {x, y, z}; }                    \
    inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

FUSIOND_VECTOR(signed char, char, 2, 4)
FUSIOND_VECTOR(unsigned char, uchar, 2, 4)
FUSIOND_VECTOR(short, short, 4, 8)
FUSIOND_VECTOR(unsigned short, ushort, 4, 8)
FUSIOND_VECTOR(int, int, 8, 16)
FUSIOND_VECTOR(unsigned, uint, 8, 16)
FUSIOND_VECTOR(long, long, 16, 16)
FUSIOND_VECTOR(unsigned long, ulong, 16, 16)
FUSIOND_VECTOR(long long, longlong, 16, 16)
FUSIOND_VECTOR(unsigned long long, ulonglong, 16, 16)
FUSIOND_VECTOR(float, float, 8, 16)
FUSIOND_VECTOR(double, double, 16, 16)
#undef FUSIOND_VECTOR

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return {x, y, z}; }
};

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
