// A stand-in for libcudart: a CUDA program's host code runs without a GPU, and each kernel launch is written down.
//
// Put in front of the toolkit's library (LD_LIBRARY_PATH) of a program built with `-cudart shared -no-compress` and its
// PTX embedded (`-arch=compute_90`). Memory of the device is memory of the host at addresses of its own; copies and
// fills are carried out, kernels are not. Below $FOREIGN_OUT:
//   module-N.ptx      the PTX that the program registers
//   launches.jsonl    a line for each launch, at most $FOREIGN_EACH of a kernel; the program ends after
//                     $FOREIGN_LAUNCHES of them
//   allocation-N.bin, variable-NAME.bin
//                     what launch number $FOREIGN_LAUNCH finds in memory; the program ends there
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

struct cudaArray {
  char *data;
  size_t width, height, depth, element;
  cudaChannelFormatDesc format;
};

namespace {

constexpr uint64_t ARENA = 0x2A0000000000, HANDLES = 0x7E5700000000, DEVICE_BYTES = uint64_t{16} << 30;
constexpr size_t PAGE = 4096;

struct Allocation {
  int number;
  size_t bytes;
  bool mapped;
};
struct Variable {
  std::string name;
  char *memory;
  size_t bytes;
  bool reached;  // the host has written it or asked for its address
};
struct Parameter {
  size_t bytes;
};
struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};

std::recursive_mutex guard;
std::map<uint64_t, Allocation> allocations;
std::map<const void *, std::string> kernels;
std::map<std::string, std::vector<Parameter>> signatures;
std::map<std::string, int> modules_of;
std::map<const void *, Variable> variables;
std::map<std::string, int> recorded;
thread_local std::vector<Configuration> configurations;
uint64_t next_address = ARENA, handles = HANDLES;
int allocated = 0, modules = 0, launched = 0;

std::string place(const std::string &name) {
  const char *out = getenv("FOREIGN_OUT");
  return std::string(out ? out : ".") + "/" + name;
}

int limit(const char *name, int otherwise) {
  const char *value = getenv(name);
  return value ? atoi(value) : otherwise;
}

char *allocate(size_t bytes) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
  void *memory = mmap(reinterpret_cast<void *>(next_address), whole, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  allocations[next_address] = {allocated++, bytes, true};
  next_address += whole + PAGE;  // a hole, so that an access beyond the end is seen
  return static_cast<char *>(memory);
}

template <typename T> cudaError_t give(T **memory, size_t bytes) {
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (bytes > DEVICE_BYTES) return cudaErrorMemoryAllocation;
  *memory = reinterpret_cast<T *>(allocate(bytes));
  return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t release(const void *memory) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  auto found = allocations.find(reinterpret_cast<uint64_t>(memory));
  if (found == allocations.end()) return memory ? cudaErrorInvalidValue : cudaSuccess;
  if (found->second.mapped) munmap(const_cast<void *>(memory), (found->second.bytes + PAGE - 1) / PAGE * PAGE);
  allocations.erase(found);
  return cudaSuccess;
}

std::map<uint64_t, Allocation>::iterator holding(uint64_t address) {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return allocations.end();
  --after;
  return address - after->first < after->second.bytes ? after : allocations.end();
}

