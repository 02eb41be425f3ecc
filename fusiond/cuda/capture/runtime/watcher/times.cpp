#include "times.h"

namespace watcher {

namespace {

constinit Ours<Result(Handle*)> context_now{"cuCtxGetCurrent"};
constinit Ours<Result(Handle*, unsigned)> create{"cuEventCreate"};
constinit Ours<Result(Handle, Handle)> record{"cuEventRecord"};
constinit Ours<Result(Handle)> query{"cuEventQuery"};
constinit Ours<Result(float*, Handle, Handle)> elapsed{"cuEventElapsedTime"};

}  // namespace

Times::Timed Times::begun(Handle stream) {
    Timed timed;
    if (context_now(&timed.context) != OK || !timed.context) return {};
    {
        std::lock_guard held(lock_);
        if (under_way_.size() >= MOST) return {};
        auto& free = free_[timed.context];
        for (Handle* each : {&timed.begin, &timed.end})
            if (!free.empty()) *each = free.back(), free.pop_back();
    }
    for (Handle* each : {&timed.begin, &timed.end})
        if (!*each && create(each, 0) != OK) return {};
    if (record(timed.begin, stream) == OK) return timed;
    give_back(timed);
    return {};
}

bool Times::ended(const Timed& timed, Handle stream) {
    if (record(timed.end, stream) == OK) return true;
    give_back(timed);
    return false;
}

std::vector<std::pair<uint64_t, uint64_t>> Times::over() {
    std::vector<std::pair<uint64_t, uint64_t>> found;
    if (!any()) return found;
    std::unique_lock held(lock_, std::try_to_lock);  // whoever has it does the same
    while (held && !under_way_.empty()) {
        auto [timed, launch] = under_way_.front();
        float ms = 0;
        Result done = query(timed.end);
        if (done == 600) break;  // not ready
        under_way_.pop_front();
        if (done == OK && elapsed(&ms, timed.begin, timed.end) == OK) found.emplace_back(launch, uint64_t(ms * 1e6f));
        auto& free = free_[timed.context];
        free.insert(free.end(), {timed.begin, timed.end});
    }
    if (held) any_.store(!under_way_.empty(), std::memory_order_relaxed);
    return found;
}

void Times::give_back(const Timed& timed) {
    std::lock_guard held(lock_);
    auto& free = free_[timed.context];
    free.insert(free.end(), {timed.begin, timed.end});
}

}  // namespace watcher
