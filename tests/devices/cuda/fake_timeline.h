// The device time line of the fake driver: when what was enqueued begins and ends.
//
// Results are computed when work is enqueued; its times are settled when the host waits (`settle`), because only then
// is known when the host opened a gate. Work is settled in the order in which it was enqueued, so that whatever waits
// for an event finds it settled. Streams do not slow each other down.

#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace timeline {

// What a test may set, and what it is if the test does not. Times in microseconds of a device at `mhz`.
struct Knobs {
    double event_us = 10;        // what an event costs the stream it is recorded on
    double event_step_us = 0;    // times of events are multiples of it; 0: they are exact
    double event_cycles = 0;     // 1: an event's cost grows as the clock falls
    double launch_us = 0;        // of the host, for each call that enqueues
    double load_us = 0;          // of the host, at the first launch of each kernel (lazy loading)
    double implicit = 1;         // what may wait for an idle device does: loading, allocating, freeing
    double depth = 1024;         // commands that a launch queue holds; with more the host waits
    double context_ms = 0;       // of the host, for real: how long a process waits for its first context
    double prefetches = 1;       // whether the device takes managed memory ahead of its use
    double free_gib = 3;         // of the device's memory, whatever was taken of it
    double kernel_us = 0;        // of a kernel whose duration was not set by its name
    double gap_us = 0;           // between two kernels of a stream
    double node_gap_us = 0;      // between two nodes of a graph
    double release_us = 0;       // from the gate's opening to the end of its kernel
    double noise = 0;            // standard deviation of the log of a kernel's duration
    double mhz = 1000;           // the clock for which durations hold; also the clock, unless a table is set
    double idle_mhz = 0;         // the clock after a pause of `idle_after_us`; 0: a pause changes nothing
    double plateau_us = 0;       // of work until the clock begins to rise
    double ramp_us = 0;          // of work from then on until it is up again
    double idle_after_us = 1e4;
    double step_ns = 32;         // of globaltimer
    double copy_gbs = 0;         // bytes moved within the device, in 1e9 per second; 0: copies take no time
    double up_gbs = 0;           // from host to device
    double down_gbs = 0;         // from device to host
    double fma_tflops = 0;       // what the kernel that measures the FP32 ceiling finds; 0: it takes 1 us
};

inline Knobs knobs;
inline std::map<std::string, double> durations;      // kernel -> microseconds
inline std::map<std::string, double> troubles;       // "hang:KERNEL" and "fault:KERNEL" -> in so many launches
inline std::vector<std::pair<double, double>> table;  // (microseconds, MHz), linear in between
inline std::mt19937_64 dice{1};
inline double host_us = 0;     // the host's clock
inline double ramped_us = 0;   // how long the device has worked since the last pause
inline double busy_until = 0;
inline double barrier = 0;     // the legacy stream's: nothing begins before it
inline std::map<void*, double> ends;  // stream -> when its last work ends

inline double table_mhz(double at) {
    if (table.empty()) return knobs.mhz;
    auto next = std::upper_bound(table.begin(), table.end(), std::make_pair(at, 1e300));
    if (next == table.begin()) return table.front().second;
    if (next == table.end()) return table.back().second;
    auto last = next - 1;
    return last->second + (next->second - last->second) * (at - last->first) / (next->first - last->first);
}

inline double mhz(double at, double worked_us) {
    double full = table_mhz(at);
    double risen_us = std::max(0.0, worked_us - knobs.plateau_us);
    if (knobs.idle_mhz <= 0 || risen_us >= knobs.ramp_us) return full;
    return full * (knobs.idle_mhz + (knobs.mhz - knobs.idle_mhz) * risen_us / knobs.ramp_us) / knobs.mhz;
}

// The end of work of so many cycles (in units of MHz times microseconds).
inline double end_of(double begin, double cycles) {
    if (begin > busy_until + knobs.idle_after_us) ramped_us = 0;
    double at = begin, worked = ramped_us;
    const int steps = table.empty() && knobs.idle_mhz <= 0 ? 1 : 32;
    for (int i = 0; i < steps; i++) {
        double guess = cycles / steps / mhz(at, worked);
        double step = cycles / steps / mhz(at + guess / 2, worked + guess / 2);
        at += step;
        worked += step;
    }
    ramped_us = worked;
    busy_until = std::max(busy_until, at);
    return at;
}

// Work that ends at some time, whatever the clock is.
inline double worked(double begin, double end) {
    if (begin > busy_until + knobs.idle_after_us) ramped_us = 0;
    ramped_us += end - begin;
    busy_until = std::max(busy_until, end);
    return end;
}

struct Work {
    void* stream;
    std::function<double(double)> end;  // from when it begins to when it ends
};
inline std::vector<Work> queue;


inline double start_of(void* stream, double enqueued) {
    double begin = std::max({ends[stream], barrier, enqueued});
    if (!stream) for (auto& each : ends) begin = std::max(begin, each.second);
    return begin;
}

