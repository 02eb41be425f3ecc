// The two functions that a kernel has from the driver: printf and what assert calls.
#include <cstdio>

#include "launch.h"

namespace counting {
namespace {

std::string text_at(Warp& w, int lane, uint64_t address) {
    std::string found;
    while (found.size() < 4096) {
        const char next = static_cast<char>(*plain(w, lane, GENERIC, address + found.size(), 1));
        if (!next) break;
        found += next;
    }
    return found;
}

void failed_assertion(Warp& w, const Instruction& i, uint32_t mask) {
    const int lane = __builtin_ctz(mask);
    fail("assertion failed: " + text_at(w, lane, w.in<uint64_t>(i.a)[lane]) + " (" + text_at(w, lane, w.in<uint64_t>(i.b)[lane]) + ":" +
         std::to_string(w.in<uint32_t>(i.c)[lane]) + ")");
}

// What a lane hands to printf: whole numbers of 4 or 8 bytes and doubles, each on a boundary of its size.
class Given {
   public:
    Given(Warp& w, int lane, uint64_t at) : w_(w), lane_(lane), at_(at) {}

    template <class T>
    T next() {
        at_ = (at_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
        T value;
        std::memcpy(&value, plain(w_, lane_, GENERIC, at_, sizeof(T)), sizeof(T));
        at_ += sizeof(T);
        return value;
    }

   private:
    Warp& w_;
    int lane_;
    uint64_t at_;
};

template <class T>
std::string formatted(const std::string& specification, T value) {
    std::string text(std::max(snprintf(nullptr, 0, specification.c_str(), value), 0) + 1, 0);
    snprintf(text.data(), text.size(), specification.c_str(), value);
    text.pop_back();
    return text;
}

// One `%...` from `at` on, which is left behind it; a `*` takes its number from what was given.
std::string converted(Warp& w, int lane, const std::string& format, size_t& at, Given& given) {
    std::string specification = "%";
    int longs = 0;
    for (; at < format.size(); ++at) {
        const char c = format[at];
        if (c == '*') specification += std::to_string(given.next<int32_t>());
        else if (c == 'l') ++longs;
        else if (c == 'z' || c == 'j' || c == 't') longs = 2;
        else if (c == 'h') specification += c;
        else if (std::strchr("-+ #0123456789.", c)) specification += c;
        else break;
    }
    if (at == format.size()) return specification;
    const char kind = format[at++];
    if (std::strchr("diouxX", kind)) {
        if (longs) return formatted(specification + "ll" + kind, given.next<int64_t>());
        return formatted(specification + kind, given.next<int32_t>());
    }
    if (kind == 'c') return formatted(specification + kind, given.next<int32_t>());
    if (std::strchr("eEfFgGaA", kind)) return formatted(specification + kind, given.next<double>());
    if (kind == 'p') return formatted(specification + kind, reinterpret_cast<void*>(given.next<uint64_t>()));
    if (kind == 's') return formatted(specification + kind, text_at(w, lane, given.next<uint64_t>()).c_str());
    return kind == '%' ? "%" : specification + kind;
}

// Lane after lane. A launch that is counted prints nothing.
void print(Warp& w, const Instruction& i, uint32_t mask) {
    if (!w.launch->request.threads) return;
    for (uint32_t rest = mask; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const std::string format = text_at(w, lane, w.in<uint64_t>(i.a)[lane]);
        Given given(w, lane, w.in<uint64_t>(i.b)[lane]);
        for (size_t at = 0; at < format.size();) {
            if (format[at] == '%') w.launch->printed += converted(w, lane, format, ++at, given);
            else w.launch->printed += format[at++];
        }
    }
}

}  // namespace

void add_calls() {
    add_operation("vprintf", print);
    add_operation("assertfail", failed_assertion);
}

}  // namespace counting
