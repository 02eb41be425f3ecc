// A runtime for code that Halide compiles for CUDA: it launches nothing, and writes down what it is asked for.
//
//     kernels.ptx                                     the module
//     log.txt   buffer ID BYTES in|out|own            device memory
//               run ENTRY grid(3) block(3) SHARED arguments: bID a buffer, sHEX a number's bytes
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "HalideRuntime.h"
#include "made.h"

static std::FILE* said = nullptr;
static std::uint64_t allocated = 0;
static const halide_buffer_t *given = nullptr, *taken = nullptr;

extern "C" {
const halide_device_interface_t* halide_cuda_device_interface() {
    static const char interface = 0;
    return reinterpret_cast<const halide_device_interface_t*>(&interface);
}
int halide_device_malloc(void*, halide_buffer_t* buffer, const halide_device_interface_t* interface) {
    if (buffer->device) return 0;
    buffer->device = ++allocated;
    buffer->device_interface = interface;
    const char* role = buffer == given ? "in" : buffer == taken ? "out" : "own";
    std::fprintf(said, "buffer %llu %zu %s\n", (unsigned long long)allocated, buffer->size_in_bytes(), role);
    return 0;
}
int halide_copy_to_device(void* context, halide_buffer_t* buffer, const halide_device_interface_t* interface) {
    if (!buffer->device && buffer != given && buffer != taken && buffer->host_dirty()) {
        std::fprintf(stderr, "a part of the pipeline is computed on the processor\n");
        return -1;
    }
    buffer->set_host_dirty(false);
    return halide_device_malloc(context, buffer, interface);
}
int halide_copy_to_host(void*, halide_buffer_t*) { return 0; }
int halide_device_free(void*, halide_buffer_t* buffer) { buffer->device = 0; return 0; }
void halide_device_free_as_destructor(void*, void* buffer) { static_cast<halide_buffer_t*>(buffer)->device = 0; }
int halide_device_sync(void*, halide_buffer_t*) { return 0; }
int halide_cuda_initialize_kernels(void*, void** state, const char* text, int size) {
    *state = state;
    std::FILE* file = std::fopen("kernels.ptx", "wb");
    std::fwrite(text, 1, std::strlen(text) < (size_t)size ? std::strlen(text) : (size_t)size, file);
    return std::fclose(file);
}
void halide_cuda_finalize_kernels(void*, void*) {}
int halide_cuda_run(void*, void*, const char* entry, int gx, int gy, int gz, int bx, int by, int bz, int shared,
                    size_t sizes[], void* arguments[], int8_t is_buffer[]) {
    std::fprintf(said, "run %s %d %d %d %d %d %d %d", entry, gx, gy, gz, bx, by, bz, shared);
    for (int i = 0; sizes[i] != 0; ++i) {
        if (is_buffer[i]) {
            std::fprintf(said, " b%llu", (unsigned long long)static_cast<halide_buffer_t*>(arguments[i])->device);
        } else {
            std::fprintf(said, " s");
            for (size_t j = 0; j < sizes[i]; ++j) std::fprintf(said, "%02x", static_cast<uint8_t*>(arguments[i])[j]);
        }
    }
    std::fprintf(said, "\n");
    return 0;
}
void* halide_malloc(void*, size_t size) { return std::aligned_alloc(128, (size + 255) / 128 * 128); }
void halide_free(void*, void* memory) { std::free(memory); }
void halide_error(void*, const char* text) { std::fprintf(stderr, "%s\n", text); }
}

int main() {
    said = std::fopen("log.txt", "w");
    std::vector<uint8_t> in(size_t(WIDTH) * HEIGHT * IN_CHANNELS * (IN_BITS / 8));
    std::vector<uint8_t> out(size_t(WIDTH) * HEIGHT * OUT_CHANNELS * (OUT_BITS / 8));
    halide_dimension_t of[3] = {{0, WIDTH, IN_CHANNELS}, {0, HEIGHT, WIDTH * IN_CHANNELS}, {0, IN_CHANNELS, 1}};
    halide_dimension_t to[3] = {{0, WIDTH, OUT_CHANNELS}, {0, HEIGHT, WIDTH * OUT_CHANNELS}, {0, OUT_CHANNELS, 1}};
    halide_buffer_t source = {}, target = {};
    source.host = in.data();
    source.type = halide_type_t(IN_CODE, IN_BITS);
    source.dimensions = IN_CHANNELS > 1 ? 3 : 2;
    source.dim = of;
    source.set_host_dirty();
    target.host = out.data();
    target.type = halide_type_t(OUT_CODE, OUT_BITS);
    target.dimensions = OUT_CHANNELS > 1 ? 3 : 2;
    target.dim = to;
    given = &source;
    taken = &target;
    const int status = made(&source, &target);
    return std::fclose(said) || status;
}
