// One arena for all, each part of it as aligned as any of them asks.
extern __shared__ __align__(16) unsigned char fusiond_arena[];

extern "C" __global__ void __launch_bounds__(896) fused_hist_hist_maxpool(
    unsigned int* __restrict__ a_counts,
    const float* __restrict__ a_x,
    const int a_n,
    const int a_bins,
    unsigned int* __restrict__ b_counts,
    const float* __restrict__ b_x,
    const int b_n,
    const int b_bins,
    float* __restrict__ c_largest,
    long long* __restrict__ c_position,
    const float* __restrict__ c_image,
    const int c_outputs,
    const int c_height,
    const int c_width,
    const int c_out_height,
    const int c_out_width,
    const int c_window,
    const int c_stride,
    const int c_pad,
    const unsigned int fusiond_a_grid_x,
    const unsigned int fusiond_b_grid_x,
    const unsigned int fusiond_c_grid_x,
    const unsigned int fusiond_b_shared,
    const unsigned int fusiond_blocks)
{
    const unsigned int thread = threadIdx.x;
    const unsigned int block = blockIdx.x;
    if (thread < 256) {
        for (unsigned int at = block; at < fusiond_a_grid_x; at += fusiond_blocks) {
            if (at != block) FUSIOND_BARRIER(1, 256);
            fusiond_a::fusiond_side(
                thread,
                at,
                fusiond_a_grid_x,
                fusiond_arena,
                a_counts,
                a_x,
                a_n,
                a_bins);
        }
    } else if (thread < 768) {
        for (unsigned int at = block; at < fusiond_b_grid_x; at += fusiond_blocks) {
            if (at != block) FUSIOND_BARRIER(2, 512);
            fusiond_b::fusiond_side(
                thread - 256,
                at,
                fusiond_b_grid_x,
                fusiond_arena + fusiond_b_shared,
                b_counts,
                b_x,
                b_n,
                b_bins);
        }
    } else {
        for (unsigned int at = block; at < fusiond_c_grid_x; at += fusiond_blocks) {
            fusiond_c::fusiond_side(
                thread - 768,
                at,
                fusiond_c_grid_x,
                nullptr,
                c_largest,
                c_position,
                c_image,
                c_outputs,
                c_height,
                c_width,
                c_out_height,
                c_out_width,
                c_window,
                c_stride,
                c_pad);
        }
    }
}
