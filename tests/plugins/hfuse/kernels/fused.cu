// bfs and nbody, fused horizontally by fusiond (hfuse 1).
//
//   b  integrateBodies<float>  threads 0..63, as a block of 64 x 1 x 1
//   a  Kernel                  threads 0..575, as a block of 576 x 1 x 1
//
// Each block is of one side: any run of blocks holds of each side in proportion.
// The kernels stand below word for word; what they take for built-in are parameters of the same names.

// A barrier over `threads` threads of the block (a multiple of 32), under one of the hardware's sixteen ids.
#if defined(__CUDACC__) && !defined(FUSIOND_BARRIER)
#define FUSIOND_BARRIER(id, threads) asm volatile("bar.sync %0, %1;" : : "n"(id), "n"(threads) : "memory")
#endif

// What the kernels see instead of the built-in variables and the block's barrier.
#define FUSIOND_SHADOWS \
    const uint3 threadIdx, const uint3 blockIdx, const dim3 blockDim, const dim3 gridDim, \
    const fusiond_barrier __syncthreads, void* const fusiond_shared
#define FUSIOND_PASSED threadIdx, blockIdx, blockDim, gridDim, __syncthreads, fusiond_shared

// --- a: bfs -----------------------------------------------------------------------------------------

namespace fusiond_a {

// Whatever is not shadowed must not compile: a helper that reads the fused block's index would be wrong.
struct fusiond_leak;
extern fusiond_leak threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads() = delete;

struct fusiond_barrier {
    __device__ __forceinline__ void operator()() const {
        FUSIOND_BARRIER(1, 576);
    }
};

#pragma push_macro("MAX_THREADS_PER_BLOCK")

// One level of breadth-first search as Rodinia has it: a struct for nodes, flags as bool, a queue tail by atomics in shared memory.
#define MAX_THREADS_PER_BLOCK 256
struct Node { int starting; int no_of_edges; };
__device__ __forceinline__ void Kernel(FUSIOND_SHADOWS, Node* g_graph_nodes, int* g_graph_edges, bool* g_graph_mask, bool* g_updating_graph_mask, bool* g_graph_visited, int* g_cost, int* found, int no_of_nodes)
{
    __shared__ int tail;
    int tid = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) tail = 0;
    __syncthreads();
    if (tid < no_of_nodes && g_graph_mask[tid]) {
        for (int i = g_graph_nodes[tid].starting; i < (g_graph_nodes[tid].no_of_edges % 5 + g_graph_nodes[tid].starting); i++) {
            int id = g_graph_edges[i];
            if (!g_graph_visited[id]) {
                g_cost[id] = 1;
                g_updating_graph_mask[id] = true;
                atomicAdd(&tail, 1);
            }
        }
    }
    __syncthreads();
    if (threadIdx.x) return;
    found[blockIdx.x] = tail;
}

using fusiond_type_g_graph_nodes = Node;
__device__ __forceinline__ void fusiond_side(
    const unsigned int fusiond_thread,
    const unsigned int fusiond_block,
    const unsigned int fusiond_grid_x,
    void* const fusiond_shared,
    fusiond_a::fusiond_type_g_graph_nodes* const a_g_graph_nodes,
    int* const a_g_graph_edges,
    bool* const a_g_graph_mask,
    bool* const a_g_updating_graph_mask,
    bool* const a_g_graph_visited,
    int* const a_g_cost,
    int* const a_found,
    const int a_no_of_nodes)
{
    Kernel(
        make_uint3(fusiond_thread, 0, 0),
        make_uint3(fusiond_block, 0, 0),
        dim3(576, 1, 1),
        dim3(fusiond_grid_x),
        fusiond_barrier(),
        fusiond_shared,
        a_g_graph_nodes,
        a_g_graph_edges,
        a_g_graph_mask,
        a_g_updating_graph_mask,
        a_g_graph_visited,
        a_g_cost,
        a_found,
        a_no_of_nodes);
}

#pragma pop_macro("MAX_THREADS_PER_BLOCK")

}  // namespace fusiond_a

// --- b: nbody ---------------------------------------------------------------------------------------

