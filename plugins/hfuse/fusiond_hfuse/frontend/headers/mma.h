// <mma.h>: matrices of a warp.
namespace nvcuda { namespace wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32; }
template <class T> struct fusiond_stored { typedef T type; };
template <> struct fusiond_stored<precision::tf32> { typedef float type; };
template <class Use, int m, int n, int k, class T, class Layout = void> struct fragment {
    typedef T element_type;
    typedef typename fusiond_stored<T>::type storage_element_type;
    enum { num_elements = 8, num_storage_elements = 8 };
    storage_element_type x[num_elements];
};
template <class Use, int m, int n, int k, class T, class Layout, class V>
__device__ void fill_fragment(fragment<Use, m, n, k, T, Layout>&, const V&);
template <class Use, int m, int n, int k, class T, class Layout>
__device__ void load_matrix_sync(fragment<Use, m, n, k, T, Layout>&, const typename fusiond_stored<T>::type*, unsigned);
template <int m, int n, int k, class T>
__device__ void load_matrix_sync(fragment<accumulator, m, n, k, T>&, const T*, unsigned, layout_t);
template <int m, int n, int k, class T>
__device__ void store_matrix_sync(T*, const fragment<accumulator, m, n, k, T>&, unsigned, layout_t);
template <int m, int n, int k, class D, class A, class LayoutA, class B, class LayoutB, class C>
__device__ void mma_sync(fragment<accumulator, m, n, k, D>&, const fragment<matrix_a, m, n, k, A, LayoutA>&,
                         const fragment<matrix_b, m, n, k, B, LayoutB>&, const fragment<accumulator, m, n, k, C>&,
                         bool = false);
__device__ float __float_to_tf32(float);
namespace experimental { using namespace nvcuda::wmma; }
}}
