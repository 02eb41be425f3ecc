// What a captured program did, as a file of records: DIR/PID.trace, read by fusiond/cuda/capture/trace.py.
//
//     file   = "fusiond1" record*
//     record = u32 kind, u32 bytes of what follows the time, u64 nanoseconds, fields (little-endian, packed)
//     text   = u32 length, bytes
//
// A writer is used under its lock. Nothing here ends the program: a file that cannot be written is given up.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace capture {

enum class Kind : uint32_t {
    module = 1,    // u64 module, text file below DIR/modules (a fat binary, a cubin, or PTX)
    function = 2,  // u64 function, u64 module, text name, u32 registers, u32 static shared bytes, u32 local bytes,
                   // u32 parameters, each u32 offset, u32 bytes
    launch = 3,    // u64 function, u64 stream, u32 grid[3], u32 block[3], u32 cluster[3], u32 dynamic shared bytes,
                   // u32 flags, u64 graph, u32 arguments, each u32 bytes and these
    elapsed = 4,   // u64 number of the launch in this file (from 0), u64 nanoseconds on the device
    allocate = 5,  // u64 address, u64 bytes, u32 memory
    release = 6,   // u64 address
    copy = 7,      // u64 destination, u64 source, u64 bytes, u64 stream, u32 direction; of a graph's node u32 flags,
                   // u64 graph
    fill = 8,      // u64 destination, u64 bytes, u64 stream, u32 value, u32 bytes of an element; likewise
    wait = 9,      // u64 stream, 0: the device
    graph = 10,    // u64 graph, u64 stream: its nodes came before, with the flag `node`
    data = 11,     // u64 address, u64 bytes, text file below DIR/data: what was there before the next launch
    note = 12,     // text: what was not seen, for people
    variable = 13, // u64 address, text name: of an allocation that is a variable
};

enum Flags : uint32_t { cooperative = 1, node = 2 };
enum class Memory : uint32_t { device = 0, managed = 1, pinned = 2, variable = 3, array = 4 };
enum class Direction : uint32_t { to_device = 1, to_host = 2, on_device = 3, on_host = 4 };

inline uint64_t now_ns() {
    auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

// The bytes of one record's fields.
class Fields {
  public:
    Fields& u32(uint32_t value) { return raw(&value, 4); }
    Fields& u64(uint64_t value) { return raw(&value, 8); }
    Fields& pointer(const void* value) { return u64(reinterpret_cast<uint64_t>(value)); }
    Fields& text(const std::string& value) { return u32(value.size()).raw(value.data(), value.size()); }
    Fields& raw(const void* data, size_t bytes) {
        auto from = static_cast<const char*>(data);
        held_.insert(held_.end(), from, from + bytes);
        return *this;
    }
    const std::vector<char>& held() const { return held_; }
    void clear() { held_.clear(); }

  private:
    std::vector<char> held_;
};

class Writer {
  public:
    // Begins DIR/PID.trace; without a folder nothing is written.
    explicit Writer(const char* folder) : folder_(folder ? folder : "") {
        if (folder_.empty()) return;
        for (const char* each : {"", "/modules", "/data"}) mkdir((folder_ + each).c_str(), 0777);
        file_ = fopen((folder_ + "/" + std::to_string(getpid()) + ".trace").c_str(), "we");
        if (file_) fwrite("fusiond1", 1, 8, file_), fflush(file_);  // it is one, however the process ends
    }
    ~Writer() {
        if (file_) fclose(file_);
    }
    Writer(const Writer&) = delete;

    bool open() const { return file_ != nullptr; }
    const std::string& folder() const { return folder_; }

    void write(Kind kind, const Fields& fields) {
        if (!file_) return;
        uint32_t head[2] = {static_cast<uint32_t>(kind), static_cast<uint32_t>(fields.held().size())};
        uint64_t when = now_ns();
        size_t bytes = fields.held().size();
        bool done = fwrite(head, sizeof head, 1, file_) && fwrite(&when, sizeof when, 1, file_);
        if (done && fwrite(fields.held().data(), 1, bytes, file_) == bytes) return;
        fclose(file_);  // no record comes after one that is not whole
        file_ = nullptr;
    }
    void flush() {
        if (file_) fflush(file_);
    }
    // Keeps bytes under DIR/KIND, and gives the file's name there; empty where it could not.
    std::string keep(const char* kind, const void* data, size_t bytes) {
        if (!file_) return "";
        std::string name = std::to_string(getpid()) + "-" + std::to_string(kept_++);
        FILE* out = fopen((folder_ + "/" + kind + "/" + name).c_str(), "we");
        if (!out) return "";
        size_t done = fwrite(data, 1, bytes, out);
        return fclose(out) == 0 && done == bytes ? name : "";
    }

    std::mutex lock;

  private:
    std::string folder_;
    FILE* file_ = nullptr;
    uint64_t kept_ = 0;
};

// How long a module's image is: a fat binary, a cubin (ELF), or PTX, which ends with a zero.
inline size_t image_bytes(const void* image) {
    auto at = static_cast<const unsigned char*>(image);
    uint32_t magic;
    memcpy(&magic, at, 4);
    if (magic == 0xBA55ED50u) {
        uint16_t header;
        uint64_t body;
        memcpy(&header, at + 6, 2);
        memcpy(&body, at + 8, 8);
        return header + body;
    }
    if (magic == 0x464C457Fu) {  // the section and program headers, of which the last ends the file
        uint64_t programs, sections, end = 64;
        uint16_t program_bytes, program_count, section_bytes, section_count;
        memcpy(&programs, at + 32, 8), memcpy(&sections, at + 40, 8);
        memcpy(&program_bytes, at + 54, 2), memcpy(&program_count, at + 56, 2);
        memcpy(&section_bytes, at + 58, 2), memcpy(&section_count, at + 60, 2);
        end = std::max({end, programs + uint64_t(program_bytes) * program_count,
                        sections + uint64_t(section_bytes) * section_count});
        for (unsigned k = 0; k < section_count; ++k) {
            uint32_t type;
            uint64_t offset, bytes;
            auto section = at + sections + uint64_t(k) * section_bytes;
            memcpy(&type, section + 4, 4), memcpy(&offset, section + 24, 8), memcpy(&bytes, section + 32, 8);
            if (type != 8) end = std::max(end, offset + bytes);  // SHT_NOBITS has none
        }
        return end;
    }
    return strlen(reinterpret_cast<const char*>(at)) + 1;
}

}  // namespace capture
