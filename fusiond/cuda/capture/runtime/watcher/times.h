// Times of the first launches of each kernel, by events round them, which are read when they are over anyway.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "entries.h"

namespace watcher {

class Times {
  public:
    struct Timed {
        Handle begin = nullptr, end = nullptr, context = nullptr;
        explicit operator bool() const { return begin != nullptr; }
    };
    Timed begun(Handle stream);  // false where it cannot be timed
    bool ended(const Timed& timed, Handle stream);
    void launched(const Timed& timed, uint64_t launch) {
        std::lock_guard held(lock_);
        under_way_.push_back({timed, launch});
        any_.store(true, std::memory_order_relaxed);
    }
    bool any() const { return any_.load(std::memory_order_relaxed); }
    // (number of the launch, nanoseconds) of those that are over by now; nobody waits.
    std::vector<std::pair<uint64_t, uint64_t>> over();

  private:
    static constexpr size_t MOST = 256;  // under way
    void give_back(const Timed& timed);
    std::mutex lock_;
    std::deque<std::pair<Timed, uint64_t>> under_way_;
    std::map<Handle, std::vector<Handle>> free_;  // events of each context
    std::atomic<bool> any_{false};
};

}  // namespace watcher
