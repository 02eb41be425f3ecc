// One arena for both, each part of it as aligned as any of them asks.
extern __shared__ __align__(16) unsigned char fusiond_arena[];

extern "C" __global__ void __launch_bounds__(512) fused_hist_maxpool(
    unsigned int* __restrict__ a_counts,
    const float* __restrict__ a_x,
    const int a_n,
    const int a_bins,
    float* __restrict__ b_largest,
    long long* __restrict__ b_position,
    const float* __restrict__ b_image,
    const int b_outputs,
    const int b_height,
    const int b_width,
    const int b_out_height,
    const int b_out_width,
    const int b_window,
    const int b_stride,
    const int b_pad,
    const unsigned int fusiond_a_grid_x,
    const unsigned int fusiond_b_grid_x,
    const unsigned int fusiond_a_ratio)
{
    const unsigned int thread = threadIdx.x;
    unsigned int block = blockIdx.x;
    const unsigned int before_a = __umulhi(block, fusiond_a_ratio);
    if (__umulhi(block + 1, fusiond_a_ratio) > before_a) {
        fusiond_a::fusiond_side(
            thread,
            before_a,
            fusiond_a_grid_x,
            fusiond_arena,
            a_counts,
            a_x,
            a_n,
            a_bins);
        return;
    }
    block -= before_a;
    if (thread < 256) {
        fusiond_b::fusiond_side(
            thread,
            block,
            fusiond_b_grid_x,
            nullptr,
            b_largest,
            b_position,
            b_image,
            b_outputs,
            b_height,
            b_width,
            b_out_height,
            b_out_width,
            b_window,
            b_stride,
            b_pad);
    }
}
