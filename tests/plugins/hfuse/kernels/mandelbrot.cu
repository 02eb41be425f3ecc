// Escape times; a block takes the next tile from a counter in its own share, and leaves when there is none.
struct complex {
    double re, im;
    __host__ __device__ complex(double a, double b = 0) : re(a), im(b) {}
    __device__ double magnitude2() const { return re * re + im * im; }
    __device__ complex operator*(const complex& a) const { return complex(re * a.re - im * a.im, im * a.re + re * a.im); }
    __device__ friend complex operator+(const complex& a, const complex& b) { return {a.re + b.re, a.im + b.im}; }
};
static __device__ int escape(complex c, int limit)
{
    complex z = 0;
    int i = 0;
    for (; i < limit; ++i) {
        z = z * z + c;
        if (z.magnitude2() > 4.0) break;
    }
    return i;
}
__global__ void mandelbrot(unsigned short* out, int width, int height, int limit, double scale)
{
    __shared__ int row;
    for (int round = 0;; ++round) {
        if (threadIdx.x == 0) row = blockIdx.x + round * gridDim.x;
        __syncthreads();
        const int mine = row;
        __syncthreads();
        if (mine >= height) break;
        for (int x = threadIdx.x; x < width; x += blockDim.x)
            out[mine * width + x] = escape(complex((x - width * 0.7) * scale, (mine - height * 0.5) * scale), limit);
    }
}
