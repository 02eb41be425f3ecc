// Launches a plan (fusiond/service/frameworks/launching.py) from inside a program of XLA's: one handler for every region.
//
//     attributes   plan: the words; image_N: the code of source N (a cubin, or a shared object of the cpu device);
//                  entries: symbols, one a line; key: of all of it; runtime: the library that runs code of the cpu device
//
// Built once with g++ against XLA's headers. The CUDA driver is loaded where there is one, so no toolkit is needed. What
// is loaded stays for the life of the process.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "xla/ffi/api/ffi.h"

#include FUSIOND_ABI_HEADER

namespace ffi = xla::ffi;

namespace {

constexpr int64_t kVersion = 2;
enum Kind : int64_t { kLaunch = 0, kFill = 1 };
enum Argument : int64_t { kAddress = 0, kNumber = 1, kStruct = 2 };

// --- the plan -------------------------------------------------------------------------------------------

struct Step {
    int64_t kind, image, entry, grid[3], block[3], shared, cooperative, carveout;
    int64_t buffer, offset, bytes, byte;
    // Per argument: where its value lies in `values`, and the addresses that stand in it (at, buffer, offset).
    std::vector<size_t> starts;
    std::vector<unsigned char> values;
    struct Place { size_t at; int64_t buffer, offset; };
    std::vector<Place> places;
};

struct Plan {
    int64_t inputs = 0, outputs = 0;
    std::vector<int64_t> scratch;
    std::vector<Step> steps;
    std::vector<std::string> entries;
};

bool read(const int64_t* words, size_t count, std::string_view entries, Plan* plan) {
    size_t at = 0;
    bool whole = true;
    const auto next = [&]() -> int64_t {
        if (at < count) return words[at++];
        whole = false;
        return 0;
    };
    if (next() != kVersion) return false;
    plan->inputs = next();
    plan->outputs = next();
    for (int64_t n = next(); n > 0 && whole; --n) plan->scratch.push_back(next());
    for (int64_t n = next(); n > 0 && whole; --n) {
        Step step = {};
        step.kind = next();
        if (step.kind == kFill) {
            step.buffer = next();
            step.offset = next();
            step.bytes = next();
            step.byte = next();
            plan->steps.push_back(step);
            continue;
        }
        step.image = next();
        step.entry = next();
        for (int64_t& each : step.grid) each = next();
        for (int64_t& each : step.block) each = next();
        step.shared = next();
        step.cooperative = next();
        step.carveout = next();
        for (int64_t arguments = next(); arguments > 0 && whole; --arguments) {
            step.values.resize((step.values.size() + 63) / 64 * 64);
            step.starts.push_back(step.values.size());
            const size_t start = step.values.size();
            const int64_t kind = next();
            if (kind == kAddress) {
                const int64_t buffer = next(), offset = next();
                step.places.push_back({start, buffer, offset});
                step.values.resize(start + 8);
                continue;
            }
            const int64_t bytes = next();
            if (bytes < 0 || bytes > 1 << 20) return false;
            for (int64_t done = 0; done < bytes; done += 8) {
                const int64_t word = next();
                const auto* data = reinterpret_cast<const unsigned char*>(&word);
                step.values.insert(step.values.end(), data, data + std::min<int64_t>(8, bytes - done));
            }
            if (kind != kStruct) continue;
            for (int64_t addresses = next(); addresses > 0 && whole; --addresses) {
                const int64_t inside = next(), buffer = next(), offset = next();
                step.places.push_back({start + size_t(inside), buffer, offset});
            }
        }
        plan->steps.push_back(step);
    }
    for (size_t start = 0; start < entries.size();) {
        const size_t end = std::min(entries.find('\n', start), entries.size());
        plan->entries.emplace_back(entries.substr(start, end - start));
        start = end + 1;
    }
    return whole && at == count;
}

// Scratch memory comes as results that nobody reads. What XLA's allocator gives is given back when a handler returns,
// and a CUDA graph into which the handler was recorded would use it long after.
bool fits(const Plan& plan, size_t arguments, size_t results) {
    return int64_t(arguments) == plan.inputs && int64_t(results) == plan.outputs + int64_t(plan.scratch.size());
}

// A step's arguments with the addresses in them.
std::vector<unsigned char> filled(const Step& step, const std::vector<void*>& buffers) {
    std::vector<unsigned char> values = step.values;
    for (const Step::Place& place : step.places) {
        const char* address = static_cast<const char*>(buffers[size_t(place.buffer)]) + place.offset;
        std::memcpy(values.data() + place.at, &address, 8);
    }
    return values;
}

// --- the processor --------------------------------------------------------------------------------------

struct Loaded {
    Plan plan;
    std::vector<const fusiond_entry*> entries;
    decltype(&fusiond_run) run = nullptr;
    std::string problem;
};

std::mutex guard;  // one launch at a time in the process, as the runtime of the cpu device asks
std::map<std::string, std::unique_ptr<Loaded>, std::less<>> loaded;

void* opened(std::string_view image, std::string* problem) {
    const int file = memfd_create("fusiond", MFD_CLOEXEC);
    if (file < 0 || write(file, image.data(), image.size()) != ssize_t(image.size())) {
        *problem = "no memory for the code of a kernel";
        return nullptr;
    }
    // The file stays open: the loader knows libraries by their paths, and the next file must not get this one's.
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) *problem = dlerror();
    return library;
}

