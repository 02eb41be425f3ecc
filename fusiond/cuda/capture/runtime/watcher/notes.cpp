#include "notes.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <pthread.h>
#include <set>

namespace watcher {

using capture::Fields;
using capture::Kind;

namespace {

constexpr unsigned TIMED_LAUNCHES = 8;           // of each kernel
constexpr size_t MOST_CONTENT_BYTES = 1u << 30;  // behind one address
constexpr uint64_t FLUSH_NS = 200'000'000;

constinit Ours<Result(int*, int, Handle)> function_attribute{"cuFuncGetAttribute"};
constinit Ours<Result(Handle, size_t, size_t*, size_t*)> function_parameter{"cuFuncGetParamInfo"};
constinit Ours<Result(const char**, Handle)> function_name{"cuFuncGetName"};
constinit Ours<Result(Handle)> load_function{"cuFuncLoad"};
constinit Ours<Result(Handle*, Handle)> function_module{"cuFuncGetModule"};
constinit Ours<Result(const char**, Handle)> kernel_name{"cuKernelGetName"};
constinit Ours<Result(Handle*, Handle)> kernel_function{"cuKernelGetFunction"};
constinit Ours<Result(int*)> device_now{"cuCtxGetDevice"};
constinit Ours<Result(int*, int, Handle, int)> kernel_attribute{"cuKernelGetAttribute"};
constinit Ours<Result(Handle, size_t, size_t*, size_t*)> kernel_parameter{"cuKernelGetParamInfo"};
constinit Ours<Result(Handle, int*)> is_capturing{"cuStreamIsCapturing"};
constinit Ours<Result(int*)> exchange_mode{"cuThreadExchangeStreamCaptureMode"};
constinit Ours<Result(void*, Address, size_t, Handle)> copy_to_host{"cuMemcpyDtoHAsync_v2"};
constinit Ours<Result(Handle)> synchronize{"cuStreamSynchronize"};
constinit Ours<Result(Handle, Handle*, size_t*)> graph_nodes{"cuGraphGetNodes"};
constinit Ours<Result(Handle, int*)> node_type{"cuGraphNodeGetType"};
constinit Ours<Result(Handle, KernelNode*)> kernel_node{"cuGraphKernelNodeGetParams_v2"};
constinit Ours<Result(Handle, KernelNode*)> old_kernel_node{"cuGraphKernelNodeGetParams"};
constinit Ours<Result(Handle, Copy3D*)> copy_node{"cuGraphMemcpyNodeGetParams"};
constinit Ours<Result(Handle, FillNode*)> fill_node{"cuGraphMemsetNodeGetParams"};
constinit Ours<Result(Handle, int, LaunchAttributeValue*)> node_attribute{"cuGraphKernelNodeGetAttribute"};
constinit Ours<Result(Handle, Handle*)> child_graph{"cuGraphChildGraphNodeGetGraph"};

constinit std::mutex making;
constinit std::atomic<Notes*> now{nullptr};
Notes* const NONE = reinterpret_cast<Notes*>(1);
capture::Writer* open_writer = nullptr;

// While it lives, what we call does not disturb a stream that another thread captures.
class Unhindered {
  public:
    Unhindered() { exchanged_ = exchange_mode(&mode_) == OK; }
    ~Unhindered() {
        if (exchanged_) exchange_mode(&mode_);
    }

  private:
    int mode_ = RELAXED;
    bool exchanged_;
};

uint64_t digest(const void* data, size_t bytes) {  // FNV-1a over words
    uint64_t found = 14695981039346656037u;
    auto from = static_cast<const char*>(data);
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;
        memcpy(&word, from + at, bytes - at < 8 ? bytes - at : 8);
        found = (found ^ word) * 1099511628211u;
        found ^= found >> 29;
    }
    return found ^ bytes;
}

const char* setting(const char* name) {
    const char* found = getenv(name);
    return found && *found ? found : nullptr;
}

// Its buffer must not be written by both after a fork; the child notes for itself.
void before_fork() {
    if (!open_writer) return;
    open_writer->lock.lock();
    open_writer->flush();
}
void after_fork_in_parent() {
    if (open_writer) open_writer->lock.unlock();
}
void after_fork_in_child() {
    if (!open_writer) return;
    open_writer->lock.unlock();
    open_writer = nullptr;
    now.store(nullptr);
}

[[gnu::destructor]] void at_exit() {
    if (open_writer && open_writer->lock.try_lock()) {
        open_writer->flush();
        open_writer->lock.unlock();
    }
}

}  // namespace

