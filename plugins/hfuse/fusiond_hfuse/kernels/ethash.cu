// Hashimoto, the search of Ethash (the Ethash specification, revision 23), under many nonces; each thread keeps the
// lowest digest it meets. What the DAG holds is the host's business: here it is pages of 128 bytes.
//
// A hash reads 64 pages, each of which is known only after the one before. A thread has a nonce of its own, but eight
// threads work together on the pages, on one nonce after another of theirs: each holds 16 of the mix's 128 bytes, and
// so reads 16 bytes next to its neighbours' instead of 128 for itself.

__constant__ const unsigned long long IOTA[24] = {
    0x0000000000000001, 0x0000000000008082, 0x800000000000808a, 0x8000000080008000, 0x000000000000808b,
    0x0000000080000001, 0x8000000080008081, 0x8000000000008009, 0x000000000000008a, 0x0000000000000088,
    0x0000000080008009, 0x000000008000000a, 0x000000008000808b, 0x800000000000008b, 0x8000000000008089,
    0x8000000000008003, 0x8000000000008002, 0x8000000000000080, 0x000000000000800a, 0x800000008000000a,
    0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008,
};
// Where the lanes go, beginning with lane 1, and how far each is rotated.
__constant__ const unsigned char PI[24] = {
    10, 7, 11, 17, 18, 3, 5, 16, 8, 21, 24, 4, 15, 23, 19, 13, 12, 2, 20, 14, 22, 9, 6, 1,
};
__constant__ const unsigned char RHO[24] = {
    1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 2, 14, 27, 41, 56, 8, 25, 43, 62, 18, 39, 61, 20, 44,
};

constexpr unsigned int ALL = 0xffffffffu;
constexpr int TEAM = 8;      // threads that work together
constexpr int ABREAST = 4;   // nonces they work on at a time, so that as many pages are on their way
constexpr int ACCESSES = 64;

__device__ __forceinline__ unsigned long long rotated(unsigned long long word, int left)
{
    return word << left | word >> (64 - left);
}

__device__ __forceinline__ unsigned long long joined(unsigned int low, unsigned int high)
{
    return static_cast<unsigned long long>(high) << 32 | low;
}

__device__ __forceinline__ unsigned long long bytes_swapped(unsigned long long word)
{
    const unsigned int low = static_cast<unsigned int>(word), high = static_cast<unsigned int>(word >> 32);
    return joined(__byte_perm(high, 0, 0x0123), __byte_perm(low, 0, 0x0123));
}

// Keccak-f[1600] (FIPS 202, section 3.3); lane (x, y) is a[x + 5 * y].
__device__ __forceinline__ void keccak(unsigned long long (&a)[25])
{
#pragma unroll 1
    for (int round = 0; round < 24; ++round) {
        unsigned long long parity[5];
#pragma unroll
        for (int x = 0; x < 5; ++x) parity[x] = a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20];
#pragma unroll
        for (int i = 0; i < 25; ++i) a[i] ^= parity[(i + 4) % 5] ^ rotated(parity[(i + 1) % 5], 1);

        unsigned long long moving = a[1];
#pragma unroll
        for (int i = 0; i < 24; ++i) {
            const unsigned long long next = a[PI[i]];
            a[PI[i]] = rotated(moving, RHO[i]);
            moving = next;
        }
#pragma unroll
        for (int y = 0; y < 25; y += 5) {
            const unsigned long long first = a[y], second = a[y + 1];
            a[y] ^= ~a[y + 1] & a[y + 2];
            a[y + 1] ^= ~a[y + 2] & a[y + 3];
            a[y + 2] ^= ~a[y + 3] & a[y + 4];
            a[y + 3] ^= ~a[y + 4] & first;
            a[y + 4] ^= ~first & second;
        }
        a[0] ^= IOTA[round];
    }
}

__device__ __forceinline__ unsigned int fnv(unsigned int a, unsigned int b)
{
    return a * 0x01000193u ^ b;
}

// value % divisor, with reciprocal = 0xffffffff / divisor: the quotient by it is right or one too small.
__device__ __forceinline__ unsigned int remainder_of(unsigned int value, unsigned int divisor, unsigned int reciprocal)
{
    const unsigned int rest = value - __umulhi(value, reciprocal) * divisor;
    return rest < divisor ? rest : rest - divisor;
}

