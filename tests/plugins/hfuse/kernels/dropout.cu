// Dropout by a counter-based generator of one's own; vectorised loads, a class for the generator, enum class, using.
#include <cstdint>
namespace rng {
enum class Rounds : int { Fast = 7, Usual = 10 };
class Philox {
public:
    __host__ __device__ inline explicit Philox(uint64_t seed = 67280421310721, uint64_t subsequence = 0, uint64_t offset = 0)
    {
        key = {(unsigned)seed, (unsigned)(seed >> 32)};
        counter = {0, 0, (unsigned)subsequence, (unsigned)(subsequence >> 32)};
        incr_n(offset / 4);
    }
    __host__ __device__ inline uint4 operator()(Rounds rounds = Rounds::Usual)
    {
        uint4 c = counter;
        uint2 k = key;
        for (int i = 0; i < static_cast<int>(rounds) - 1; i++) {
            c = single_round(c, k);
            k.x += kPhilox10A;
            k.y += kPhilox10B;
        }
        uint4 out = single_round(c, k);
        incr();
        return out;
    }
    __host__ __device__ inline void incr_n(uint64_t n)
    {
        uint32_t nlo = (uint32_t)n, nhi = (uint32_t)(n >> 32);
        counter.x += nlo;
        if (counter.x < nlo) nhi++;
        counter.y += nhi;
        if (nhi <= counter.y) return;
        if (++counter.z) return;
        ++counter.w;
    }
    __host__ __device__ inline void incr() { if (++counter.x) return; if (++counter.y) return; if (++counter.z) return; ++counter.w; }

private:
    uint4 counter;
    uint2 key;
    static constexpr uint32_t kPhilox10A = 0x9E3779B9, kPhilox10B = 0xBB67AE85, kPhiloxSA = 0xD2511F53, kPhiloxSB = 0xCD9E8D57;
    __host__ __device__ uint32_t mulhilo32(uint32_t a, uint32_t b, uint32_t* result_high)
    {
#ifdef __CUDA_ARCH__
        *result_high = __umulhi(a, b);
        return a * b;
#else
        const uint64_t product = (uint64_t)a * b;
        *result_high = product >> 32;
        return (uint32_t)product;
#endif
    }
    __host__ __device__ inline uint4 single_round(uint4 ctr, uint2 in_key)
    {
        uint32_t hi0, hi1;
        uint32_t lo0 = mulhilo32(kPhiloxSA, ctr.x, &hi0);
        uint32_t lo1 = mulhilo32(kPhiloxSB, ctr.z, &hi1);
        return uint4{hi1 ^ ctr.y ^ in_key.x, lo1, hi0 ^ ctr.w ^ in_key.y, lo0};
    }
};
}
template <typename scalar_t, int VEC> struct alignas(sizeof(scalar_t) * VEC) aligned_vector { scalar_t val[VEC]; };
using Generator = rng::Philox;
template <typename scalar_t, typename mask_t, int VEC = 4>
__global__ void __launch_bounds__(256, 4) fused_dropout_kernel_vec(const scalar_t* a, scalar_t* b, mask_t* c, unsigned totalElements, float p, uint64_t seed)
{
    using LoadT = aligned_vector<scalar_t, VEC>;
    using MaskLoadT = aligned_vector<mask_t, VEC>;
    const unsigned idx = blockIdx.x * blockDim.x + threadIdx.x;
    Generator state(seed, idx, 0);
    const float pinv = 1.0f / p;
    for (unsigned linearIndex = idx * VEC; linearIndex < totalElements; linearIndex += gridDim.x * blockDim.x * VEC) {
        scalar_t src[VEC];
        LoadT* value = reinterpret_cast<LoadT*>(&src);
        const uint4 bits = state();
        float4 rand = make_float4(bits.x * 2.3283064e-10f, bits.y * 2.3283064e-10f, bits.z * 2.3283064e-10f, bits.w * 2.3283064e-10f);
        *value = *reinterpret_cast<const LoadT*>(&a[linearIndex]);
        scalar_t r[VEC];
        mask_t mask[VEC];
#pragma unroll
        for (int ii = 0; ii < VEC; ii++) {
            const float keep = (&rand.x)[ii] < p;
            r[ii] = src[ii] * keep * pinv;
            mask[ii] = (mask_t)keep;
        }
        *(reinterpret_cast<LoadT*>(&b[linearIndex])) = *reinterpret_cast<LoadT*>(&r[0]);
        *(reinterpret_cast<MaskLoadT*>(&c[linearIndex])) = *reinterpret_cast<MaskLoadT*>(&mask[0]);
    }
}
