// <cuda_pipeline.h> and its primitives.
__device__ void __pipeline_memcpy_async(void*, const void*, size_t, size_t = 0);
__device__ void __pipeline_commit();
__device__ void __pipeline_wait_prior(size_t);
namespace nvcuda { namespace experimental {
struct pipeline {
    __device__ size_t commit();
    __device__ void commit_and_wait();
    __device__ void wait(size_t);
    template <unsigned Prior> __device__ void wait_prior();
};
template <class T> __device__ void memcpy_async(T&, const T&, pipeline&);
}}
