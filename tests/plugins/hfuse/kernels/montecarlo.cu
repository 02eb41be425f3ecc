// Estimates pi: a state for each thread in memory, loaded, used, stored again; dynamic shared memory parted by hand.
struct __align__(16) State { unsigned d, v[3]; };
static_assert(sizeof(State) == 16, "as the host has it");
__device__ static inline unsigned next(State* s)
{
    unsigned t = s->v[0] ^ (s->v[0] >> 2);
    s->v[0] = s->v[1];
    s->v[1] = s->v[2];
    s->v[2] = (s->v[2] ^ (s->v[2] << 4)) ^ (t ^ (t << 1));
    s->d += 362437;
    return s->d + s->v[2];
}
__device__ float uniform(State* s) { return next(s) * 2.3283064e-10f; }
__global__ void estimate(State* states, unsigned long long* hits, float* mean, int rounds)
{
    extern __shared__ double pool[];
    double* const sums = pool;
    int* const counts = reinterpret_cast<int*>(sums + blockDim.x);
    const unsigned id = blockIdx.x * blockDim.x + threadIdx.x;
    State local = states[id];
    int inside = 0;
    double sum = 0;
    for (int i = 0; i < rounds; ++i) {
        const float x = uniform(&local), y = uniform(&local);
        inside += x * x + y * y <= 1.0f;
        sum += x;
    }
    states[id] = local;
    sums[threadIdx.x] = sum;
    counts[threadIdx.x] = inside;
    __syncthreads();
    for (unsigned s = blockDim.x / 2; s; s >>= 1) {
        if (threadIdx.x < s) {
            sums[threadIdx.x] += sums[threadIdx.x + s];
            counts[threadIdx.x] += counts[threadIdx.x + s];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        atomicAdd(hits, (unsigned long long)counts[0]);
        mean[blockIdx.x] = sums[0] / (double(rounds) * blockDim.x);
    }
}
