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
template <typename T> __device__ typename vec3<T>::Type computeBodyAccel(float4 bodyPos, const float4* positions, int numTiles, int numBodies)
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
template <typename T> __global__ void integrateBodies(float4* __restrict__ newPos, const float4* __restrict__ oldPos, float4* vel, unsigned int deviceOffset, unsigned int deviceNumBodies, float deltaTime, float damping, int numTiles)
{
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    float4 position = index < deviceNumBodies ? oldPos[deviceOffset + index] : make_float4(0, 0, 0, 0);
    float3 accel = computeBodyAccel<T>(position, oldPos, numTiles, deviceNumBodies);
    if (index >= deviceNumBodies) return;
    float4 velocity = vel[deviceOffset + index];
    velocity.x += accel.x * deltaTime; velocity.y += accel.y * deltaTime; velocity.z += accel.z * deltaTime;
    velocity.x *= damping; velocity.y *= damping; velocity.z *= damping;
    position.x += velocity.x * deltaTime; position.y += velocity.y * deltaTime; position.z += velocity.z * deltaTime;
    newPos[deviceOffset + index] = position;
    vel[deviceOffset + index] = velocity;
}
