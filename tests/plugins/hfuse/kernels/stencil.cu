// A three-dimensional stencil, marching in z with a shared plane and a halo.
#define BX 32
#define BY 4
#define IDX(x, y, z) ((z) * ny * nx + (y) * nx + (x))
template <typename Real> struct Coefficients { Real c0, c1; };
__global__ void stencil3d(const float* in, float* out, int nx, int ny, int nz, Coefficients<float> c)
{
    __shared__ float plane[BY + 2][BX + 2];
    const int x = blockIdx.x * BX + threadIdx.x, y = blockIdx.y * BY + threadIdx.y;
    const int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    const bool inside = x < nx && y < ny;
    float below = 0.0f, here = inside ? in[IDX(x, y, 0)] : 0.0f;
    for (int z = 0; z < nz; ++z) {
        const float above = inside && z + 1 < nz ? in[IDX(x, y, z + 1)] : 0.0f;
        plane[ty][tx] = here;
        if (threadIdx.x == 0) plane[ty][0] = inside && x > 0 ? in[IDX(x - 1, y, z)] : 0.0f;
        if (threadIdx.x == BX - 1) plane[ty][BX + 1] = x + 1 < nx && y < ny ? in[IDX(x + 1, y, z)] : 0.0f;
        if (threadIdx.y == 0) plane[0][tx] = inside && y > 0 ? in[IDX(x, y - 1, z)] : 0.0f;
        if (threadIdx.y == BY - 1) plane[BY + 1][tx] = x < nx && y + 1 < ny ? in[IDX(x, y + 1, z)] : 0.0f;
        __syncthreads();
        if (inside)
            out[IDX(x, y, z)] = c.c0 * here + c.c1 * (plane[ty][tx - 1] + plane[ty][tx + 1] + plane[ty - 1][tx] + plane[ty + 1][tx] + below + above);
        __syncthreads();
        below = here;
        here = above;
    }
}
