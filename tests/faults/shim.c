/* Preloaded into a process and all that it starts: makes the system calls that touch files under a folder fail for a
   while, as a full disk, a failing one or a limit would. What fails, and when, stands in a file that all of them map.

   A call is counted before it is made; those from `first` on, `count` of them, fail with `error`. The time of day is
   counted, too: from the reading `moved_at` on it is `moved_secs` later than it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, SYNC = 4, RENAME = 8, MKDIR = 16, LINK = 32, TRUNCATE = 64, SPAWN = 128, READ = 256 };

struct state {
    uint64_t calls, failed, first, count;
    int64_t error;
    uint64_t kinds;
    char under[232];
    uint64_t readings, moved_at[2];
    int64_t moved_secs[2];
};

static struct state *state;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("FAULTS_STATE");
    if (!path) return;
    int file = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (found != MAP_FAILED) state = found;
}

static int fails(uint64_t kind)
{
    if (!state || !(state->kinds & kind)) return 0;
    uint64_t number = __atomic_add_fetch(&state->calls, 1, __ATOMIC_SEQ_CST);
    if (!state->first || number < state->first || number >= state->first + state->count) return 0;
    __atomic_add_fetch(&state->failed, 1, __ATOMIC_SEQ_CST);
    errno = (int)state->error;
    return 1;
}

static int ours(const char *path)
{
    size_t length = state ? strnlen(state->under, sizeof state->under) : 0;
    return length && path && strncmp(path, state->under, length) == 0;
}

static int ours_open(int file)
{
    char link[64], path[512];
    if (!state || !state->kinds) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return ours(path);
}

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

#define MODE(flags, last)                                                      \
    mode_t mode = 0;                                                           \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                     \
        va_list more;                                                          \
        va_start(more, last);                                                  \
        mode = va_arg(more, mode_t);                                           \
        va_end(more);                                                          \
    }

static int opening(int flags) { return flags & (O_CREAT | O_WRONLY | O_RDWR) ? OPEN : READ; }

int open(const char *path, int flags, ...)
{
    MODE(flags, flags)
    if (ours(path) && fails(opening(flags))) return -1;
    return REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE(flags, flags)
    if (ours(path) && fails(opening(flags))) return -1;
    return REAL(open64)(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    MODE(flags, flags)
    if (ours(path) && fails(opening(flags))) return -1;
    return REAL(openat)(folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...)
{
    MODE(flags, flags)
    if (ours(path) && fails(opening(flags))) return -1;
    return REAL(openat64)(folder, path, flags, mode);
}

ssize_t write(int file, const void *data, size_t bytes)
{
    if (ours_open(file) && fails(WRITE)) return -1;
    return REAL(write)(file, data, bytes);
}

ssize_t writev(int file, const struct iovec *parts, int count)
{
    if (ours_open(file) && fails(WRITE)) return -1;
    return REAL(writev)(file, parts, count);
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t at)
{
    if (ours_open(file) && fails(WRITE)) return -1;
    return REAL(pwrite)(file, data, bytes, at);
}

ssize_t pwrite64(int file, const void *data, size_t bytes, off64_t at)
{
    if (ours_open(file) && fails(WRITE)) return -1;
    return REAL(pwrite64)(file, data, bytes, at);
}

int fsync(int file)
{
    if (ours_open(file) && fails(SYNC)) return -1;
    return REAL(fsync)(file);
}

int fdatasync(int file)
{
    if (ours_open(file) && fails(SYNC)) return -1;
    return REAL(fdatasync)(file);
}

int ftruncate(int file, off_t length)
{
    if (ours_open(file) && fails(TRUNCATE)) return -1;
    return REAL(ftruncate)(file, length);
}

int ftruncate64(int file, off64_t length)
{
    if (ours_open(file) && fails(TRUNCATE)) return -1;
    return REAL(ftruncate64)(file, length);
}

int rename(const char *from, const char *to)
{
    if (ours(to) && fails(RENAME)) return -1;
    return REAL(rename)(from, to);
}

int mkdir(const char *path, mode_t mode)
{
    if (ours(path) && fails(MKDIR)) return -1;
    return REAL(mkdir)(path, mode);
}

int link(const char *from, const char *to)
{
    if (ours(to) && fails(LINK)) return -1;
    return REAL(link)(from, to);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    if (ours(to) && fails(LINK)) return -1;
    return REAL(linkat)(from_folder, from, to_folder, to, flags);
}

pid_t fork(void)
{
    if (fails(SPAWN)) return -1;
    return REAL(fork)();
}

/* A function that returns twice cannot be wrapped in C; a fork does for whoever only executes something. */
pid_t vfork(void)
{
    if (fails(SPAWN)) return -1;
    return REAL(fork)();
}

static time_t moved(void)
{
    if (!state) return 0;
    uint64_t number = __atomic_add_fetch(&state->readings, 1, __ATOMIC_SEQ_CST);
    for (int last = 1; last >= 0; last--)
        if (state->moved_at[last] && number >= state->moved_at[last]) return state->moved_secs[last];
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = REAL(clock_gettime)(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += moved();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone)
{
    int failed = REAL(gettimeofday)(now, zone);
    if (!failed) now->tv_sec += moved();
    return failed;
}

time_t time(time_t *now)
{
    struct timespec found;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
