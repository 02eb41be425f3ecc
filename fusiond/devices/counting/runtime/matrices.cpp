// Matrices of a warp: products (mma, wmma, wgmma), and what carries their parts between shared memory and registers.
//
// Of a matrix, each lane holds some elements. With g = lane / 4, t = lane % 4, and E elements in a register (of 32 bits;
// one, where an element has 32 or more), PTX ISA, "Matrix Fragments for mma", says for all shapes but the oldest:
//
//     A (m x k), register r:  row g + 8 * (r % (m / 8)),   columns t * E + i + 4 * E * (r / (m / 8))
//     B (k x n), register r:  column g + 8 * (r / (k / 4E)),   rows t * E + i + 4 * E * (r % (k / 4E))
//     C (m x n), element j:   row g + 8 * (j / 2 % (m / 8)),   column 2 * t + j % 2 + 8 * (j / 2 / (m / 8))
//
// wgmma's are the same, with 16 rows for each of its four warps; wmma's, which PTX leaves open, are taken to be.
// Products are exact and their sum is rounded once: the GPU's sums are of no documented order or width.
#include <array>
#include <cmath>

#include "launch.h"
#include "narrow.h"

namespace counting {
namespace {

enum Type : int32_t { F16, BF16, TF32, F32, F64, S8, U8, S4, U4, B1, E4M3, E5M2, S32 };
enum : int32_t { SATURATE = 1, XOR = 2 };

// What a row's list in the pool begins with; fusiond/devices/counting/matrices.py writes it. Places follow.
struct Work {
    int32_t m, n, k;
    int32_t a, b, c, d;  // types
    int32_t flags;
    int32_t d_count, a_count, b_count, c_count;