// `lowest` are the first 64 bits of the lowest digest of a thread, digests read as big-endian numbers; `nonce` is what
// gave it. Both have a place for each thread. `header` is the header's hash, 32 bytes, and the first nonce, as
// little-endian words in pairs; `dag` has 8 * pages elements.
__global__ void ethash_search(unsigned long long* __restrict__ lowest, unsigned long long* __restrict__ nonce,
                              const uint2* __restrict__ header, const uint4* __restrict__ dag, int pages, int rounds)
{
    const unsigned int thread = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned int threads = gridDim.x * blockDim.x;
    const int member = threadIdx.x % TEAM;
    const unsigned int reciprocal = 0xffffffffu / static_cast<unsigned int>(pages);

    unsigned long long best = ~0ull;
    unsigned long long tried = joined(header[4].x, header[4].y) + thread;
    unsigned long long best_nonce = tried;
    for (int round = 0; round < rounds; ++round) {
        // Keccak-512 of header and nonce, with the padding of Keccak's own submission, is the seed.
        unsigned long long seed[25];
#pragma unroll
        for (int i = 0; i < 4; ++i) seed[i] = joined(header[i].x, header[i].y);
        seed[4] = tried;
        seed[5] = 1;
#pragma unroll
        for (int i = 6; i < 25; ++i) seed[i] = 0;
        seed[8] = 0x8000000000000000;
        keccak(seed);

        unsigned int compressed[8];
#pragma unroll 1
        for (int first = 0; first < TEAM; first += ABREAST) {
            // The mix begins as the seed, twice. This thread's part is one quarter of the seed.
            unsigned int begin[ABREAST];
            unsigned int mix[ABREAST][4];
#pragma unroll
            for (int i = 0; i < ABREAST; ++i) {
#pragma unroll
                for (int quarter = 0; quarter < 4; ++quarter) {
                    const unsigned long long low = __shfl_sync(ALL, seed[2 * quarter], first + i, TEAM);
                    const unsigned long long high = __shfl_sync(ALL, seed[2 * quarter + 1], first + i, TEAM);
                    if (quarter == 0) begin[i] = static_cast<unsigned int>(low);
                    if (quarter == member % 4) {
                        mix[i][0] = static_cast<unsigned int>(low), mix[i][1] = static_cast<unsigned int>(low >> 32);
                        mix[i][2] = static_cast<unsigned int>(high), mix[i][3] = static_cast<unsigned int>(high >> 32);
                    }
                }
            }

            // Words of the mix take turns in saying which page comes next: first the four of member 0, and so on.
            for (int access = 0; access < ACCESSES; access += 4) {
#pragma unroll
                for (int word = 0; word < 4; ++word) {
                    uint4 part[ABREAST];
#pragma unroll
                    for (int i = 0; i < ABREAST; ++i) {
                        const unsigned int wanted = fnv(begin[i] ^ (access + word), mix[i][word]);
                        const unsigned int page = remainder_of(wanted, pages, reciprocal);
                        part[i] = dag[__shfl_sync(ALL, page, access / 4 % TEAM, TEAM) * 8ull + member];
                    }
#pragma unroll
                    for (int i = 0; i < ABREAST; ++i) {
                        mix[i][0] = fnv(mix[i][0], part[i].x), mix[i][1] = fnv(mix[i][1], part[i].y);
                        mix[i][2] = fnv(mix[i][2], part[i].z), mix[i][3] = fnv(mix[i][3], part[i].w);
                    }
                }
            }

            // Each member's four words become one; all eight go to the member whose nonce it is.
#pragma unroll
            for (int i = 0; i < ABREAST; ++i) {
                const unsigned int mine = fnv(fnv(fnv(mix[i][0], mix[i][1]), mix[i][2]), mix[i][3]);
#pragma unroll
                for (int word = 0; word < 8; ++word) {
                    const unsigned int its = __shfl_sync(ALL, mine, word, TEAM);
                    if (member == first + i) compressed[word] = its;
                }
            }
        }

        // Keccak-256 of the seed and the compressed mix.
        unsigned long long result[25];
#pragma unroll
        for (int i = 0; i < 8; ++i) result[i] = seed[i];
#pragma unroll
        for (int i = 0; i < 4; ++i) result[8 + i] = joined(compressed[2 * i], compressed[2 * i + 1]);
        result[12] = 1;
#pragma unroll
        for (int i = 13; i < 25; ++i) result[i] = 0;
        result[16] = 0x8000000000000000;
        keccak(result);

        const unsigned long long digest = bytes_swapped(result[0]);
        if (digest < best) best = digest, best_nonce = tried;
        tried += threads;
    }
    lowest[thread] = best;
    nonce[thread] = best_nonce;
}
