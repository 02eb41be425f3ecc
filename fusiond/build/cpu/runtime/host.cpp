// fusiond_cpu_host DESCRIPTION: runs one launch in a process of its own. It is built with ThreadSanitizer, which
// must be there from the process's first instruction, so that a Python process cannot load it.
//
// The description, one item a line, is written by race.py:
//     kernel PATH           the kernel's shared object
//     entry NAME
//     grid X Y Z            block X Y Z           shared BYTES          seed N          cooperative
//     array PATH BYTES      an argument: the address of memory that the file fills
//     again NUMBER          an argument: the address of the array that argument NUMBER has
//     value PATH BYTES      an argument: the bytes of the file
//     symbol NAME PATH BYTES  a variable of the kernel, filled from the file
// Standard error gets ThreadSanitizer's reports. Standard output gets a line `array NUMBER ADDRESS BYTES` for
// every array, so that an address in a report can be told, and `fault TEXT` when the launch fails (exit status 3;
// 2: a bad description).

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

namespace {

constexpr int most_arguments = 64;
constexpr int path_bytes = 4096;

struct Argument {
    char path[path_bytes];
    bool array;
    void* memory;
    size_t bytes;
};

Argument arguments[most_arguments];
int argument_count = 0;

[[noreturn]] void give_up(const char* what, const char* name) {
    fprintf(stderr, "fusiond_cpu_host: %s %s\n", what, name);
    exit(2);
}

void fill(void* memory, size_t bytes, const char* path) {
    FILE* file = fopen(path, "rb");
    if (!file || fread(memory, 1, bytes, file) != bytes) give_up("cannot read", path);
    fclose(file);
}

const void* exported(void* kernel, const char* prefix, const char* name) {
    char symbol[path_bytes + 32];
    snprintf(symbol, sizeof symbol, "%s%s", prefix, name);
    const void* found = kernel ? dlsym(kernel, symbol) : nullptr;
    if (!found) give_up("the kernel exports no", symbol);
    return found;
}

void read_argument(const char* line, bool array) {
    if (argument_count == most_arguments) give_up("too many arguments:", line);
    Argument& argument = arguments[argument_count++];
    if (sscanf(line, "%*s %4095s %zu", argument.path, &argument.bytes) != 2) give_up("cannot understand", line);
    argument.array = array;
    argument.memory = malloc(argument.bytes + 1);
    fill(argument.memory, argument.bytes, argument.path);
}

void read_line(const char* line, void*& kernel, fusiond_launch& launch) {
    char word[16];
    char name[path_bytes];
    char path[path_bytes];
    size_t bytes;
    unsigned long long seed;
    if (sscanf(line, "%15s", word) != 1) return;
    if (strcmp(word, "array") == 0 || strcmp(word, "value") == 0) return read_argument(line, word[0] == 'a');
    if (sscanf(line, "again %zu", &bytes) == 1) {
        if (bytes >= static_cast<size_t>(argument_count) || argument_count == most_arguments) give_up("cannot understand", line);
        arguments[argument_count++] = arguments[bytes];
    } else if (sscanf(line, "kernel %4095s", path) == 1) {
        kernel = dlopen(path, RTLD_NOW);
        if (!kernel) give_up("cannot load", dlerror());
    } else if (sscanf(line, "entry %4095s", name) == 1) {
        launch.entry = static_cast<const fusiond_entry*>(exported(kernel, "fusiond_entry_", name));
    } else if (sscanf(line, "symbol %4095s %4095s %zu", name, path, &bytes) == 3) {
        const auto* symbol = static_cast<const fusiond_symbol*>(exported(kernel, "fusiond_symbol_", name));
        if (symbol->bytes != bytes) give_up("another size has the symbol", name);
        fill(symbol->address, bytes, path);
    } else if (strcmp(word, "cooperative") == 0) {
        launch.flags |= FUSIOND_COOPERATIVE;
    } else if (sscanf(line, "seed %llu", &seed) == 1) {
        launch.seed = seed;
    } else if (sscanf(line, "grid %u %u %u", &launch.grid[0], &launch.grid[1], &launch.grid[2]) != 3 &&
               sscanf(line, "block %u %u %u", &launch.block[0], &launch.block[1], &launch.block[2]) != 3 &&
               sscanf(line, "shared %u", &launch.shared_bytes) != 1) {
        give_up("cannot understand", line);
    }
}

}  // namespace

int main(int count, char** values) {
    FILE* description = count == 2 ? fopen(values[1], "r") : nullptr;
    if (!description) give_up("needs one readable argument:", "DESCRIPTION");
    fusiond_launch launch = {};
    launch.abi = FUSIOND_ABI;
    void* kernel = nullptr;
    char line[3 * path_bytes];
    while (fgets(line, sizeof line, description)) read_line(line, kernel, launch);
    fclose(description);
    if (!launch.entry || launch.entry->argument_count != static_cast<uint32_t>(argument_count))
        give_up("needs an entry and", "its arguments");

    void* addresses[most_arguments];
    for (int i = 0; i < argument_count; ++i)
        addresses[i] = arguments[i].array ? static_cast<void*>(&arguments[i].memory) : arguments[i].memory;
    launch.arguments = addresses;

    for (int i = 0; i < argument_count; ++i)
        if (arguments[i].array) printf("array %d %p %zu\n", i, arguments[i].memory, arguments[i].bytes);

    fusiond_report report;
    if (fusiond_run(&launch, &report) == FUSIOND_OK) return 0;
    printf("fault %s\n", report.text);
    return 3;
}
