// Runs the blocks of a launch, so many at a time, warp after warp.
#include "launch.h"

#include <algorithm>
#include <unordered_map>

namespace counting {
namespace {

struct Named {
    std::string name;
    Operation operation;
};

std::vector<Named>& table() {
    static std::vector<Named> all;
    return all;
}

std::unordered_map<std::string, int>& numbers() {
    static std::unordered_map<std::string, int> all;
    return all;
}

// Of bar.*: `immediate` says which: 0 sync, 1 arrive, 2 red.popc, 3 red.and, 4 red.or.
enum : int64_t { SYNC, ARRIVE, POPULATION, EVERY, SOME };

class Runner {
   public:
    explicit Runner(Launch& launch) : launch_(launch), request_(launch.request) {}

    void run() {
        const int64_t together = request_.cooperative ? request_.block_count : std::min<int64_t>(request_.resident, request_.block_count);
        std::vector<std::unique_ptr<Block>> blocks;
        int64_t next = 0;
        for (; next < together; ++next) blocks.push_back(begin(taken(), request_.blocks[next]));
        size_t left = blocks.size();
        while (left > 0) {
            bool moved = false;
            for (auto& block : blocks) {
                if (!block) continue;
                moved |= turn(*block);
                if (block->ended < static_cast<int32_t>(block->warps.size())) continue;
                request_.shortest_block = std::min(request_.shortest_block, block->issued);
                if (next < request_.block_count) block = begin(std::move(block), request_.blocks[next++]);
                else request_.footprint->spare.push_back(std::move(block)), --left;
            }
            if (!moved) fail("deadlock: every warp waits at a barrier");
        }
    }

    int32_t at = 0;  // the instruction that runs

   private:
    std::unique_ptr<Block> taken() {
        auto& spare = request_.footprint->spare;
        if (spare.empty()) return std::make_unique<Block>();
        auto found = std::move(spare.back());
        spare.pop_back();
        return found;
    }

    std::unique_ptr<Block> begin(std::unique_ptr<Block> block, int64_t index) {
        const uint32_t* grid = request_.grid;
        const uint32_t* dim = request_.block;
        block->index[0] = index % grid[0], block->index[1] = index / grid[0] % grid[1], block->index[2] = index / grid[0] / grid[1];
        const uint32_t threads = dim[0] * dim[1] * dim[2], warps = (threads + LANES - 1) / LANES;
        block->shared.assign(request_.shared_bytes + 16, 0xcd);
        block->registers.assign(size_t(warps) * request_.register_bytes, 0);
        block->local.assign(size_t(warps) * LANES * request_.local_bytes, 0xcd);
        block->warps.resize(warps);
        block->ended = 0;
        block->issued = 0;
        for (Barrier& each : block->barriers) each = Barrier();
        for (uint32_t k = 0; k < warps; ++k) {
            Warp& w = block->warps[k];
            w.registers = block->registers.data() + size_t(k) * request_.register_bytes;
            w.constants = request_.constants;
            w.block = block.get(), w.launch = &launch_;
            w.local = block->local.data() + size_t(k) * LANES * request_.local_bytes;
            w.pc = 0, w.until = -1, w.index = static_cast<int32_t>(k), w.state = State::READY;
            w.below.clear();
            w.gave_way = false;
            const uint32_t here = std::min<uint32_t>(LANES, threads - k * LANES);
            w.live = w.active = here == LANES ? ALL : (1u << here) - 1;
            specials(w);
        }
        return block;
    }

    void specials(Warp& w) {
        const uint32_t *dim = request_.block, *grid = request_.grid;
        for (int32_t k = 0; k < request_.special_count; ++k) {
            const auto& each = request_.specials[k];
            auto* to = w.out<uint32_t>(each.offset);
            for (uint32_t lane = 0; lane < LANES; ++lane) {
                const uint32_t thread = w.index * LANES + lane;
                uint32_t value = 0;
                switch (each.which) {
                    case 0: value = thread % dim[0]; break;
                    case 1: value = thread / dim[0] % dim[1]; break;
                    case 2: value = thread / dim[0] / dim[1]; break;
                    case 3: case 4: case 5: value = dim[each.which - 3]; break;
                    case 6: case 7: case 8: value = w.block->index[each.which - 6]; break;
                    case 9: case 10: case 11: value = grid[each.which - 9]; break;
                    case 12: value = lane; break;
                    case 13: value = w.index; break;
                    case 14: value = 1u << lane; break;
                    case 15: value = (1u << lane) - 1; break;
                    case 16: value = (2u << lane) - 1; break;
                    case 17: value = ~((1u << lane) - 1); break;
                    case 18: value = ~((2u << lane) - 1); break;
                    case 19: value = request_.dynamic_shared_bytes; break;
                    case 20: value = request_.shared_bytes; break;
                    default: break;
                }
                to[lane] = value;
            }
        }
    }

