// A histogram with a copy of the bins for each warp.
typedef unsigned char uchar;
#define HISTOGRAM64_BIN_COUNT 64
#define WARP_COUNT 4
#define UMUL(a, b) ((a) * (b))
#define UMAD(a, b, c) (UMUL((a), (b)) + (c))
inline __device__ void addByte(unsigned* s_WarpHist, unsigned data) { atomicAdd(s_WarpHist + data, 1); }
inline __device__ void addWord(unsigned* s_WarpHist, unsigned data)
{
    addByte(s_WarpHist, (data >> 2) & 0x3FU);
    addByte(s_WarpHist, (data >> 10) & 0x3FU);
    addByte(s_WarpHist, (data >> 18) & 0x3FU);
    addByte(s_WarpHist, (data >> 26) & 0x3FU);
}
__global__ void histogram64Kernel(unsigned* d_PartialHistograms, const unsigned* d_Data, unsigned dataCount)
{
    __shared__ unsigned s_Hist[WARP_COUNT * HISTOGRAM64_BIN_COUNT];
    unsigned* s_WarpHist = s_Hist + (threadIdx.x >> 5) * HISTOGRAM64_BIN_COUNT;
#pragma unroll
    for (unsigned i = 0; i < (HISTOGRAM64_BIN_COUNT * WARP_COUNT) / (WARP_COUNT * 32); i++) s_Hist[threadIdx.x + i * WARP_COUNT * 32] = 0;
    __syncthreads();
    for (unsigned pos = UMAD(blockIdx.x, blockDim.x, threadIdx.x); pos < dataCount; pos += UMUL(blockDim.x, gridDim.x)) {
        unsigned data = d_Data[pos];
        addWord(s_WarpHist, data);
    }
    __syncthreads();
    for (unsigned bin = threadIdx.x; bin < HISTOGRAM64_BIN_COUNT; bin += WARP_COUNT * 32) {
        unsigned sum = 0;
        for (unsigned i = 0; i < WARP_COUNT; i++) sum += s_Hist[bin + i * HISTOGRAM64_BIN_COUNT] & 0xFFFFFFFFU;
        d_PartialHistograms[blockIdx.x * HISTOGRAM64_BIN_COUNT + bin] = sum;
    }
}
