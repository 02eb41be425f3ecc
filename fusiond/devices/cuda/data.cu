// Data of buffers on the device: drawn, compared, and the guard zones looked at. Bit for bit what inputs/fills.py draws
// and what fusiond/devices/compare.py finds, so nothing here may be contracted or approximated (-fmad=false).
// data.ptx is made of this file: `python -m fusiond.devices.cuda.kernels`.

typedef unsigned long long u64;

enum Kind { PATTERN, IOTA, INTEGERS, WIDE_INTEGERS, UNIFORM, WIDE_UNIFORM, NORMAL };
enum Type { BOOL, WHOLE_1, WHOLE_2, WHOLE_4, WHOLE_8, HALF, BFLOAT, SINGLE, DOUBLE, E4M3, E5M2 };

// --- types -----------------------------------------------------------------------------------------------

__device__ int size_of(int type) {
    switch (type) {
        case BOOL: case WHOLE_1: case E4M3: case E5M2: return 1;
        case WHOLE_2: case HALF: case BFLOAT: return 2;
        case WHOLE_4: case SINGLE: return 4;
        default: return 8;
    }
}

__device__ u64 load(const unsigned char* data, u64 index, int bytes) {
    switch (bytes) {
        case 1: return data[index];
        case 2: return ((const unsigned short*)data)[index];
        case 4: return ((const unsigned*)data)[index];
        default: return ((const u64*)data)[index];
    }
}

__device__ void store(unsigned char* data, u64 index, int bytes, u64 bits) {
    switch (bytes) {
        case 1: data[index] = (unsigned char)bits; break;
        case 2: ((unsigned short*)data)[index] = (unsigned short)bits; break;
        case 4: ((unsigned*)data)[index] = (unsigned)bits; break;
        default: ((u64*)data)[index] = bits;
    }
}

// The magnitude of a double that is no NaN and not infinite as a narrower float, rounded to nearest even once, without an
// end: `fraction` bits of fraction, `bias` of the exponent.
__device__ u64 rounded(u64 magnitude, int fraction, int bias) {
    int exponent = (int)(magnitude >> 52) - 1023 + bias, shift = 52 - fraction;
    u64 rest = magnitude & 0xfffffffffffffull;
    if (exponent > 4 * bias) return ~0ull;
    if (exponent >= 1) {
        rest |= (u64)exponent << 52;
    } else {  // below the smallest normal number
        rest |= 1ull << 52;
        shift += 1 - exponent;
        if (shift > 54) return 0;
    }
    return (rest + (1ull << (shift - 1)) - 1 + (rest >> shift & 1)) >> shift;
}

// A double as a 16-bit float.
__device__ u64 narrowed(double value, int fraction, int bias) {
    u64 bits = (u64)__double_as_longlong(value);
    u64 sign = bits >> 63 << 15, magnitude = bits & 0x7fffffffffffffffull;
    u64 infinity = (u64)(2 * bias + 1) << fraction;
    if (magnitude > 0x7ff0000000000000ull) return infinity | 1ull << (fraction - 1);
    if (magnitude == 0x7ff0000000000000ull) return sign | infinity;
    u64 found = rounded(magnitude, fraction, bias);
    return sign | (found < infinity ? found : infinity);
}

// A double as an 8-bit float: what is beyond the largest one becomes that, infinity too.
__device__ u64 narrowed_to_8(double value, int fraction, int bias, u64 largest) {
    u64 bits = (u64)__double_as_longlong(value), magnitude = bits & 0x7fffffffffffffffull;
    if (magnitude > 0x7ff0000000000000ull) return 0x7f;
    u64 found = rounded(magnitude, fraction, bias);
    return bits >> 63 << 7 | (found < largest ? found : largest);
}

// `at`: the bit of the sign; `ends`: the largest exponent is that of infinity and NaN.
__device__ double widened(u64 bits, int fraction, int bias, int at, bool ends) {
    u64 sign = bits >> at << 63, exponent = (bits & ((1ull << at) - 1)) >> fraction, rest = bits & ((1ull << fraction) - 1);
    if (exponent == 0) {  // rest units of the smallest number
        double unit = __longlong_as_double((long long)((u64)(1023 + 1 - bias - fraction) << 52));
        double value = (double)rest * unit;
        return sign ? -value : value;
    }
    u64 wide = ends && exponent == (u64)(2 * bias + 1) ? 2047 : exponent + 1023 - bias;
    return __longlong_as_double((long long)(sign | wide << 52 | rest << (52 - fraction)));
}

__device__ double as_double(u64 bits, int type) {
    switch (type) {
        case HALF: return widened(bits, 10, 15, 15, true);
        case BFLOAT: return widened(bits, 7, 127, 15, true);
        case E4M3: return (bits & 0x7f) == 0x7f ? __longlong_as_double(-1ll) : widened(bits, 3, 7, 7, false);
        case E5M2: return widened(bits, 2, 15, 7, true);
        case SINGLE: return (double)__int_as_float((int)(unsigned)bits);
        default: return __longlong_as_double((long long)bits);
    }
}

__device__ u64 bits_of(double value, int type) {
    switch (type) {
        case BOOL: return value != 0;
        case HALF: return narrowed(value, 10, 15);
        case BFLOAT: return narrowed(value, 7, 127);
        case E4M3: return narrowed_to_8(value, 3, 7, 0x7e);
        case E5M2: return narrowed_to_8(value, 2, 15, 0x7b);
        case SINGLE: return (unsigned)__float_as_int((float)value);
        case DOUBLE: return (u64)__double_as_longlong(value);
        default: return (u64)(long long)value;
    }
}

