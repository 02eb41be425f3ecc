// Bytes and half-words that are computed side by side in one word, and the three-operand minima and maxima.
#pragma once

#include <stdint.h>

#include "bits.h"

namespace fusiond_detail {

template <class T> inline int clamped(int x) {
    const int least = (T)-1 < 0 ? -(1 << (8 * sizeof(T) - 1)) : 0;
    const int most = (T)-1 < 0 ? (1 << (8 * sizeof(T) - 1)) - 1 : (1 << 8 * sizeof(T)) - 1;
    return x < least ? least : x > most ? most : x;
}
// `operation` on each part of the words, computed as int and cut to the part's width.
template <class T, class F, class... W> inline unsigned each(F operation, W... words) {
    unsigned result = 0;
    for (int i = 0; i < 4 / (int)sizeof(T); ++i) {
        const unsigned part = (unsigned)operation((int)lane<T>(words, i)...);
        result |= (part & ((1u << 8 * sizeof(T)) - 1)) << 8 * (int)sizeof(T) * i;
    }
    return result;
}
template <class T, class F> inline unsigned sum_of(F operation, unsigned a, unsigned b) {
    unsigned result = 0;
    for (int i = 0; i < 4 / (int)sizeof(T); ++i) result += (unsigned)operation((int)lane<T>(a, i), (int)lane<T>(b, i));
    return result;
}
inline int magnitude(int x) { return x < 0 ? -x : x; }
inline int least_of(int a, int b) { return b < a ? b : a; }
inline int most_of(int a, int b) { return b > a ? b : a; }

}  // namespace fusiond_detail

#define FUSIOND_EACH1(name, T, expression) \
    inline unsigned name(unsigned a) { return fusiond_detail::each<T>([](int a) -> int { return expression; }, a); }
#define FUSIOND_EACH2(name, T, expression) \
    inline unsigned name(unsigned a, unsigned b) { return fusiond_detail::each<T>([](int a, int b) -> int { return expression; }, a, b); }
#define FUSIOND_EACH3(name, T, expression)                                                                     \
    inline unsigned name(unsigned a, unsigned b, unsigned c) {                                                 \
        return fusiond_detail::each<T>([](int a, int b, int c) -> int { return expression; }, a, b, c);        \
    }
