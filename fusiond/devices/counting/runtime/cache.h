// The L2: lines of 128 bytes in four sectors, the line that was not used for longest goes first.
#pragma once

#include <cstdint>
#include <vector>

namespace counting {

struct Traffic {
    uint64_t dram_read_bytes = 0, dram_write_bytes = 0;
};

class Cache {
   public:
    explicit Cache(uint64_t bytes) : lines_(bytes / 128 > 0 ? bytes / 128 : 1), heads_(2 * lines_.size() + 1, -1) {}

    // One sector (address / 32) is read, or written: a write fetches nothing.
    void touch(uint64_t sector, bool write) {
        const uint8_t bit = 1 << (sector & 3);
        Line& line = lines_[recent(sector >> 2)];
        if (write) {
            line.valid |= bit;
            line.dirty |= bit;
            line.writer = launch_;
        } else if (!(line.valid & bit)) {
            traffic_[launch_].dram_read_bytes += 32;
            line.valid |= bit;
        }
    }

    // The same for sectors that a launch touched while nobody counted: whatever was read is on its account already.
    void hold(uint64_t sector, bool write) {
        const uint8_t bit = 1 << (sector & 3);
        Line& line = lines_[recent(sector >> 2)];
        line.valid |= bit;
        if (write) line.dirty |= bit, line.writer = launch_;
    }

    // From here on lines are counted that are touched for the first time. When there are as many as the L2 has, what
    // it holds does not depend on anything before the mark.
    void mark() { ++era_, fresh_ = 0; }
    bool renewed() const { return fresh_ >= static_cast<int32_t>(lines_.size()); }

    void begin_launch() { traffic_.emplace_back(), launch_ = static_cast<int32_t>(traffic_.size()) - 1; }

    // What is dirty goes to memory, on the account of the launch that wrote it.
    void flush() {
        for (Line& line : lines_) write_back(line);
    }

    const std::vector<Traffic>& traffic() const { return traffic_; }

   private:
    struct Line {
        uint64_t tag = ~uint64_t(0);
        uint8_t valid = 0, dirty = 0;
        uint32_t era = 0;
        int32_t writer = -1, older = -1, newer = -1, chained = -1;
    };

    void write_back(Line& line) {
        if (line.dirty) traffic_[line.writer].dram_write_bytes += 32 * __builtin_popcount(line.dirty);
        line.dirty = 0;
    }

    size_t bucket(uint64_t tag) const { return (tag * 0x9e3779b97f4a7c15u >> 20) % heads_.size(); }

    int32_t recent(uint64_t tag) {
        const int32_t at = newest_ >= 0 && lines_[newest_].tag == tag ? newest_ : used(tag);
        if (lines_[at].era != era_) lines_[at].era = era_, ++fresh_;
        return at;
    }

    int32_t used(uint64_t tag) {
        int32_t at = heads_[bucket(tag)];
        while (at >= 0 && lines_[at].tag != tag) at = lines_[at].chained;
        if (at >= 0) {
            unlink(at);
        } else if (filled_ < static_cast<int32_t>(lines_.size())) {
            at = filled_++;
            enter(at, tag);
        } else {
            at = oldest_;
            unlink(at);
            write_back(lines_[at]);
            leave(at);
            enter(at, tag);
        }
        link(at);
        return at;
    }

    void enter(int32_t at, uint64_t tag) {
        Line& line = lines_[at];
        line.tag = tag, line.valid = 0, line.dirty = 0, line.era = 0;
        int32_t& head = heads_[bucket(tag)];
        line.chained = head, head = at;
    }

    void leave(int32_t at) {
        int32_t* place = &heads_[bucket(lines_[at].tag)];
        while (*place != at) place = &lines_[*place].chained;
        *place = lines_[at].chained;
    }

    void unlink(int32_t at) {
        Line& line = lines_[at];
        (line.newer >= 0 ? lines_[line.newer].older : newest_) = line.older;
        (line.older >= 0 ? lines_[line.older].newer : oldest_) = line.newer;
    }

    void link(int32_t at) {
        lines_[at].older = newest_, lines_[at].newer = -1;
        if (newest_ >= 0) lines_[newest_].newer = at;
        newest_ = at;
        if (oldest_ < 0) oldest_ = at;
    }

    std::vector<Line> lines_;
    std::vector<int32_t> heads_;
    std::vector<Traffic> traffic_;
    int32_t filled_ = 0, newest_ = -1, oldest_ = -1, launch_ = -1, fresh_ = 0;
    uint32_t era_ = 1;
};

}  // namespace counting