std::unique_ptr<Loaded> load(ffi::Span<const int64_t> words, const std::vector<std::string_view>& images,
                             std::string_view entries, std::string_view runtime) {
    auto found = std::make_unique<Loaded>();
    if (!read(words.begin(), words.size(), entries, &found->plan)) {
        found->problem = "this plan is of another version of fusiond";
        return found;
    }
    void* library = dlopen(std::string(runtime).c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
        found->problem = dlerror();
        return found;
    }
    found->run = reinterpret_cast<decltype(&fusiond_run)>(dlsym(library, "fusiond_run"));
    std::vector<void*> opened_images;
    for (std::string_view image : images) {
        opened_images.push_back(opened(image, &found->problem));
        if (opened_images.back() == nullptr) return found;
    }
    found->entries.resize(found->plan.entries.size());
    for (const Step& step : found->plan.steps) {
        if (step.kind != kLaunch) continue;
        const std::string name = "fusiond_entry_" + found->plan.entries[size_t(step.entry)];
        const void* entry = dlsym(opened_images[size_t(step.image)], name.c_str());
        if (entry == nullptr) {
            found->problem = "there is no " + name;
            return found;
        }
        found->entries[size_t(step.entry)] = static_cast<const fusiond_entry*>(entry);
    }
    return found;
}

