// A sum with cooperative groups: block, tiles of a warp, a reduction that takes any group.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
template <typename Group> __device__ int reduce_sum(Group g, int* temp, int val)
{
    int lane = g.thread_rank();
    for (int i = g.size() / 2; i > 0; i /= 2) {
        temp[lane] = val;
        g.sync();
        if (lane < i) val += temp[lane + i];
        g.sync();
    }
    return val;
}
template <int tile_sz> __device__ int reduce_sum_tile_shfl(cg::thread_block_tile<tile_sz> g, int val)
{
    for (int i = g.size() / 2; i > 0; i /= 2) val += g.shfl_down(val, i);
    return val;
}
__device__ int thread_sum(const int4* input, int n)
{
    int sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n / 4; i += blockDim.x * gridDim.x) {
        int4 in = input[i];
        sum += in.x + in.y + in.z + in.w;
    }
    return sum;
}
__global__ void sum_kernel_block(int* sum, const int* input, int n)
{
    int my_sum = thread_sum((const int4*)input, n);
    extern __shared__ int temp[];
    auto g = cg::this_thread_block();
    int block_sum = reduce_sum(g, temp, my_sum);
    if (g.thread_rank() == 0) atomicAdd(sum, block_sum);
    g.sync();
    auto tile = cg::tiled_partition<16>(g);
    int tile_sum = reduce_sum_tile_shfl<16>(tile, my_sum);
    if (tile.thread_rank() == 0) atomicAdd(sum + 1, tile_sum);
}
