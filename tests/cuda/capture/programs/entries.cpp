// Every function that stands before one of the driver's: its name, its base name, from which CUDA version on, whether
// its default stream is the thread's own, and how many bytes each of its parameters has.

#include <cstdio>
#include <string>
#include <vector>

struct Row { Row(const char* exported, const char* base, int since, bool per_thread, const char* sizes) {
    printf("%s %s %d %d %s\n", exported, base, since, per_thread, sizes);
} };
template <class F> struct Sizes;
template <class... A> struct Sizes<int(A...)> {
    std::string text;
    Sizes() { ((text += std::to_string(sizeof(A)) + ","), ...); }
};
#define WATCHER_ENTRY(exported, base, since, per_thread)                                                     \
    static watcher::Entry exported##_entry{#exported, base, since, per_thread, (void*)exported};     \
    static Row exported##_row{#exported, base, since, per_thread, Sizes<decltype(exported)>().text.c_str()};
#include "../../../../fusiond/cuda/capture/runtime/watcher/stand_ins.cpp"

int main() {}