    // Whether any warp of the block did something.
    bool turn(Block& block) {
        bool moved = false;
        for (Warp& w : block.warps)
            if (w.state == State::READY) moved = true, step(w);
        return moved;
    }

    void step(Warp& w) {
        for (int32_t left = request_.turn; left > 0 && w.state == State::READY; --left) {
            while (w.until == w.pc) pop(w);
            const Instruction& i = request_.code[w.pc];
            at = w.pc;
            uint32_t mask = w.active;
            if (i.guard >= 0) mask &= i.negated & 1 ? ~w.predicate(i.guard) : w.predicate(i.guard);
            if (i.counted) {
                Counts& counts = request_.counts[at];
                ++counts.warps;
                ++w.block->issued;
                counts.lanes += __builtin_popcount(w.active);
                if (++launch_.issued == static_cast<uint64_t>(request_.limit)) fail("the limit of instructions is reached");
            }
            switch (i.kind) {
                case PLAIN:
                    if (mask) launch_.operations[at](w, i, mask);
                    ++w.pc;
                    break;
                case BRANCH: branch(w, i, mask); break;
                case EXIT: end(w, mask); break;
                case BARRIER: barrier(w, i, mask); break;
            }
        }
    }

    void pop(Warp& w) {
        const Path path = w.below.back();
        w.below.pop_back();
        w.pc = path.pc, w.until = path.until, w.active = path.mask & w.live;
        w.gave_way = false;
    }

    void branch(Warp& w, const Instruction& i, uint32_t taken) {
        const uint32_t rest = w.active & ~taken;
        if (!taken) {
            ++w.pc;
        } else if (!rest) {
            w.pc = i.target;
        } else {
            int32_t until = w.until;
            if (i.reconverge >= 0 && i.reconverge != w.until) {
                w.below.push_back({i.reconverge, w.until, w.active});
                until = i.reconverge;
            }
            w.below.push_back({w.pc + 1, until, rest});
            w.pc = i.target, w.until = until, w.active = taken;
        }
    }

    void end(Warp& w, uint32_t mask) {
        w.live &= ~mask, w.active &= ~mask;
        if (w.active) {
            ++w.pc;
            return;
        }
        while (!w.active && !w.below.empty()) pop(w);
        if (w.active) return;
        w.state = State::DONE;
        Block& block = *w.block;
        ++block.ended;
        for (Barrier& each : block.barriers)
            if (each.arrived && !each.expected) settle(block, each);
    }

    static int32_t living(const Block& block) {
        int32_t found = 0;
        for (const Warp& each : block.warps) found += each.state == State::DONE ? 0 : LANES;
        return found;
    }

    // Lets lanes that wait for their turn run before those at a barrier: they may be on their way to the end, and the
    // dead are not waited for. Whether there were any.
    bool give_way(Warp& w, const Instruction& i) {
        for (size_t k = w.below.size(); !w.gave_way && k-- > 0;) {
            const Path other = w.below[k];
            if (!(other.mask & w.live) || other.mask & w.active) continue;
            w.below.erase(w.below.begin() + static_cast<std::ptrdiff_t>(k));
            w.below.push_back({w.pc, w.until, w.active});
            if (i.counted) {  // it comes again
                Counts& counts = request_.counts[at];
                --counts.warps, --w.block->issued, --launch_.issued;
                counts.lanes -= static_cast<uint64_t>(__builtin_popcount(w.active));
            }
            w.pc = other.pc, w.until = other.until, w.active = other.mask & w.live;
            return w.gave_way = true;
        }
        return false;
    }

    // Ends the lanes that wait for the others where nothing but the end is left: compilers let all end at one place.
    void let_go(Warp& w) {
        uint32_t elsewhere = w.active;
        for (size_t k = w.below.size(); k-- > 0; elsewhere |= w.below[k].mask) {
            const Path& path = w.below[k];
            const Instruction& end = request_.code[path.pc];
            const uint32_t waiting = path.mask & w.live & ~elsewhere;
            if (end.kind != EXIT || end.guard >= 0 || !waiting || !(path.mask & w.active)) continue;
            w.live &= ~waiting;
            Counts& counts = request_.counts[path.pc];
            ++counts.warps, ++w.block->issued, ++launch_.issued;
            counts.lanes += static_cast<uint64_t>(__builtin_popcount(waiting));
        }
    }

