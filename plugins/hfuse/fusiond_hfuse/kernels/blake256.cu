// BLAKE-256 with 14 rounds (Aumasson, Henzen, Meier, Phan: SHA-3 proposal BLAKE, version 1.3) of an 80-byte block
// header under many nonces; each thread keeps the lowest digest it meets.
//
// The last four bytes of the header, a little-endian number, are the first nonce. Every thread tries one nonce a round,
// so that a round of the grid tries consecutive ones. They wrap around.

__constant__ const unsigned int INITIAL[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};
__constant__ const unsigned int PI[16] = {
    0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0x082efa98, 0xec4e6c89,
    0x452821e6, 0x38d01377, 0xbe5466cf, 0x34e90c6c, 0xc0ac29b7, 0xc97c50dd, 0x3f84d5b5, 0xb5470917,
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

__device__ __forceinline__ unsigned int rotated(unsigned int word, int right)
{
    return __funnelshift_r(word, word, right);
}

__device__ __forceinline__ unsigned int bytes_swapped(unsigned int word)
{
    return __byte_perm(word, 0, 0x0123);
}

__device__ __forceinline__ void mix(unsigned int& a, unsigned int& b, unsigned int& c, unsigned int& d,
                                    unsigned int first, unsigned int second)
{
    a += b + first;
    d = rotated(d ^ a, 16);
    c += d;
    b = rotated(b ^ c, 12);
    a += b + second;
    d = rotated(d ^ a, 8);
    c += d;
    b = rotated(b ^ c, 7);
}

// One block of 16 words into the state; `bits` of the message are hashed by then, and there is no salt. Unrolled in
// full, so that all arrays are registers and what is constant in a block is folded.
__device__ __forceinline__ void compress(unsigned int (&state)[8], const unsigned int (&words)[16], unsigned int bits)
{
    unsigned int v[16];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = state[i], v[8 + i] = PI[i];
    v[12] ^= bits, v[13] ^= bits;
#pragma unroll
    for (int round = 0; round < 14; ++round) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            // Columns of the 4 x 4 matrix first, then its diagonals.
            const int turn = i / 4;
            const int one = ORDER[round % 10][2 * i], other = ORDER[round % 10][2 * i + 1];
            mix(v[i % 4], v[4 + (i + turn) % 4], v[8 + (i + 2 * turn) % 4], v[12 + (i + 3 * turn) % 4],
                words[one] ^ PI[other], words[other] ^ PI[one]);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) state[i] ^= v[i] ^ v[8 + i];
}

// `lowest` are the highest 64 bits of the lowest digest of a thread, digests read as little-endian numbers; `nonce` is
// what gave it. Both have a place for each thread, `header` the 80 bytes as 20 little-endian words.
__global__ void blake256_search(unsigned long long* __restrict__ lowest, unsigned int* __restrict__ nonce,
                                const unsigned int* __restrict__ header, int rounds)
{
    const unsigned int thread = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned int threads = gridDim.x * blockDim.x;

    // No nonce stands in the first 64 bytes.
    unsigned int start[8];
    unsigned int words[16];
#pragma unroll
    for (int i = 0; i < 8; ++i) start[i] = INITIAL[i];
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i] = bytes_swapped(header[i]);
    compress(start, words, 512);

    // The rest of the message, its padding, and its length in bits.
#pragma unroll
    for (int i = 0; i < 3; ++i) words[i] = bytes_swapped(header[16 + i]);
#pragma unroll
    for (int i = 4; i < 16; ++i) words[i] = 0;
    words[4] = 0x80000000u;
    words[13] = 1;
    words[15] = 640;

    unsigned long long best = ~0ull;
    unsigned int tried = header[19] + thread;
    unsigned int best_nonce = tried;
    for (int round = 0; round < rounds; ++round) {
        unsigned int state[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) state[i] = start[i];
        words[3] = bytes_swapped(tried);
        compress(state, words, 640);

        const unsigned long long digest =
            static_cast<unsigned long long>(bytes_swapped(state[7])) << 32 | bytes_swapped(state[6]);
        if (digest < best) best = digest, best_nonce = tried;
        tried += threads;
    }
    lowest[thread] = best;
    nonce[thread] = best_nonce;
}
