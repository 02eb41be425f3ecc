// Where an access goes, and what it costs: sectors of global memory, wavefronts of shared memory.
#include <algorithm>
#include <cstdio>

#include "launch.h"

namespace counting {
namespace {

std::string hexadecimal(uint64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

// The allocation that holds an access; it fails where none does.
int32_t allocation(Launch& launch, uint64_t address, uint32_t size) {
    const auto* all = launch.request.allocations;
    const auto holds = [&](int32_t at) { return address >= all[at].begin && address + size <= all[at].end; };
    const int32_t count = launch.request.allocation_count;
    if (count > 0 && holds(launch.last)) return launch.last;
    const auto* after = std::upper_bound(all, all + count, address, [](uint64_t a, const Allocation& b) { return a < b.begin; });
    const auto at = static_cast<int32_t>(after - all) - 1;
    if (at < 0 || !holds(at)) fail("an access of " + std::to_string(size) + " bytes at " + hexadecimal(address) + " is outside of every buffer");
    return launch.last = at;
}

// The distinct sectors of an access, in ascending order.
int distinct(const uint64_t* address, uint32_t mask, uint64_t (&sectors)[LANES]) {
    int count = 0;
    bool ascending = true;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const uint64_t sector = address[__builtin_ctz(rest)] >> 5;
        if (count && sectors[count - 1] == sector) continue;
        ascending &= !count || sectors[count - 1] < sector;
        sectors[count++] = sector;
    }
    if (ascending) return count;
    std::sort(sectors, sectors + count);
    return static_cast<int>(std::unique(sectors, sectors + count) - sectors);
}

void count_global(Launch& launch, const Instruction& i, const uint64_t* address, uint32_t mask, int what) {
    const uint32_t size = i.bytes * i.elements;
    Counts& counts = launch.counts(i);
    uint64_t sectors[LANES];
    const int count = distinct(address, mask, sectors);
    const uint64_t bytes = uint64_t(size) * __builtin_popcount(mask);
    (what == 0 ? counts.read_bytes : what == 1 ? counts.write_bytes : counts.atomic_bytes) += bytes;
    (what == 0 ? counts.read_sectors : what == 1 ? counts.write_sectors : counts.atomic_sectors) += count;
    for (int k = 0; k < count; ++k) {
        const int32_t at = allocation(launch, sectors[k] << 5, 1);
        const uint64_t place = sectors[k] - (launch.request.allocations[at].begin >> 5);
        const uint8_t bit = 1 << (place & 7);
        uint8_t& read = launch.request.footprint->read[at][place >> 3];
        uint8_t& written = launch.request.footprint->written[at][place >> 3];
        if (what != 1 && !(written & bit) && !(read & bit)) read |= bit, ++launch.request.new_read_sectors[at];
        if (what != 0 && !(written & bit)) written |= bit, ++launch.request.new_write_sectors[at];
        if (what != 1) launch.cache.touch(sectors[k], false);
        if (what != 0) launch.cache.touch(sectors[k], true);
    }
}

// Words that a bank must deliver one after another, over the lanes of a phase. An atomic's lanes that meet in one word
// take their turns too.
int worst_bank(const uint64_t* offset, uint32_t mask, uint32_t size, bool atomic) {
    uint32_t words[32][32];
    int used[32] = {}, worst = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const uint64_t at = offset[__builtin_ctz(rest)];
        for (uint64_t word = at / 4; word <= (at + size - 1) / 4; ++word) {
            const auto bank = static_cast<uint32_t>(word % 32);
            int k = 0;
            while (!atomic && k < used[bank] && words[bank][k] != word) ++k;
            if (atomic) k = used[bank];
            if (k == used[bank]) words[bank][used[bank]++] = static_cast<uint32_t>(word);
            worst = std::max(worst, used[bank]);
        }
    }
    return worst;
}

void count_shared(Launch& launch, const Instruction& i, const uint64_t* offset, uint32_t mask, bool atomic) {
    const uint32_t size = i.bytes * i.elements;
    const int phases = size <= 4 ? 1 : size <= 8 ? 2 : 4;
    Counts& counts = launch.counts(i);
    for (int phase = 0; phase < phases; ++phase) {
        const int lanes = LANES / phases;
        const uint32_t here = mask & ((lanes == 32 ? ALL : (1u << lanes) - 1) << (phase * lanes));
        if (!here) continue;
        counts.wavefronts += worst_bank(offset, here, size, atomic);
        counts.minimal_wavefronts += 1;
    }
}

}  // namespace

