// LU decomposition of the tile on the diagonal, one of a set of matrices.
#ifndef BLOCK_SIZE
#define BLOCK_SIZE 16
#endif
__global__ void lud_diagonal(float* m, int matrix_dim, int offset)
{
    int i, j;
    __shared__ float shadow[BLOCK_SIZE][BLOCK_SIZE];
    m += blockIdx.x * matrix_dim * matrix_dim;
    int array_offset = offset * matrix_dim + offset;
    if (threadIdx.x < BLOCK_SIZE) {
        for (i = 0; i < BLOCK_SIZE; i++) {
            shadow[i][threadIdx.x] = m[array_offset + threadIdx.x];
            array_offset += matrix_dim;
        }
    }
    __syncthreads();
    for (i = 0; i < BLOCK_SIZE - 1; i++) {
        if (threadIdx.x > i && threadIdx.x < BLOCK_SIZE) {
            for (j = 0; j < i; j++) shadow[threadIdx.x][i] -= shadow[threadIdx.x][j] * shadow[j][i];
            shadow[threadIdx.x][i] /= shadow[i][i];
        }
        __syncthreads();
        if (threadIdx.x > i && threadIdx.x < BLOCK_SIZE) {
            for (j = 0; j < i + 1; j++) shadow[i + 1][threadIdx.x] -= shadow[i + 1][j] * shadow[j][threadIdx.x];
        }
        __syncthreads();
    }
    if (threadIdx.x >= BLOCK_SIZE) return;
    array_offset = (offset + 1) * matrix_dim + offset;
    for (i = 1; i < BLOCK_SIZE; i++) {
        m[array_offset + threadIdx.x] = shadow[i][threadIdx.x];
        array_offset += matrix_dim;
    }
}
