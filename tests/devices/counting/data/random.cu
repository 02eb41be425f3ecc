// A kernel of many kinds, by its parameters; random.ptx is what nvcc makes of this:
//     nvcc -ptx -arch=sm_90 -lineinfo -o random.ptx random.cu
extern "C" {
// Blocks that take up to `unequal` times as long as others: 0 none, 1 by turns, 2 at random, 3 as data say.
// They read `stride` apart, `group` neighbours the same; by way of an index where `gathered`.
__global__ void mixed(const float* x, const int* index, float* y, int mask, int trips, int kind, int unequal,
                      int gathered, int stride, int group) {
    const int b = blockIdx.x, t = threadIdx.x;
    const int more = kind == 1   ? b % unequal
                     : kind == 2 ? static_cast<int>((b * 2654435761u >> 16) % unequal)
                     : kind == 3 ? index[b & mask] % unequal
                                 : 0;
    float sum = 0;
    for (int k = 0; k < trips * (1 + more); ++k) {
        int i = ((b / group * trips + k) * static_cast<int>(blockDim.x) + t) * stride & mask;
        if (gathered) i = index[i];
        sum += x[i];
    }
    y[b * blockDim.x + t] = sum;
}
}