namespace fusiond_b {

// Whatever is not shadowed must not compile: a helper that reads the fused block's index would be wrong.
struct fusiond_leak;
extern fusiond_leak threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads() = delete;

struct fusiond_barrier {
    __device__ __forceinline__ void operator()() const {
        FUSIOND_BARRIER(1, 64);
    }
};

// Gravity between all pairs of bodies, tile by tile through shared memory, with operators for float3 and a trait.
template <typename T> struct vec3 { typedef float Type; };
template <> struct vec3<float> { typedef float3 Type; };
__constant__ float softeningSquared = 0.01f;
inline __device__ float3 operator*(float3 a, float s) { return make_float3(a.x * s, a.y * s, a.z * s); }
inline __device__ void operator+=(float3& a, float3 b) { a.x += b.x; a.y += b.y; a.z += b.z; }
template <typename T> __device__ T rsqrt_T(T x) { return rsqrt(x); }
template <> __device__ float rsqrt_T<float>(float x) { return 1.0f / sqrtf(x); }
template <typename T> __device__ typename vec3<T>::Type bodyBodyInteraction(typename vec3<T>::Type ai, float4 bi, float4 bj)
{
    typename vec3<T>::Type r;
    r.x = bj.x - bi.x;
    r.y = bj.y - bi.y;
    r.z = bj.z - bi.z;
    T distSqr = r.x * r.x + r.y * r.y + r.z * r.z;
    distSqr += softeningSquared;
    T invDist = rsqrt_T(distSqr);
    T invDistCube = invDist * invDist * invDist;
    ai += r * (bj.w * invDistCube);
    return ai;
}
template <typename T> __device__ typename vec3<T>::Type computeBodyAccel(FUSIOND_SHADOWS, float4 bodyPos, const float4* positions, int numTiles, int numBodies)
{
    __shared__ float4 sharedPos[64];
    typename vec3<T>::Type acc = {0.0f, 0.0f, 0.0f};
    for (int tile = 0; tile < numTiles; tile++) {
        const int at = tile * blockDim.x + threadIdx.x;
        sharedPos[threadIdx.x] = at < numBodies ? positions[at] : float4{0, 0, 0, 0};
        __syncthreads();
#pragma unroll 8
        for (unsigned int counter = 0; counter < blockDim.x; counter++) {
            acc = bodyBodyInteraction<T>(acc, bodyPos, sharedPos[counter]);
        }
        __syncthreads();
    }
    return acc;
}
template <typename T> __device__ __forceinline__ void integrateBodies(FUSIOND_SHADOWS, float4* __restrict__ newPos, const float4* __restrict__ oldPos, float4* vel, unsigned int deviceOffset, unsigned int deviceNumBodies, float deltaTime, float damping, int numTiles)
{
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    float4 position = index < deviceNumBodies ? oldPos[deviceOffset + index] : make_float4(0, 0, 0, 0);
    float3 accel = computeBodyAccel<T>(FUSIOND_PASSED, position, oldPos, numTiles, deviceNumBodies);
    if (index >= deviceNumBodies) return;
    float4 velocity = vel[deviceOffset + index];
    velocity.x += accel.x * deltaTime; velocity.y += accel.y * deltaTime; velocity.z += accel.z * deltaTime;
    velocity.x *= damping; velocity.y *= damping; velocity.z *= damping;
    position.x += velocity.x * deltaTime; position.y += velocity.y * deltaTime; position.z += velocity.z * deltaTime;
    newPos[deviceOffset + index] = position;
    vel[deviceOffset + index] = velocity;
}

__device__ __forceinline__ void fusiond_side(
    const unsigned int fusiond_thread,
    const unsigned int fusiond_block,
    const unsigned int fusiond_grid_x,
    void* const fusiond_shared,
    float4* __restrict__ b_newPos,
    const float4* __restrict__ b_oldPos,
    float4* const b_vel,
    const unsigned int b_deviceOffset,
    const unsigned int b_deviceNumBodies,
    const float b_deltaTime,
    const float b_damping,
    const int b_numTiles)
{
    integrateBodies<float>(
        make_uint3(fusiond_thread, 0, 0),
        make_uint3(fusiond_block, 0, 0),
        dim3(64, 1, 1),
        dim3(fusiond_grid_x),
        fusiond_barrier(),
        fusiond_shared,
        b_newPos,
        b_oldPos,
        b_vel,
        b_deviceOffset,
        b_deviceNumBodies,
        b_deltaTime,
        b_damping,
        b_numTiles);
}

}  // namespace fusiond_b

#undef FUSIOND_SHADOWS
#undef FUSIOND_PASSED

// Of the first `number` blocks of `whole`, how many belong to a side that has `part` of them.
__device__ __forceinline__ unsigned int fusiond_share(unsigned int number, unsigned int part, unsigned int whole)
{
    return static_cast<unsigned int>(static_cast<unsigned long long>(number) * part / whole);
}

extern "C" __global__ void fused_bfs_nbody(
    fusiond_a::fusiond_type_g_graph_nodes* const a_g_graph_nodes,
    int* const a_g_graph_edges,
    bool* const a_g_graph_mask,
    bool* const a_g_updating_graph_mask,
    bool* const a_g_graph_visited,
    int* const a_g_cost,
    int* const a_found,
    const int a_no_of_nodes,
    float4* __restrict__ b_newPos,
    const float4* __restrict__ b_oldPos,
    float4* const b_vel,
    const unsigned int b_deviceOffset,
    const unsigned int b_deviceNumBodies,
    const float b_deltaTime,
    const float b_damping,
    const int b_numTiles,
    const unsigned int fusiond_a_grid_x,
    const unsigned int fusiond_b_grid_x)
{
    const unsigned int thread = threadIdx.x;
    unsigned int block = blockIdx.x;
    unsigned int blocks = fusiond_b_grid_x + fusiond_a_grid_x;
    const unsigned int before_b = fusiond_share(block, fusiond_b_grid_x, blocks);
    if (fusiond_share(block + 1, fusiond_b_grid_x, blocks) > before_b) {
        if (thread < 64) {
            fusiond_b::fusiond_side(
                thread,
                before_b,
                fusiond_b_grid_x,
                nullptr,
                b_newPos,
                b_oldPos,
                b_vel,
                b_deviceOffset,
                b_deviceNumBodies,
                b_deltaTime,
                b_damping,
                b_numTiles);
        }
        return;
    }
    block -= before_b;
    fusiond_a::fusiond_side(
        thread,
        block,
        fusiond_a_grid_x,
        nullptr,
        a_g_graph_nodes,
        a_g_graph_edges,
        a_g_graph_mask,
        a_g_updating_graph_mask,
        a_g_graph_visited,
        a_g_cost,
        a_found,
        a_no_of_nodes);
}
