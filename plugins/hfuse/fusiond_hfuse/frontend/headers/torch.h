// What kernels take from PyTorch's headers (ATen, c10, torch): floats of 16 bits, accessors, a few macros. Layouts,
// conversions and arithmetic are PyTorch's: a Half is worked with as a float.
#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_HOST __host__
#define C10_WARP_SIZE 32
#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(threads)
#define C10_LAUNCH_BOUNDS_2(threads, blocks) __launch_bounds__(threads, blocks)
#define C10_RESTRICT __restrict__
#define CUDA_KERNEL_ASSERT(condition) assert(condition)
#define CUDA_KERNEL_LOOP_TYPE(i, n, index_type)                                                                        \
    int64_t _i_n_d_e_x = blockIdx.x * blockDim.x + threadIdx.x;                                                        \
    for (index_type i = _i_n_d_e_x; _i_n_d_e_x < (n); _i_n_d_e_x += blockDim.x * gridDim.x, i = _i_n_d_e_x)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
namespace c10 {
struct alignas(2) Half {
    unsigned short x;
    struct from_bits_t {};
    static constexpr __host__ __device__ from_bits_t from_bits() { return from_bits_t(); }
    Half() = default;
    constexpr __host__ __device__ Half(unsigned short bits, from_bits_t) : x(bits) {}
    __host__ __device__ Half(float value) : x(__half_as_ushort(__float2half(value))) {}
    __host__ __device__ Half(const __half& value) : x(__half_as_ushort(value)) {}
    __host__ __device__ operator float() const { return __half2float(__ushort_as_half(x)); }
    __host__ __device__ operator __half() const { return __ushort_as_half(x); }
};
struct alignas(2) BFloat16 {
    unsigned short x;
    struct from_bits_t {};
    static constexpr __host__ __device__ from_bits_t from_bits() { return from_bits_t(); }
    BFloat16() = default;
    constexpr __host__ __device__ BFloat16(unsigned short bits, from_bits_t) : x(bits) {}
    __host__ __device__ BFloat16(float value) : x(__bfloat16_as_ushort(__float2bfloat16(value))) {}
    __host__ __device__ BFloat16(const __nv_bfloat16& value) : x(__bfloat16_as_ushort(value)) {}
    __host__ __device__ operator float() const { return __bfloat162float(__ushort_as_bfloat16(x)); }
    __host__ __device__ operator __nv_bfloat16() const { return __ushort_as_bfloat16(x); }
};
#define C10_OPERATOR(type, op)                                                                                     \
    inline __host__ __device__ type operator op(const type& a, const type& b) {                                        \
        return static_cast<float>(a) op static_cast<float>(b);                                                         \
    }                                                                                                                  \
    inline __host__ __device__ type& operator op##=(type& a, const type& b) { return a = a op b; }                     \
    inline __host__ __device__ float operator op(type a, float b) { return static_cast<float>(a) op b; }               \
    inline __host__ __device__ float operator op(float a, type b) { return a op static_cast<float>(b); }               \
    inline __host__ __device__ float& operator op##=(float& a, const type& b) {                                        \
        return a = a op static_cast<float>(b);                                                                         \
    }                                                                                                                  \
    inline __host__ __device__ double operator op(type a, double b) { return static_cast<double>(static_cast<float>(a)) op b; } \
    inline __host__ __device__ double operator op(double a, type b) { return a op static_cast<double>(static_cast<float>(b)); } \
    inline __host__ __device__ type operator op(type a, int b) { return a op static_cast<type>(static_cast<float>(b)); } \
    inline __host__ __device__ type operator op(int a, type b) { return static_cast<type>(static_cast<float>(a)) op b; } \
    inline __host__ __device__ type operator op(type a, long b) { return a op static_cast<type>(static_cast<float>(b)); } \
    inline __host__ __device__ type operator op(long a, type b) { return static_cast<type>(static_cast<float>(a)) op b; }
