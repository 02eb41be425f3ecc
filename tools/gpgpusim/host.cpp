// Launches one kernel of a PTX text in GPGPU-Sim, whose statistics come on standard output.
//
//     host FOLDER    with FOLDER/kernel.ptx, and FOLDER/launch.txt:
//         KERNEL GRID_X GRID_Y GRID_Z BLOCK_X BLOCK_Y BLOCK_Z SHARED_BYTES
//         array BYTES BEGIN FILE     an argument: the address BEGIN bytes behind the start of an array that holds what
//                                    is in FILE, and goes back there afterwards
//         value NUMBER               an argument: an integer
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

// What the simulator has of CUDA's two interfaces, declared here so that no CUDA toolkit is needed.
extern "C" {
int cuLinkAddFile_v2(void* state, int kind, const char* path, unsigned options, void*, void*);
int cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared_bytes,
                   void* stream, void** arguments, void** extra);
int cudaMalloc(void** address, std::size_t bytes);
int cudaMemcpy(void* target, const void* source, std::size_t bytes, int direction);
int cudaDeviceSynchronize();
void __cudaRegisterFunction(void**, const char* key, char* name, const char*, int, void*, void*, void*, void*, int*);
}

namespace {

constexpr int PTX = 1, TO_DEVICE = 1, TO_HOST = 2;

struct Array {
    std::string path;
    std::vector<char> bytes;
    void* address;
};

[[noreturn]] void fail(const std::string& what) {
    std::cerr << "host: " << what << std::endl;
    std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) fail("expected a folder");
    const std::string folder = argv[1];
    std::ifstream in(folder + "/launch.txt");
    std::string kernel, kind;
    unsigned grid[3], block[3], shared_bytes;
    in >> kernel >> grid[0] >> grid[1] >> grid[2] >> block[0] >> block[1] >> block[2] >> shared_bytes;
    if (!in) fail("launch.txt begins with a kernel, a grid, a block and the bytes of its shared memory");

    // The simulator appends the file's name to the variable's value where that stands.
    static char room[8192];
    std::snprintf(room, sizeof room / 2, "PTX_JIT_PATH=%s", folder.c_str());
    putenv(room);
    if (cuLinkAddFile_v2(nullptr, PTX, "kernel.ptx", 0, nullptr, nullptr) != 0) fail("the PTX is not taken");

    std::vector<Array> arrays;
    std::vector<unsigned long long> values;
    while (in >> kind) {
        if (kind == "value") {
            long long value;
            in >> value;
            values.push_back(static_cast<unsigned long long>(value));
            continue;
        }
        Array made;
        std::size_t size, begin;
        in >> size >> begin >> made.path;
        made.bytes.resize(size);
        std::ifstream(made.path, std::ios::binary).read(made.bytes.data(), static_cast<std::streamsize>(size));
        if (cudaMalloc(&made.address, size) != 0) fail("no memory for " + made.path);
        cudaMemcpy(made.address, made.bytes.data(), size, TO_DEVICE);
        values.push_back(reinterpret_cast<unsigned long long>(made.address) + begin);
        arrays.push_back(std::move(made));
    }
    static const char key = 0;
    __cudaRegisterFunction(reinterpret_cast<void**>(1), &key, kernel.data(), kernel.c_str(), -1, nullptr, nullptr,
                           nullptr, nullptr, nullptr);
    std::vector<void*> places;
    for (unsigned long long& value : values) places.push_back(&value);
    cuLaunchKernel(const_cast<char*>(&key), grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes,
                   nullptr, places.data(), nullptr);
    cudaDeviceSynchronize();
    for (Array& each : arrays) {
        const auto size = static_cast<std::streamsize>(each.bytes.size());
        cudaMemcpy(each.bytes.data(), each.address, each.bytes.size(), TO_HOST);
        std::ofstream(each.path, std::ios::binary).write(each.bytes.data(), size);
    }
    return 0;
}