__device__ u64 bits_of_whole(long long value, int type) {
    switch (type) {
        case BOOL: return value != 0;
        case SINGLE: return (unsigned)__float_as_int((float)value);
        case HALF: case BFLOAT: case DOUBLE: case E4M3: case E5M2: return bits_of((double)value, type);
        default: return (u64)value;
    }
}

// --- drawing ---------------------------------------------------------------------------------------------

struct Words { u64 word[4]; };

// Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
__device__ Words philox(u64 counter, u64 key0, u64 key1) {
    u64 a = counter, b = 0, c = 0, d = 0;
    for (int round = 0; round < 10; round++) {
        const u64 m0 = 0xD2E7470EE14C6C93ull, m1 = 0xCA5A826395121157ull;
        u64 next = __umul64hi(m1, c) ^ b ^ key0, other = __umul64hi(m0, a) ^ d ^ key1;
        b = m1 * c;
        d = m0 * a;
        a = next;
        c = other;
        key0 += 0x9E3779B97F4A7C15ull;
        key1 += 0xBB67AE8584CAA73Bull;
    }
    Words made = {{a, b, c, d}};
    return made;
}

// The normal quantile of a word in units of 2^-24, from a table of its values at the ends of the segments.
__device__ long long quantile(unsigned word, const int* table) {
    unsigned p = word & 0x7fffffffu;
    int shift = p < 128 ? 0 : 25 - __clz((int)p);
    const int* knot = table + 64 * shift + (p >> shift);
    long long inside = p & ((1u << shift) - 1), here = knot[0];
    long long z = here + ((knot[1] - here) * (2 * inside + 1) >> (shift + 1));
    return word >> 31 ? -z : z;
}

// Writes the elements of a buffer; with `differences`, it counts there those that are not what they would be written as.
extern "C" __global__ void fusiond_draw(unsigned char* data, u64 elements, u64 key0, u64 key1, int kind, int type,
                                        double low, double scale, double top, u64 first, u64 span, const int* table,
                                        u64* differences) {
    const bool drawn = kind >= INTEGERS, wide = kind == WIDE_INTEGERS || kind == WIDE_UNIFORM;
    const int each = wide ? 4 : 8, bytes = size_of(type);
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0;
    for (u64 block = (u64)blockIdx.x * blockDim.x + threadIdx.x; block * each < elements; block += step) {
        Words words = {{0, 0, 0, 0}};
        if (drawn) words = philox(block, key0, key1);
        for (int place = 0; place < each; place++) {
            const u64 index = block * each + place;
            if (index >= elements) break;
            const u64 word = wide ? words.word[place] : words.word[place >> 1] >> 32 * (place & 1) & 0xffffffffull;
            u64 bits;
            double value;
            switch (kind) {
                case PATTERN: bits = first; break;
                case IOTA: bits = bits_of_whole((long long)index, type); break;
                case INTEGERS: bits = bits_of_whole((long long)(first + (word * span >> 32)), type); break;
                case WIDE_INTEGERS:
                    bits = bits_of_whole((long long)(first + (span ? __umul64hi(word, span) : word)), type);
                    break;
                default:
                    value = kind == NORMAL ? (double)quantile((unsigned)word, table) : (double)(wide ? word >> 11 : word);
                    value = value * scale;
                    value = value + low;
                    bits = bits_of(value < top ? value : top, type);
            }
            if (!differences) store(data, index, bytes, bits);
            else if (load(data, index, bytes) != (bytes == 8 ? bits : bits & ((1ull << 8 * bytes) - 1))) wrong++;
        }
    }
    if (wrong) atomicAdd(differences, wrong);
}

// --- looking ---------------------------------------------------------------------------------------------

// found[0]: how many elements are wrong; found[1]: the first one's index, inverted, so that 0 is none; found[2]: the
// bits of the worst error. All three are 0 before. `close` compares floats by tolerance, all else is equal or wrong.
extern "C" __global__ void fusiond_compare(const unsigned char* reference, const unsigned char* actual, u64 elements,
                                           int type, int close, double rtol, double atol, u64* found) {
    const int bytes = size_of(type);
    const double infinity = __longlong_as_double(0x7ff0000000000000ll);
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0, first = 0;
    double worst = 0;
    for (u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x; index < elements; index += step) {
        const u64 wanted = load(reference, index, bytes), given = load(actual, index, bytes);
        bool differs;
        if (type == BOOL) {
            differs = !wanted != !given;
        } else if (type < HALF) {
            differs = wanted != given;
        } else {
            const double a = as_double(wanted, type), b = as_double(given, type);
            const bool same = a == b || (a != a && b != b);
            differs = !same;
            if (close && !same) {
                double allowed = rtol * fabs(a);
                allowed = atol + allowed;
                double error = fabs(b - a) / allowed;
                if (!(error < infinity) || !(fabs(a) < infinity)) error = infinity;
                differs = error > 1;
                if (error > worst) worst = error;
            }
        }
        if (differs) {
            wrong++;
            if (~index > first) first = ~index;
        }
    }
    if (wrong) {
        atomicAdd(&found[0], wrong);
        atomicMax(&found[1], first);
    }
    if (worst > 0) atomicMax(&found[2], (u64)__double_as_longlong(worst));  // no NaN, no sign: ordered as their bits are
}

// Counts in found[0] the bytes of guard zones, `bytes` at each of `count` addresses, that are no longer `pattern`.
extern "C" __global__ void fusiond_guards(const u64* zones, u64 count, u64 bytes, int pattern, u64* found) {
    const u64 step = (u64)gridDim.x * blockDim.x;
    u64 wrong = 0;
    for (u64 each = (u64)blockIdx.x * blockDim.x + threadIdx.x; each < count * bytes; each += step)
        wrong += ((const unsigned char*)zones[each / bytes])[each % bytes] != pattern;
    if (wrong) atomicAdd(&found[0], wrong);
}
