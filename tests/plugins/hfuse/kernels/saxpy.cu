// A grid-stride loop through a range for a range-based for, and a functor handed by value.
struct grid_stride_range {
    struct iterator {
        int at, step;
        __device__ int operator*() const { return at; }
        __device__ iterator& operator++() { at += step; return *this; }
        __device__ bool operator!=(const iterator& other) const { return at < other.at; }
    };
    int first, last, step;
    __device__ iterator begin() const { return {first, step}; }
    __device__ iterator end() const { return {last, step}; }
};
__device__ grid_stride_range over(int n)
{
    return {int(blockIdx.x * blockDim.x + threadIdx.x), n, int(gridDim.x * blockDim.x)};
}
struct Saxpy { float a; __device__ float operator()(float x, float y) const { return a * x + y; } };
template <class F, class... Rest> __device__ float apply(F f, Rest... rest) { return f(rest...); }
__global__ void saxpy(Saxpy f, const float* x, float* y, int n)
{
    for (auto i : over(n)) y[i] = apply(f, x[i], y[i]);
}