ffi::Error on_cpu(ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Dictionary attributes) {
    const auto key = attributes.get<std::string_view>("key");
    if (!key.has_value()) return ffi::Error::InvalidArgument("fusiond: no key");
    const std::lock_guard<std::mutex> lock(guard);
    auto known = loaded.find(*key);
    if (known == loaded.end()) {
        const auto words = attributes.get<ffi::Span<const int64_t>>("plan");
        const auto entries = attributes.get<std::string_view>("entries");
        const auto runtime = attributes.get<std::string_view>("runtime");
        const auto count = attributes.get<int64_t>("images");
        if (!words.has_value() || !entries.has_value() || !runtime.has_value() || !count.has_value())
            return ffi::Error::InvalidArgument("fusiond: an attribute is missing");
        std::vector<std::string_view> images;
        for (int64_t i = 0; i < *count; ++i) {
            const auto image = attributes.get<ffi::Span<const uint8_t>>("image_" + std::to_string(i));
            if (!image.has_value()) return ffi::Error::InvalidArgument("fusiond: an image is missing");
            images.emplace_back(reinterpret_cast<const char*>(image->begin()), image->size());
        }
        known = loaded.emplace(std::string(*key), load(*words, images, *entries, *runtime)).first;
    }
    Loaded& code = *known->second;
    if (!code.problem.empty()) return ffi::Error::Internal("fusiond: " + code.problem);
    if (!fits(code.plan, arguments.size(), results.size()))
        return ffi::Error::InvalidArgument("fusiond: other arguments than the plan's");
    std::vector<void*> buffers;
    std::vector<std::unique_ptr<unsigned char[]>> memory;
    const auto allocated = [&](size_t bytes) {
        memory.emplace_back(new unsigned char[bytes + 256]);
        return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.back().get()) + 255) / 256 * 256);
    };
    // Arrays of the host may begin anywhere, those of a GPU do not: what is unaligned is copied.
    struct Copied { void *own, *theirs; size_t bytes; };
    std::vector<Copied> copied;
    const auto aligned = [&](ffi::AnyBuffer buffer, bool read) {
        void* data = buffer.untyped_data();
        if (reinterpret_cast<uintptr_t>(data) % 64 != 0) {
            void* own = allocated(buffer.size_bytes());
            if (read) std::memcpy(own, data, buffer.size_bytes());
            else copied.push_back({own, data, buffer.size_bytes()});
            data = own;
        }
        buffers.push_back(data);
    };
    for (size_t i = 0; i < arguments.size(); ++i) aligned(*arguments.get<ffi::AnyBuffer>(i), true);
    for (size_t i = 0; i < results.size(); ++i) aligned(**results.get<ffi::AnyBuffer>(i), false);
    for (const Step& step : code.plan.steps) {
        if (step.kind == kFill) {
            std::memset(static_cast<char*>(buffers[size_t(step.buffer)]) + step.offset, int(step.byte), size_t(step.bytes));
            continue;
        }
        std::vector<unsigned char> values = filled(step, buffers);
        std::vector<unsigned char> room(values.size() + 64);
        unsigned char* base = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64;
        std::memcpy(base, values.data(), values.size());
        std::vector<void*> pointers;
        for (size_t start : step.starts) pointers.push_back(base + start);
        fusiond_launch launch = {};
        launch.abi = FUSIOND_ABI;
        launch.flags = step.cooperative ? FUSIOND_COOPERATIVE : 0;
        launch.entry = code.entries[size_t(step.entry)];
        launch.arguments = pointers.data();
        for (int i = 0; i < 3; ++i) {
            launch.grid[i] = uint32_t(step.grid[i]);
            launch.block[i] = uint32_t(step.block[i]);
        }
        launch.shared_bytes = uint32_t(step.shared);
        fusiond_report report = {};
        if (code.run(&launch, &report) != FUSIOND_OK) return ffi::Error::Internal(std::string("fusiond: ") + report.text);
    }
    for (const Copied& each : copied) std::memcpy(each.theirs, each.own, each.bytes);
    return ffi::Error::Success();
}

// --- a GPU ----------------------------------------------------------------------------------------------

// The driver's functions, as far as they are used here (cuda.h is not).
struct Driver {
    int (*context)(void**) = nullptr;
    int (*load)(void**, const void*) = nullptr;
    int (*function)(void**, void*, const char*) = nullptr;
    int (*attribute)(void*, int, int) = nullptr;
    int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) = nullptr;
    int (*cooperative)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**) = nullptr;
    int (*fill)(uint64_t, unsigned char, size_t, void*) = nullptr;
    int (*said)(int, const char**) = nullptr;
    std::string problem;

    explicit Driver(const char* path) {
        void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        if (library == nullptr) {
            problem = dlerror();
            return;
        }
        const auto get = [&](auto* to, const char* name) {
            *reinterpret_cast<void**>(to) = dlsym(library, name);
            if (*reinterpret_cast<void**>(to) == nullptr) problem = std::string("the driver has no ") + name;
        };
        get(&context, "cuCtxGetCurrent");
        get(&load, "cuModuleLoadData");
        get(&function, "cuModuleGetFunction");
        get(&attribute, "cuFuncSetAttribute");
        get(&launch, "cuLaunchKernel");
        get(&cooperative, "cuLaunchCooperativeKernel");
        get(&fill, "cuMemsetD8Async");
        get(&said, "cuGetErrorString");
    }

    std::string error(int status, const char* where) const {
        const char* text = nullptr;
        said(status, &text);
        return std::string(where) + ": " + (text ? text : std::to_string(status));
    }
};

