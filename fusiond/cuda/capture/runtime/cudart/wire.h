// What the program and the service (fusiond/cuda/capture/service.py) say to one another over a Unix socket: each message is
// u32 length, u32 what is asked or answered, fields as in trace.h.
#pragma once

#include "../trace.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace cudart {

enum class Ask : uint32_t {
    hello = 1,      // u32 process -> u64 begin and u64 bytes of the memory that both share, u64 bytes of it for the program,
                    // u64 bytes of the device; the memory's descriptor comes beside it
    module = 2,     // u64 module, text image -> u32 functions, each text name, u32 registers, u32 static shared bytes, u32 local
                    // bytes, u32 most threads, u32 parameters, each u32 offset, u32 bytes; u32 variables, each text name,
                    // u64 address
    launch = 3,     // u64 module, text kernel, u32 grid[3], block[3], cluster[3], u32 dynamic shared bytes, u32 cooperative,
                    // text arguments, u32 whether the allocations have changed, and if so u32 number, each u64 begin,
                    // u64 end -> text what it printed
    occupancy = 4,  // u32 registers, u32 shared bytes, u32 threads -> u32 blocks on a multiprocessor
};

enum class Answer : uint32_t {
    done = 0,
    fault = 1,    // u32 error of the runtime, text why, text what it printed
    refused = 2,  // text: nothing was done, since something is not known here
};

class Reply {
  public:
    Answer answer = Answer::done;
    explicit Reply(std::vector<char> data) : data_(std::move(data)) {}
    uint32_t u32() { return number<uint32_t>(); }
    uint64_t u64() { return number<uint64_t>(); }
    std::string text() {
        uint32_t bytes = u32();
        need(bytes);
        std::string found(data_.data() + at_, bytes);
        at_ += bytes;
        return found;
    }

  private:
    void need(size_t bytes) const {
        if (at_ + bytes > data_.size()) throw std::runtime_error("the service's answer is too short");
    }
    template <class T>
    T number() {
        need(sizeof(T));
        T found;
        memcpy(&found, data_.data() + at_, sizeof found);
        at_ += sizeof found;
        return found;
    }
    std::vector<char> data_;
    size_t at_ = 0;
};

// The connection. It is used under the runtime's lock.
class Service {
  public:
    // Ends the program where there is no service: it was not started by `fusiond capture`.
    Service();
    Reply ask(Ask what, const capture::Fields& fields);
    // The descriptor that came with the last answer; -1: none did.
    int descriptor() const { return descriptor_; }

  private:
    int socket_ = -1;
    int descriptor_ = -1;
};

}  // namespace cudart
