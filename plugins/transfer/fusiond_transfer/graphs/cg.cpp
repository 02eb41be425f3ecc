// The five-point Laplacian on a grid of side x side points, zero round it: q = A p.
extern "C" void laplacian(const double* p, double* q, int side) {
    for (int row = 0; row < side; ++row) {
        for (int column = 0; column < side; ++column) {
            const int at = row * side + column;
            double sum = 4 * p[at];
            if (row > 0) sum -= p[at - side];
            if (row + 1 < side) sum -= p[at + side];
            if (column > 0) sum -= p[at - 1];
            if (column + 1 < side) sum -= p[at + 1];
            q[at] = sum;
        }
    }
}