// --- whether anything is noted --------------------------------------------------------------------------

Notes* Notes::current() {
    Notes* found = now.load(std::memory_order_acquire);
    if (!found) found = make();
    return found == NONE ? nullptr : found;
}

Notes* Notes::make() {
    std::lock_guard held(making);
    Notes* found = now.load();
    if (found) return found;
    static bool handled = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
    found = handled && setting("FUSIOND_CAPTURE_OUT") ? new Notes : NONE;  // never deleted: libraries call to the end
    if (found != NONE) open_writer = &found->writer_;
    if (found != NONE && !found->writer_.open()) found = NONE;
    now.store(found, std::memory_order_release);
    return found;
}

Notes::Notes() : writer_(setting("FUSIOND_CAPTURE_OUT")) {
    if (auto most = setting("FUSIOND_CAPTURE_LAUNCHES")) most_launches_ = strtoull(most, nullptr, 10);
    if (auto secs = setting("FUSIOND_CAPTURE_SECONDS")) until_ns_ = capture::now_ns() + uint64_t(atof(secs) * 1e9);
    data_ = setting("FUSIOND_CAPTURE_DATA");
}

void Notes::give_up() noexcept {
    Notes* last = now.exchange(NONE);
    if (!last || last == NONE) return;
    try {
        last->note("the watcher failed, and noted nothing from here on");
    } catch (...) {
    }
}

// Whether no launch is noted any more; times of those that were may still come.
bool Notes::over() {
    if (launches_.load(std::memory_order_relaxed) < most_launches_ && capture::now_ns() < until_ns_) return false;
    settle();
    if (times_.any()) return true;
    now.store(NONE);
    std::lock_guard held(writer_.lock);
    writer_.flush();
    return true;
}

void Notes::note(const std::string& text) {
    std::lock_guard held(writer_.lock);
    writer_.write(Kind::note, Fields().text(text));
}

// When the host has waited anyway.
void Notes::settle() {
    auto times = times_.over();
    uint64_t when = capture::now_ns();
    bool due = when > flushed_ns_.load(std::memory_order_relaxed) + FLUSH_NS;
    if (times.empty() && !due) return;
    std::lock_guard held(writer_.lock);
    for (auto [launch, ns] : times) writer_.write(Kind::elapsed, Fields().u64(launch).u64(ns));
    if (due) writer_.flush(), flushed_ns_ = when;
}

// --- modules and functions ------------------------------------------------------------------------------

void Notes::module(Handle module, const void* image) {
    uint32_t magic;
    memcpy(&magic, image, 4);
    if (magic == 0x466243B1u)  // what nvcc puts before a fat binary: magic, version, its address
        memcpy(&image, static_cast<const char*>(image) + 8, 8);
    keep_module(module, image, capture::image_bytes(image));
}

void Notes::module_of_file(Handle module, const char* path) {
    std::ifstream file(path, std::ios::binary);
    std::string image((std::istreambuf_iterator<char>(file)), {});
    if (!image.empty()) keep_module(module, image.data(), image.size());
}

void Notes::keep_module(Handle module, const void* image, size_t bytes) {
    uint64_t key = digest(image, bytes);
    std::lock_guard held(writer_.lock);
    std::string& file = images_[key];
    if (file.empty()) {
        file = writer_.keep("modules", image, bytes);
        auto source = ptx_.find(key);
        if (!file.empty() && source != ptx_.end()) keep_ptx(file, source->second);
    }
    if (!file.empty()) writer_.write(Kind::module, Fields().pointer(module).text(file));
}

// PTX of a cubin goes beside it.
void Notes::keep_ptx(const std::string& file, const std::string& ptx) {
    std::ofstream(writer_.folder() + "/modules/" + file + ".ptx", std::ios::binary) << ptx.c_str();
}

void Notes::assembled(const void* cubin, size_t bytes, const std::string& ptx) {
    std::lock_guard held(writer_.lock);
    ptx_[digest(cubin, bytes)] = ptx;
}

