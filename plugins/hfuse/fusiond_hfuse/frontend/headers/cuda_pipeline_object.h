// <cuda/pipeline>: of one thread, or of a block in stages.
namespace cuda {
enum class pipeline_role { producer, consumer };
template <thread_scope Scope, unsigned char Stages> struct pipeline_shared_state {
    barrier<Scope> produced[Stages], consumed[Stages];
    unsigned ready;
};
template <thread_scope Scope> struct pipeline {
    __device__ void producer_acquire();
    __device__ void producer_commit();
    __device__ void consumer_wait();
    template <class R, class P> __device__ bool consumer_wait_for(const R&);
    __device__ void consumer_release();
    __device__ bool quit();
};
__device__ pipeline<thread_scope_thread> make_pipeline();
template <class Group, thread_scope Scope, unsigned char Stages>
__device__ pipeline<Scope> make_pipeline(const Group&, pipeline_shared_state<Scope, Stages>*);
template <class Group, thread_scope Scope, unsigned char Stages>
__device__ pipeline<Scope> make_pipeline(const Group&, pipeline_shared_state<Scope, Stages>*, size_t);
template <class Group, thread_scope Scope, unsigned char Stages>
__device__ pipeline<Scope> make_pipeline(const Group&, pipeline_shared_state<Scope, Stages>*, pipeline_role);
template <unsigned char Prior, thread_scope Scope> __device__ void pipeline_consumer_wait_prior(pipeline<Scope>&);
template <thread_scope A, thread_scope B> __device__ void pipeline_producer_commit(pipeline<A>&, barrier<B>&);
template <class T, class Size, thread_scope Scope> __device__ void memcpy_async(T*, const T*, Size, pipeline<Scope>&);
template <class Group, class T, class Size, thread_scope Scope>
__device__ void memcpy_async(const Group&, T*, const T*, Size, pipeline<Scope>&);
}
