// Blocks of a Cholesky factorisation on the host: square matrices of n x n, by rows.
#include <cmath>

// L L^T = S + shift I, from the lower triangle of S; zeros above the diagonal of L.
extern "C" void potrf(const double* s, double* l, int n, int shift) {
    for (int row = 0; row < n; ++row) {
        for (int column = 0; column <= row; ++column) {
            double sum = s[row * n + column] + (row == column ? shift : 0);
            for (int k = 0; k < column; ++k) sum -= l[row * n + k] * l[column * n + k];
            l[row * n + column] = row == column ? std::sqrt(sum) : sum / l[column * n + column];
        }
        for (int column = row + 1; column < n; ++column) l[row * n + column] = 0;
    }
}

// S' = S - L L^T
extern "C" void syrk_host(const double* s, const double* l, double* out, int n) {
    for (int row = 0; row < n; ++row) {
        for (int column = 0; column < n; ++column) {
            double sum = s[row * n + column];
            for (int k = 0; k < n; ++k) sum -= l[row * n + k] * l[column * n + k];
            out[row * n + column] = sum;
        }
    }
}
