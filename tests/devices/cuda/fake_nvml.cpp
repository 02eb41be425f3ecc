// An NVML without a GPU, as libnvidia-ml.so.1 of child processes. FUSIOND_FAKE_NVML says what a lease may be like:
//
//     deny=nvmlDeviceGetPowerUsage    not permitted to this user, as in some virtual machines (also: lack=, not supported)
//     reasons=0x5                     why the clocks are not higher: 0x1 idle, 0x2 set by a user, 0x4 power limit, ...
//     other=1                         a process of this number computes on the board, too; `self` lists the asking one
//     mhz=345 watts=70                what is read
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace {

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, INSUFFICIENT_SIZE = 7 };
struct Process { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; };

// The values that were given for a knob, in order.
std::vector<std::string> given(const std::string& knob) {
    const char* text = getenv("FUSIOND_FAKE_NVML");
    std::istringstream words(text ? text : "");
    std::vector<std::string> found;
    for (std::string word; words >> word;) {
        auto end = word.find('=');
        if (word.substr(0, end) == knob) found.push_back(end == std::string::npos ? "" : word.substr(end + 1));
    }
    return found;
}
unsigned number(const char* knob, unsigned otherwise) {
    auto found = given(knob);
    return found.empty() ? otherwise : (unsigned)strtoul(found[0].c_str(), nullptr, 0);
}
int refused(const char* function) {
    for (auto& each : given("deny")) if (each == function) return NO_PERMISSION;
    for (auto& each : given("lack")) if (each == function) return NOT_SUPPORTED;
    return OK;
}

}  // namespace

#define CALL() if (int code = refused(__func__)) return code
extern "C" {

int nvmlInitWithFlags(unsigned) { CALL(); return OK; }
int nvmlShutdown() { return OK; }
const char* nvmlErrorString(int code) { return code == NO_PERMISSION ? "Insufficient Permissions" : "Not Supported"; }
int nvmlSystemGetDriverVersion(char* text, unsigned room) { CALL(); snprintf(text, room, "580.159.04"); return OK; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
    CALL();
    if (strncmp(uuid, "GPU-", 4)) return INVALID;
    *device = (void*)1;
    return OK;
}
int nvmlDeviceGetClockInfo(void*, int, unsigned* mhz) { CALL(); *mhz = number("mhz", 1980); return OK; }
int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) { CALL(); *celsius = 34; return OK; }
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) { CALL(); *milliwatts = 1000 * number("watts", 120); return OK; }
int nvmlDeviceGetCurrentClocksEventReasons(void*, unsigned long long* bits) { CALL(); *bits = number("reasons", 0); return OK; }
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Process* processes) {
    CALL();
    std::vector<unsigned> pids;
    for (auto& each : given("other")) pids.push_back((unsigned)atoi(each.c_str()));
    for (size_t i = 0; i < given("self").size(); i++) pids.push_back((unsigned)getpid());
    unsigned room = *count;
    *count = (unsigned)pids.size();
    if (pids.size() > room) return INSUFFICIENT_SIZE;
    for (size_t i = 0; i < pids.size(); i++) processes[i] = {pids[i], 1ull << 30, ~0u, ~0u};
    return OK;
}
}
