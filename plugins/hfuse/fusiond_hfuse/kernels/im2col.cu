// Lays the windows of a convolution side by side: row (plane, y, x) of the result holds cell (y, x) of every window
// over that plane, windows in the order of their places. A convolution is then one matrix product.
//
// A thread copies one window at a time. There is no padding: windows lie inside their plane.
__global__ void image_to_columns(float* __restrict__ columns, const float* __restrict__ image, int windows, int height,
                                 int width, unsigned int out_height, unsigned int out_width, int window_height,
                                 int window_width, int stride, int dilation)
{
    const unsigned int positions = out_height * out_width;

    // Unsigned, because the last step of a thread may pass the largest int.
    const unsigned int end = windows;
    const unsigned int step = gridDim.x * blockDim.x;
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        const unsigned int column = i % out_width;
        const unsigned int row = i / out_width % out_height;
        const unsigned int plane = i / positions;

        // Image and result may well have more cells than an int can count.
        const long long top = static_cast<long long>(plane) * height + row * stride;
        const float* cell = image + top * width + column * stride;
        const long long first_row = static_cast<long long>(plane) * window_height * window_width;
        float* out = columns + first_row * positions + (i - plane * positions);
        for (int y = 0; y < window_height; ++y) {
            for (int x = 0; x < window_width; ++x) {
                *out = cell[x * dilation];
                out += positions;
            }
            cell += static_cast<long long>(dilation) * width;
        }
    }
}