// `.entry NAME(` and each `.param` up to the bracket that closes it: the bytes of a parameter.
void read_signatures(const std::string &text, int number) {
  static const std::map<std::string, size_t> widths = {{"8", 1}, {"16", 2}, {"32", 4}, {"64", 8}, {"128", 16}};
  for (size_t at = text.find(".entry "); at != std::string::npos; at = text.find(".entry ", at + 1)) {
    size_t open = text.find('(', at), close = text.find(')', at), body = text.find('{', at);
    std::string name = text.substr(at + 7, std::min(open, body) - at - 7);
    name.erase(name.find_last_not_of(" \t\n") + 1);
    auto &signature = signatures[name];
    signature.clear();
    modules_of[name] = number;
    if (open > body) continue;
    for (size_t from = text.find(".param", open); from < close; from = text.find(".param", from + 1)) {
      size_t end = std::min(text.find(',', from), close);
      std::string declared = text.substr(from + 6, end - from - 6);
      size_t bytes = 0;
      for (size_t dot = declared.find('.'); dot != std::string::npos; dot = declared.find('.', dot + 1)) {
        size_t digits = declared.find_first_of("0123456789", dot), stop = declared.find_first_not_of("0123456789", digits);
        if (digits != dot + 2 || !strchr("busf", declared[dot + 1])) continue;
        bytes = widths.at(declared.substr(digits, stop - digits));
        break;
      }
      size_t bracket = declared.find('[');
      if (bracket != std::string::npos) bytes *= strtoul(declared.c_str() + bracket + 1, nullptr, 10);
      signature.push_back({bytes});
    }
  }
}

std::string text_of(dim3 d) { return "[" + std::to_string(d.x) + "," + std::to_string(d.y) + "," + std::to_string(d.z) + "]"; }

// The words of `memory` that point into an allocation, as JSON; the allocations that they point to are added.
std::string pointers(const char *memory, size_t bytes, std::set<uint64_t> &reached) {
  std::string out;
  for (size_t at = 0; at + 8 <= bytes; at += 8) {
    uint64_t word;
    memcpy(&word, memory + at, 8);
    if (word >= HANDLES && word < handles) out += (out.empty() ? "" : ",") + ("{\"at\":" + std::to_string(at)) + ",\"handle\":true}";
    auto found = holding(word);
    if (found == allocations.end()) continue;
    reached.insert(found->first);
    out += (out.empty() ? "" : ",") + ("{\"at\":" + std::to_string(at)) + ",\"allocation\":" +
           std::to_string(found->second.number) + ",\"offset\":" + std::to_string(word - found->first) + "}";
  }
  return "[" + out + "]";
}

bool all_zero(const char *memory, size_t bytes) {
  return bytes == 0 || (memory[0] == 0 && memcmp(memory, memory + 1, bytes - 1) == 0);
}

void keep(const std::string &name, const char *memory, size_t bytes) {
  FILE *file = fopen(place(name).c_str(), "wb");
  if (!file) return;
  if (fwrite(memory, 1, bytes, file) != bytes) fprintf(stderr, "foreign: %s was cut short\n", name.c_str());
  fclose(file);
}

void record(const void *function, dim3 grid, dim3 block, size_t shared, void **arguments, bool cooperative, dim3 cluster) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  auto named = kernels.find(function);
  std::string name = named == kernels.end() ? "?" : named->second;
  int number = launched++;
  bool whole = number == limit("FOREIGN_LAUNCH", -1);
  if (!whole && recorded[name]++ >= limit("FOREIGN_EACH", 8)) return;
  std::set<uint64_t> reached, seen;
  std::string line = "{\"launch\":" + std::to_string(number) + ",\"kernel\":\"" + name + "\",\"module\":" +
                     std::to_string(modules_of.count(name) ? modules_of[name] : -1) + ",\"grid\":" + text_of(grid) +
                     ",\"block\":" + text_of(block) + ",\"shared\":" + std::to_string(shared) + ",\"cluster\":" +
                     text_of(cluster) + ",\"cooperative\":" + (cooperative ? "true" : "false") + ",\"parameters\":[";
  auto &signature = signatures[name];
  for (size_t i = 0; i < signature.size(); i++) {
    auto bytes = static_cast<const char *>(arguments[i]);
    line += i ? ",{\"bytes\":\"" : "{\"bytes\":\"";
    char digits[3];
    for (size_t at = 0; at < signature[i].bytes; at++) {
      snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(bytes[at]));
      line += digits;
    }
    line += "\",\"pointers\":" + pointers(bytes, signature[i].bytes, reached) + "}";
  }
  line += "],\"variables\":[";
  bool first = true;
  for (auto &each : variables) {
    if (!each.second.reached) continue;
    line += (first ? "{\"name\":\"" : ",{\"name\":\"") + each.second.name + "\",\"bytes\":" + std::to_string(each.second.bytes) +
            ",\"pointers\":" + pointers(each.second.memory, each.second.bytes, reached) + "}";
    if (whole) keep("variable-" + each.second.name + ".bin", each.second.memory, each.second.bytes);
    first = false;
  }
  line += "],\"allocations\":[";
  first = true;
  while (seen.size() < reached.size()) {  // what is pointed to may point further, which is seen where contents are kept
    uint64_t address = 0;
    for (uint64_t each : reached)
      if (!seen.count(each)) address = each;
    seen.insert(address);
    const Allocation &held = allocations[address];
    auto memory = reinterpret_cast<const char *>(address);
    bool zero = whole && all_zero(memory, held.bytes);
    line += (first ? "{\"number\":" : ",{\"number\":") + std::to_string(held.number) + ",\"bytes\":" + std::to_string(held.bytes) +
            ",\"zero\":" + (zero ? "true" : "false") + ",\"pointers\":" + (whole && !zero ? pointers(memory, held.bytes, reached) : "[]") + "}";
    if (whole && !zero) keep("allocation-" + std::to_string(held.number) + ".bin", memory, held.bytes);
    first = false;
  }
  line += "]}\n";
  FILE *file = fopen(place(whole ? "launch.json" : "launches.jsonl").c_str(), whole ? "w" : "a");
  if (file) {
    fputs(line.c_str(), file);
    fclose(file);
  }
  if (whole || launched >= limit("FOREIGN_LAUNCHES", 4096)) _exit(0);
}

