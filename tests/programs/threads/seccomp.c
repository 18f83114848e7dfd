/* Filters of system calls that the program installs itself. */
#include "threads.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/ucontext.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IS(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (yes), (no))
#define GIVE(value) BPF_STMT(BPF_RET | BPF_K, (value))

static long install(struct sock_filter *filter, size_t count, unsigned flags, int by_prctl)
{
    struct sock_fprog *program = fresh(sizeof *program);
    struct sock_filter *copy = fresh(count * sizeof *filter);
    memcpy(copy, filter, count * sizeof *filter);
    *program = (struct sock_fprog){ .len = (unsigned short)count, .filter = copy };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    make_absent();
    return by_prctl ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program) : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, program);
}

#define INSTALL(flags, by_prctl, ...) \
    install((struct sock_filter[]){ __VA_ARGS__ }, sizeof(struct sock_filter[]){ __VA_ARGS__ } / sizeof(struct sock_filter), flags, by_prctl)

/* What Farshore does all the time must go on. */
static void work_on(void)
{
    uint64_t *memory = filled(16 * MIB, 90);
    make_absent();
    CHECK(holds(memory, 16 * MIB, 90) && munmap(memory, 16 * MIB) == 0);
}

static void *in_thread(void *unused)
{
    (void)unused;
    errno = 0;
    long result = syscall(SYS_getppid);
    return (void *)(uintptr_t)(result < 0 ? errno : 0);
}

void section_filter(void)
{
    for (int by_prctl = 0; by_prctl < 2; by_prctl++) {
        int call = by_prctl ? SYS_getpgrp : SYS_getppid, error = by_prctl ? EXDEV : EOWNERDEAD;
        long result = INSTALL(0, by_prctl, LOAD(arch), IS(AUDIT_ARCH_X86_64, 1, 0), GIVE(SECCOMP_RET_KILL_PROCESS), LOAD(nr),
                              IS((unsigned)call, 0, 1), GIVE(SECCOMP_RET_ERRNO | (unsigned)error), GIVE(SECCOMP_RET_ALLOW));
        say("install: %ld, mode %d", result, prctl(PR_GET_SECCOMP));
        errno = 0;
        result = syscall(call);
        say("denied: %ld %s", result, strerror(errno));
        work_on();
    }
    say("in a new thread: %s", strerror((int)(uintptr_t)join(start(in_thread, NULL))));
    unsigned action = SECCOMP_RET_USER_NOTIF, odd = 0x12340000;
    say("available: %ld, odd one %ld", syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action), syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &odd));
    /* What the kernel refuses. */
    errno = 0;
    long result = INSTALL(0, 0, LOAD(nr));
    say("no return: %ld %s", result, strerror(errno));
    result = INSTALL(0, 0, BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 3), GIVE(SECCOMP_RET_ALLOW));
    say("odd offset: %ld %s", result, strerror(errno));
    result = INSTALL(1 << 20, 0, GIVE(SECCOMP_RET_ALLOW));
    say("odd flag: %ld %s", result, strerror(errno));
    result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL);
    say("no program: %ld %s", result, strerror(errno));
    result = syscall(SYS_seccomp, 77, 0, NULL);
    say("odd operation: %ld %s", result, strerror(errno));
    work_on();
}

void section_filterkill(void)
{
    long result = INSTALL(SECCOMP_FILTER_FLAG_LOG, 0, LOAD(nr), IS(SYS_getpgid, 0, 3), LOAD(args[0]), IS(4711, 0, 1), GIVE(SECCOMP_RET_KILL_PROCESS),
                          GIVE(SECCOMP_RET_ALLOW));
    say("install: %ld", result);
    say("another argument: %d", getpgid(0) > 0);
    work_on();
    say("now it ends");
    getpgid(4711);
    die("the call came back");
}

static volatile int traps, trap_nr, trap_code, trap_arch, trap_error;

static void trapped(int number, siginfo_t *info, void *context)
{
    ucontext_t *saved = context;
    if (traps % 20 == 0) make_absent();
    traps++;
    trap_nr = info->si_syscall;
    trap_code = info->si_code;
    trap_arch = (int)info->si_arch;
    trap_error = info->si_errno;
    CHECK(number == SIGSYS && saved->uc_mcontext.gregs[REG_RAX] == info->si_syscall);
    /* Emulates the call, as sandboxes do: its first argument, doubled. */
    saved->uc_mcontext.gregs[REG_RAX] = saved->uc_mcontext.gregs[REG_RDI] * 2;
}