struct Kernels {
    Plan plan;
    std::vector<void*> functions;
    std::string problem;
};

std::map<std::pair<void*, std::string>, std::unique_ptr<Kernels>> kernels;

std::string load_kernels(const Driver& cuda, const std::vector<std::string_view>& images, Kernels* made) {
    constexpr int kMaxShared = 8, kCarveout = 9;
    std::vector<void*> modules(images.size());
    for (size_t i = 0; i < images.size(); ++i)
        if (int status = cuda.load(&modules[i], images[i].data())) return cuda.error(status, "cuModuleLoadData");
    made->functions.resize(made->plan.entries.size());
    std::vector<int64_t> most(made->functions.size());  // dynamic shared memory that a kernel was allowed so far
    for (const Step& step : made->plan.steps) {
        if (step.kind != kLaunch) continue;
        void*& function = made->functions[size_t(step.entry)];
        const char* name = made->plan.entries[size_t(step.entry)].c_str();
        if (function == nullptr)
            if (int status = cuda.function(&function, modules[size_t(step.image)], name)) return cuda.error(status, name);
        if (step.shared > most[size_t(step.entry)]) {  // with what the kernel has itself it may be more than 48 KiB
            most[size_t(step.entry)] = step.shared;
            if (int status = cuda.attribute(function, kMaxShared, int(step.shared))) return cuda.error(status, name);
        }
        if (step.carveout >= 0)
            if (int status = cuda.attribute(function, kCarveout, int(step.carveout))) return cuda.error(status, name);
    }
    return "";
}

std::string launch_kernels(const Driver& cuda, const Kernels& code, const std::vector<void*>& buffers, void* stream) {
    for (const Step& step : code.plan.steps) {
        if (step.kind == kFill) {
            const auto at = reinterpret_cast<uint64_t>(buffers[size_t(step.buffer)]) + uint64_t(step.offset);
            if (int status = cuda.fill(at, (unsigned char)step.byte, size_t(step.bytes), stream))
                return cuda.error(status, "cuMemsetD8Async");
            continue;
        }
        std::vector<unsigned char> values = filled(step, buffers);
        std::vector<void*> pointers;
        for (size_t start : step.starts) pointers.push_back(values.data() + start);
        void* function = code.functions[size_t(step.entry)];
        const int64_t *g = step.grid, *b = step.block;
        const int status =
            step.cooperative
                ? cuda.cooperative(function, unsigned(g[0]), unsigned(g[1]), unsigned(g[2]), unsigned(b[0]), unsigned(b[1]),
                                   unsigned(b[2]), unsigned(step.shared), stream, pointers.data())
                : cuda.launch(function, unsigned(g[0]), unsigned(g[1]), unsigned(g[2]), unsigned(b[0]), unsigned(b[1]),
                              unsigned(b[2]), unsigned(step.shared), stream, pointers.data(), nullptr);
        if (status) return cuda.error(status, code.plan.entries[size_t(step.entry)].c_str());
    }
    return "";
}