void Notes::link_begun(Handle state, std::vector<std::string> options) {
    std::lock_guard held(writer_.lock);
    links_[state] = {std::move(options), {}};
}

void Notes::link_input(Handle state, int kind, const void* data, size_t bytes) {
    std::lock_guard held(writer_.lock);
    bool kept = kind != OTHER_INPUT && data;
    links_[state].inputs.emplace_back(kind, std::string(kept ? static_cast<const char*>(data) : "", kept ? bytes : 0));
}

Notes::Link Notes::linked(Handle state) {
    std::lock_guard held(writer_.lock);
    auto found = links_.extract(state);
    return found ? found.mapped() : Link{};
}

void Notes::same_module(Handle module, Handle library) {
    std::lock_guard held(writer_.lock);
    libraries_[module] = library;
}

void Notes::unloaded(Handle module) {
    std::lock_guard held(writer_.lock);
    std::erase_if(functions_, [&](auto& each) { return each.second.module == module; });
    std::erase_if(libraries_, [&](auto& each) { return each.second == module || each.first == module; });
}

// The handle under which a module's image is noted.
Handle Notes::noted_module(Handle module) const {
    auto found = libraries_.find(module);
    return found == libraries_.end() ? module : found->second;
}

void Notes::function(Handle function, Handle module, const char* name, bool of_library) {
    std::lock_guard held(writer_.lock);
    is_of(functions_[function], noted_module(module), name, of_library);
}

void Notes::function_of(Handle function, Handle kernel) {
    std::lock_guard held(writer_.lock);
    const Function of = functions_[kernel];
    is_of(functions_[function], of.module, of.name, false);
}

// A handle may come again, for another function.
void Notes::is_of(Function& it, Handle module, const std::string& name, bool of_library) {
    if (it.described && it.module == module && it.name == name) return;
    it = {};
    it.module = module, it.name = name, it.of_library = of_library;
}

// Asks the driver what a function is, outside of the lock.
void Notes::describe(Handle handle) {
    Function it;
    {
        std::lock_guard held(writer_.lock);
        it = functions_[handle];
    }
    const char* name = nullptr;
    auto& named = it.of_library ? kernel_name : function_name;
    if (it.name.empty() && named(&name, handle) == OK && name) it.name = name;
    if (!it.module && !it.of_library) function_module(&it.module, handle);
    int device = 0;
    it.loadable = handle;
    if (it.of_library && device_now(&device) == OK && kernel_function(&it.loadable, handle) == OK)
        function_of(it.loadable, handle);  // as a graph's node has it
    auto attribute = [&](int which) {
        int value = 0;
        Result done = it.of_library ? kernel_attribute(&value, which, handle, device)
                                    : function_attribute(&value, which, handle);
        return done == OK && value > 0 ? unsigned(value) : 0;
    };
    auto& parameter = it.of_library ? kernel_parameter : function_parameter;
    it.parameters_known = parameter.there();
    size_t offset, bytes;
    while (parameter(handle, it.parameters.size(), &offset, &bytes) == OK) it.parameters.emplace_back(offset, bytes);
    for (int axis = 0; axis < 3; ++axis)
        if (unsigned length = attribute(CLUSTER_WIDTH + axis)) it.cluster[axis] = length;
    {
        std::lock_guard held(writer_.lock);
        it.module = noted_module(it.module);
    }
    Fields fields;
    fields.pointer(handle).pointer(it.module).text(it.name.empty() ? "?" : it.name);
    fields.u32(attribute(REGISTERS)).u32(attribute(SHARED_BYTES)).u32(attribute(LOCAL_BYTES));
    fields.u32(it.parameters.size());
    for (auto& each : it.parameters) fields.u32(each.first).u32(each.second);
    it.described = true;
    std::lock_guard held(writer_.lock);
    if (!it.parameters_known)
        writer_.write(Kind::note, Fields().text("the driver is older than CUDA 12.4, and does not say what kernels take"));
    writer_.write(Kind::function, fields);
    functions_[handle] = it;
}

Handle Notes::loadable(Handle function) {
    std::lock_guard held(writer_.lock);
    return functions_[function].loadable;
}

// --- memory ---------------------------------------------------------------------------------------------