Variable *variable(const void *symbol) {
  auto found = variables.find(symbol);
  if (found == variables.end()) return nullptr;
  if (!found->second.memory) found->second.memory = allocate(found->second.bytes);
  found->second.reached = true;
  return &found->second;
}

cudaError_t copy(void *to, const void *from, size_t bytes) {
  if (bytes) memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t copy_rows(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height) {
  for (size_t row = 0; row < height; row++) memmove(to + row * to_pitch, from + row * from_pitch, width);
  return cudaSuccess;
}

cudaError_t to_array(cudaArray *array, size_t x, size_t y, const void *from, size_t pitch, size_t width, size_t height) {
  size_t row = array->width * array->element;
  return copy_rows(array->data + y * row + x, row, static_cast<const char *>(from), pitch, width, height);
}

cudaError_t copy_box(const cudaMemcpy3DParms *p) {
  size_t element = p->srcArray ? p->srcArray->element : p->dstArray ? p->dstArray->element : 1;
  auto corner = [](const cudaArray *array, const cudaPitchedPtr &flat, const cudaPos &at, size_t &row, size_t &plane) {
    row = array ? array->width * array->element : flat.pitch;
    plane = row * (array ? (array->height ? array->height : 1) : flat.ysize);
    return (array ? array->data : static_cast<char *>(flat.ptr)) + at.z * plane + at.y * row + at.x * (array ? array->element : 1);
  };
  size_t from_row, from_plane, to_row, to_plane;
  char *from = corner(p->srcArray, p->srcPtr, p->srcPos, from_row, from_plane);
  char *to = corner(p->dstArray, p->dstPtr, p->dstPos, to_row, to_plane);
  for (size_t z = 0; z < p->extent.depth; z++)
    copy_rows(to + z * to_plane, to_row, from + z * from_plane, from_row, p->extent.width * element, p->extent.height);
  return cudaSuccess;
}

template <typename T> cudaError_t handle(T *out) {
  handles += 16;
  memcpy(out, &handles, sizeof(*out) < 8 ? sizeof(*out) : 8);
  handles++;
  return cudaSuccess;
}

}  // namespace

