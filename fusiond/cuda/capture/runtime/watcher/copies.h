// Copies of rectangles and boxes by their ends: where the first byte comes from and goes to.
#pragma once

#include <optional>

#include "driver.h"
#include "../trace.h"

namespace watcher {

struct Ends {
    Address to, from;
    size_t bytes;
    std::optional<capture::Direction> way;  // nothing: the memory says it
};

inline Address place(Address base, size_t x, size_t y, size_t z, size_t pitch, size_t height) {
    return base + x + pitch * (y + height * z);
}

template <class Copy>
Ends ends(const Copy& it, size_t bytes, size_t target_z, size_t source_z, size_t target_height, size_t source_height) {
    auto number = [](const void* pointer) { return reinterpret_cast<Address>(pointer); };
    auto base = [&](int type, const void* host, Address device, Handle array) {
        return type == HOST ? number(host) : type == ARRAY ? number(array) : device;
    };
    Address to = place(base(it.target_type, it.target_host, it.target_device, it.target_array), it.target_x,
                       it.target_y, target_z, it.target_pitch, target_height);
    Address from = place(base(it.source_type, it.source_host, it.source_device, it.source_array), it.source_x,
                         it.source_y, source_z, it.source_pitch, source_height);
    if (it.target_type == UNIFIED || it.source_type == UNIFIED) return {to, from, bytes, {}};
    using capture::Direction;
    bool to_host = it.target_type == HOST, from_host = it.source_type == HOST;
    return {to, from, bytes,
            to_host ? (from_host ? Direction::on_host : Direction::to_host)
                    : (from_host ? Direction::to_device : Direction::on_device)};
}

inline Ends ends(const Copy2D& it) { return ends(it, it.width_bytes * it.height, 0, 0, 0, 0); }
inline Ends ends(const Copy3D& it) {
    return ends(it, it.width_bytes * it.height * it.depth, it.target_z, it.source_z, it.target_height,
                it.source_height);
}

}  // namespace watcher
