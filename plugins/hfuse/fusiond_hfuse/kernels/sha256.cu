// Double SHA-256 (FIPS 180-4) of an 80-byte block header under many nonces; each thread keeps the lowest digest it
// meets.
//
// The last four bytes of the header, a little-endian number, are the first nonce. Every thread tries one nonce a round,
// so that a round of the grid tries consecutive ones. They wrap around.

__constant__ const unsigned int INITIAL[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};
__constant__ const unsigned int ADDED[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

__device__ __forceinline__ unsigned int rotated(unsigned int word, int right)
{
    return __funnelshift_r(word, word, right);
}

__device__ __forceinline__ unsigned int bytes_swapped(unsigned int word)
{
    return __byte_perm(word, 0, 0x0123);
}

// One block of 16 words into the state (FIPS 180-4, section 6.2.2); the words are used up. Unrolled in full, so that
// all arrays are registers and what is constant in a block is folded.
__device__ __forceinline__ void compress(unsigned int (&state)[8], unsigned int (&words)[16])
{
    unsigned int a = state[0], b = state[1], c = state[2], d = state[3];
    unsigned int e = state[4], f = state[5], g = state[6], h = state[7];
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        unsigned int& word = words[i % 16];
        if (i >= 16) {
            const unsigned int near = words[(i - 2) % 16];
            const unsigned int far = words[(i - 15) % 16];
            word += (rotated(near, 17) ^ rotated(near, 19) ^ (near >> 10)) + words[(i - 7) % 16]
                    + (rotated(far, 7) ^ rotated(far, 18) ^ (far >> 3));
        }
        const unsigned int chosen = (e & f) ^ (~e & g);
        const unsigned int majority = (a & b) ^ (a & c) ^ (b & c);
        const unsigned int first = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + chosen + ADDED[i] + word;
        const unsigned int second = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + majority;
        h = g, g = f, f = e, e = d + first;
        d = c, c = b, b = a, a = first + second;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

// `lowest` are the highest 64 bits of the lowest digest of a thread, digests read as little-endian numbers; `nonce` is
// what gave it. Both have a place for each thread, `header` the 80 bytes as 20 little-endian words.
__global__ void sha256_search(unsigned long long* __restrict__ lowest, unsigned int* __restrict__ nonce,
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
    compress(start, words);

    unsigned long long best = ~0ull;
    unsigned int tried = header[19] + thread;
    unsigned int best_nonce = tried;
    for (int round = 0; round < rounds; ++round) {
        unsigned int state[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) state[i] = start[i];
#pragma unroll
        for (int i = 0; i < 3; ++i) words[i] = bytes_swapped(header[16 + i]);
        words[3] = bytes_swapped(tried);
        words[4] = 0x80000000u;
#pragma unroll
        for (int i = 5; i < 15; ++i) words[i] = 0;
        words[15] = 640;  // bits
        compress(state, words);

#pragma unroll
        for (int i = 0; i < 8; ++i) words[i] = state[i], state[i] = INITIAL[i];
        words[8] = 0x80000000u;
#pragma unroll
        for (int i = 9; i < 15; ++i) words[i] = 0;
        words[15] = 256;
        compress(state, words);

        const unsigned long long digest =
            static_cast<unsigned long long>(bytes_swapped(state[7])) << 32 | bytes_swapped(state[6]);
        if (digest < best) best = digest, best_nonce = tried;
        tried += threads;
    }
    lowest[thread] = best;
    nonce[thread] = best_nonce;
}