extern "C" {

// Registration: what the constructors of a program call.
void **__cudaRegisterFatBinary(void *wrapper) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  struct Wrapper {
    uint32_t magic, version;
    const char *data;
    void *more;
  };
  const char *data = static_cast<Wrapper *>(wrapper)->data;
  uint16_t header;
  uint64_t size;
  memcpy(&header, data + 6, 2);
  memcpy(&size, data + 8, 8);
  for (const char *entry = data + header, *end = entry + size; entry < end;) {
    uint16_t kind;
    uint32_t entry_header;
    uint64_t bytes;
    memcpy(&kind, entry, 2);
    memcpy(&entry_header, entry + 4, 4);
    memcpy(&bytes, entry + 8, 8);
    if (kind == 1 && memmem(entry + entry_header, bytes, ".version", 8)) {
      std::string text(entry + entry_header, strnlen(entry + entry_header, bytes));
      keep("module-" + std::to_string(modules) + ".ptx", text.data(), text.size());
      read_signatures(text, modules++);
    }
    entry += entry_header + bytes;
  }
  return new void *(wrapper);
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 1; }
void __cudaRegisterFunction(void **, const char *host, char *, const char *name, int, uint3 *, uint3 *, dim3 *, dim3 *, int *) {
  kernels[host] = name;
}
void __cudaRegisterVar(void **, char *host, char *, const char *name, int, size_t bytes, int, int) {
  variables[host] = {name, nullptr, bytes, false};
}
void __cudaRegisterManagedVar(void **, void **host, char *, const char *name, int, size_t bytes, int, int) {
  variables[host] = {name, nullptr, bytes, false};
  *host = variable(host)->memory;
}

// Launches.
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  Configuration top = configurations.back();
  configurations.pop_back();
  *grid = top.grid, *block = top.block, *shared = top.shared;
  *static_cast<cudaStream_t *>(stream) = top.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void *>(function));
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t) {
  record(function, grid, block, shared, arguments, false, dim3(1, 1, 1));
  return cudaSuccess;
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t) {
  record(function, grid, block, shared, arguments, true, dim3(1, 1, 1));
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  dim3 cluster(1, 1, 1);
  bool cooperative = false;
  for (unsigned i = 0; i < config->numAttrs; i++) {
    const cudaLaunchAttribute &each = config->attrs[i];
    if (each.id == cudaLaunchAttributeClusterDimension) cluster = dim3(each.val.clusterDim.x, each.val.clusterDim.y, each.val.clusterDim.z);
    if (each.id == cudaLaunchAttributeCooperative) cooperative = each.val.cooperative != 0;
  }
  record(function, config->gridDim, config->blockDim, config->dynamicSmemBytes, arguments, cooperative, cluster);
  return cudaSuccess;
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *node, cudaGraph_t, const cudaGraphNode_t *, size_t, const cudaKernelNodeParams *p) {
  if (p->kernelParams) record(p->func, p->gridDim, p->blockDim, p->sharedMemBytes, p->kernelParams, false, dim3(1, 1, 1));
  return handle(node);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t call, void *data) { return call(data), cudaSuccess; }
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t call, void *data, unsigned) { return call(s, cudaSuccess, data), cudaSuccess; }