void Notes::allocated(Address address, size_t bytes, capture::Memory kind) {
    if (!address || !bytes) return;
    std::lock_guard held(writer_.lock);
    auto known = memory_.find(address);
    if (known != memory_.end() && known->second.bytes == bytes && known->second.kind == kind) return;
    memory_[address] = {bytes, kind};
    writer_.write(Kind::allocate, Fields().u64(address).u64(bytes).u32(uint32_t(kind)));
}

void Notes::variable(Address address, size_t bytes, capture::Memory kind, const char* name) {
    allocated(address, bytes, kind);
    std::lock_guard held(writer_.lock);
    writer_.write(Kind::variable, Fields().u64(address).text(name));
}

void Notes::released(Address address) {
    std::lock_guard held(writer_.lock);
    if (memory_.erase(address)) writer_.write(Kind::release, Fields().u64(address));
}

const Notes::Allocation* Notes::holds(Address address, Address& begin) const {
    auto next = memory_.upper_bound(address);
    if (next == memory_.begin()) return nullptr;
    --next;
    begin = next->first;
    return address < begin + next->second.bytes ? &next->second : nullptr;
}

// --- launches -------------------------------------------------------------------------------------------

Notes::Begun Notes::begun(const Launch& launch) {
    Begun begun;
    if (over()) return begun;
    if (captured(launch.stream)) return begun;
    const bool captures = captures_.load(std::memory_order_relaxed) > 0;
    begun.noted = true;
    bool known, first, timed;
    {
        std::lock_guard held(writer_.lock);
        Function& it = functions_[launch.function];
        known = it.described, first = !it.launched, timed = !captures && it.timed < TIMED_LAUNCHES;
        it.launched = true;
    }
    if (known && !first && !timed) return begun;
    Unhindered unhindered;
    if (!known) describe(launch.function);
    if (captures) return begun;
    if (first && data_) begun.contents = contents(launch);
    if (first) load_function(loadable(launch.function));  // or the first time would be that of its loading
    if (timed) begun.timed = times_.begun(launch.stream);
    return begun;
}

void Notes::launched(const Launch& launch, const Begun& begun, bool worked) {
    if (!begun.noted) return;
    bool timed = begun.timed && times_.ended(begun.timed, launch.stream);
    if (!worked) return;
    uint64_t number;
    {
        std::lock_guard held(writer_.lock);
        Function& it = functions_[launch.function];
        it.launched = true;
        it.timed += timed;
        for (auto& each : begun.contents) writer_.write(Kind::data, each);
        Fields fields = shape(launch, it, launch.cooperative ? uint32_t(capture::cooperative) : 0);
        fields.u64(0);
        const Fields handed = arguments(launch, it);
        writer_.write(Kind::launch, fields.raw(handed.held().data(), handed.held().size()));
        number = launches_++;
    }
    if (timed) times_.launched(begun.timed, number);
    settle();
}

Fields Notes::shape(const Launch& launch, const Function& function, uint32_t flags) {
    Fields fields;
    fields.pointer(launch.function).pointer(launch.stream);
    fields.raw(launch.grid, sizeof launch.grid).raw(launch.block, sizeof launch.block);
    fields.raw(launch.cluster[0] ? launch.cluster : function.cluster, sizeof launch.cluster);
    return fields.u32(launch.shared_bytes).u32(flags);
}

// What a launch is handed: by the address of each, or packed, behind CU_LAUNCH_PARAM_BUFFER_POINTER.
Fields Notes::arguments(const Launch& launch, const Function& function) {
    Fields fields;
    const char* packed = nullptr;
    size_t packed_bytes = 0;
    for (void** each = launch.extra; each && *each; each += 2) {
        if (*each == reinterpret_cast<void*>(1)) packed = static_cast<const char*>(each[1]);
        if (*each == reinterpret_cast<void*>(2)) packed_bytes = *static_cast<size_t*>(each[1]);
    }
    bool apart = function.parameters_known && (launch.parameters || packed);
    if (!apart) {  // nobody says what is in it
        fields.u32(packed ? 1 : 0);
        return packed ? fields.u32(packed_bytes).raw(packed, packed_bytes) : fields;
    }
    fields.u32(function.parameters.size());
    for (size_t k = 0; k < function.parameters.size(); ++k) {
        auto [offset, bytes] = function.parameters[k];
        bool there = launch.parameters || offset + bytes <= packed_bytes;
        fields.u32(there ? bytes : 0);
        if (there) fields.raw(launch.parameters ? launch.parameters[k] : packed + offset, bytes);
    }
    return fields;
}