    void barrier(Warp& w, const Instruction& i, uint32_t mask) {
        if (!mask) {
            ++w.pc;
            return;
        }
        if (mask != w.live) let_go(w);
        if (mask != w.live) {
            if (!give_way(w, i)) fail("a barrier that not all lanes of a warp reach together");
            return;
        }
        const uint32_t id = w.in<uint32_t>(i.a)[__builtin_ctz(mask)];
        const uint32_t count = i.b == INT32_MIN ? 0 : w.in<uint32_t>(i.b)[__builtin_ctz(mask)];
        if (id >= 16 || count % LANES) fail("a barrier whose id is above 15, or its count no multiple of 32");
        Block& block = *w.block;
        Barrier& barrier = block.barriers[id];
        if (barrier.arrived && barrier.expected != static_cast<int32_t>(count)) fail("a barrier at which warps wait with different counts");
        barrier.expected = static_cast<int32_t>(count);
        barrier.arrived += LANES;
        if (i.immediate >= POPULATION) {
            const uint32_t held = w.predicate(i.c);
            barrier.count += __builtin_popcount((i.negated & 2 ? ~held : held) & mask);
            barrier.voted += __builtin_popcount(mask);
        }
        if (i.immediate == ARRIVE) ++w.pc;
        else w.state = State::WAITING;
        settle(block, barrier);
    }

    // Lets those at a barrier go where all have come.
    void settle(Block& block, Barrier& barrier) {
        const int32_t wanted = barrier.expected ? barrier.expected : living(block);
        if (barrier.arrived < wanted) return;
        const auto id = static_cast<uint32_t>(&barrier - block.barriers);
        for (Warp& w : block.warps) {
            if (w.state != State::WAITING) continue;
            const Instruction& i = request_.code[w.pc];
            if (w.in<uint32_t>(i.a)[__builtin_ctz(w.active)] != id) continue;
            if (i.immediate == POPULATION) {
                auto* d = w.out<uint32_t>(i.d);
                for (int lane = 0; lane < LANES; ++lane)
                    if (w.active >> lane & 1) d[lane] = barrier.count;
            } else if (i.immediate > POPULATION) {
                const bool found = i.immediate == SOME ? barrier.count > 0 : barrier.count == static_cast<uint32_t>(barrier.voted);
                w.set_predicate(i.d, found ? ALL : 0, w.active);
            }
            w.state = State::READY;
            ++w.pc;
        }
        barrier = Barrier();
    }

    Launch& launch_;
    Request& request_;
};

thread_local std::string message;

}  // namespace

void add_operation(const std::string& name, Operation operation) {
    numbers()[name] = static_cast<int>(table().size());
    table().push_back({name, operation});
}

void fail(const std::string& text) { throw Failure{text}; }

Launch::Launch(Request& request, Cache& cache) : request(request), cache(cache) {
    for (int32_t k = 0; k < request.instructions; ++k) operations.push_back(request.code[k].operation < 0 ? nullptr : table()[request.code[k].operation].operation);
}

}  // namespace counting

using namespace counting;

extern "C" {

void counting_begin() {
    if (!table().empty()) return;
    add_integers(), add_floats(), add_conversions(), add_memory(), add_warp();
}

// The number of an operation; -1: there is none of that name.
int counting_operation(const char* name) {
    const auto found = numbers().find(name);
    return found == numbers().end() ? -1 : found->second;
}

int counting_sizes(int which) { return which == 0 ? sizeof(Instruction) : which == 1 ? sizeof(Counts) : sizeof(Request); }

Cache* counting_cache(uint64_t bytes) { return new Cache(bytes); }
void counting_cache_end(Cache* cache) { delete cache; }
void counting_cache_flush(Cache* cache) { cache->flush(); }
void counting_cache_mark(Cache* cache) { cache->mark(); }
int counting_cache_renewed(Cache* cache) { return cache->renewed(); }
void counting_cache_hold(Cache* cache, uint64_t begin, uint64_t end, int write) {
    for (uint64_t sector = begin >> 5; sector < (end + 31) >> 5; ++sector) cache->hold(sector, write != 0);
}
void counting_begin_launch(Cache* cache) { cache->begin_launch(); }

Footprint* counting_footprint(const Allocation* allocations, int32_t count) {
    auto* made = new Footprint();
    for (int32_t k = 0; k < count; ++k) {
        const uint64_t sectors = ((allocations[k].end + 31) >> 5) - (allocations[k].begin >> 5);
        made->read.emplace_back(sectors / 8 + 1, 0), made->written.emplace_back(sectors / 8 + 1, 0);
    }
    return made;
}
void counting_footprint_end(Footprint* footprint) { delete footprint; }

uint64_t counting_dram_bytes(Cache* cache, int launch, int write) {
    const Traffic& of = cache->traffic()[launch];
    return write ? of.dram_write_bytes : of.dram_read_bytes;
}

// Runs blocks of the launch that was begun last. nullptr: they ran to their ends; else why not, and `at` is the
// instruction.
const char* counting_launch(Cache* cache, Request* request, int32_t* at) {
    Launch launch(*request, *cache);
    Runner runner(launch);
    try {
        runner.run();
    } catch (const Failure& failure) {
        message = failure.text;
        *at = runner.at;
        return message.c_str();
    }
    return nullptr;
}
}