// Memory.
cudaError_t cudaMalloc(void **memory, size_t bytes) { return give(memory, bytes); }
cudaError_t cudaMallocPitch(void **memory, size_t *pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return give(memory, *pitch * height);
}
cudaError_t cudaMalloc3D(cudaPitchedPtr *flat, cudaExtent extent) {
  size_t pitch = (extent.width + 511) / 512 * 512;
  *flat = {nullptr, pitch, extent.width, extent.height};
  return give(&flat->ptr, pitch * extent.height * extent.depth);
}
cudaError_t cudaFree(void *memory) { return release(memory); }
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  allocations[reinterpret_cast<uint64_t>(memory)] = {allocated++, bytes, false};
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) { return *device = host, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { return *free = *total = DEVICE_BYTES, cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *memory) {
  std::lock_guard<std::recursive_mutex> lock(guard);
  bool device = holding(reinterpret_cast<uint64_t>(memory)) != allocations.end();
  *out = {};
  out->type = device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  out->devicePointer = device ? const_cast<void *>(memory) : nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, cudaMemcpyKind) { return copy(to, from, n); }
cudaError_t cudaMemcpyPeer(void *to, int, const void *from, int, size_t n) { return copy(to, from, n); }
cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t n, cudaStream_t) { return copy(to, from, n); }
cudaError_t cudaMemcpy2D(void *to, size_t tp, const void *from, size_t fp, size_t w, size_t h, cudaMemcpyKind) {
  return copy_rows(static_cast<char *>(to), tp, static_cast<const char *>(from), fp, w, h);
}
cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms *p) { return copy_box(p); }
cudaError_t cudaMemset(void *memory, int value, size_t n) { return memset(memory, value, n), cudaSuccess; }
cudaError_t cudaMemset2D(void *memory, size_t pitch, int value, size_t w, size_t h) {
  for (size_t row = 0; row < h; row++) memset(static_cast<char *>(memory) + row * pitch, value, w);
  return cudaSuccess;
}
cudaError_t cudaMemset3D(cudaPitchedPtr flat, int value, cudaExtent extent) {
  return cudaMemset2D(flat.ptr, flat.pitch, value, extent.width, flat.ysize * extent.depth);
}
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t n, size_t offset, cudaMemcpyKind) {
  Variable *found = variable(symbol);
  return found ? copy(found->memory + offset, from, n) : cudaErrorInvalidSymbol;
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t n, size_t offset, cudaMemcpyKind) {
  Variable *found = variable(symbol);
  return found ? copy(to, found->memory + offset, n) : cudaErrorInvalidSymbol;
}
cudaError_t cudaGetSymbolAddress(void **memory, const void *symbol) {
  Variable *found = variable(symbol);
  return found ? (*memory = found->memory, cudaSuccess) : cudaErrorInvalidSymbol;
}
cudaError_t cudaGetSymbolSize(size_t *bytes, const void *symbol) {
  Variable *found = variable(symbol);
  return found ? (*bytes = found->bytes, cudaSuccess) : cudaErrorInvalidSymbol;
}

// Arrays and textures: the memory is there, a handle says no more than that it is one.
cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) { return {x, y, z, w, kind}; }
cudaError_t cudaMalloc3DArray(cudaArray_t *array, const cudaChannelFormatDesc *d, cudaExtent e, unsigned) {
  size_t element = (d->x + d->y + d->z + d->w) / 8, bytes = element * e.width * (e.height ? e.height : 1) * (e.depth ? e.depth : 1);
  *array = new cudaArray{allocate(bytes), e.width, e.height, e.depth, element, *d};
  return cudaSuccess;
}
cudaError_t cudaMallocArray(cudaArray_t *array, const cudaChannelFormatDesc *d, size_t w, size_t h, unsigned flags) {
  return cudaMalloc3DArray(array, d, cudaExtent{w, h, 0}, flags);
}
cudaError_t cudaFreeArray(cudaArray_t array) { return array ? release(array->data) : cudaSuccess; }
cudaError_t cudaMemcpyToArray(cudaArray_t a, size_t x, size_t y, const void *from, size_t n, cudaMemcpyKind) { return to_array(a, x, y, from, n, n, 1); }
cudaError_t cudaMemcpy2DToArray(cudaArray_t a, size_t x, size_t y, const void *from, size_t pitch, size_t w, size_t h, cudaMemcpyKind) {
  return to_array(a, x, y, from, pitch, w, h);
}
cudaError_t cudaCreateTextureObject(cudaTextureObject_t *out, const cudaResourceDesc *, const cudaTextureDesc *, const cudaResourceViewDesc *) { return handle(out); }
cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t *out, const cudaResourceDesc *) { return handle(out); }