C10_OPERATOR(Half, +)
C10_OPERATOR(Half, -)
C10_OPERATOR(Half, *)
C10_OPERATOR(Half, /)
C10_OPERATOR(BFloat16, +)
C10_OPERATOR(BFloat16, -)
C10_OPERATOR(BFloat16, *)
C10_OPERATOR(BFloat16, /)
inline __host__ __device__ Half operator-(const Half& a) { return -static_cast<float>(a); }
inline __host__ __device__ BFloat16 operator-(const BFloat16& a) { return -static_cast<float>(a); }
}
namespace c10 {
template <class T> struct alignas(sizeof(T) * 2) complex {
    using value_type = T;
    T real_ = T(0);
    T imag_ = T(0);
    constexpr complex() = default;
    __host__ __device__ constexpr complex(const T& re, const T& im = T()) : real_(re), imag_(im) {}
    template <class U> __host__ __device__ explicit constexpr complex(const complex<U>& other)
        : real_(other.real()), imag_(other.imag()) {}
    __host__ __device__ constexpr T real() const { return real_; }
    __host__ __device__ constexpr T imag() const { return imag_; }
    __host__ __device__ constexpr void real(T value) { real_ = value; }
    __host__ __device__ constexpr void imag(T value) { imag_ = value; }
    __host__ __device__ complex& operator+=(const complex& b) { return *this = *this + b; }
    __host__ __device__ complex& operator-=(const complex& b) { return *this = *this - b; }
    __host__ __device__ complex& operator*=(const complex& b) { return *this = *this * b; }
    __host__ __device__ complex& operator/=(const complex& b) { return *this = *this / b; }
    friend __host__ __device__ complex operator+(const complex& a, const complex& b) {
        return complex(a.real_ + b.real_, a.imag_ + b.imag_);
    }
    friend __host__ __device__ complex operator-(const complex& a, const complex& b) {
        return complex(a.real_ - b.real_, a.imag_ - b.imag_);
    }
    friend __host__ __device__ complex operator*(const complex& a, const complex& b) {
        return complex(a.real_ * b.real_ - a.imag_ * b.imag_, a.real_ * b.imag_ + a.imag_ * b.real_);
    }
    friend __host__ __device__ complex operator/(const complex& a, const complex& b) {
        const T scale = b.real_ * b.real_ + b.imag_ * b.imag_;
        return complex((a.real_ * b.real_ + a.imag_ * b.imag_) / scale, (a.imag_ * b.real_ - a.real_ * b.imag_) / scale);
    }
    friend __host__ __device__ complex operator-(const complex& a) { return complex(-a.real_, -a.imag_); }
    friend __host__ __device__ bool operator==(const complex& a, const complex& b) {
        return a.real_ == b.real_ && a.imag_ == b.imag_;
    }
    friend __host__ __device__ bool operator!=(const complex& a, const complex& b) { return !(a == b); }
};
}
namespace at {
using c10::BFloat16;
using c10::Half;
template <class T> struct OpMathType { using type = T; };
template <> struct OpMathType<Half> { using type = float; };
template <> struct OpMathType<BFloat16> { using type = float; };
template <class T> using opmath_type = typename OpMathType<T>::type;
template <class T, bool is_cuda> struct AccumulateType { using type = T; };
template <bool is_cuda> struct AccumulateType<Half, is_cuda> { using type = float; };
template <bool is_cuda> struct AccumulateType<BFloat16, is_cuda> { using type = float; };
template <bool is_cuda> struct AccumulateType<float, is_cuda> { using type = float; };
template <bool is_cuda> struct AccumulateType<signed char, is_cuda> { using type = int64_t; };
template <bool is_cuda> struct AccumulateType<unsigned char, is_cuda> { using type = int64_t; };
template <bool is_cuda> struct AccumulateType<char, is_cuda> { using type = int64_t; };
template <bool is_cuda> struct AccumulateType<short, is_cuda> { using type = int64_t; };
template <bool is_cuda> struct AccumulateType<int, is_cuda> { using type = int64_t; };
template <class T, bool is_cuda> using acc_type = typename AccumulateType<T, is_cuda>::type;
template <class T> struct DefaultPtrTraits { typedef T* PtrType; };
template <class T> struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };
template <class T, size_t N, template <class U> class PtrTraits = DefaultPtrTraits, class index_t = int64_t>
class TensorAccessorBase {
public:
    typedef typename PtrTraits<T>::PtrType PtrType;
    __host__ __device__ TensorAccessorBase(PtrType data, const index_t* sizes, const index_t* strides)
        : data_(data), sizes_(sizes), strides_(strides) {}
    __host__ __device__ index_t stride(index_t i) const { return strides_[i]; }
    __host__ __device__ index_t size(index_t i) const { return sizes_[i]; }
    __host__ __device__ PtrType data() { return data_; }
    __host__ __device__ const PtrType data() const { return data_; }

protected:
    PtrType data_;
    const index_t* sizes_;
    const index_t* strides_;
};
template <class T, size_t N, template <class U> class PtrTraits = DefaultPtrTraits, class index_t = int64_t>
class TensorAccessor : public TensorAccessorBase<T, N, PtrTraits, index_t> {
public:
    typedef typename PtrTraits<T>::PtrType PtrType;
    __host__ __device__ TensorAccessor(PtrType data, const index_t* sizes, const index_t* strides)
        : TensorAccessorBase<T, N, PtrTraits, index_t>(data, sizes, strides) {}
    __host__ __device__ TensorAccessor<T, N - 1, PtrTraits, index_t> operator[](index_t i) {
        return TensorAccessor<T, N - 1, PtrTraits, index_t>(
            this->data_ + this->strides_[0] * i, this->sizes_ + 1, this->strides_ + 1);
    }
    __host__ __device__ const TensorAccessor<T, N - 1, PtrTraits, index_t> operator[](index_t i) const {
        return TensorAccessor<T, N - 1, PtrTraits, index_t>(
            this->data_ + this->strides_[0] * i, this->sizes_ + 1, this->strides_ + 1);
    }
};
template <class T, template <class U> class PtrTraits, class index_t>
class TensorAccessor<T, 1, PtrTraits, index_t> : public TensorAccessorBase<T, 1, PtrTraits, index_t> {
public:
    typedef typename PtrTraits<T>::PtrType PtrType;
    __host__ __device__ TensorAccessor(PtrType data, const index_t* sizes, const index_t* strides)
        : TensorAccessorBase<T, 1, PtrTraits, index_t>(data, sizes, strides) {}
    __host__ __device__ T& operator[](index_t i) { return this->data_[this->strides_[0] * i]; }
    __host__ __device__ const T& operator[](index_t i) const { return this->data_[this->strides_[0] * i]; }
};
template <class T, size_t N, template <class U> class PtrTraits = DefaultPtrTraits, class index_t = int64_t>
class GenericPackedTensorAccessorBase {
public:
    typedef typename PtrTraits<T>::PtrType PtrType;
    __host__ __device__ index_t stride(index_t i) const { return strides_[i]; }
    __host__ __device__ index_t size(index_t i) const { return sizes_[i]; }
    __host__ __device__ PtrType data() { return data_; }
    __host__ __device__ const PtrType data() const { return data_; }

protected:
    PtrType data_;
    index_t sizes_[N];
    index_t strides_[N];
};
template <class T, size_t N, template <class U> class PtrTraits = DefaultPtrTraits, class index_t = int64_t>
class GenericPackedTensorAccessor : public GenericPackedTensorAccessorBase<T, N, PtrTraits, index_t> {
public:
    typedef typename PtrTraits<T>::PtrType PtrType;
    __device__ TensorAccessor<T, N - 1, PtrTraits, index_t> operator[](index_t i) {
        index_t* new_sizes = this->sizes_ + 1;
        index_t* new_strides = this->strides_ + 1;
        return TensorAccessor<T, N - 1, PtrTraits, index_t>(
            this->data_ + this->strides_[0] * i, new_sizes, new_strides);
    }
    __device__ const TensorAccessor<T, N - 1, PtrTraits, index_t> operator[](index_t i) const {
        const index_t* new_sizes = this->sizes_ + 1;
        const index_t* new_strides = this->strides_ + 1;
        return TensorAccessor<T, N - 1, PtrTraits, index_t>(
            this->data_ + this->strides_[0] * i, new_sizes, new_strides);
    }
};
template <class T, template <class U> class PtrTraits, class index_t>
class GenericPackedTensorAccessor<T, 1, PtrTraits, index_t>
    : public GenericPackedTensorAccessorBase<T, 1, PtrTraits, index_t> {
public:
    typedef typename PtrTraits<T>::PtrType PtrType;
    __device__ T& operator[](index_t i) { return this->data_[this->strides_[0] * i]; }
    __device__ const T& operator[](index_t i) const { return this->data_[this->strides_[0] * i]; }
};
template <class T, size_t N, template <class U> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, PtrTraits, int32_t>;
template <class T, size_t N, template <class U> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, PtrTraits, int64_t>;
template <class T, size_t N, template <class U> class PtrTraits = DefaultPtrTraits, class index_t = int64_t>
using PackedTensorAccessor = GenericPackedTensorAccessor<T, N, PtrTraits, index_t>;
namespace cuda {
namespace detail {
constexpr int MAX_TENSORINFO_DIMS = 25;
template <class T, class IndexType> struct TensorInfo {
    __host__ __device__ bool isContiguous() const { return dims == 1 && strides[0] == 1; }
    T* data;
    IndexType sizes[MAX_TENSORINFO_DIMS];
    IndexType strides[MAX_TENSORINFO_DIMS];
    int dims;
};
template <class T, class IndexType, int Dims> struct IndexToOffset {
    static __host__ __device__ IndexType get(IndexType linearId, const TensorInfo<T, IndexType>& info) {
        IndexType offset = 0;
        for (int i = (Dims > 0 ? Dims : info.dims) - 1; i > 0; --i) {
            offset += linearId % info.sizes[i] * info.strides[i];
            linearId /= info.sizes[i];
        }
        return offset + linearId * info.strides[0];
    }
};
}
}
}
namespace torch {
using namespace at;
}
