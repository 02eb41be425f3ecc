// What is noted of a program: its modules, functions, memory, launches, graphs and copies.
#pragma once

#include <map>
#include <string>
#include <unordered_map>

#include "../trace.h"
#include "copies.h"
#include "times.h"

namespace watcher {

struct Launch {
    Handle function = nullptr;  // or a kernel of a library
    Handle stream = nullptr;
    unsigned grid[3] = {}, block[3] = {}, shared_bytes = 0, cluster[3] = {0, 0, 0};  // 0: as the function has it
    bool cooperative = false;
    void **parameters = nullptr, **extra = nullptr;
};

class Notes {
  public:
    static Notes* current();         // null where nothing is noted, or no longer
    static void give_up() noexcept;  // something of ours failed

    void module(Handle module, const void* image);
    void module_of_file(Handle module, const char* path);
    void same_module(Handle module, Handle library);
    void unloaded(Handle module);
    void function(Handle function, Handle module, const char* name, bool of_library);
    void function_of(Handle function, Handle kernel);
    // What a linker is told and given; taken when it has made a cubin of it.
    struct Link {
        std::vector<std::string> options;
        std::vector<std::pair<int, std::string>> inputs;  // LinkInput, what it holds
    };
    void link_begun(Handle state, std::vector<std::string> options);
    void link_input(Handle state, int kind, const void* data, size_t bytes);
    Link linked(Handle state);
    void assembled(const void* cubin, size_t bytes, const std::string& ptx);

    void allocated(Address address, size_t bytes, capture::Memory kind);
    void variable(Address address, size_t bytes, capture::Memory kind, const char* name);
    void released(Address address);

    // Before a launch, and after it. One that a stream captures is noted with its graph.
    struct Begun {
        bool noted = false;
        Times::Timed timed;
        std::vector<capture::Fields> contents;
    };
    Begun begun(const Launch& launch);
    void launched(const Launch& launch, const Begun& begun, bool worked);

    void captures(int more) { captures_ += more; }
    void graph(Handle executable, Handle graph);
    void node_changed(Handle executable, Handle node, const KernelNode& what);
    void graph_launched(Handle executable, Handle stream);
    void graph_gone(Handle executable);

    void copied(Address to, Address from, size_t bytes, Handle stream, capture::Direction direction);
    void copied(Address to, Address from, size_t bytes, Handle stream) { copied({to, from, bytes, {}}, stream); }
    void copied(const Ends& ends, Handle stream);
    void filled(Address to, size_t bytes, Handle stream, unsigned value, unsigned element_bytes);
    void recorded(Handle event, Handle stream);
    void waited(Handle stream);
    void waited_for(Handle event);

  private:
    struct Function {
        Handle module = nullptr;
        std::string name;
        bool of_library = false;    // a CUkernel
        Handle loadable = nullptr;  // the CUfunction that it is here
        bool described = false, launched = false;
        bool parameters_known = false;
        std::vector<std::pair<uint32_t, uint32_t>> parameters;  // offset, bytes
        unsigned cluster[3] = {1, 1, 1};
        unsigned timed = 0;
    };
    struct Node {
        Handle node;
        capture::Kind kind;
        capture::Fields before, behind;  // the number of the graph
    };
    struct Graph {
        std::vector<Node> nodes;
        uint64_t number = 0;  // 0: not written as it is
    };
    struct Allocation {
        size_t bytes;
        capture::Memory kind;
    };

    Notes();
    static Notes* make();
    bool over();
    void describe(Handle handle);
    Handle noted_module(Handle module) const;
    static void is_of(Function& it, Handle module, const std::string& name, bool of_library);
    Handle loadable(Handle function);
    std::vector<capture::Fields> contents(const Launch& launch);
    capture::Fields content(Address address, size_t bytes, capture::Memory kind, Handle stream);
    static capture::Fields shape(const Launch& launch, const Function& function, uint32_t flags);
    static capture::Fields arguments(const Launch& launch, const Function& function);
    void add_nodes(Graph& into, Handle graph);
    bool captured(Handle stream) const;
    capture::Direction way(const Ends& ends) const;
    Node node_of(Handle node, const KernelNode& what);
    void keep_module(Handle module, const void* image, size_t bytes);
    void keep_ptx(const std::string& file, const std::string& ptx);
    void note(const std::string& text);
    void settle();
    const Allocation* holds(Address address, Address& begin) const;

    capture::Writer writer_;
    Times times_;
    std::unordered_map<Handle, Function> functions_;
    std::unordered_map<Handle, Handle> libraries_;  // of modules that are libraries' in a context
    std::unordered_map<Handle, Graph> graphs_;
    std::unordered_map<Handle, Handle> events_;  // the stream that each was recorded on last
    std::unordered_map<Handle, Link> links_;
    std::map<Address, Allocation> memory_;
    std::map<uint64_t, std::string> images_;  // files by the digest of what is in them
    std::map<uint64_t, std::string> ptx_;     // by the digest of the cubin that was made of it
    std::atomic<int> captures_{0};
    std::atomic<uint64_t> launches_{0};  // records
    uint64_t graph_count_ = 0, most_launches_ = UINT64_MAX, until_ns_ = UINT64_MAX;
    std::atomic<uint64_t> flushed_ns_{0};
    bool data_ = false;
};

}  // namespace watcher
