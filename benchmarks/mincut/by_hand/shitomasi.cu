// Shi and Tomasi's features, written by hand.
__device__ __forceinline__ int response(int gx, int gy, int gxy)
{
    const float mean = 0.5f * (float)(gx + gy), half = 0.5f * (float)(gx - gy), off = (float)gxy;
    return mean - sqrtf(half * half + off * off) > 600.0f;
}

#define KERNEL shitomasi
#include "structure_tensor.cuh"