// What the device is: an H100.
cudaError_t cudaGetDeviceCount(int *count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which, int) {
  static const std::map<int, int> known = {
      {cudaDevAttrMaxThreadsPerBlock, 1024}, {cudaDevAttrMaxBlockDimX, 1024}, {cudaDevAttrMaxBlockDimY, 1024},
      {cudaDevAttrMaxBlockDimZ, 64}, {cudaDevAttrMaxGridDimX, 2147483647}, {cudaDevAttrMaxGridDimY, 65535},
      {cudaDevAttrMaxGridDimZ, 65535}, {cudaDevAttrMaxSharedMemoryPerBlock, 49152}, {cudaDevAttrTotalConstantMemory, 65536},
      {cudaDevAttrWarpSize, 32}, {cudaDevAttrMaxRegistersPerBlock, 65536}, {cudaDevAttrClockRate, 1980000},
      {cudaDevAttrMultiProcessorCount, 132}, {cudaDevAttrComputeCapabilityMajor, 9}, {cudaDevAttrComputeCapabilityMinor, 0},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048}, {cudaDevAttrL2CacheSize, 52428800}, {cudaDevAttrManagedMemory, 1},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472}, {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
      {cudaDevAttrCooperativeLaunch, 1}, {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448}, {cudaDevAttrUnifiedAddressing, 1},
      {cudaDevAttrCanMapHostMemory, 1}, {cudaDevAttrConcurrentKernels, 1}, {cudaDevAttrConcurrentManagedAccess, 1},
      {cudaDevAttrPageableMemoryAccess, 1}, {cudaDevAttrMaxBlocksPerMultiprocessor, 32}, {cudaDevAttrMemoryPoolsSupported, 1},
      {cudaDevAttrStreamPrioritiesSupported, 1}, {cudaDevAttrMemoryClockRate, 2619000}, {cudaDevAttrGlobalMemoryBusWidth, 5120},
      {cudaDevAttrAsyncEngineCount, 3}, {cudaDevAttrReservedSharedMemoryPerBlock, 1024}};
  auto found = known.find(which);
  return *value = found == known.end() ? 0 : found->second, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int) {
  memset(out, 0, sizeof *out);
  strcpy(out->name, "stand-in for an H100");
  auto get = [](cudaDeviceAttr which) { int value; return cudaDeviceGetAttribute(&value, which, 0), value; };
  out->totalGlobalMem = DEVICE_BYTES, out->totalConstMem = 65536, out->warpSize = 32, out->regsPerBlock = 65536;
  out->sharedMemPerBlock = 49152, out->sharedMemPerBlockOptin = 232448, out->sharedMemPerMultiprocessor = 233472;
  out->maxThreadsPerBlock = 1024, out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024, out->maxThreadsDim[2] = 64;
  out->maxGridSize[0] = 2147483647, out->maxGridSize[1] = out->maxGridSize[2] = 65535, out->memPitch = 2147483647;
  out->major = 9, out->minor = 0, out->multiProcessorCount = 132, out->maxThreadsPerMultiProcessor = 2048;
  out->l2CacheSize = get(cudaDevAttrL2CacheSize), out->memoryBusWidth = 5120, out->regsPerMultiprocessor = 65536;
  out->canMapHostMemory = out->concurrentKernels = out->unifiedAddressing = out->managedMemory = 1;
  out->concurrentManagedAccess = out->cooperativeLaunch = out->pageableMemoryAccess = 1, out->asyncEngineCount = 3;
  out->maxBlocksPerMultiProcessor = 32, out->textureAlignment = out->texturePitchAlignment = 512;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *) {
  memset(out, 0, sizeof *out);
  out->maxThreadsPerBlock = 1024, out->numRegs = 32, out->ptxVersion = out->binaryVersion = 90, out->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int threads, size_t shared) {
  int most = threads > 0 ? 2048 / threads : 1, fit = shared ? int(232448 / (shared + 1024)) : 32;
  return *blocks = std::min({32, most, fit}), cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaDeviceGetLimit(size_t *value, cudaLimit) { return *value = 8 << 20, cudaSuccess; }
cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig *out) { return *out = cudaSharedMemBankSizeFourByte, cudaSuccess; }
cudaError_t cudaStreamGetFlags(cudaStream_t, unsigned *flags) { return *flags = 0, cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t) { return *ms = 1.0f, cudaSuccess; }
const char *cudaGetErrorString(cudaError_t error) { return error ? "error" : "no error"; }
const char *cudaGetErrorName(cudaError_t error) { return error ? "cudaErrorUnknown" : "cudaSuccess"; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *out) { return *out = cudaStreamCaptureStatusNone, cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph) { return handle(graph); }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int) { return handle(pool); }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *value) { return memset(value, 0, 8), cudaSuccess; }
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t *, size_t *count) { return *count = 0, cudaSuccess; }

