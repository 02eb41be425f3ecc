// The memory that programs allocate: first fit, from the front.
#include "state.h"

#include <fcntl.h>
#include <linux/falloc.h>

namespace cudart {
namespace {

constexpr size_t PAGE = 4096, UNIT = 512;

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Heap::Heap(uint64_t begin, size_t bytes, int file) : begin_(begin), bytes_(bytes), file_(file) { free_[begin] = bytes; }

void* Heap::allocate(size_t bytes, capture::Memory kind, unsigned flags, size_t alignment) {
    const size_t size = rounded(bytes ? bytes : 1, UNIT);
    if (size < bytes || (kind != capture::Memory::pinned && used_ + size > runtime().device_bytes)) return nullptr;
    for (auto& [begin, length] : free_) {
        const uint64_t from = rounded(begin, alignment), before = from - begin;
        if (length < before + size) continue;
        const uint64_t rest = length - before - size, old = begin;
        if (before) length = before;
        else free_.erase(old);
        if (rest) free_[from + size] = rest;
        if (kind != capture::Memory::pinned) used_ += size;
        add({from, bytes, kind, flags});
        return reinterpret_cast<void*>(from);
    }
    return nullptr;
}

bool Heap::release(void* pointer) {
    auto found = all_.find(reinterpret_cast<uint64_t>(pointer));
    if (found == all_.end() || found->second.begin >= begin_ + bytes_) return false;
    uint64_t begin = found->first;
    size_t size = rounded(found->second.bytes ? found->second.bytes : 1, UNIT);
    if (found->second.kind != capture::Memory::pinned) used_ -= size;
    drop(begin);
    auto next = free_.lower_bound(begin);
    if (next != free_.end() && begin + size == next->first) size += next->second, next = free_.erase(next);
    if (next != free_.begin()) {
        auto before = std::prev(next);
        if (before->first + before->second == begin) begin = before->first, size += before->second, free_.erase(before);
    }
    free_[begin] = size;
    // Whole pages go back to the machine, and come again as zeros.
    const uint64_t first = rounded(begin - begin_, PAGE), last = (begin - begin_ + size) / PAGE * PAGE;
    if (last > first) fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first, last - first);
    return true;
}

const Allocation* Heap::find(const void* pointer) const {
    const auto address = reinterpret_cast<uint64_t>(pointer);
    auto after = all_.upper_bound(address);
    if (after == all_.begin()) return nullptr;
    const Allocation& found = std::prev(after)->second;
    return address - found.begin < std::max<size_t>(found.bytes, 1) ? &found : nullptr;
}

bool Heap::inside(const void* pointer) const { return reinterpret_cast<uint64_t>(pointer) - begin_ < bytes_; }

void Heap::add(const Allocation& known) {
    all_[known.begin] = known;
    ++changes_;
    note_memory(known);
}

void Heap::drop(uint64_t begin) {
    all_.erase(begin);
    ++changes_;
    note_release(begin);
}

}  // namespace cudart
