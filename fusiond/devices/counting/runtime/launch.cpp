// Runs the blocks of a launch, so many at a time, warp after warp.
#include "launch.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace counting {
namespace {

std::vector<Operation>& table() {
    static std::vector<Operation> all;
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

    // Runs clusters from `next` on, so many at a time, until there is none left, or somebody has failed.
    void run(std::atomic<int64_t>& next, int64_t together, std::atomic<bool>& failed) {
        const int64_t each = cluster_size(request_), count = request_.block_count / each;
        std::vector<Cluster> clusters(together);
        int64_t left = 0;
        for (int64_t place = 0; place < together; ++place) left += started(clusters[place], next, place, count, each);
        while (left > 0) {
            bool moved = false;
            for (int64_t place = 0; place < together; ++place) {
                Cluster& cluster = clusters[place];
                if (cluster.blocks.empty()) continue;
                for (auto& block : cluster.blocks) moved |= turn(*block);
                if (!cluster.over()) continue;
                for (auto& block : cluster.blocks) {
                    if (!request_.threads) request_.shortest_block = std::min(request_.shortest_block, block->issued);
                    launch_.spare.push_back(std::move(block));
                }
                cluster = Cluster();
                if (!started(cluster, next, place, count, each)) --left;
            }
            if (!moved && !awaken(clusters)) fail("deadlock: " + waiting(clusters));
            if (failed) return;
        }
    }

    static int64_t cluster_size(const Request& request) { return int64_t(request.cluster[0]) * request.cluster[1] * request.cluster[2]; }

    int32_t at = 0;  // the instruction that runs

   private:
    // Whether there was a cluster left to begin.
    bool started(Cluster& cluster, std::atomic<int64_t>& next, int64_t place, int64_t count, int64_t each) {
        const int64_t number = next++;
        if (number < count) begin(cluster, number, place, each);
        return number < count;
    }

    std::unique_ptr<Block> taken() {
        auto& spare = launch_.spare;
        if (spare.empty()) return std::make_unique<Block>();
        auto found = std::move(spare.back());
        spare.pop_back();
        return found;
    }

    // The cluster of that number of those that are run; `place`: which of those that run together.
    void begin(Cluster& cluster, int64_t number, int64_t place, int64_t size) {
        cluster.blocks.resize(size);
        for (int64_t k = 0; k < size; ++k) {
            const int64_t index = request_.blocks[number * size + k];
            cluster.blocks[index % size] = begin(index, place * size + index % size, cluster, static_cast<uint32_t>(index % size));
        }
    }

    std::unique_ptr<Block> begin(int64_t index, int64_t place, Cluster& cluster, uint32_t rank) {
        auto block = taken();
        const uint32_t* dim = request_.block;
        int64_t outer = index / cluster.blocks.size(), inner = rank;  // of all clusters, and in this one
        for (int axis = 0; axis < 3; ++axis) {
            const int64_t wide = request_.cluster[axis], clusters = request_.grid[axis] / wide;
            block->place[axis] = static_cast<uint32_t>(inner % wide);
            block->index[axis] = static_cast<uint32_t>(outer % clusters * wide) + block->place[axis];
            outer /= clusters, inner /= wide;
        }
        block->cluster = &cluster, block->rank = rank;
        block->multiprocessor = place % request_.multiprocessors;
        const uint32_t threads = dim[0] * dim[1] * dim[2], warps = (threads + LANES - 1) / LANES;
        block->shared_room.assign(request_.shared_bytes + 1040, 0xcd);
        block->shared = block->shared_room.data() + (-reinterpret_cast<uintptr_t>(block->shared_room.data()) & 1023);
        std::fill(block->cluster_arrived, block->cluster_arrived + LANES, 0);
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
            w.gave_way = w.refused = false;
            w.stalled = 0, w.events = ~uint64_t(0);
            const uint32_t here = std::min<uint32_t>(LANES, threads - k * LANES);
            w.live = w.active = here == LANES ? ALL : (1u << here) - 1;
            w.others = 0;
            specials(w);
        }
        return block;
    }