// What is in memory behind each address that a launch is handed, in the order of its stream.
std::vector<Fields> Notes::contents(const Launch& launch) {
    struct Place {
        size_t bytes;
        capture::Memory kind;
    };
    std::map<Address, Place> places;
    {
        std::lock_guard held(writer_.lock);
        const Fields handed = arguments(launch, functions_[launch.function]);
        const auto& bytes = handed.held();
        for (size_t at = 4; at + 4 <= bytes.size();) {
            uint32_t size;
            memcpy(&size, &bytes[at], 4);
            at += 4;
            for (size_t word = 0; word + 8 <= size; word += 8) {
                Address address, begin;
                memcpy(&address, &bytes[at + word], 8);
                if (auto found = holds(address, begin)) places[address] = {begin + found->bytes - address, found->kind};
            }
            at += size;
        }
    }
    std::vector<Fields> found;
    for (auto& [address, place] : places) found.push_back(content(address, place.bytes, place.kind, launch.stream));
    std::erase_if(found, [](auto& each) { return each.held().empty(); });
    return found;
}

Fields Notes::content(Address address, size_t bytes, capture::Memory kind, Handle stream) {
    if (bytes > MOST_CONTENT_BYTES) note("only the first GiB behind an address was kept");
    std::vector<char> held(std::min(bytes, MOST_CONTENT_BYTES));
    bool pinned = kind == capture::Memory::pinned;
    Result done = pinned ? OK : copy_to_host(held.data(), address, held.size(), stream);
    if (done == OK) done = synchronize(stream);
    if (done == OK && pinned) memcpy(held.data(), reinterpret_cast<const void*>(address), held.size());
    if (done != OK) return note("memory could not be read: CUDA's error " + std::to_string(done)), Fields();
    std::lock_guard locked(writer_.lock);
    std::string file = writer_.keep("data", held.data(), held.size());
    return file.empty() ? Fields() : Fields().u64(address).u64(held.size()).text(file);
}

// --- graphs ---------------------------------------------------------------------------------------------

void Notes::graph(Handle executable, Handle graph) {
    Unhindered unhindered;
    Graph made;
    add_nodes(made, graph);
    std::lock_guard held(writer_.lock);
    graphs_[executable] = std::move(made);
}

void Notes::add_nodes(Graph& into, Handle graph) {
    size_t count = 0;
    if (graph_nodes(graph, nullptr, &count) != OK || !count) return;
    std::vector<Handle> nodes(count);
    if (graph_nodes(graph, nodes.data(), &count) != OK) return;
    for (Handle each : nodes) {
        int type = -1;
        node_type(each, &type);
        KernelNode what{};
        Handle child = nullptr;
        if (type == KERNEL_NODE && (kernel_node.there() ? kernel_node : old_kernel_node)(each, &what) == OK)
            into.nodes.push_back(node_of(each, what));
        Copy3D copy{};
        if (type == COPY_NODE && copy_node(each, &copy) == OK) {
            std::lock_guard held(writer_.lock);
            Ends found = ends(copy);
            Fields fields;
            fields.u64(found.to).u64(found.from).u64(found.bytes).u64(0).u32(uint32_t(way(found))).u32(capture::node);
            into.nodes.push_back({each, Kind::copy, fields, {}});
        }
        FillNode fill{};
        if (type == FILL_NODE && fill_node(each, &fill) == OK) {
            size_t bytes = fill.height ? fill.pitch * (fill.height - 1) + fill.width * fill.element_bytes : 0;
            Fields fields;
            fields.u64(fill.to).u64(bytes).u64(0).u32(fill.value).u32(fill.element_bytes).u32(capture::node);
            into.nodes.push_back({each, Kind::fill, fields, {}});
        }
        if (type == CHILD_GRAPH_NODE && child_graph(each, &child) == OK) add_nodes(into, child);
        if (type == CONDITIONAL_NODE) note("bodies of a graph's conditions are not noted");
    }
}

