// Harris's corners, written by hand.
__device__ __forceinline__ int response(int gx, int gy, int gxy)
{
    const float trace = (float)(gx + gy);
    return (float)(gx * gy - gxy * gxy) - 0.04f * trace * trace > 500000.0f;
}

#define KERNEL harris
#include "structure_tensor.cuh"