    const int32_t* places() const { return reinterpret_cast<const int32_t*>(this + 1); }
};

int elements_of(int32_t type) {
    switch (type) {
        case F16: case BF16: return 2;
        case S8: case U8: case E4M3: case E5M2: return 4;
        case S4: case U4: return 8;
        case B1: return 32;
        default: return 1;
    }
}

template <class T>
const float* table() {
    static const auto made = [] {
        std::array<float, 1 << (8 * sizeof(T))> all;
        for (size_t k = 0; k < all.size(); ++k) {
            T narrow;
            narrow.bits = static_cast<decltype(narrow.bits)>(k);
            all[k] = static_cast<float>(narrow.value());
        }
        return all;
    }();
    return made.data();
}

// The elements in 32 bits.
void unpack(int32_t type, uint32_t bits, double* out) {
    const auto each = [&](int width, auto value) {
        for (int k = 0; k < 32 / width; ++k) out[k] = value(width == 32 ? bits : bits >> (k * width) & ((1u << (width % 32)) - 1));
    };
    switch (type) {
        case F16: return each(16, [](uint32_t x) { return table<Half>()[x]; });
        case BF16: return each(16, [](uint32_t x) { return std::bit_cast<float>(x << 16); });
        case TF32: return each(32, [](uint32_t x) { return std::bit_cast<float>(x & 0xffffe000u); });
        case F32: return each(32, [](uint32_t x) { return std::bit_cast<float>(x); });
        case S8: return each(8, [](uint32_t x) { return double(int8_t(x)); });
        case U8: return each(8, [](uint32_t x) { return double(x); });
        case S4: return each(4, [](uint32_t x) { return double(int32_t(x << 28) >> 28); });
        case U4: return each(4, [](uint32_t x) { return double(x); });
        case B1: return each(1, [](uint32_t x) { return double(x); });
        case E4M3: return each(8, [](uint32_t x) { return table<E4m3>()[x]; });
        case E5M2: return each(8, [](uint32_t x) { return table<E5m2>()[x]; });
        case S32: return each(32, [](uint32_t x) { return double(int32_t(x)); });
        default: fail("a matrix of a type that is not known");
    }
}

void unpack_lane(const Warp& w, int32_t type, int32_t place, int lane, double* out) {
    if (type == F64) out[0] = std::bit_cast<double>(w.in<uint64_t>(place)[lane]);
    else unpack(type, w.in<uint32_t>(place)[lane], out);
}

uint32_t packed_result(const Work& work, const double* from) {
    switch (work.d) {
        case F16: return Half::nearest(from[0]).bits | uint32_t(Half::nearest(from[1]).bits) << 16;
        case S32: {
            const auto whole = static_cast<int64_t>(from[0]);
            if (!(work.flags & SATURATE)) return static_cast<uint32_t>(whole);
            return static_cast<uint32_t>(static_cast<int32_t>(whole > INT32_MAX ? INT32_MAX : whole < INT32_MIN ? INT32_MIN : whole));
        }
        default: return from[0] != from[0] ? 0x7fffffffu : std::bit_cast<uint32_t>(static_cast<float>(from[0]));
    }
}

using Numbers = std::vector<double>;

// --- fragments ---

void gather_a(const Warp& w, const Work& work, const int32_t* places, Numbers& a) {
    const int each = elements_of(work.a), blocks = work.m / 8, count = work.m * work.k / (LANES * each);
    double found[32];
    for (int r = 0; r < count; ++r)
        for (int lane = 0; lane < LANES; ++lane) {
            unpack_lane(w, work.a, places[r], lane, found);
            double* row = &a[(lane / 4 + 8 * (r % blocks)) * work.k + lane % 4 * each + 4 * each * (r / blocks)];
            for (int i = 0; i < each; ++i) row[i] = found[i];
        }
}

void gather_b(const Warp& w, const Work& work, const int32_t* places, Numbers& b) {
    const int each = elements_of(work.b), blocks = work.k / (4 * each), count = work.n * work.k / (LANES * each);
    double found[32];
    for (int r = 0; r < count; ++r)
        for (int lane = 0; lane < LANES; ++lane) {
            unpack_lane(w, work.b, places[r], lane, found);
            double* column = &b[(lane % 4 * each + 4 * each * (r % blocks)) * work.n + lane / 4 + 8 * (r / blocks)];
            for (int i = 0; i < each; ++i) column[i * work.n] = found[i];
        }
}

// Of element j of a lane's accumulators, the place in the matrix.
int place_c(const Work& work, int lane, int j) {
    const int blocks = work.m / 8;
    return (lane / 4 + 8 * (j / 2 % blocks)) * work.n + 2 * (lane % 4) + j % 2 + 8 * (j / 2 / blocks);
}

void gather_c(const Warp& w, const Work& work, const int32_t* places, Numbers& c) {
    const int each = elements_of(work.c);
    double found[32];
    for (int r = 0; r < work.c_count; ++r)
        for (int lane = 0; lane < LANES; ++lane) {
            unpack_lane(w, work.c, places[r], lane, found);
            for (int i = 0; i < each; ++i) c[place_c(work, lane, r * each + i)] = found[i];
        }
}

void scatter_d(Warp& w, const Work& work, const int32_t* places, const Numbers& d, uint32_t mask) {
    const int each = elements_of(work.d);
    for (int r = 0; r < work.d_count; ++r) {
        uint32_t values[LANES];
        uint64_t wide[LANES];
        for (int lane = 0; lane < LANES; ++lane) {
            const double from[2] = {d[place_c(work, lane, r * each)], each == 2 ? d[place_c(work, lane, r * each + 1)] : 0.0};
            if (work.d == F64) wide[lane] = std::bit_cast<uint64_t>(from[0]);
            else values[lane] = packed_result(work, from);
        }
        if (work.d == F64) keep(w.out<uint64_t>(places[r]), wide, mask);
        else keep(w.out<uint32_t>(places[r]), values, mask);
    }
}

void multiply(const Work& work, const Numbers& a, const Numbers& b, Numbers& c) {
    const int m = work.m, n = work.n, k = work.k;
    for (int i = 0; i < m; ++i) {
        double* into = &c[i * n];
        for (int at = 0; at < k; ++at) {
            const double x = a[i * k + at];
            const double* y = &b[at * n];
            if (work.d == F64) for (int j = 0; j < n; ++j) into[j] = std::fma(x, y[j], into[j]);
            else if (work.flags & XOR) for (int j = 0; j < n; ++j) into[j] += x + y[j] - 2 * x * y[j];
            else for (int j = 0; j < n; ++j) into[j] += x * y[j];
        }
    }
}

struct Room {
    Numbers a, b, c;