    void specials(Warp& w) {
        const uint32_t *dim = request_.block, *grid = request_.grid, *cluster = request_.cluster;
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
                    case 21: value = w.block->multiprocessor; break;
                    case 22: value = request_.multiprocessors; break;
                    case 23: case 24: case 25: value = w.block->place[each.which - 23]; break;
                    case 26: case 27: case 28: value = cluster[each.which - 26]; break;
                    case 29: case 30: case 31: value = w.block->index[each.which - 29] / cluster[each.which - 29]; break;
                    case 32: case 33: case 34: value = grid[each.which - 32] / cluster[each.which - 32]; break;
                    case 35: value = w.block->rank; break;
                    case 36: value = static_cast<uint32_t>(w.block->cluster->blocks.size()); break;
                    default: break;
                }
                to[lane] = value;
            }
        }
    }

    // Whether any warp of the block did something.
    bool turn(Block& block) {
        bool moved = false;
        const size_t begun = block.warps.size();
        for (size_t k = 0; k < block.warps.size(); ++k) {  // there may be more of them meanwhile
            Warp& w = block.warps[request_.backwards && k < begun ? begun - 1 - k : k];
            if (w.state == State::JOINING && rejoin(w)) moved = true;
            if (w.state == State::ASLEEP && w.phases != block.cluster->phases) w.state = State::READY;
            if (w.state == State::READY) moved = true, step(w);
        }
        return moved;
    }

    // Nobody can go on but by a wait that gives up, as the GPU's may: each may once, until something has happened.
    bool awaken(std::vector<Cluster>& clusters) {
        bool found = false;
        for (auto& cluster : clusters)
            for (auto& block : cluster.blocks)
                for (Warp& w : block->warps) {
                    if (w.state != State::ASLEEP || w.events == launch_.events) continue;
                    w.state = State::READY, w.refused = found = true, w.events = launch_.events;
                }
        return found;
    }

    static std::string waiting(const std::vector<Cluster>& clusters) {
        std::vector<const Warp*> all;
        for (const auto& cluster : clusters)
            for (const auto& block : cluster.blocks)
                for (const Warp& w : block->warps)
                    if (w.state != State::DONE) all.push_back(&w);
        std::string text;
        for (size_t k = 0; k < all.size(); ++k) {
            if (k == 4) return text + ", ...";
            const Warp& w = *all[k];
            const bool barred = w.state == State::WAITING;
            text += (text.empty() ? "" : ", ") + std::to_string(__builtin_popcount(w.active)) + " lanes of warp " + std::to_string(w.index) +
                    (barred ? " wait at barrier " + std::to_string(w.barrier) : w.state == State::ASLEEP ? " wait for a phase of an mbarrier or a cluster" : " wait for other lanes of it");
        }
        return text;
    }

    void step(Warp& w) {
        for (int32_t left = request_.turn; left > 0 && w.state == State::READY; --left) {
            while (w.until == w.pc)
                if (!rejoin(w)) return;
            const Instruction& i = request_.code[w.pc];
            at = w.pc;
            uint32_t mask = w.active;
            if (i.guard >= 0) mask &= i.negated & 1 ? ~w.predicate(i.guard) : w.predicate(i.guard);
            if (i.counted) {
                count(at, 1, w.active);
                ++w.block->issued;
                if (++launch_.issued == static_cast<uint64_t>(request_.limit)) fail("the limit of instructions is reached");
            }
            switch (i.kind) {
                case PLAIN:
                    if (mask && !operate(w, i, mask)) break;
                    ++w.pc;
                    break;
                case BRANCH: branch(w, i, mask); break;
                case EXIT: end(w, mask); break;
                case BARRIER: barrier(w, i, mask); break;
            }
        }
    }

    // False: it is to be done again, together with other strands.
    bool operate(Warp& w, const Instruction& i, uint32_t mask) {
        if (!w.others) {
            launch_.operations[at](w, i, mask);
        } else {
            try {
                launch_.operations[at](w, i, mask);
            } catch (const Elsewhere&) {
                meet(w, i);
                return false;
            }
        }
        if (w.state != State::ASLEEP) return w.stalled = 0, true;
        uncount(w, i, w.active);
        if (!other_path(w)) w.stalled = 0, w.phases = w.block->cluster->phases;
        return false;
    }

    // Of a warp whose active lanes wait: another path of it may be what they wait for. False: all have been tried.
    bool other_path(Warp& w) {
        if (++w.stalled > w.below.size()) return false;
        for (size_t k = 0; k < w.below.size(); ++k)
            if (exchange(w, k)) return w.state = State::READY, true;
        return false;
    }

    // It comes again.
    void uncount(Warp& w, const Instruction& i, uint32_t lanes) {
        if (!i.counted) return;
        --w.block->issued, --launch_.issued;
        count(static_cast<int32_t>(&i - request_.code), -1, lanes);
    }

    // An instruction of a warp, added or taken away.
    void count(int32_t instruction, int sign, uint32_t lanes) {
        if (request_.threads) return;
        Counts& counts = request_.counts[instruction];
        counts.warps += sign, counts.lanes += sign * __builtin_popcount(lanes);
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
                w.below.push_back({i.reconverge, w.until, w.active, ++paths_, true});
                until = i.reconverge;
            }
            w.below.push_back({w.pc + 1, until, rest, ++paths_, false});
            w.pc = i.target, w.until = until, w.active = taken;
        }
    }

    void end(Warp& w, uint32_t mask) {
        w.live &= ~mask, w.active &= ~mask;
        ++launch_.events;
        Block& block = *w.block;
        refresh(w);
        if (w.active) {
            ++w.pc;
        } else {
            while (!w.active && !w.below.empty() && rejoin(w)) {}
            if (!w.active && w.state == State::READY) w.state = State::DONE, ++block.ended;
        }
        siblings(w, [](Warp& each) {  // it may have waited for lanes that have ended
            if (each.state == State::MEETING) each.state = State::READY;
        });
        settle_cluster(*block.cluster);
        if (w.state != State::DONE && !w.others) return;
        for (Barrier& each : block.barriers)
            if (each.users) settle(block, each);
    }

    static int32_t living(const Block& block) {
        uint32_t found = 0;
        for (const Warp& each : block.warps)
            if (each.state != State::DONE) found |= 1u << each.index;
        return __builtin_popcount(found) * LANES;
    }

    // --- strands ---

    template <class F>
    static void siblings(Warp& w, F f) {
        if (!w.others) return;
        for (Warp& each : w.block->warps)
            if (&each != &w && each.index == w.index && each.state != State::DONE) f(each);
    }

    // Tells the other strands of its warp which of its lanes live.
    static void refresh(Warp& w) {
        siblings(w, [](Warp& one) {
            one.others = 0;
            for (const Warp& each : one.block->warps)
                if (&each != &one && each.index == one.index && each.state != State::DONE) one.others |= each.live;
        });
    }

    // Lanes of the active path become a strand of their own, at the same instruction; the rest goes on behind it, or
    // with the next path.
    Warp& part(Warp& w, uint32_t mask) {
        Warp& own = copied(w);
        keep_lanes(own, mask);
        keep_lanes(w, w.live & ~mask);
        own.others |= w.live, w.others |= own.live;
        refresh(own), refresh(w);
        own.state = State::WAITING;
        if (w.active) ++w.pc;
        else rejoin(w);
        return own;
    }

    // In the place of a strand that is part of another one now, if there is one: a loop may part in each iteration.
    static Warp& copied(const Warp& w) {
        Block& block = *w.block;
        for (Warp& each : block.warps) {
            if (each.state != State::DONE || each.index != w.index) continue;
            --block.ended;
            return each = w;
        }
        block.warps.push_back(w);
        return block.warps.back();
    }

    static void keep_lanes(Warp& w, uint32_t mask) {
        w.live &= mask, w.active &= mask;
        for (Path& each : w.below) each.mask &= mask;
        std::erase_if(w.below, [](const Path& each) { return !each.mask; });
    }

    // The places where the active lanes will meet others, from the outermost: positions in `below`.
    static std::vector<size_t> meetings(const Warp& w) {
        std::vector<size_t> found;
        int32_t until = w.until;
        for (size_t k = w.below.size(); k-- > 0;)
            if (w.below[k].meeting && w.below[k].pc == until) until = w.below[k].until, found.insert(found.begin(), k);
        return found;
    }

    // Lanes that took a branch each by themselves, and have met behind it, meet where it ends, too: entries for the
    // same places get one id in all strands of the warp, the smaller, so that they stay below what is to meet there.
    static void unify(Warp& w, Warp& other) {
        const std::vector<size_t> here = meetings(w), there = meetings(other);
        for (size_t k = 0; k < std::min(here.size(), there.size()); ++k) {
            const Path a = w.below[here[k]], b = other.below[there[k]];
            if (a.pc != b.pc || a.until != b.until) return;
            const auto [id, old] = std::minmax(a.id, b.id);
            if (id == old) continue;
            const auto rename = [id = id, old = old](Warp& each) {
                for (Path& path : each.below)
                    if (path.id == old) path.id = id;
            };
            rename(w);
            siblings(w, rename);
        }
        const auto sort = [](Warp& each) { std::ranges::sort(each.below, {}, &Path::id); };
        sort(w);
        siblings(w, sort);
    }

    // The lanes of another strand, which stands at the same place, become part of this one.
    void absorb(Warp& w, Warp& other) {
        unify(w, other);
        w.active |= other.active, w.live |= other.live;
        std::vector<Path> both;
        auto a = w.below.begin();
        for (const Path& each : other.below) {
            while (a != w.below.end() && a->id < each.id) both.push_back(*a++);
            both.push_back(each);
            if (a != w.below.end() && a->id == each.id) both.back().mask |= (a++)->mask;
        }
        both.insert(both.end(), a, w.below.end());
        w.below = std::move(both);
        other.state = State::DONE, other.live = other.active = 0;
        ++w.block->ended;
        w.others &= ~w.live;
        refresh(w);
    }

    // At a place where paths meet: goes on with the path below, with those strands that have come here too. False: some
    // are still on their way.
    bool rejoin(Warp& w) {
        const int64_t here = w.below.back().id;
        bool coming = false;
        siblings(w, [&](Warp& each) {
            if (each.state == State::JOINING && each.below.back().id == here) absorb(w, each);
            else if (each.state == State::READY)
                coming |= std::any_of(each.below.begin(), each.below.end(), [&](const Path& path) { return path.id == here; });
        });
        w.state = coming ? State::JOINING : State::READY;
        if (!coming) pop(w);
        return !coming;
    }

    // Before an instruction for which lanes of other strands are needed: with those that wait for that too, or waits.
    void meet(Warp& w, const Instruction& i) {
        uncount(w, i, w.active);
        w.state = State::MEETING;
        siblings(w, [&](Warp& each) {
            if (each.state == State::MEETING && each.pc == w.pc && each.until == w.until) absorb(w, each), w.state = State::READY;
        });
    }

    // Lets lanes that wait for their turn run before those at a barrier: they may be on their way to the end, and the
    // dead are not waited for. Whether there were any.
    bool give_way(Warp& w, const Instruction& i) {
        for (size_t k = w.below.size(); !w.gave_way && k-- > 0;) {
            const uint32_t lanes = w.active;
            if (!exchange(w, k)) continue;
            uncount(w, i, lanes);
            return w.gave_way = true;
        }
        return false;
    }

    // A path that waits for its turn takes that of the active one.
    bool exchange(Warp& w, size_t k) {
        const Path other = w.below[k];
        if (!(other.mask & w.live) || other.mask & w.active) return false;
        w.below.erase(w.below.begin() + static_cast<std::ptrdiff_t>(k));
        w.below.push_back({w.pc, w.until, w.active, ++paths_, false});
        w.pc = other.pc, w.until = other.until, w.active = other.mask & w.live;
        return true;
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
            ++w.block->issued, ++launch_.issued;
            count(path.pc, 1, waiting);
        }
    }

    void barrier(Warp& w, const Instruction& i, uint32_t mask) {
        if (!mask) {
            ++w.pc;
            return;
        }
        if (mask != w.live) let_go(w);
        if (mask != w.live && give_way(w, i)) return;
        if (i.negated & 4) {
            arrive(mask == w.live ? w : part(w, mask), i, mask);
        } else if (mask != w.live) {
            fail("a barrier that not all lanes of a warp reach together");
        } else if (w.others) {
            meet(w, i);
        } else {
            arrive(w, i, mask);
        }
    }

    void arrive(Warp& w, const Instruction& i, uint32_t mask) {
        const uint32_t id = w.in<uint32_t>(i.a)[__builtin_ctz(mask)];
        const uint32_t count = i.b == INT32_MIN ? 0 : w.in<uint32_t>(i.b)[__builtin_ctz(mask)];
        if (id >= 16 || count % LANES) fail("a barrier whose id is above 15, or its count no multiple of 32");
        Block& block = *w.block;
        Barrier& barrier = block.barriers[id];
        if (barrier.users && barrier.expected != static_cast<int32_t>(count)) fail("a barrier at which warps wait with different counts");
        barrier.expected = static_cast<int32_t>(count);
        ++barrier.users;
        if (i.immediate >= POPULATION) {
            const uint32_t held = w.predicate(i.c);
            barrier.count += __builtin_popcount((i.negated & 2 ? ~held : held) & mask);
            barrier.voted += __builtin_popcount(mask);
        }
        if (i.immediate == ARRIVE) {
            barrier.passed += w.others ? __builtin_popcount(mask) : LANES;
            w.state = State::READY;
            ++w.pc;
        } else {
            w.state = State::WAITING;
            w.barrier = static_cast<uint8_t>(id);
        }
        settle(block, barrier);
    }

    // Threads that have come to a barrier. A warp counts as 32 threads where all its lanes that live are there.
    static int32_t arrived(const Block& block, const Barrier& barrier, uint32_t id) {
        uint32_t here[LANES] = {}, live[LANES] = {};
        for (const Warp& w : block.warps) {
            live[w.index] |= w.live;
            if (w.state == State::WAITING && w.barrier == id) here[w.index] |= w.live;
        }
        int32_t found = barrier.passed;
        for (int k = 0; k < LANES; ++k)
            if (here[k]) found += here[k] == live[k] ? LANES : __builtin_popcount(here[k]);
        return found;
    }

    // Lets those at a barrier go where all have come.
    void settle(Block& block, Barrier& barrier) {
        const auto id = static_cast<uint32_t>(&barrier - block.barriers);
        const int32_t wanted = barrier.expected ? barrier.expected : living(block);
        if (arrived(block, barrier, id) < wanted) return;
        ++launch_.events;
        for (Warp& w : block.warps) {
            if (w.state != State::WAITING || w.barrier != id) continue;
            const Instruction& i = request_.code[w.pc];
            if (i.immediate == POPULATION) {
                auto* d = w.out<uint32_t>(i.d);
                for (int lane = 0; lane < LANES; ++lane)
                    if (w.active >> lane & 1) d[lane] = barrier.count;
            } else if (i.immediate > POPULATION) {
                const bool found = i.immediate == SOME ? barrier.count > 0 : barrier.count == static_cast<uint32_t>(barrier.voted);
                w.set_predicate(i.d, found ? ALL : 0, w.active);
            }
            siblings(w, [&](Warp& each) {  // an earlier one of the warp that stood here
                if (each.state == State::READY && each.pc == w.pc + 1 && each.until == w.until && each.barrier == OPENED) absorb(w, each);
            });
            w.state = State::READY;
            w.barrier = OPENED;
            ++w.pc;
        }
        for (Warp& w : block.warps)
            if (w.barrier == OPENED) w.barrier = 0;
        barrier = Barrier();
    }

    static constexpr uint8_t OPENED = 255;
    int64_t paths_ = 0;
    Launch& launch_;
    Request& request_;
};

