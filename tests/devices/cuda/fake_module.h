// Any cubin for the fake driver: which kernels and variables are in it and what a kernel takes, as the file itself says.
// What such a kernel does is not known here: it writes zeros into every buffer that it is given and that nobody has
// written since it was filled with one byte (as outputs are before a run), and takes as long as the time line says. So
// two programs with the same outputs agree, whatever they compute.

#pragma once
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <string>
#include <vector>

// A kernel's code takes its parameters as pointers to values.
using Kernel = void (*)(void** values, unsigned shared_bytes);

struct Function {
    std::string name;
    Kernel kernel;  // null: not known
    std::vector<size_t> sizes;
    int registers, shared, most_threads;
    std::vector<size_t> offsets;  // empty: each parameter on its own alignment
};

namespace blanks {

struct Blank { size_t bytes; bool written; };
inline std::map<uint64_t, Blank> all;  // by address

inline std::map<uint64_t, Blank>::iterator of(uint64_t address) {
    auto found = all.upper_bound(address);
    if (found == all.begin()) return all.end();
    --found;
    return address < found->first + found->second.bytes ? found : all.end();
}
inline void filled(uint64_t address, size_t bytes) { all[address] = {bytes, false}; }
inline void written(uint64_t address) {
    auto found = of(address);
    if (found != all.end()) found->second.written = true;
}
// From the host, before a run: one buffer's poison, or an arena's as after a free.
inline void uploaded(uint64_t begin, const char* data, size_t bytes) {
    auto each = all.lower_bound(begin);
    bool known = each != all.end() && each->first < begin + bytes;
    for (; each != all.end() && each->first < begin + bytes; ++each) each->second.written = false;
    if (!known && bytes > 1 && data[0] && !memcmp(data, data + 1, bytes - 1)) filled(begin, bytes);
}
inline void forget(uint64_t begin, size_t bytes) {
    all.erase(all.lower_bound(begin), all.lower_bound(begin + bytes));
}
inline void write_from(const std::vector<char>& arguments) {
    for (size_t i = 0; i + 8 <= arguments.size(); i += 8) {
        uint64_t value;
        memcpy(&value, &arguments[i], sizeof value);
        auto found = of(value);
        if (found == all.end() || found->second.written) continue;
        memset((void*)found->first, 0, found->second.bytes);
        found->second.written = true;
    }
}

}  // namespace blanks

namespace cubin {

struct Section { const char* name; const char* data; uint64_t bytes; };
struct Contents { std::list<Function> functions; std::map<std::string, uint64_t> variables; };  // with bytes of each

template <class T> T at(const char* place) {
    T value;
    memcpy(&value, place, sizeof value);
    return value;
}

inline bool is(const void* image) { return !memcmp(image, "\177ELF", 4); }

inline std::vector<Section> sections(const char* image) {
    std::vector<Section> found;
    const char* table = image + at<uint64_t>(image + 40);
    unsigned size = at<uint16_t>(image + 58), count = at<uint16_t>(image + 60), names = at<uint16_t>(image + 62);
    const char* strings = image + at<uint64_t>(table + names * size + 24);
    for (unsigned i = 0; i < count; i++) {
        const char* header = table + i * size;
        found.push_back({strings + at<uint32_t>(header), image + at<uint64_t>(header + 24), at<uint64_t>(header + 32)});
    }
    return found;
}

// Calls `say(attribute, payload)` for every attribute of a section of .nv.info that has more than two bytes.
template <class F> void attributes(const Section& section, F say) {
    for (const char *here = section.data, *end = here + section.bytes; here + 4 <= end;) {
        bool long_one = here[0] == 4;  // else two bytes of value are all
        if (long_one) say((unsigned char)here[1], here + 4);
        here += 4 + (long_one ? at<uint16_t>(here + 2) : 0);
    }
}

inline Contents read(const void* image) {
    enum { MAX_THREADS = 0x05, PARAMETER = 0x17, REGISTERS = 0x2f };  // of .nv.info
    enum { SYMBOL_BYTES = 24, OBJECT = 1, FUNCTION = 2, ENTRY = 0x10 };
    std::map<std::string, Section> by_name;
    for (auto& each : sections((const char*)image)) by_name[each.name] = each;
    const Section &symbols = by_name[".symtab"], &strings = by_name[".strtab"];
    std::map<uint32_t, int> registers;
    attributes(by_name[".nv.info"], [&](int attribute, const char* value) {
        if (attribute == REGISTERS) registers[at<uint32_t>(value)] = at<int>(value + 4);
    });
    Contents found;
    for (uint32_t i = 0; i < symbols.bytes / SYMBOL_BYTES; i++) {
        const char* symbol = symbols.data + i * SYMBOL_BYTES;
        std::string name = strings.data + at<uint32_t>(symbol);
        int type = symbol[4] & 15;
        if (type == OBJECT && at<uint16_t>(symbol + 6)) found.variables[name] = at<uint64_t>(symbol + 16);
        if (type != FUNCTION || !(symbol[5] & ENTRY)) continue;
        Function it{name, nullptr, {}, registers[i], (int)by_name[".nv.shared." + name].bytes, 1024, {}};
        std::map<int, std::pair<size_t, size_t>> parameters;  // index -> offset, bytes
        attributes(by_name[".nv.info." + name], [&](int attribute, const char* value) {
            if (attribute == PARAMETER)
                parameters[at<uint16_t>(value + 4)] = {at<uint16_t>(value + 6), at<uint32_t>(value + 8) >> 18};
            if (attribute == MAX_THREADS) it.most_threads = at<int>(value) * at<int>(value + 4) * at<int>(value + 8);
        });
        for (auto& each : parameters) {
            it.offsets.push_back(each.second.first);
            it.sizes.push_back(each.second.second);
        }
        found.functions.push_back(it);
    }
    return found;
}

}  // namespace cubin
