// Where an access goes, and what it costs: sectors of global memory, wavefronts of shared memory.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "launch.h"

namespace counting {
namespace {

std::string hexadecimal(uint64_t value) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

// The number of the allocation that holds all of an access, -1: none does.
int32_t holding(Launch& launch, uint64_t begin, uint64_t end) {
    const auto* all = launch.request.allocations;
    const auto holds = [&](int32_t at) { return begin >= all[at].begin && end <= all[at].end; };
    const int32_t count = launch.request.allocation_count;
    if (count > 0 && holds(launch.last)) return launch.last;
    const auto* after = std::upper_bound(all, all + count, begin, [](uint64_t a, const Allocation& b) { return a < b.begin; });
    const auto at = static_cast<int32_t>(after - all) - 1;
    return at >= 0 && holds(at) ? launch.last = at : -1;
}

// The same of an access that has to be in one.
int32_t allocation(Launch& launch, uint64_t address, uint32_t size) {
    const int32_t at = holding(launch, address, address + size);
    if (at < 0) fail("an access of " + std::to_string(size) + " bytes at " + hexadecimal(address) + " is outside of every buffer");
    return at;
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

void touch(Launch& launch, uint64_t sector, int what) {
    const int32_t at = allocation(launch, sector << 5, 1);
    const uint64_t place = sector - (launch.request.allocations[at].begin >> 5);
    const uint8_t bit = 1 << (place & 7);
    uint8_t& read = launch.request.footprint->read[at][place >> 3];
    uint8_t& written = launch.request.footprint->written[at][place >> 3];
    if (what != WRITE && !(written & bit) && !(read & bit)) read |= bit, ++launch.request.new_read_sectors[at];
    if (what != READ && !(written & bit)) written |= bit, ++launch.request.new_write_sectors[at];
    if (what != WRITE) launch.cache.touch(sector, false);
    if (what != READ) launch.cache.touch(sector, true);
}

void count_bytes(Counts& counts, int what, uint64_t bytes, uint64_t sectors) {
    (what == READ ? counts.read_bytes : what == WRITE ? counts.write_bytes : counts.atomic_bytes) += bytes;
    (what == READ ? counts.read_sectors : what == WRITE ? counts.write_sectors : counts.atomic_sectors) += sectors;
}

void count_global(Launch& launch, const Instruction& i, const uint64_t* address, uint32_t mask, int what, uint32_t size) {
    uint64_t sectors[LANES];
    const int count = distinct(address, mask, sectors);
    count_bytes(launch.counts(i), what, uint64_t(size) * __builtin_popcount(mask), count);
    for (int k = 0; k < count; ++k) touch(launch, sectors[k], what);
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

void count_shared(Launch& launch, const Instruction& i, const uint64_t* offset, uint32_t mask, bool atomic, uint32_t size) {
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

[[noreturn]] void outside(uint64_t address, uint64_t size, uint64_t bytes, const char* name) {
    fail("an access of " + std::to_string(size) + " bytes at " + hexadecimal(address) + " of " + std::to_string(bytes) + " bytes of " + name);
}

// A generic address is the host's. Its space, and the address in it.
uint8_t window(const Warp& w, int lane, uint64_t& address) {
    const Request& request = w.launch->request;
    const auto begins = [](const uint8_t* p) { return reinterpret_cast<uint64_t>(p); };
    const struct { uint8_t space; uint64_t begin, bytes; } windows[] = {
        {LOCAL, begins(w.local), static_cast<uint64_t>(request.local_bytes) * LANES},
        {PARAMETER, begins(request.parameters), static_cast<uint64_t>(request.parameter_bytes)},
        {CONSTANT, begins(request.constant_bank), static_cast<uint64_t>(request.constant_bank_bytes)},
    };
    for (const auto& block : w.block->cluster->blocks)
        if (address - begins(block->shared) < static_cast<uint64_t>(request.shared_bytes)) {
            address -= begins(block->shared);
            if (block.get() != w.block) address = seen_from_others(block->rank, address);
            return SHARED;
        }
    for (const auto& each : windows)
        if (address - each.begin < each.bytes) {
            address -= each.begin + (each.space == LOCAL ? uint64_t(lane) * request.local_bytes : 0);
            return each.space;
        }
    return GLOBAL;
}

// Where the host has address 0 of a space, if all lanes' accesses lie in one piece there: one allocation, shared memory
// of a block without others in its cluster, parameters, constants. Else each lane has to be looked at.
std::optional<uint64_t> whole(const Warp& w, uint8_t space, uint64_t begin, uint64_t end) {
    const Request& request = w.launch->request;
    const auto within = [end](const uint8_t* base, int64_t bytes) {
        return end <= static_cast<uint64_t>(bytes) ? std::optional(reinterpret_cast<uint64_t>(base)) : std::nullopt;
    };
    switch (space) {
        case GENERIC: case GLOBAL: return holding(*w.launch, begin, end) >= 0 ? std::optional<uint64_t>(0) : std::nullopt;
        case SHARED: return w.block->cluster->blocks.size() == 1 ? within(w.block->shared, request.shared_bytes) : std::nullopt;
        case PARAMETER: return within(request.parameters, request.parameter_bytes);
        case CONSTANT: return within(request.constant_bank, request.constant_bank_bytes);
        default: return {};
    }
}

// The host's memory behind an address of a space that is not generic; fails where that is not all there.
uint8_t* behind(Warp& w, int lane, uint8_t space, uint64_t address, uint64_t size) {
    const Request& request = w.launch->request;
    const auto within = [&](const uint8_t* begin, uint64_t bytes, const char* name) {
        if (address + size > bytes || address > bytes) outside(address, size, bytes, name);
        return const_cast<uint8_t*>(begin) + address;
    };
    switch (space) {
        case SHARED: {
            const Block& block = owner(w, address);
            if (block.over()) fail("an access to shared memory of a block of the cluster that has ended");
            return within(block.shared, request.shared_bytes, "shared memory");
        }
        case LOCAL: case ARGUMENT: return within(w.local + lane * request.local_bytes, request.local_bytes, "local memory");
        case PARAMETER: return within(request.parameters, request.parameter_bytes, "parameters");
        case CONSTANT: return within(request.constant_bank, request.constant_bank_bytes, "constant memory");
        default: allocation(*w.launch, address, size); return reinterpret_cast<uint8_t*>(address);
    }
}

}  // namespace

void addresses(Warp& w, int32_t place, bool wide, int64_t offset, uint64_t (&address)[LANES]) {
    if (wide) {
        const auto* base = w.in<uint64_t>(place);
        for (int lane = 0; lane < LANES; ++lane) address[lane] = base[lane] + offset;
    } else {
        const auto* base = w.in<uint32_t>(place);
        for (int lane = 0; lane < LANES; ++lane) address[lane] = uint32_t(base[lane] + offset);
    }
}

void locate(Warp& w, const Instruction& i, uint32_t mask, int what, uint8_t* (&host)[LANES]) {
    uint64_t address[LANES];
    addresses(w, i.a, i.flags & 4, i.immediate, address);
    spread(w, i, mask, what, i.space, i.bytes * i.elements, address, host);
}

void spread(Warp& w, const Instruction& i, uint32_t mask, int what, uint8_t space, uint32_t size, uint64_t (&address)[LANES], uint8_t* (&host)[LANES]) {
    Launch& launch = *w.launch;
    uint64_t wrong = 0, least = ~uint64_t(0), most = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const uint64_t each = address[__builtin_ctz(rest)];
        wrong |= each, least = std::min(least, each), most = std::max(most, each);
    }
    if (wrong & (size - 1)) fail("a misaligned access of " + std::to_string(size) + " bytes");
    if (const auto base = whole(w, space, least, most + size)) {
        for (int lane = 0; lane < LANES; ++lane) host[lane] = reinterpret_cast<uint8_t*>(*base + address[lane]);
        if (launch.request.threads) return;
        if (space == SHARED) count_shared(launch, i, address, mask, what == ATOMIC, size);
        else if (space <= GLOBAL) count_global(launch, i, address, mask, what, size);
        return;
    }
    uint32_t in[ARGUMENT + 1] = {};
    if (space != GENERIC) in[space] = mask;
    else
        for (uint32_t rest = mask; rest; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            in[window(w, lane, address[lane])] |= 1u << lane;
        }
    for (uint8_t each = GLOBAL; each <= ARGUMENT; ++each) {
        for (uint32_t rest = in[each]; rest; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            host[lane] = behind(w, lane, each, address[lane], size);
        }
    }
    if (launch.request.threads) return;
    if (in[GLOBAL]) count_global(launch, i, address, in[GLOBAL], what, size);
    if (in[SHARED]) count_shared(launch, i, address, in[SHARED], what == ATOMIC, size);
    if (in[LOCAL]) launch.counts(i).local_bytes += uint64_t(size) * __builtin_popcount(in[LOCAL]);
}

uint8_t* plain(Warp& w, int lane, uint8_t space, uint64_t address, uint64_t size) {
    if (space == GENERIC) space = window(w, lane, address);
    return behind(w, lane, space, address, size);
}

uint8_t* stretch(Warp& w, const Instruction& i, int lane, int what, uint8_t space, uint64_t address, uint64_t size) {
    if (space == GENERIC) space = window(w, lane, address);
    uint8_t* host = behind(w, lane, space, address, size);
    if (w.launch->request.threads) return host;
    Counts& counts = w.launch->counts(i);
    if (space == GLOBAL && size) {
        const uint64_t first = address >> 5, last = (address + size - 1) >> 5;
        count_bytes(counts, what, size, last - first + 1);
        for (uint64_t sector = first; sector <= last; ++sector) touch(*w.launch, sector, what);
    } else if (space == SHARED) {
        counts.wavefronts += (size + 127) / 128;
        counts.minimal_wavefronts += (size + 127) / 128;
    } else if (space == LOCAL) {
        counts.local_bytes += size;
    }
    return host;
}

uint8_t space_of(const Warp& w, int lane, uint64_t& address) { return window(w, lane, address); }

uint32_t shared_address(const Warp& w, uint8_t space, uint64_t address) {
    if ((space == GENERIC ? window(w, 0, address) : space) != SHARED) fail("an address that is not in shared memory");
    return static_cast<uint32_t>(address);
}

Block& owner(const Warp& w, uint64_t& address) {
    const auto& all = w.block->cluster->blocks;
    const uint64_t rank = address >> RANK_SHIFT;
    if (rank == 0 || rank > all.size()) return *w.block;
    address &= (1u << RANK_SHIFT) - 1;
    return *all[rank - 1];
}

}  // namespace counting