// One as another: what has more arguments behind, which the other does not look at. Those that have nothing to do here,
// and those that make a handle in their first argument.
static cudaError_t nothing() __asm__("foreign_nothing");
__attribute__((used)) static cudaError_t nothing() { return cudaSuccess; }
static cudaError_t made(void **out) __asm__("foreign_made");
__attribute__((used)) static cudaError_t made(void **out) { return handle(out); }
__asm__(R"(
.macro same other, names:vararg
.irp each, \names
.globl cuda\each
.type cuda\each, @function
.set cuda\each, \other
.endr
.endm
same cudaMalloc, MallocHost, MallocManaged, HostAlloc, MallocAsync, MallocFromPoolAsync
same cudaFree, FreeHost, FreeAsync, HostUnregister
same cudaMemcpy, MemcpyAsync
same cudaMemset, MemsetAsync
same cudaMemcpy2D, Memcpy2DAsync
same cudaMemcpy3D, Memcpy3DAsync
same cudaMemset2D, Memset2DAsync
same cudaMemcpyToSymbol, MemcpyToSymbolAsync
same cudaMemcpyFromSymbol, MemcpyFromSymbolAsync
same cudaMemcpy2DToArray, Memcpy2DToArrayAsync
same cudaGetDevice, ChooseDevice
same cudaDriverGetVersion, RuntimeGetVersion
same cudaOccupancyMaxActiveBlocksPerMultiprocessor, OccupancyMaxActiveBlocksPerMultiprocessorWithFlags
same foreign_nothing, DeviceSynchronize, DeviceReset, SetDevice, SetDeviceFlags, InitDevice, GetLastError
same foreign_nothing, PeekAtLastError, EventRecord, EventRecordWithFlags, EventSynchronize, EventDestroy, EventQuery
same foreign_nothing, StreamSynchronize, StreamDestroy, StreamQuery, StreamWaitEvent, StreamAttachMemAsync
same foreign_nothing, StreamBeginCapture, StreamSetAttribute, FuncSetAttribute, FuncSetCacheConfig
same foreign_nothing, FuncSetSharedMemConfig, DeviceSetCacheConfig, DeviceSetSharedMemConfig, DeviceSetLimit
same foreign_nothing, DeviceEnablePeerAccess, DeviceDisablePeerAccess, MemPrefetchAsync, MemAdvise, ProfilerStart
same foreign_nothing, ProfilerStop, GraphLaunch, GraphUpload, GraphDestroy, GraphExecDestroy, GraphAddDependencies
same foreign_nothing, GraphExecKernelNodeSetParams, DestroyTextureObject, DestroySurfaceObject, MemPoolSetAttribute
same foreign_nothing, MemPoolTrimTo, MemPoolDestroy, CtxResetPersistingL2Cache, DeviceGraphMemTrim, DeviceSetMemPool
same foreign_nothing, GraphExecUpdate, MemPoolSetAccess, FreeMipmappedArray
same foreign_made, EventCreate, EventCreateWithFlags, StreamCreate, StreamCreateWithFlags, StreamCreateWithPriority
same foreign_made, GraphCreate, GraphInstantiate, GraphInstantiateWithFlags, GraphAddEmptyNode, GraphAddMemcpyNode
same foreign_made, GraphAddMemcpyNode1D, GraphAddMemsetNode, GraphAddHostNode, GraphAddChildGraphNode, MemPoolCreate
same foreign_made, GraphClone
.globl __cudaLaunchKernel
.type __cudaLaunchKernel, @function
.set __cudaLaunchKernel, cudaLaunchKernel
)");

}  // extern "C"
