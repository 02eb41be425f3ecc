// <curand_kernel.h>: generators, each with its state.
struct curandStateXORWOW {
    unsigned d, v[5];
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
struct curandStateMRG32k3a {
    unsigned s1[3], s2[3];
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
struct curandStatePhilox4_32_10 {
    uint4 ctr, output;
    uint2 key;
    unsigned STATE;
    int boxmuller_flag, boxmuller_flag_double;
    float boxmuller_extra;
    double boxmuller_extra_double;
};
struct curandStateSobol32 { unsigned i, x, c, direction_vectors[32]; };
struct curandStateScrambledSobol32 { unsigned i, x, c, direction_vectors[32]; };
struct curandStateSobol64 { unsigned long long i, x, c, direction_vectors[64]; };
typedef curandStateXORWOW curandState;
typedef curandStateXORWOW curandState_t;
typedef curandStateXORWOW curandStateXORWOW_t;
typedef curandStateMRG32k3a curandStateMRG32k3a_t;
typedef curandStatePhilox4_32_10 curandStatePhilox4_32_10_t;
typedef curandStateSobol32 curandStateSobol32_t;
typedef curandStateScrambledSobol32 curandStateScrambledSobol32_t;
typedef curandStateSobol64 curandStateSobol64_t;
typedef unsigned curandDirectionVectors32_t[32];
typedef unsigned long long curandDirectionVectors64_t[64];
template <class State>
__device__ void curand_init(unsigned long long seed, unsigned long long sequence, unsigned long long offset, State*);
template <class State> __device__ void curand_init(unsigned*, unsigned, State*);
template <class State> __device__ void curand_init(unsigned*, unsigned, unsigned, State*);
template <class State> __device__ void curand_init(unsigned long long*, unsigned long long, State*);
template <class State> __device__ unsigned curand(State*);
template <class State> __device__ uint4 curand4(State*);
template <class State> __device__ float curand_uniform(State*);
template <class State> __device__ double curand_uniform_double(State*);
template <class State> __device__ float curand_normal(State*);
template <class State> __device__ double curand_normal_double(State*);
template <class State> __device__ float2 curand_normal2(State*);
template <class State> __device__ double2 curand_normal2_double(State*);
template <class State> __device__ float curand_log_normal(State*, float, float);
template <class State> __device__ double curand_log_normal_double(State*, double, double);
template <class State> __device__ unsigned curand_poisson(State*, double);
__device__ float4 curand_uniform4(curandStatePhilox4_32_10*);
__device__ float4 curand_normal4(curandStatePhilox4_32_10*);
__device__ double2 curand_uniform2_double(curandStatePhilox4_32_10*);
__device__ double4 curand_uniform4_double(curandStatePhilox4_32_10*);
template <class State> __device__ void skipahead(unsigned long long, State*);
template <class State> __device__ void skipahead_sequence(unsigned long long, State*);