static long bare(long number, long argument)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(argument) : "rcx", "r11", "memory");
    return result;
}

void section_filtertrap(void)
{
    handle(SIGSYS, trapped, 0);
    long result = INSTALL(0, 0, LOAD(nr), IS(SYS_getpgid, 0, 1), GIVE(SECCOMP_RET_TRAP | 99), IS(SYS_getsid, 0, 1), GIVE(SECCOMP_RET_TRAP | 7),
                          GIVE(SECCOMP_RET_ALLOW));
    say("install: %ld", result);
    for (int i = 0; i < 50; i++) {
        CHECK(syscall(SYS_getpgid, 1000 + i) == 2 * (1000 + i));
        CHECK(bare(SYS_getsid, 2000 + i) == 2 * (2000 + i));
        if (i % 10 == 0) work_on();
    }
    say("%d traps, last number %d, code %d, arch %x, data %d", traps, trap_nr, trap_code, (unsigned)trap_arch, trap_error);
    /* Without a handler, or blocked, it ends the process. */
    block(SIGSYS);
    syscall(SYS_getsid, 1);
    die("the call came back");
}

static volatile int go;

static void *waits(void *unused)
{
    while (!go) sleep_ms(1);
    return in_thread(unused);
}

void section_filterthreads(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) threads[i] = start(waits, NULL);
    sleep_ms(20);
    churn_start();
    long result = INSTALL(SECCOMP_FILTER_FLAG_TSYNC, 0, LOAD(nr), IS(SYS_getppid, 0, 1), GIVE(SECCOMP_RET_ERRNO | EOWNERDEAD), GIVE(SECCOMP_RET_ALLOW));
    say("install for all threads: %ld", result);
    go = 1;
    int denied = 0;
    for (int i = 0; i < 4; i++) denied += (int)(uintptr_t)join(threads[i]) == EOWNERDEAD;
    churn_stop();
    say("denied in %d threads", denied);
    work_on();
}

/* What leaves us no way to go on is refused with an error; natively it is allowed. The lines tell which, and are compared by hand. */
void section_strict(void)
{
    long result = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    if (result == 0) {
        syscall(SYS_write, 1, "strict: allowed\n", 16);
        syscall(SYS_exit, 0);
    }
    say("refused: %s", strerror(errno));
}

/* A short list of calls: no memory call, no pread, nothing that brings a page in. */
void section_allowlist(void)
{
    uint64_t *memory = filled(16 * MIB, 91);
    long result = INSTALL(0, 0, LOAD(nr), IS(SYS_write, 4, 0), IS(SYS_exit_group, 3, 0), IS(SYS_read, 2, 0), IS(SYS_futex, 1, 0), GIVE(SECCOMP_RET_KILL_PROCESS),
                          GIVE(SECCOMP_RET_ALLOW));
    if (result == 0) {
        syscall(SYS_write, 1, "allowlist: allowed\n", 19);
        syscall(SYS_exit_group, 0);
    }
    say("refused: %s", strerror(errno));
    make_absent();
    CHECK(holds(memory, 16 * MIB, 91));
    work_on();
}

/* ------------------------------------------------------------------------------------------- exact */

/* The calls that Farshore makes itself (crates/product/net/src/calls/seccomp/own.rs): on the program's threads, and on its own. */
static const unsigned own_calls[] = {
    16, 17, 202, 228, 35, 230, 24, 13, 14, 15, 131, 39, 186, 234, 297, 9, 11, 10, 28, 440, 5, 7, 55, 72, 46, 47, 327, 328, 274, 219, 1, 60, 231,
    426, 18, 0, 271, 288, 44, 45, 3, 54, 98, 257, 332, 77, 26, 221,
    115, 118, 120, 125,
};
/* What this section does besides. */
static const unsigned section_calls[] = { SYS_brk, SYS_mremap, SYS_setitimer, SYS_newfstatat };

static volatile unsigned alarms;
static volatile int touching;

static void on_alarm(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
    alarms++;
}

static void *touches(void *words)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    __atomic_fetch_add(&touching, 1, __ATOMIC_RELAXED);
    for (int round = 0; round < 10; round++) {
        if (!holds(words, 4 * MIB, 92)) die("a wrong word in round %d", round);
    }
    while (!go) sleep_ms(1);
    return NULL;
}

