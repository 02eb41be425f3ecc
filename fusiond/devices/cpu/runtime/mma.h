// <mma.h> on the processor: matrices of a warp (nvcuda::wmma) by plain loops. Which element lies in which lane is not
// what a GPU has, and no program may ask; how many each lane holds is. Products are added in float (or double, or int),
// one after the other; a GPU adds in an order of its own.
#pragma once

#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda { namespace wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32; }

}}  // namespace nvcuda::wmma

namespace fusiond_detail {

namespace wm = ::nvcuda::wmma;

template <class Use, int M, int N, int K> struct extent_of;
template <int M, int N, int K> struct extent_of<wm::matrix_a, M, N, K> { static constexpr int rows = M, columns = K; };
template <int M, int N, int K> struct extent_of<wm::matrix_b, M, N, K> { static constexpr int rows = K, columns = N; };
template <int M, int N, int K> struct extent_of<wm::accumulator, M, N, K> { static constexpr int rows = M, columns = N; };

template <class T> struct stored { using type = T; };
template <> struct stored<wm::precision::tf32> { using type = float; };

// Of a half operand every lane holds 16, each element of 16 x 16 twice.
template <class Use, class T> constexpr int copies_of(int each) { return 1; }
template <> constexpr int copies_of<wm::matrix_a, __half>(int each) { return 16 / each; }
template <> constexpr int copies_of<wm::matrix_b, __half>(int each) { return 16 / each; }

template <class T, class U> constexpr bool same = false;
template <class T> constexpr bool same<T, T> = true;
template <class T> constexpr bool shape_of(int m, int n, int k) {
    if (same<T, double>) return m == 8 && n == 8 && k == 4;
    if (same<T, wm::precision::tf32>) return m == 16 && n == 16 && k == 8;
    return k == 16 && ((m == 16 && n == 16) || (m == 32 && n == 8) || (m == 8 && n == 32));
}
template <class T> constexpr bool element_of(bool accumulates) {
    if (accumulates) return same<T, float> || same<T, __half> || same<T, int> || same<T, double>;
    return same<T, __half> || same<T, __nv_bfloat16> || same<T, wm::precision::tf32> || same<T, double> ||
           same<T, signed char> || same<T, unsigned char>;
}

// What the lanes of each warp lay down for each other. 32 x 16 elements is the largest.
inline unsigned char warp_tiles[32][2][512 * sizeof(double)];

template <class T> struct sum_of_products { using type = float; };
template <> struct sum_of_products<double> { using type = double; };
template <> struct sum_of_products<int> { using type = int; };

}  // namespace fusiond_detail

namespace nvcuda { namespace wmma {

template <class Use, int m, int n, int k, class T, class Layout = void> class fragment {
    using extent_ = ::fusiond_detail::extent_of<Use, m, n, k>;
    static constexpr bool accumulates_ = ::fusiond_detail::same<Use, accumulator>;
    static_assert(::fusiond_detail::element_of<T>(accumulates_), "wmma has no fragment of this type");
    static_assert(accumulates_ || ::fusiond_detail::shape_of<T>(m, n, k), "wmma has no fragment of this shape and type");

public:
    using element_type = T;
    using storage_element_type = typename ::fusiond_detail::stored<T>::type;
    static constexpr int fusiond_rows = extent_::rows, fusiond_columns = extent_::columns;
    static constexpr int fusiond_each = fusiond_rows * fusiond_columns / 32;
    static constexpr int num_elements = fusiond_each * ::fusiond_detail::copies_of<Use, T>(fusiond_each);
    static constexpr int num_storage_elements = num_elements;
    storage_element_type x[num_elements];
};

template <class Use, int m, int n, int k, class T, class Layout, class V>
inline void fill_fragment(fragment<Use, m, n, k, T, Layout>& to, const V& value) {
    for (auto& each : to.x) each = (typename fragment<Use, m, n, k, T, Layout>::storage_element_type)value;
}

}}  // namespace nvcuda::wmma

