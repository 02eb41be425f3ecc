// Floating point of 16 bits (float16 and bfloat16), and of 8 (e4m3 and e5m2, as conversions that saturate make them).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace counting {

// The nearest number with SIGNIFICANT bits (ties to even) in a format whose least exponent is LEAST.
template <int SIGNIFICANT, int LEAST>
[[gnu::noinline]] double rounded(double a) {
    if (a == 0 || !std::isfinite(a)) return a;
    int exponent;
    std::frexp(a, &exponent);
    const int place = (exponent - SIGNIFICANT > LEAST ? exponent - SIGNIFICANT : LEAST);
    return std::ldexp(std::nearbyint(std::ldexp(a, -place)), place);
}

struct Half {
    uint16_t bits;

    double value() const {
        const int sign = bits >> 15, exponent = bits >> 10 & 31, fraction = bits & 1023;
        double found;
        if (exponent == 31) found = fraction ? NAN : INFINITY;
        else if (exponent == 0) found = std::ldexp(double(fraction), -24);
        else found = std::ldexp(double(1024 + fraction), exponent - 25);
        return sign ? -found : found;
    }

    [[gnu::noinline]] static Half nearest(double a) {
        if (a != a) return {0x7fff};
        const uint16_t sign = std::signbit(a) ? 0x8000 : 0;
        const double size = std::fabs(rounded<11, -24>(a));
        if (size >= 65520.0) return {static_cast<uint16_t>(sign | 0x7c00)};
        if (size < 0x1p-14) return {static_cast<uint16_t>(sign | static_cast<uint16_t>(std::ldexp(size, 24)))};
        int exponent;
        const double fraction = std::frexp(size, &exponent);
        return {static_cast<uint16_t>(sign | ((exponent + 14) << 10) | (static_cast<int>(std::ldexp(fraction, 11)) & 1023))};
    }

    // A product has 22 bits, and a sum of it at most 53 but for what cannot change the rounding of a double to odd.
    static Half fused(double a, double b, double c) {
        const double product = a * b, sum = product + c;
        const double rest = std::fabs(product) > std::fabs(c) ? (product - sum) + c : (c - sum) + product;
        return nearest(odd(sum, rest));
    }

    // The sum with its last bit set where something was rounded away: then another rounding is the right one.
    static double odd(double sum, double rest) {
        if (rest == 0 || !std::isfinite(sum)) return sum;
        uint64_t bits;
        std::memcpy(&bits, &sum, 8);
        if ((rest > 0) != (sum > 0) && !(bits & 1)) --bits;
        bits |= 1;
        std::memcpy(&sum, &bits, 8);
        return sum;
    }
};

struct Brain {
    uint16_t bits;

    double value() const {
        const uint32_t wide = uint32_t(bits) << 16;
        float found;
        std::memcpy(&found, &wide, 4);
        return found;
    }

    [[gnu::noinline]] static Brain nearest(double a) {
        if (a != a) return {0x7fff};
        const float size = static_cast<float>(rounded<8, -133>(a));  // beyond the largest: infinity
        uint32_t wide;
        std::memcpy(&wide, &size, 4);
        return {static_cast<uint16_t>(wide >> 16)};
    }

    static Brain fused(double a, double b, double c) {
        const double product = a * b, sum = product + c;
        const double rest = std::fabs(product) > std::fabs(c) ? (product - sum) + c : (c - sum) + product;
        return nearest(Half::odd(sum, rest));
    }
};

// LARGEST: the code of the largest number; e5m2 has infinity behind it, e4m3 a NaN and nothing else.
template <int FRACTION, int BIAS, int LARGEST>
struct Eight {
    uint8_t bits;

    double value() const {
        const int code = bits & 0x7f, exponent = code >> FRACTION, rest = code & ((1 << FRACTION) - 1);
        double size = std::ldexp((exponent ? 1 << FRACTION : 0) + rest, (exponent ? exponent : 1) - BIAS - FRACTION);
        if (code > LARGEST) size = LARGEST == 0x7b && code == 0x7c ? INFINITY : NAN;
        return bits >> 7 ? -size : size;
    }

    [[gnu::noinline]] static Eight nearest(double a) {
        if (a != a) return {0x7f};
        const int sign = std::signbit(a) ? 0x80 : 0;
        const double size = std::fabs(rounded<FRACTION + 1, 1 - BIAS - FRACTION>(a));
        if (size >= Eight{LARGEST}.value()) return {static_cast<uint8_t>(sign | LARGEST)};
        if (size < std::ldexp(1.0, 1 - BIAS)) {
            return {static_cast<uint8_t>(sign | static_cast<int>(std::ldexp(size, BIAS - 1 + FRACTION)))};
        }
        int exponent;
        const int fraction = static_cast<int>(std::ldexp(std::frexp(size, &exponent), FRACTION + 1));
        return {static_cast<uint8_t>(sign | (exponent - 1 + BIAS) << FRACTION | (fraction & ((1 << FRACTION) - 1)))};
    }
};
using E4m3 = Eight<3, 7, 0x7e>;
using E5m2 = Eight<2, 15, 0x7b>;

}  // namespace counting