thread_local std::string message, printed;

}  // namespace

void add_operation(std::initializer_list<const char*> name, Operation operation) {
    std::string whole;
    for (const char* part : name) whole += part;
    numbers()[whole] = static_cast<int>(table().size());
    table().push_back(operation);
}

void fail(const std::string& text) { throw Failure{text}; }

Launch::Launch(Request& request, Cache& cache) : request(request), cache(cache) {
    for (int32_t k = 0; k < request.instructions; ++k) operations.push_back(request.code[k].operation < 0 ? nullptr : table()[request.code[k].operation]);
}

}  // namespace counting

using namespace counting;

extern "C" {

void counting_begin() {
    if (!table().empty()) return;
    add_integers(), add_floats(), add_conversions(), add_memory(), add_warp(), add_packed(), add_matrices(), add_transfers(), add_calls();
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
// instruction. Blocks begin in their order whoever runs them, so that a block may wait for one before it.
const char* counting_launch(Cache* cache, Request* request, int32_t* at) {
    const int64_t each = Runner::cluster_size(*request), count = request->block_count / each;
    const int64_t together = request->cooperative ? count : std::min<int64_t>(std::max<int64_t>(request->resident / each, 1), count);
    const int64_t threads = std::min<int64_t>(std::max(request->threads, 1), together);
    std::atomic<int64_t> next = 0;
    std::atomic<bool> failed = false;
    std::mutex lock;
    std::string why, all;
    const auto run = [&](int64_t share) {
        Launch launch(*request, *cache);
        Runner runner(launch);
        try {
            runner.run(next, share, failed);
        } catch (const Failure& failure) {
            const std::lock_guard held(lock);
            if (!failed.exchange(true)) why = failure.text, *at = runner.at;
        }
        const std::lock_guard held(lock);
        all += launch.printed;
    };
    std::vector<std::thread> others;
    for (int64_t k = 1; k < threads; ++k) others.emplace_back(run, together / threads + (k < together % threads));
    run(together / threads + (together % threads > 0));
    for (auto& thread : others) thread.join();
    message = std::move(why), printed = std::move(all);
    return failed ? message.c_str() : nullptr;
}

// What the kernels of this thread's last launch printed, and how much it is.
const char* counting_printed(int64_t* bytes) {
    *bytes = static_cast<int64_t>(printed.size());
    return printed.data();
}
}