namespace fusiond_detail {

// Calls `move(element of the fragment, place in memory)` for all that this lane holds.
template <class Fragment, class F> inline void each_element(size_t stride, bool by_rows, F move) {
    const int lane = (int)(thread_number() % 32);
    for (int at = 0; at < Fragment::num_elements; ++at) {
        const int element = lane * Fragment::fusiond_each + at % Fragment::fusiond_each;
        const int row = element / Fragment::fusiond_columns, column = element % Fragment::fusiond_columns;
        move(at, by_rows ? row * stride + column : column * stride + row);
    }
}

inline void check_tile(const void* address, size_t row_bytes) {
    if ((uintptr_t)address % 16) ::fusiond_calls->trap("a wmma matrix at an address that is not a multiple of 16 bytes", nullptr, 0);
    if (row_bytes % 16) ::fusiond_calls->trap("a wmma matrix whose rows are not a multiple of 16 bytes apart", nullptr, 0);
}

}  // namespace fusiond_detail

namespace nvcuda { namespace wmma {

template <class Use, int m, int n, int k, class T, class Layout>
inline void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& to, const typename fragment<Use, m, n, k, T, Layout>::storage_element_type* from, unsigned stride) {
    ::fusiond_detail::check_tile(from, stride * sizeof *from);
    ::__syncwarp();
    ::fusiond_detail::each_element<fragment<Use, m, n, k, T, Layout>>(
        stride, ::fusiond_detail::same<Layout, row_major>, [&](int at, size_t place) { to.x[at] = from[place]; });
}
template <int m, int n, int k, class T>
inline void load_matrix_sync(fragment<accumulator, m, n, k, T>& to, const T* from, unsigned stride, layout_t layout) {
    ::fusiond_detail::check_tile(from, stride * sizeof *from);
    ::__syncwarp();
    ::fusiond_detail::each_element<fragment<accumulator, m, n, k, T>>(
        stride, layout == mem_row_major, [&](int at, size_t place) { to.x[at] = from[place]; });
}
template <int m, int n, int k, class T>
inline void store_matrix_sync(T* to, const fragment<accumulator, m, n, k, T>& from, unsigned stride, layout_t layout) {
    ::fusiond_detail::check_tile(to, stride * sizeof *to);
    ::__syncwarp();
    ::fusiond_detail::each_element<fragment<accumulator, m, n, k, T>>(
        stride, layout == mem_row_major, [&](int at, size_t place) { to[place] = from.x[at]; });
    ::__syncwarp();
}

template <int m, int n, int k, class D, class A, class LayoutA, class B, class LayoutB, class C>
inline void mma_sync(fragment<accumulator, m, n, k, D>& d, const fragment<matrix_a, m, n, k, A, LayoutA>& a,
                     const fragment<matrix_b, m, n, k, B, LayoutB>& b, const fragment<accumulator, m, n, k, C>& c, bool = false) {
    using FA = fragment<matrix_a, m, n, k, A, LayoutA>;
    using FB = fragment<matrix_b, m, n, k, B, LayoutB>;
    using SA = typename FA::storage_element_type;
    using SB = typename FB::storage_element_type;
    using Sum = typename ::fusiond_detail::sum_of_products<D>::type;
    const unsigned thread = ::fusiond_detail::thread_number();
    SA* const all_a = (SA*)::fusiond_detail::warp_tiles[thread / 32][0];
    SB* const all_b = (SB*)::fusiond_detail::warp_tiles[thread / 32][1];
    ::__syncwarp();
    for (int at = 0; at < FA::fusiond_each; ++at) all_a[thread % 32 * FA::fusiond_each + at] = a.x[at];
    for (int at = 0; at < FB::fusiond_each; ++at) all_b[thread % 32 * FB::fusiond_each + at] = b.x[at];
    ::__syncwarp();
    constexpr int each = m * n / 32;
    for (int at = 0; at < each; ++at) {
        const int element = (int)(thread % 32) * each + at;
        Sum sum = (Sum)c.x[at];
        for (int inner = 0; inner < k; ++inner) sum += (Sum)all_a[element / n * k + inner] * (Sum)all_b[inner * n + element % n];
        d.x[at] = (D)sum;
    }
    ::__syncwarp();
}

// A float as the tensor cores take it: ten bits of fraction, to nearest, ties away from zero.
inline float __float_to_tf32(float value) {
    const unsigned bits = ::__float_as_uint(value);
    return (bits & 0x7f800000u) == 0x7f800000u ? value : ::__uint_as_float((bits + 0x1000u) & 0xffffe000u);
}

}}  // namespace nvcuda::wmma

namespace nvcuda { namespace wmma { namespace experimental { using namespace ::nvcuda::wmma; } } }