#define FUSIOND_COMPARE(name, suffix, T, relation)                     \
    FUSIOND_EACH2(__vcmp##name##suffix, T, a relation b ? -1 : 0)      \
    FUSIOND_EACH2(__vset##name##suffix, T, a relation b)
#define FUSIOND_PARTS(n, S, U)                                                                                       \
    FUSIOND_EACH1(__vabs##n, S, fusiond_detail::magnitude(a))                                                        \
    FUSIOND_EACH1(__vabsss##n, S, fusiond_detail::clamped<S>(fusiond_detail::magnitude(a)))                          \
    FUSIOND_EACH1(__vneg##n, S, -a)                                                                                  \
    FUSIOND_EACH1(__vnegss##n, S, fusiond_detail::clamped<S>(-a))                                                    \
    FUSIOND_EACH2(__vadd##n, U, a + b)                                                                               \
    FUSIOND_EACH2(__vaddss##n, S, fusiond_detail::clamped<S>(a + b))                                                 \
    FUSIOND_EACH2(__vaddus##n, U, fusiond_detail::clamped<U>(a + b))                                                 \
    FUSIOND_EACH2(__vsub##n, U, a - b)                                                                               \
    FUSIOND_EACH2(__vsubss##n, S, fusiond_detail::clamped<S>(a - b))                                                 \
    FUSIOND_EACH2(__vsubus##n, U, fusiond_detail::clamped<U>(a - b))                                                 \
    FUSIOND_EACH2(__vabsdiffs##n, S, fusiond_detail::magnitude(a - b))                                               \
    FUSIOND_EACH2(__vabsdiffu##n, U, fusiond_detail::magnitude(a - b))                                               \
    FUSIOND_EACH2(__vavgs##n, S, a + b < 0 ? (a + b) >> 1 : (a + b + 1) >> 1) /* halves go away from zero */         \
    FUSIOND_EACH2(__vavgu##n, U, (a + b + 1) >> 1)                                                                   \
    FUSIOND_EACH2(__vhaddu##n, U, (a + b) >> 1)                                                                      \
    FUSIOND_EACH2(__vmaxs##n, S, fusiond_detail::most_of(a, b))                                                      \
    FUSIOND_EACH2(__vmaxu##n, U, fusiond_detail::most_of(a, b))                                                      \
    FUSIOND_EACH2(__vmins##n, S, fusiond_detail::least_of(a, b))                                                     \
    FUSIOND_EACH2(__vminu##n, U, fusiond_detail::least_of(a, b))                                                     \
    FUSIOND_COMPARE(eq, n, U, ==) FUSIOND_COMPARE(ne, n, U, !=)                                                      \
    FUSIOND_COMPARE(ges, n, S, >=) FUSIOND_COMPARE(gts, n, S, >) FUSIOND_COMPARE(les, n, S, <=) FUSIOND_COMPARE(lts, n, S, <) \
    FUSIOND_COMPARE(geu, n, U, >=) FUSIOND_COMPARE(gtu, n, U, >) FUSIOND_COMPARE(leu, n, U, <=) FUSIOND_COMPARE(ltu, n, U, <) \
    inline unsigned __vsads##n(unsigned a, unsigned b) {                                                             \
        return fusiond_detail::sum_of<S>([](int a, int b) { return fusiond_detail::magnitude(a - b); }, a, b);       \
    }                                                                                                                \
    inline unsigned __vsadu##n(unsigned a, unsigned b) {                                                             \
        return fusiond_detail::sum_of<U>([](int a, int b) { return fusiond_detail::magnitude(a - b); }, a, b);       \
    }
FUSIOND_PARTS(2, int16_t, uint16_t)
FUSIOND_PARTS(4, int8_t, uint8_t)
#undef FUSIOND_PARTS
#undef FUSIOND_COMPARE

// Minima and maxima of three, of a sum and another, and not below zero (relu). Sums wrap.
#define FUSIOND_THREE(min, MIN)                                                                                              \
    inline int __vi##min##_s32_relu(int a, int b) { return MIN(a, b) > 0 ? MIN(a, b) : 0; }                                  \
    inline int __vi##min##3_s32(int a, int b, int c) { return MIN(MIN(a, b), c); }                                           \
    inline int __vi##min##3_s32_relu(int a, int b, int c) { return __vi##min##_s32_relu(MIN(a, b), c); }                     \
    inline unsigned __vi##min##3_u32(unsigned a, unsigned b, unsigned c) { return MIN(MIN(a, b), c); }                       \
    inline int __viadd##min##_s32(int a, int b, int c) { return MIN((int)((unsigned)a + (unsigned)b), c); }                  \
    inline int __viadd##min##_s32_relu(int a, int b, int c) { return __vi##min##_s32_relu((int)((unsigned)a + (unsigned)b), c); } \
    inline unsigned __viadd##min##_u32(unsigned a, unsigned b, unsigned c) { return MIN(a + b, c); }                         \
    FUSIOND_EACH2(__vi##min##_s16x2_relu, int16_t, __vi##min##_s32_relu(a, b))                                               \
    FUSIOND_EACH3(__vi##min##3_s16x2, int16_t, MIN(MIN(a, b), c))                                                            \
    FUSIOND_EACH3(__vi##min##3_s16x2_relu, int16_t, __vi##min##3_s32_relu(a, b, c))                                          \
    FUSIOND_EACH3(__vi##min##3_u16x2, uint16_t, MIN(MIN(a, b), c))                                                           \
    FUSIOND_EACH3(__viadd##min##_s16x2, int16_t, MIN((int16_t)(a + b), c))                                                   \
    FUSIOND_EACH3(__viadd##min##_s16x2_relu, int16_t, __vi##min##_s32_relu((int16_t)(a + b), c))                             \
    FUSIOND_EACH3(__viadd##min##_u16x2, uint16_t, MIN((uint16_t)(a + b), c))
#define FUSIOND_LESS(a, b) ((b) < (a) ? (b) : (a))
#define FUSIOND_MORE(a, b) ((b) > (a) ? (b) : (a))
FUSIOND_THREE(min, FUSIOND_LESS)
FUSIOND_THREE(max, FUSIOND_MORE)
#undef FUSIOND_LESS
#undef FUSIOND_MORE
#undef FUSIOND_THREE
#undef FUSIOND_EACH1
#undef FUSIOND_EACH2
#undef FUSIOND_EACH3

// The same, and which it was: true for `a`, also where both are equal.
#define FUSIOND_WHICH(name, relation, T)                            \
    inline T name(T a, T b, bool* first) {                          \
        *first = a relation b;                                      \
        return *first ? a : b;                                      \
    }
#define FUSIOND_WHICH_HALVES(name, relation, T)                                                      \
    inline unsigned name(unsigned a, unsigned b, bool* first_high, bool* first_low) {                \
        const T low = fusiond_detail::lane<T>(a, 0), other_low = fusiond_detail::lane<T>(b, 0);      \
        const T high = fusiond_detail::lane<T>(a, 1), other_high = fusiond_detail::lane<T>(b, 1);    \
        *first_low = low relation other_low, *first_high = high relation other_high;                 \
        return ((*first_high ? a : b) & 0xffff0000u) | ((*first_low ? a : b) & 0xffffu);             \
    }
FUSIOND_WHICH(__vibmax_s32, >=, int)
FUSIOND_WHICH(__vibmax_u32, >=, unsigned)
FUSIOND_WHICH(__vibmin_s32, <=, int)
FUSIOND_WHICH(__vibmin_u32, <=, unsigned)
FUSIOND_WHICH_HALVES(__vibmax_s16x2, >=, int16_t)
FUSIOND_WHICH_HALVES(__vibmax_u16x2, >=, uint16_t)
FUSIOND_WHICH_HALVES(__vibmin_s16x2, <=, int16_t)
FUSIOND_WHICH_HALVES(__vibmin_u16x2, <=, uint16_t)
#undef FUSIOND_WHICH
#undef FUSIOND_WHICH_HALVES