/* A filter that lets these pass and kills for every other call: the list is complete, or the process is dead. */
void section_exact(void)
{
    struct sock_filter filter[2 * 64 + 8];
    size_t count = 0;
    filter[count++] = (struct sock_filter)LOAD(nr);
    for (size_t i = 0; i < sizeof own_calls / sizeof *own_calls; i++) {
        filter[count++] = (struct sock_filter)IS(own_calls[i], 0, 1);
        filter[count++] = (struct sock_filter)GIVE(SECCOMP_RET_ALLOW);
    }
    for (size_t i = 0; i < sizeof section_calls / sizeof *section_calls; i++) {
        filter[count++] = (struct sock_filter)IS(section_calls[i], 0, 1);
        filter[count++] = (struct sock_filter)GIVE(SECCOMP_RET_ALLOW);
    }
    filter[count++] = (struct sock_filter)GIVE(SECCOMP_RET_KILL_PROCESS);
    uint64_t *words = filled(4 * MIB, 92);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) threads[i] = start(touches, words);
    while (touching < 3) sleep_ms(1);
    handle(SIGALRM, on_alarm, SA_RESTART);
    say("install for all threads: %ld", install(filter, count, SECCOMP_FILTER_FLAG_TSYNC, 0));
    struct itimerval every = { { 0, 5000 }, { 0, 5000 } };
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    uint64_t *memory = filled(8 * MIB, 93);
    for (int round = 0; round < 4; round++) {
        work_on();
        CHECK(mprotect(memory, 4 * MIB, PROT_NONE) == 0);
        make_absent();
        CHECK(mprotect(memory, 4 * MIB, PROT_READ | PROT_WRITE) == 0 && holds(memory, 8 * MIB, 93));
    }
    uint64_t *moved = mremap(memory, 8 * MIB, 16 * MIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && holds(moved, 8 * MIB, 93));
    make_absent();
    CHECK(madvise(moved, 4 * MIB, MADV_DONTNEED) == 0 && moved[5] == 0 && moved[4 * MIB / 8 + 1] == mix(93 ^ (4 * MIB + 8)));
    char *heap = malloc(8 * MIB);
    for (size_t i = 0; i < 8 * MIB; i += 64) heap[i] = (char)(i / 64);
    make_absent();
    for (size_t i = 0; i < 8 * MIB; i += 64) CHECK(heap[i] == (char)(i / 64));
    free(heap);
    int file = open("/proc/self/maps", O_RDONLY);
    CHECK(file >= 0 && read(file, moved + 4 * MIB / 8, 4 * MIB) > 0 && close(file) == 0);
    memset(&every, 0, sizeof every);
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    go = 1;
    for (int i = 0; i < 3; i++) join(threads[i]);
    say("%s", alarms > 3 ? "alarms came" : "NO ALARMS");
}

/* ---------------------------------------------------------------------------------------- listener */

#include <sys/ioctl.h>

static volatile int listener;

static void *supervise(void *unused)
{
    struct seccomp_notif *request = fresh(sizeof *request);
    struct seccomp_notif_resp *response = fresh(sizeof *response);
    for (int i = 0; i < 5; i++) {
        memset(request, 0, sizeof *request);
        make_absent();
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, request) != 0) die("SECCOMP_IOCTL_NOTIF_RECV");
        *response = (struct seccomp_notif_resp){ .id = request->id, .val = (int64_t)request->data.args[0] + 1 };
        make_absent();
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, response) != 0) die("SECCOMP_IOCTL_NOTIF_SEND");
    }
    return unused;
}

/* A thread answers what the filter passes to it. */
void section_listener(void)
{
    long result = INSTALL(SECCOMP_FILTER_FLAG_NEW_LISTENER, 0, LOAD(nr), IS(SYS_getpgid, 0, 1), GIVE(SECCOMP_RET_USER_NOTIF), GIVE(SECCOMP_RET_ALLOW));
    say("install: %s", result >= 3 ? "a descriptor" : strerror(errno));
    listener = (int)result;
    pthread_t thread = start(supervise, NULL);
    int right = 0;
    for (int i = 0; i < 5; i++) right += syscall(SYS_getpgid, 600 + i) == 601 + i;
    join(thread);
    say("%d answers", right);
    work_on();
}
