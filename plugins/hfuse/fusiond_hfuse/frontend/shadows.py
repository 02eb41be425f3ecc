"""What shadow parameters are called: those of all functions that see the block, directly or through a call.

    __device__ int lane() { return threadIdx.x % 32; }   -->   __device__ int lane(FUSIOND_SHADOWS) { ... }
    ... lane() ... row<4>(1) ...                         -->   ... lane(FUSIOND_PASSED) ... row<4>(FUSIOND_PASSED, 1)

The paper inlines all calls instead (Li et al., CGO 2022, section III-C). Functions are known by their names, so that
calls that depend on a template argument are found too; overloads of one name are treated alike.
"""

SHADOWED = ("threadIdx", "blockIdx", "blockDim", "gridDim", "__syncthreads")  #: What a body sees its own version of
SHADOWS = "FUSIOND_SHADOWS"  #: The macro that stands for the shadow parameters in a fused source
PASSED = "FUSIOND_PASSED"  #: The macro that hands them on
FIRST_ID = 1  #: Barrier 0 is what `__syncthreads` means to the hardware; nothing in a fused kernel may use it
SHARED = "fusiond_shared"  #: The shadow parameter that holds the side's part of the arena
MACROS = (
    f"#define {SHADOWS} \\\n"
    "    const uint3 threadIdx, const uint3 blockIdx, const dim3 blockDim, const dim3 gridDim, \\\n"
    f"    const fusiond_barrier __syncthreads, void* const {SHARED}\n"
    f"#define {PASSED} {', '.join((*SHADOWED, SHARED))}\n"
)
"""The macros that stand for the shadow parameters and hand them on."""
POISON = """\
struct fusiond_leak;
extern fusiond_leak threadIdx, blockIdx, blockDim, gridDim;
void __syncthreads() = delete;
"""
"""Declarations that hide the built-ins, for the head of a namespace: what no shadow reaches does not compile."""
