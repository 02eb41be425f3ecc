// An edge filter over bytes, without textures.
typedef unsigned char Pixel;
static __device__ __forceinline__ Pixel ComputeSobel(Pixel ul, Pixel um, Pixel ur, Pixel ml, Pixel mm, Pixel mr, Pixel ll, Pixel lm, Pixel lr, float fScale)
{
    short Horz = ur + 2 * mr + lr - ul - 2 * ml - ll;
    short Vert = ul + 2 * um + ur - ll - 2 * lm - lr;
    short Sum = (short)(fScale * (abs((int)Horz) + abs((int)Vert)));
    if (Sum < 0) return 0;
    else if (Sum > 0xff) return 0xff;
    return (Pixel)Sum;
}
__device__ inline int clamp(int i, int low, int high) { return max(low, min(i, high)); }
__global__ void SobelTex(Pixel* pSobelOriginal, const Pixel* image, unsigned int Pitch, int w, int h, float fScale)
{
    Pixel* pSobel = (Pixel*)(((char*)pSobelOriginal) + blockIdx.x * Pitch);
    for (int i = threadIdx.x; i < w; i += blockDim.x) {
        auto at = [&](int dx, int dy) { return image[clamp((int)blockIdx.x + dy, 0, h - 1) * w + clamp(i + dx, 0, w - 1)]; };
        pSobel[i] = ComputeSobel(at(-1, -1), at(0, -1), at(1, -1), at(-1, 0), at(0, 0), at(1, 0), at(-1, 1), at(0, 1), at(1, 1), fScale);
    }
}
