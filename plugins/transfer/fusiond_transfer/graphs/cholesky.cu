// Blocks of a Cholesky factorisation: square matrices of n x n, by rows.

// S' = S - L L^T; only the lower triangle is used by anybody.
extern "C" __global__ void syrk(const double* s, const double* l, double* out, int n) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= n || column >= n) return;
    double sum = s[row * n + column];
    for (int k = 0; k < n; ++k) sum -= l[row * n + k] * l[column * n + k];
    out[row * n + column] = sum;
}

// S' = S - A B^T
extern "C" __global__ void gemm(const double* s, const double* a, const double* b, double* out, int n) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= n || column >= n) return;
    double sum = s[row * n + column];
    for (int k = 0; k < n; ++k) sum -= a[row * n + k] * b[column * n + k];
    out[row * n + column] = sum;
}

// X L^T = S for a lower triangle L; one thread a row of X.
extern "C" __global__ void trsm(const double* s, const double* l, double* x, int n) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    for (int column = 0; column < n; ++column) {
        double sum = s[row * n + column];
        for (int k = 0; k < column; ++k) sum -= x[row * n + k] * l[column * n + k];
        x[row * n + column] = sum / l[column * n + column];
    }
}