ffi::Error prepared(const Driver& cuda, ffi::Dictionary attributes, Kernels** found) {
    const auto key = attributes.get<std::string_view>("key");
    void* context = nullptr;
    if (!cuda.problem.empty()) return ffi::Error::Internal("fusiond: " + cuda.problem);
    if (!key.has_value() || cuda.context(&context)) return ffi::Error::InvalidArgument("fusiond: no key, or no context");
    const std::lock_guard<std::mutex> lock(guard);
    auto& known = kernels[{context, std::string(*key)}];
    if (known == nullptr) {
        known = std::make_unique<Kernels>();
        const auto words = attributes.get<ffi::Span<const int64_t>>("plan");
        const auto entries = attributes.get<std::string_view>("entries");
        const auto count = attributes.get<int64_t>("images");
        if (!words.has_value() || !entries.has_value() || !count.has_value())
            return ffi::Error::InvalidArgument("fusiond: an attribute is missing");
        if (!read(words->begin(), words->size(), *entries, &known->plan)) {
            known->problem = "this plan is of another version of fusiond";
        } else {
            std::vector<std::string_view> images;
            for (int64_t i = 0; i < *count; ++i) {
                const auto image = attributes.get<ffi::Span<const uint8_t>>("image_" + std::to_string(i));
                if (!image.has_value()) return ffi::Error::InvalidArgument("fusiond: an image is missing");
                images.emplace_back(reinterpret_cast<const char*>(image->begin()), image->size());
            }
            known->problem = load_kernels(cuda, images, known.get());
        }
    }
    *found = known.get();
    return known->problem.empty() ? ffi::Error::Success() : ffi::Error::Internal("fusiond: " + known->problem);
}

const Driver& driver() {
    static const Driver cuda("libcuda.so.1");
    return cuda;
}

// Modules are loaded here: nothing may be while a command buffer is recorded.
ffi::Error initialize_cuda(ffi::Dictionary attributes) {
    Kernels* code = nullptr;
    return prepared(driver(), attributes, &code);
}

ffi::Error on_cuda(void* stream, ffi::RemainingArgs arguments, ffi::RemainingRets results, ffi::Dictionary attributes) {
    Kernels* code = nullptr;
    if (ffi::Error error = prepared(driver(), attributes, &code); error.failure()) return error;
    if (!fits(code->plan, arguments.size(), results.size()))
        return ffi::Error::InvalidArgument("fusiond: other arguments than the plan's");
    std::vector<void*> buffers;
    for (size_t i = 0; i < arguments.size(); ++i) buffers.push_back(arguments.get<ffi::AnyBuffer>(i)->untyped_data());
    for (size_t i = 0; i < results.size(); ++i) buffers.push_back((*results.get<ffi::AnyBuffer>(i))->untyped_data());
    const std::string problem = launch_kernels(driver(), *code, buffers, stream);
    return problem.empty() ? ffi::Error::Success() : ffi::Error::Internal("fusiond: " + problem);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(fusiond_on_cpu, on_cpu,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fusiond_initialize_cuda, initialize_cuda,
                              ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().Attrs());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fusiond_on_cuda, on_cuda,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<void*>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs(),
                              {ffi::Traits::kCmdBufferCompatible});

// For tests of the part for GPUs where there is none: `library` stands in for the driver.
extern "C" __attribute__((visibility("default"))) int fusiond_launch_with(
    const char* library, const int64_t* words, size_t count, const char* entries, const char** images,
    const size_t* sizes, size_t image_count, void** buffers, size_t buffer_count, void* stream, char* problem,
    size_t room) {
    const Driver cuda(library);
    Kernels code;
    std::string said = cuda.problem;
    if (said.empty() && !read(words, count, entries, &code.plan)) said = "this plan is of another version of fusiond";
    std::vector<std::string_view> given;
    for (size_t i = 0; i < image_count; ++i) given.emplace_back(images[i], sizes[i]);
    if (said.empty()) said = load_kernels(cuda, given, &code);
    const std::vector<void*> given_buffers(buffers, buffers + buffer_count);
    if (said.empty()) said = launch_kernels(cuda, code, given_buffers, stream);
    std::strncpy(problem, said.c_str(), room - 1);
    return said.empty() ? 0 : 1;
}
