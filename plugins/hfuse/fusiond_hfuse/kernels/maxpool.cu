// The largest value under each position of a sliding window over planes of height x width, and where it was.
//
// One thread makes one output at a time. The `pad` cells round a plane belong to no window; a window holds at least one
// cell as long as pad <= window / 2. NaN wins over everything, and the first of equals over the others.
template <typename T>
__global__ void max_pool_2d(T* __restrict__ largest, long long* __restrict__ position, const T* __restrict__ image,
                            int outputs, int height, int width, int out_height, int out_width, int window, int stride,
                            int pad)
{
    // Unsigned, because the last step of a thread may pass the largest int.
    const unsigned int end = outputs;
    const unsigned int step = gridDim.x * blockDim.x;
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        const unsigned int column = i % out_width;
        const unsigned int row = i / out_width % out_height;
        const unsigned int plane = i / out_width / out_height;

        const int top = static_cast<int>(row) * stride - pad;
        const int left = static_cast<int>(column) * stride - pad;
        const int bottom = min(top + window, height);
        const int right = min(left + window, width);
        const int first_row = max(top, 0);
        const int first_column = max(left, 0);

        // A batch of planes may well have more cells than an int can count; one plane has not.
        const T* const cells = image + static_cast<long long>(plane) * height * width;
        int best_cell = first_row * width + first_column;
        T best = cells[best_cell];
        for (int y = first_row; y < bottom; ++y) {
            for (int x = first_column; x < right; ++x) {
                const int cell = y * width + x;
                const T value = cells[cell];
                if (value > best || value != value) {
                    best = value;
                    best_cell = cell;
                }
            }
        }
        largest[i] = best;
        position[i] = best_cell;
    }
}
