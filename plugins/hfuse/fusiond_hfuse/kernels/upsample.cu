// Enlarges planes of height x width to out_height x out_width by bilinear interpolation; corners fall on corners.

// Where an output row (or column) lies among the input's: behind cell `first`, `weight` of the way to the next one.
struct Place {
    unsigned int first;
    unsigned int next;  // 1, or 0 behind the last cell
    float weight;
};

// Output cell i lies at i * (length - 1) / (out_length - 1). Dividing whole numbers keeps the weight exact, where a
// rounded ratio would spend its digits on the cell's number. `length * out_length` must fit 32 bits.
__device__ __forceinline__ Place place(unsigned int i, unsigned int length, unsigned int out_length)
{
    const unsigned int steps = max(out_length - 1, 1u);
    const unsigned int position = i * (length - 1);
    const unsigned int first = position / steps;
    const float weight = static_cast<float>(position - first * steps) / static_cast<float>(steps);
    return {first, first + 1 < length ? 1u : 0u, weight};
}

// A thread works out one of the positions in an output plane and then fills it in all planes.
__global__ void upsample_bilinear_2d(float* __restrict__ large, const float* __restrict__ small, int planes,
                                     int positions, int height, int width, int out_height, int out_width)
{
    // Unsigned, because the last step of a thread may pass the largest int.
    const unsigned int end = positions;
    const unsigned int step = gridDim.x * blockDim.x;
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        const Place row = place(i / out_width, height, out_height);
        const Place column = place(i % out_width, width, out_width);
        const unsigned int right = column.next;
        const unsigned int below = row.next * width;

        // All planes together may well have more cells than an int can count; one plane has not.
        const float* cell = small + row.first * width + column.first;
        float* out = large + i;
        for (int plane = 0; plane < planes; ++plane) {
            const float upper = cell[0] + column.weight * (cell[right] - cell[0]);
            const float lower = cell[below] + column.weight * (cell[below + right] - cell[below]);
            *out = upper + row.weight * (lower - upper);
            cell += height * width;
            out += positions;
        }
    }
}