// Times of all that was enqueued. Called when the host waits.
inline void settle() {
    std::vector<Work> now;
    now.swap(queue);
    for (auto& each : now) {
        double end = each.end(start_of(each.stream, 0));
        ends[each.stream] = end;
        if (!each.stream) barrier = end;
    }
}

// When an event that is recorded at some time has been.
inline double recorded(double begin) {
    double slow = knobs.event_cycles ? knobs.mhz / mhz(begin, begin > busy_until + knobs.idle_after_us ? 0 : ramped_us) : 1;
    return begin + knobs.event_us * slow;
}
inline double stamp(double at) {
    return knobs.event_step_us > 0 ? std::floor(at / knobs.event_step_us) * knobs.event_step_us : at;
}

// The host waits for a stream.
inline void wait(void* stream) {
    settle();
    host_us = std::max(host_us, ends[stream]);
}

inline void wait_for_all() {
    settle();
    for (auto& each : ends) host_us = std::max(host_us, each.second);
}

// Of what may need an idle device: on hardware it waits for everything, also for a gate that nobody can open meanwhile.
inline void wait_implicitly() {
    if (knobs.implicit) wait_for_all();
}

inline void add(void* stream, std::function<double(double)> end) {
    if (queue.size() >= knobs.depth) wait_for_all();
    queue.push_back({stream, end});
}

inline double drawn(double duration_us) {
    if (knobs.noise <= 0) return duration_us;
    return duration_us * std::exp(std::normal_distribution<double>(0, knobs.noise)(dice));
}

// A kernel that watches globaltimer change `ticks` times and counts cycles meanwhile, as the canary does.
struct Watched { uint64_t cycles, nanoseconds, ticks, step_ns; };
inline double watch(double begin, uint64_t ticks, uint64_t limit_cycles, Watched& seen) {
    double step_us = knobs.step_ns / 1000;
    double first = std::ceil(begin / step_us + 1e-9) * step_us;
    if (first > busy_until + knobs.idle_after_us) ramped_us = 0;
    double at = first, worked = ramped_us, cycles = 0;
    uint64_t count = 0;
    while (count < ticks && cycles < limit_cycles) {
        cycles += mhz(at + step_us / 2, worked + step_us / 2) * step_us;
        at += step_us;
        worked += step_us;
        count++;
    }
    ramped_us = worked;
    busy_until = std::max(busy_until, at);
    seen = {uint64_t(cycles), uint64_t(count * knobs.step_ns), count, uint64_t(knobs.step_ns)};
    return at;
}

// A knob by its name; `us:KERNEL` is a kernel's duration, `hang:KERNEL` and `fault:KERNEL` say in which launch from
// now on (1 is the next) it never ends, or breaks the context.
inline int set(const std::string& name, double value) {
    const std::map<std::string, double*> known = {
        {"event_us", &knobs.event_us}, {"event_step_us", &knobs.event_step_us}, {"event_cycles", &knobs.event_cycles},
        {"implicit", &knobs.implicit}, {"depth", &knobs.depth}, {"context_ms", &knobs.context_ms}, {"plateau_us", &knobs.plateau_us},
        {"launch_us", &knobs.launch_us}, {"load_us", &knobs.load_us},
        {"kernel_us", &knobs.kernel_us}, {"gap_us", &knobs.gap_us}, {"node_gap_us", &knobs.node_gap_us},
        {"release_us", &knobs.release_us}, {"noise", &knobs.noise}, {"mhz", &knobs.mhz}, {"idle_mhz", &knobs.idle_mhz},
        {"ramp_us", &knobs.ramp_us}, {"free_gib", &knobs.free_gib}, {"prefetches", &knobs.prefetches},
        {"idle_after_us", &knobs.idle_after_us}, {"step_ns", &knobs.step_ns}, {"copy_gbs", &knobs.copy_gbs},
        {"up_gbs", &knobs.up_gbs}, {"down_gbs", &knobs.down_gbs}, {"fma_tflops", &knobs.fma_tflops},
    };
    auto found = known.find(name);
    if (found != known.end()) *found->second = value;
    else if (name == "seed") dice.seed((uint64_t)value);
    else if (!name.compare(0, 3, "us:")) durations[name.substr(3)] = value;
    else if (!name.compare(0, 5, "hang:") || !name.compare(0, 6, "fault:")) troubles[name] = value;
    else return 1;
    return 0;
}

// For child processes: FUSIOND_FAKE_GPU="event_us=1.6 us:add=12.5".
inline void set_from_environment() {
    const char* text = getenv("FUSIOND_FAKE_GPU");
    std::istringstream words(text ? text : "");
    for (std::string word; words >> word;) {
        auto equals = word.rfind('=');
        if (equals == std::string::npos || set(word.substr(0, equals), atof(word.c_str() + equals + 1))) abort();
    }
}

inline bool troubled(const std::string& kind, const std::string& kernel) {
    auto found = troubles.find(kind + ":" + kernel);
    if (found == troubles.end() || --found->second > 0) return false;
    troubles.erase(found);
    return true;
}

}  // namespace timeline
