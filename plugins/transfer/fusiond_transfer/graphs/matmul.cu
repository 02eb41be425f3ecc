// C = A B for square matrices of n x n, by rows; one thread an element.
extern "C" __global__ void gemm(const unsigned* a, const unsigned* b, unsigned* c, int n) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= n || column >= n) return;
    unsigned sum = 0;
    for (int k = 0; k < n; ++k) sum += a[(long long)row * n + k] * b[(long long)k * n + column];
    c[(long long)row * n + column] = sum;
}
