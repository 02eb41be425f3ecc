// Contexts of the fake driver: which device's each stream, event, module and allocation is. Where a test asks for several
// whole boards (knob `peers`), whatever is used while another context is current is an error, as it is on a GPU.

#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "fake_timeline.h"

namespace contexts {

struct Context { int device; };
enum { INVALID_HANDLE = 400, ALREADY_ENABLED = 704, ILLEGAL_ADDRESS = 700 };

inline std::vector<Context*> stack;
inline std::map<int, Context*> primary;
inline std::map<const void*, Context*> owners;  // of streams, events and modules
inline std::map<uint64_t, std::pair<uint64_t, Context*>> memory;  // begin -> end, context
inline std::set<std::pair<const void*, Context*>> functions;  // that were looked up
inline std::set<std::pair<Context*, Context*>> access;

inline Context* current() { return stack.empty() ? nullptr : stack.back(); }
inline bool checked() { return timeline::knobs.peers > 0; }
inline int device() { return current() ? current()->device : 0; }

inline Context* owner(const void* thing) {
    auto found = owners.find(thing);
    return found == owners.end() ? current() : found->second;  // the default stream is the current context's
}
inline Context* owner_of(uint64_t address) {  // null: not device memory
    auto next = memory.upper_bound(address);
    if (next == memory.begin()) return nullptr;
    --next;
    return address < next->second.first ? next->second.second : nullptr;
}
// What is enqueued while a context is current, for its own memory.
inline int wrong(const void* stream, uint64_t address = 0) {
    if (!checked()) return 0;
    if (owner(stream) != current()) return INVALID_HANDLE;
    Context* of = owner_of(address);
    return of && of != current() ? ILLEGAL_ADDRESS : 0;
}
inline int wrong_launch(const void* stream, const void* function, const std::vector<char>& arguments) {
    if (!checked()) return 0;
    if (!functions.count({function, current()})) return INVALID_HANDLE;
    if (int error = wrong(stream)) return error;
    for (size_t i = 0; i + 8 <= arguments.size(); i += 8)
        if (int error = wrong(stream, *(const uint64_t*)&arguments[i])) return error;
    return 0;
}

}  // namespace contexts