Notes::Node Notes::node_of(Handle node, const KernelNode& what) {
    Launch launch;
    launch.function = what.function ? what.function : what.kernel;
    launch.shared_bytes = what.shared_bytes;
    std::copy(what.grid, what.grid + 3, launch.grid);
    std::copy(what.block, what.block + 3, launch.block);
    launch.parameters = what.parameters, launch.extra = what.extra;
    LaunchAttributeValue value{};
    if (node_attribute(node, COOPERATIVE, &value) == OK) launch.cooperative = value.cooperative;
    value = {};
    if (node_attribute(node, CLUSTER_DIMENSION, &value) == OK)
        std::copy(value.cluster, value.cluster + 3, launch.cluster);
    bool known;
    {
        std::lock_guard held(writer_.lock);
        known = functions_[launch.function].described;
    }
    if (!known) describe(launch.function);
    std::lock_guard held(writer_.lock);
    Function& it = functions_[launch.function];
    uint32_t flags = capture::node | (launch.cooperative ? uint32_t(capture::cooperative) : 0);
    return {node, Kind::launch, shape(launch, it, flags), arguments(launch, it)};
}

void Notes::node_changed(Handle executable, Handle node, const KernelNode& what) {
    Node changed = node_of(node, what);
    std::lock_guard held(writer_.lock);
    Graph& it = graphs_[executable];
    for (auto& each : it.nodes)
        if (each.node == node) each = changed, it.number = 0;
}

void Notes::graph_launched(Handle executable, Handle stream) {
    if (over()) return;
    std::lock_guard held(writer_.lock);
    Graph& it = graphs_[executable];
    if (it.nodes.empty()) return;
    if (!it.number) {
        it.number = ++graph_count_;
        for (auto& each : it.nodes) {
            Fields fields = each.before;
            fields.u64(it.number).raw(each.behind.held().data(), each.behind.held().size());
            writer_.write(each.kind, fields);
            launches_ += each.kind == Kind::launch;
        }
    }
    writer_.write(Kind::graph, Fields().u64(it.number).pointer(stream));
}

void Notes::graph_gone(Handle executable) {
    std::lock_guard held(writer_.lock);
    graphs_.erase(executable);
}

// --- copies and waits -----------------------------------------------------------------------------------

// Whether a call in a stream becomes a graph's node, and is noted with the graph.
bool Notes::captured(Handle stream) const {
    int capturing = 0;
    bool captures = captures_.load(std::memory_order_relaxed) > 0;
    return captures && is_capturing(stream, &capturing) == OK && capturing;
}

void Notes::copied(Address to, Address from, size_t bytes, Handle stream, capture::Direction direction) {
    if (captured(stream)) return;
    std::lock_guard held(writer_.lock);
    Fields fields;
    fields.u64(to).u64(from).u64(bytes).pointer(stream).u32(uint32_t(direction));
    writer_.write(Kind::copy, fields);
}

void Notes::copied(const Ends& ends, Handle stream) {
    capture::Direction found;
    {
        std::lock_guard held(writer_.lock);
        found = way(ends);
    }
    copied(ends.to, ends.from, ends.bytes, stream, found);
}

// Under the lock.
capture::Direction Notes::way(const Ends& ends) const {
    auto on_device = [&](Address address) {
        Address begin;
        auto found = holds(address, begin);
        return found && found->kind != capture::Memory::pinned;
    };
    using capture::Direction;
    if (ends.way) return *ends.way;
    if (on_device(ends.to)) return on_device(ends.from) ? Direction::on_device : Direction::to_device;
    return on_device(ends.from) ? Direction::to_host : Direction::on_host;
}

void Notes::filled(Address to, size_t bytes, Handle stream, unsigned value, unsigned element_bytes) {
    if (captured(stream)) return;
    std::lock_guard held(writer_.lock);
    writer_.write(Kind::fill, Fields().u64(to).u64(bytes).pointer(stream).u32(value).u32(element_bytes));
}

void Notes::recorded(Handle event, Handle stream) {
    std::lock_guard held(writer_.lock);
    events_[event] = stream;
}

void Notes::waited(Handle stream) {
    {
        std::lock_guard held(writer_.lock);
        writer_.write(Kind::wait, Fields().pointer(stream));
    }
    settle();
}

void Notes::waited_for(Handle event) {
    Handle stream = nullptr;
    {
        std::lock_guard held(writer_.lock);
        auto found = events_.find(event);
        if (found != events_.end()) stream = found->second;
    }
    waited(stream);
}

}  // namespace watcher