    explicit Room(const Work& work) : a(work.m * work.k), b(work.k * work.n), c(work.m * work.n) {}
};

const Work& work_of(const Warp& w, const Instruction& i) { return *reinterpret_cast<const Work*>(w.source(i.vector[0])); }

void mma(Warp& w, const Instruction& i, uint32_t mask) {
    together(w, mask, ALL);
    const Work& work = work_of(w, i);
    const int32_t *d = work.places(), *a = d + work.d_count, *b = a + work.a_count, *c = b + work.b_count;
    Room room(work);
    gather_a(w, work, a, room.a), gather_b(w, work, b, room.b), gather_c(w, work, c, room.c);
    multiply(work, room.a, room.b, room.c);
    scatter_d(w, work, d, room.c, mask);
}

// m8n8k4 of halves: four products, each of eight lanes (4 q .. 4 q + 3, and the same behind 16). flags: 1 A is by
// columns, 2 B is by rows.
void mma_of_quads(Warp& w, const Instruction& i, uint32_t mask) {
    together(w, mask, ALL);
    const Work& work = work_of(w, i);
    const int32_t *d = work.places(), *a = d + work.d_count, *b = a + work.a_count, *c = b + work.b_count;
    const auto half = [&](const int32_t* places, int lane, int k) {
        return double(table<Half>()[w.in<uint32_t>(places[k / 2])[lane] >> (16 * (k % 2)) & 0xffff]);
    };
    // Where element k of a lane's accumulators is.
    const auto place = [](int type, int lane, int k) {
        const int upper = lane >= 16 ? 4 : 0;
        return type == F16 ? (lane % 4 + upper) * 8 + k : ((lane & 1) + (k & 2) + upper) * 8 + (k & 4) + (lane & 2) + (k & 1);
    };
    double found[4][64];
    for (int quad = 0; quad < 4; ++quad) {
        double left[8][4], right[4][8];
        for (int group = 0; group < 2; ++group)
            for (int of = 0; of < 4; ++of) {
                const int lane = 4 * quad + of + 16 * group;
                for (int k = 0; k < 4; ++k) {
                    if (i.flags & 1) left[k + 4 * group][of] = half(a, lane, k);
                    else left[of + 4 * group][k] = half(a, lane, k);
                    if (i.flags & 2) right[of][k + 4 * group] = half(b, lane, k);
                    else right[k][of + 4 * group] = half(b, lane, k);
                }
                for (int k = 0; k < 8; ++k)
                    found[quad][place(work.c, lane, k)] = work.c == F16 ? half(c, lane, k) : double(std::bit_cast<float>(w.in<uint32_t>(c[k])[lane]));
            }
        for (int row = 0; row < 8; ++row)
            for (int k = 0; k < 4; ++k)
                for (int column = 0; column < 8; ++column) found[quad][8 * row + column] += left[row][k] * right[k][column];
    }
    const int each = elements_of(work.d);
    for (int r = 0; r < work.d_count; ++r) {
        uint32_t values[LANES];
        for (int lane = 0; lane < LANES; ++lane) {
            double from[2];
            for (int k = 0; k < each; ++k) from[k] = found[lane % 16 / 4][place(work.d, lane, r * each + k)];
            values[lane] = packed_result(work, from);
        }
        keep(w.out<uint32_t>(d[r]), values, mask);
    }
}

// --- wgmma: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" ---

struct Descriptor {
    uint32_t start, leading, stride, swizzle;

