// BLAKE2b with a digest of 256 bits (RFC 7693) of an 80-byte message under many nonces; each thread keeps the lowest
// digest it meets.
//
// Bytes 32 to 39 of the message, a little-endian number, are the first nonce. Every thread tries one nonce a round, so
// that a round of the grid tries consecutive ones. They wrap around.

__constant__ const unsigned long long INITIAL[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};
__constant__ const unsigned char ORDER[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

__device__ __forceinline__ unsigned long long rotated(unsigned long long word, int right)
{
    return word >> right | word << (64 - right);
}

__device__ __forceinline__ unsigned long long bytes_swapped(unsigned long long word)
{
    const unsigned int low = static_cast<unsigned int>(word), high = static_cast<unsigned int>(word >> 32);
    return static_cast<unsigned long long>(__byte_perm(low, 0, 0x0123)) << 32 | __byte_perm(high, 0, 0x0123);
}

__device__ __forceinline__ void mix(unsigned long long& a, unsigned long long& b, unsigned long long& c,
                                    unsigned long long& d, unsigned long long first, unsigned long long second)
{
    a += b + first;
    d = rotated(d ^ a, 32);
    c += d;
    b = rotated(b ^ c, 24);
    a += b + second;
    d = rotated(d ^ a, 16);
    c += d;
    b = rotated(b ^ c, 63);
}

// The only block of a message of so many bytes into the state (RFC 7693, section 3.2). Unrolled in full, so that all
// arrays are registers and the words that are zero vanish.
__device__ __forceinline__ void compress(unsigned long long (&state)[8], const unsigned long long (&words)[16],
                                         unsigned int bytes)
{
    unsigned long long v[16];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = state[i], v[8 + i] = INITIAL[i];
    v[12] ^= bytes;
    v[14] = ~v[14];
#pragma unroll
    for (int round = 0; round < 12; ++round) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            // Columns of the 4 x 4 matrix first, then its diagonals.
            const int turn = i / 4;
            mix(v[i % 4], v[4 + (i + turn) % 4], v[8 + (i + 2 * turn) % 4], v[12 + (i + 3 * turn) % 4],
                words[ORDER[round % 10][2 * i]], words[ORDER[round % 10][2 * i + 1]]);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) state[i] ^= v[i] ^ v[8 + i];
}

// `lowest` are the first 64 bits of the lowest digest of a thread, digests read as big-endian numbers; `nonce` is what
// gave it. Both have a place for each thread, `message` the 80 bytes as 20 little-endian words in pairs.
__global__ void blake2b_search(unsigned long long* __restrict__ lowest, unsigned long long* __restrict__ nonce,
                               const uint2* __restrict__ message, int rounds)
{
    const unsigned int thread = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned int threads = gridDim.x * blockDim.x;

    unsigned long long words[16];
#pragma unroll
    for (int i = 0; i < 10; ++i) {
        const uint2 word = message[i];
        words[i] = static_cast<unsigned long long>(word.y) << 32 | word.x;
    }
#pragma unroll
    for (int i = 10; i < 16; ++i) words[i] = 0;
    words[4] += thread;

    unsigned long long best = ~0ull;
    unsigned long long best_nonce = words[4];
    for (int round = 0; round < rounds; ++round) {
        unsigned long long state[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) state[i] = INITIAL[i];
        state[0] ^= 0x01010020u;  // no key, a digest of 32 bytes
        compress(state, words, 80);

        const unsigned long long digest = bytes_swapped(state[0]);
        if (digest < best) best = digest, best_nonce = words[4];
        words[4] += threads;
    }
    lowest[thread] = best;
    nonce[thread] = best_nonce;
}