void locate(Warp& w, const Instruction& i, uint32_t mask, int what, uint8_t* (&host)[LANES]) {
    Launch& launch = *w.launch;
    const Request& request = launch.request;
    const uint32_t size = i.bytes * i.elements;
    uint64_t address[LANES];
    if (i.flags & 4) {
        const auto* base = w.in<uint64_t>(i.a);
        for (int lane = 0; lane < LANES; ++lane) address[lane] = base[lane] + i.immediate;
    } else {
        const auto* base = w.in<uint32_t>(i.a);
        for (int lane = 0; lane < LANES; ++lane) address[lane] = uint32_t(base[lane] + i.immediate);
    }
    uint64_t wrong = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) wrong |= address[__builtin_ctz(rest)];
    if (wrong & (size - 1)) fail("a misaligned access of " + std::to_string(size) + " bytes");

    const auto window = [&](uint8_t* begin, uint64_t bytes, const char* name, uint32_t lanes) {
        for (uint32_t rest = lanes; rest; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            if (address[lane] + size > bytes || address[lane] > bytes)
                fail("an access of " + std::to_string(size) + " bytes at " + hexadecimal(address[lane]) + " of " + std::to_string(bytes) + " bytes of " + name);
            host[lane] = begin + address[lane];
        }
    };
    const auto local = [&](uint32_t lanes) {
        launch.counts(i).local_bytes += uint64_t(size) * __builtin_popcount(lanes);
        for (uint32_t rest = lanes; rest; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            window(w.local + lane * request.local_bytes, request.local_bytes, "local memory", 1u << lane);
        }
    };
    const auto shared = [&](uint32_t lanes) {
        window(w.block->shared.data(), request.shared_bytes, "shared memory", lanes);
        count_shared(launch, i, address, lanes, what == 2);
    };
    const auto global = [&](uint32_t lanes) {
        for (uint32_t rest = lanes; rest; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            allocation(launch, address[lane], size);
            host[lane] = reinterpret_cast<uint8_t*>(address[lane]);
        }
        count_global(launch, i, address, lanes, what);
    };
    switch (i.space) {
        case GLOBAL: return global(mask);
        case SHARED: return shared(mask);
        case LOCAL: return local(mask);
        case PARAMETER: return window(const_cast<uint8_t*>(request.parameters), request.parameter_bytes, "parameters", mask);
        case CONSTANT: return window(const_cast<uint8_t*>(request.constant_bank), request.constant_bank_bytes, "constant memory", mask);
        default: break;
    }
    // Generic: whose window the address is in.
    const auto begins = [](const uint8_t* p) { return reinterpret_cast<uint64_t>(p); };
    const struct { uint64_t begin, bytes; } windows[] = {
        {begins(w.block->shared.data()), static_cast<uint64_t>(request.shared_bytes)},
        {begins(w.local), static_cast<uint64_t>(request.local_bytes) * LANES},
        {begins(request.parameters), static_cast<uint64_t>(request.parameter_bytes)},
        {begins(request.constant_bank), static_cast<uint64_t>(request.constant_bank_bytes)},
    };
    uint32_t in[5] = {};
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        int k = 0;
        while (k < 4 && address[lane] - windows[k].begin >= windows[k].bytes) ++k;
        in[k] |= 1u << lane;
        if (k == 1) address[lane] -= windows[1].begin + uint64_t(lane) * request.local_bytes;
        else if (k < 4) address[lane] -= windows[k].begin;
    }
    if (in[0]) shared(in[0]);
    if (in[1]) local(in[1]);
    if (in[2]) window(const_cast<uint8_t*>(request.parameters), request.parameter_bytes, "parameters", in[2]);
    if (in[3]) window(const_cast<uint8_t*>(request.constant_bank), request.constant_bank_bytes, "constant memory", in[3]);
    if (in[4]) global(in[4]);
}

}  // namespace counting