    explicit Descriptor(uint64_t bits)
        : start((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4), stride((bits >> 32 & 0x3fff) << 4), swizzle(bits >> 62) {
        if (bits >> 49 & 7) fail("a matrix descriptor with a base offset");
    }

    // Bytes of a row of the pattern: 16, or what is swizzled.
    uint32_t pitch() const { return swizzle == 0 ? 16 : 256 >> swizzle; }

    // Of 16 bytes: of row `row` of what is K-major, the chunk of that number; else of row `row` of K, of what is MN-major.
    uint32_t chunk(int row, int number, bool k_major) const {
        uint32_t at = start + row % 8 * pitch();
        const int width = static_cast<int>(pitch() / 16);
        if (k_major) at += row / 8 * stride + number * (swizzle ? 16 : leading);
        else if (!swizzle) at += row / 8 * leading + number * stride;
        else at += row / 8 * stride + number % width * 16 + number / width * leading;
        return at ^ ((at >> 7 & (width - 1)) << 4);
    }
};

// rows x k into `out`, whose element (row, k) is at row * row_step + k * k_step; the matrix's own rows begin at `begin`.
void read_shared(const Warp& w, uint64_t bits, int32_t type, int rows, int k, bool k_major, int begin, double* out, int row_step, int k_step) {
    const Descriptor from(bits);
    const int per = 4 * elements_of(type);  // elements in 16 bytes
    const auto fetch = [&](int row, int number, double* found) {
        const uint32_t at = from.chunk(row, number, k_major);
        if (at + 16 > static_cast<uint32_t>(w.launch->request.shared_bytes)) fail("a matrix descriptor that leads out of shared memory");
        for (int word = 0; word < 4; ++word) {
            uint32_t four;
            std::memcpy(&four, w.block->shared + at + 4 * word, 4);
            unpack(type, four, found + word * per / 4);
        }
    };
    double found[128];
    if (k_major) {
        for (int row = 0; row < rows; ++row)
            for (int number = 0; number < k / per; ++number) {
                fetch(begin + row, number, found);
                for (int i = 0; i < per; ++i) out[row * row_step + (number * per + i) * k_step] = found[i];
            }
    } else {
        for (int at = 0; at < k; ++at)
            for (int number = 0; number < rows / per; ++number) {
                fetch(at, begin / per + number, found);
                for (int i = 0; i < per; ++i) out[(number * per + i) * row_step + at * k_step] = found[i];
            }
    }
}

// One warp's 16 rows. flags: 1 A is in shared memory, 2 A is M-major, 4 B is N-major, 8 A is negated, 16 B is; c: whether
// what is there is added to.
void wgmma(Warp& w, const Instruction& i, uint32_t mask) {
    together(w, mask, ALL);
    const Work& work = work_of(w, i);
    const int32_t *d = work.places(), *a = d + work.d_count, *b = a + work.a_count;
    Room room(work);
    if (i.flags & 1) read_shared(w, w.in<uint64_t>(a[0])[__builtin_ctz(mask)], work.a, 16, work.k, !(i.flags & 2), w.index % 4 * 16, room.a.data(), work.k, 1);
    else gather_a(w, work, a, room.a);
    read_shared(w, w.in<uint64_t>(b[0])[__builtin_ctz(mask)], work.b, work.n, work.k, !(i.flags & 4), 0, room.b.data(), 1, work.n);
    // B is read once by the four warps, A by each of them its own rows.
    const int wavefronts = (work.n * 32 / 4 + (i.flags & 1 ? 16 * 32 : 0)) / 128;
    if (!w.launch->request.threads) {
        Counts& counts = w.launch->counts(i);
        counts.wavefronts += wavefronts, counts.minimal_wavefronts += wavefronts;
    }
    if (!(i.flags & 8) != !(i.flags & 16))
        for (double& each : room.a) each = -each;
    if (w.predicate(i.c) & mask) gather_c(w, work, d, room.c);
    multiply(work, room.a, room.b, room.c);
    scatter_d(w, work, d, room.c, mask);
}

// --- wmma.load, wmma.store ---

// A tile in memory whose `major` runs go one after another, `step` elements apart. flags: 1 which of A, B, C/D: bits 0-1;
// 8: by columns. b: the stride, in elements.
void wmma_move(Warp& w, const Instruction& i, uint32_t mask, bool load) {
    together(w, mask, ALL);
    const Work& work = work_of(w, i);
    const int which = i.elements, lane0 = __builtin_ctz(mask);
    const int32_t type = which == 0 ? work.a : which == 1 ? work.b : work.c;
    const int each = elements_of(type), rows = which == 1 ? work.k : work.m, columns = which == 0 ? work.k : work.n;
    const bool by_columns = i.flags & 8;
    const int bits = type == F64 ? 64 : 32 / each, runs = by_columns ? columns : rows, length = by_columns ? rows : columns;
    uint64_t address[LANES];
    addresses(w, i.a, i.flags & 4, i.immediate, address);
    const uint64_t step = w.in<uint32_t>(i.b)[lane0];
    std::vector<uint8_t*> run;
    for (int k = 0; k < runs; ++k)
        run.push_back(stretch(w, i, lane0, load ? READ : WRITE, i.space, address[lane0] + k * step * bits / 8, uint64_t(length) * bits / 8));
    const int32_t* places = work.places();
    const int count = which == 0 ? work.a_count : which == 1 ? work.b_count : work.c_count;
    const int distinct = rows * columns / (LANES * each);
    for (int r = 0; r < (load ? count : distinct); ++r) {
        const int k = r % distinct;
        uint64_t wide[LANES] = {};
        uint32_t small[LANES] = {};
        for (int lane = 0; lane < LANES; ++lane)
            for (int e = 0; e < each; ++e) {
                int row, column;
                if (which == 0) row = lane / 4 + 8 * (k % (rows / 8)), column = lane % 4 * each + e + 4 * each * (k / (rows / 8));
                else if (which == 1) column = lane / 4 + 8 * (k / (rows / (4 * each))), row = lane % 4 * each + e + 4 * each * (k % (rows / (4 * each)));
                else row = place_c(work, lane, k * each + e) / work.n, column = place_c(work, lane, k * each + e) % work.n;
                const int along = by_columns ? row : column;
                uint8_t* at = run[by_columns ? column : row] + along * bits / 8;
                if (bits >= 8) {
                    if (load) std::memcpy(type == F64 ? reinterpret_cast<uint8_t*>(&wide[lane]) : reinterpret_cast<uint8_t*>(&small[lane]) + e * bits / 8, at, bits / 8);
                    else if (type == F64) std::memcpy(at, &w.in<uint64_t>(places[r])[lane], 8);
                    else std::memcpy(at, reinterpret_cast<const uint8_t*>(&w.in<uint32_t>(places[r])[lane]) + e * bits / 8, bits / 8);
                } else if (load) {
                    small[lane] |= (*at >> (along * bits % 8) & ((1u << bits) - 1)) << (e * bits);
                } else {
                    fail("a store of parts of bytes");
                }
            }
        if (!load) continue;
        if (type == F64) keep(w.out<uint64_t>(places[r]), wide, mask);
        else keep(w.out<uint32_t>(places[r]), small, mask);
    }
    if (!load) ++w.launch->events;
}

// --- ldmatrix, stmatrix, movmatrix: 8 x 8 of 16 bits, lane l has two neighbours of row l / 4, or of that column ---

template <bool LOAD>
void matrices(Warp& w, const Instruction& i, uint32_t mask) {
    together(w, mask, ALL);
    uint64_t address[LANES];
    uint8_t* host[LANES];
    addresses(w, i.a, i.flags & 4, i.immediate, address);
    spread(w, i, i.elements == 4 ? mask : mask & ((1u << 8 * i.elements) - 1), LOAD ? READ : WRITE, i.space, 16, address, host);
    const bool turned = i.flags & 1;
    for (int m = 0; m < i.elements; ++m) {
        uint32_t values[LANES] = {};
        for (int lane = 0; lane < LANES; ++lane)
            for (int half = 0; half < 2; ++half) {
                const int along = 2 * (lane % 4) + half, row = turned ? along : lane / 4, column = turned ? lane / 4 : along;
                uint8_t* at = host[8 * m + row] + 2 * column;
                if (LOAD) std::memcpy(reinterpret_cast<uint8_t*>(&values[lane]) + 2 * half, at, 2);
                else std::memcpy(at, reinterpret_cast<const uint8_t*>(&w.in<uint32_t>(i.vector[m])[lane]) + 2 * half, 2);
            }
        if (LOAD) keep(w.out<uint32_t>(i.vector[m]), values, mask);
    }
}

void movmatrix(Warp& w, const Instruction& i, uint32_t mask) {
    together(w, mask, ALL);
    const auto* a = w.in<uint32_t>(i.a);
    uint32_t values[LANES] = {};
    for (int lane = 0; lane < LANES; ++lane)
        for (int half = 0; half < 2; ++half) {
            const int row = 2 * (lane % 4) + half, column = lane / 4;
            values[lane] |= (a[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff) << (16 * half);
        }
    keep(w.out<uint32_t>(i.d), values, mask);
}

}  // namespace

void add_matrices() {
    add_operation("mma", mma);
    add_operation("mma.quads", mma_of_quads);
    add_operation("wgmma", wgmma);
    add_operation("wmma.load", [](Warp& w, const Instruction& i, uint32_t mask) { wmma_move(w, i, mask, true); });
    add_operation("wmma.store", [](Warp& w, const Instruction& i, uint32_t mask) { wmma_move(w, i, mask, false); });
    add_operation("ldmatrix", matrices<true>);
    add_operation("stmatrix", matrices<false>);
    add_operation("movmatrix", movmatrix);
}

}  // namespace counting
