/* Every register before a call against every register after it: of the caller, and of a new child. */
#include "nettest.h"
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* Offsets in a probe's area, as in probe.S. */
#define AT_FLAGS 128
#define AT_MXCSR 136
#define AT_VECTORS 144
#define AT_MASKS (144 + 2048)
#define AT_RED_ZONE (144 + 2048 + 64)
#define AREA 4096

extern uint8_t probe_in[AREA], probe_out[AREA], probe_child[AREA];
extern uint64_t probe_raw_r11, probe_target, probe_forks, probe_child_done;
#define PROBE(level) extern void probe_inline_##level(void), probe_libc_##level(void)
PROBE(512);
PROBE(513);
PROBE(256);
PROBE(129);
PROBE(128);

enum { RAX = 0, RCX = 1, RSP = 4, RSI = 6, RDI = 7, R11 = 11 };
static const char *const names[] = {"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
                                    "r8",  "r9",  "r10", "r11", "r12", "r13", "r14", "r15"};
/* Carry, parity, adjust, zero, sign, direction, overflow, alignment check. */
#define FLAGS_KEPT 0x40cd5
/* The same without the last. */
#define FLAGS_ARITHMETIC 0xcd5

static int differences;

static uint64_t word(const uint8_t *area, int index)
{
    uint64_t value;
    memcpy(&value, area + index * 8, sizeof value);
    return value;
}

static void set_word(uint8_t *area, int index, uint64_t value) { memcpy(area + index * 8, &value, sizeof value); }

static void compare_vectors(const char *what, const uint8_t *out, int level)
{
    int clean = level == 513 || level == 129;
    int stored = level == 128 ? 16 : level < 512 ? 32 : 64;
    for (int i = 0; i < (level >= 512 ? 32 : 16); i++) {
        int loaded = clean && i < 16 ? 16 : stored;
        if (memcmp(probe_in + AT_VECTORS + i * 64, out + AT_VECTORS + i * 64, loaded)) {
            printf("%s: vector %d differs\n", what, i);
            differences++;
        }
        for (int j = loaded; j < stored; j++) {
            if (out[AT_VECTORS + i * 64 + j]) {
                printf("%s: the upper half of vector %d is not clean\n", what, i);
                differences++;
                break;
            }
        }
    }
    if (level >= 512 && memcmp(probe_in + AT_MASKS, out + AT_MASKS, 64)) {
        printf("%s: masks differ\n", what);
        differences++;
    }
}

/* Compares with what was loaded. `sp` is the stack pointer to expect, 0 if the probe's way back checks it. */
static void compare(const char *what, const uint8_t *out, int level, uint64_t sp)
{
    for (int i = RAX + 1; i < 16; i++) {
        uint64_t want = i == RSP ? sp : word(probe_in, i);
        if (i == RCX || i == R11 || (i == RSP && !sp))
            continue;
        if (want != word(out, i)) {
            printf("%s: %s is %lx, was %lx\n", what, names[i], word(out, i), want);
            differences++;
        }
    }
    if ((word(probe_in, AT_FLAGS / 8) ^ word(out, AT_FLAGS / 8)) & FLAGS_KEPT) {
        printf("%s: flags %lx, were %lx\n", what, word(out, AT_FLAGS / 8), word(probe_in, AT_FLAGS / 8));
        differences++;
    }
    if (memcmp(probe_in + AT_MXCSR, out + AT_MXCSR, 4)) {
        printf("%s: MXCSR differs\n", what);
        differences++;
    }
    compare_vectors(what, out, level);
    /* A call into libc uses the top 8 bytes of the red zone for its return address. */
    if (memcmp(probe_in + AT_RED_ZONE + 8, out + AT_RED_ZONE + 8, 120)) {
        printf("%s: the red zone differs\n", what);
        differences++;
    }
}

static void fill(uint64_t number, uint64_t flags)
{
    for (int i = 0; i < AREA; i++)
        probe_in[i] = rand();
    set_word(probe_in, RAX, number);
    set_word(probe_in, AT_FLAGS / 8, flags);
    /* All exceptions masked; flush to zero or another rounding; random exception flags. */
    uint32_t mxcsr = 0x1f80 | (rand() & 3 ? 0x8000 : 0x6000) | (rand() & 0x3f);
    memcpy(probe_in + AT_MXCSR, &mxcsr, 4);
}

static void run(int level, int libc)
{
    switch (level) {
#define RUN(n)                                                                                                                   \
    case n:                                                                                                                      \
        libc ? probe_libc_##n() : probe_inline_##n();                                                                            \
        break
        RUN(512);
        RUN(513);
        RUN(256);
        RUN(129);
        RUN(128);
    }
}

static int levels[5], level_count;

static void find_levels(void)
{
    levels[level_count++] = 128;
    if (__builtin_cpu_supports("avx2")) {
        levels[level_count++] = 256;
        levels[level_count++] = 129;
    }
    if (__builtin_cpu_supports("avx512bw")) {
        levels[level_count++] = 512;
        levels[level_count++] = 513;
    }
}

/* The most that the library may spoil. */
static int spoil_max(void) { return level_count > 3 ? 3 : level_count > 1 ? 2 : 1; }

static void check_one(int level, int libc, uint64_t flags)
{
    char what[64];
    snprintf(what, sizeof what, "level %d %s", level, libc ? "libc" : "inline");
    fill(SYS_getppid, flags);
    memset(probe_out, 0, AREA);
    run(level, libc);
    compare(what, probe_out, level, 0);
    if (word(probe_out, RAX) != (uint64_t)getppid()) {
        printf("%s: the result is %lx\n", what, word(probe_out, RAX));
        differences++;
    }
    if (!libc && ((probe_raw_r11 ^ word(probe_out, AT_FLAGS / 8)) & FLAGS_ARITHMETIC)) {
        printf("%s: r11 %lx, flags %lx\n", what, probe_raw_r11, word(probe_out, AT_FLAGS / 8));
        differences++;
    }
    CHECK(!differences);
}

void test_registers(void)
{
    static const uint64_t flags[] = {0x202, 0xad7, 0x602, 0x246, 0xed7};
    find_levels();
    probe_target = (uint64_t)getppid;
    for (int level = 0; level <= spoil_max(); level++) {
        spoil(level);
        for (int round = 0; round < 200; round++) {
            set_way(SYS_getppid, (enum way)(round % WAYS));
            for (int i = 0; i < level_count; i++)
                for (int libc = 0; libc < 2; libc++)
                    check_one(levels[i], libc, flags[round % 5]);
        }
    }
    set_way(SYS_getppid, DISPATCHED);
    spoil(0);
}

/* ---- for the stepping ---- */

void load_call(long number, long a, long b, long c)
{
    fill(number, 0x246);
    set_word(probe_in, RDI, a);
    set_word(probe_in, RSI, b);
    set_word(probe_in, 2, c);
    memset(probe_out, 0, AREA);
}

static int highest(void) { return __builtin_cpu_supports("avx512bw") ? 512 : __builtin_cpu_supports("avx2") ? 256 : 128; }

void make_loaded_call(void *function)
{
    probe_target = (uint64_t)function;
    run(highest(), function != NULL);
}

long check_loaded_call(const char *what)
{
    /* Functions of libc's change the flags. */
    if (probe_target)
        set_word(probe_out, AT_FLAGS / 8, word(probe_in, AT_FLAGS / 8));
    compare(what, probe_out, highest(), 0);
    CHECK(!differences);
    return word(probe_out, RAX);
}

/* ---- clone ---- */

#define STACK 65536

enum kind { VFORK, CLONE_VFORK_STACK, CLONE_STACK, CLONE3_STACK, CLONE3_SHARED, KINDS };
static const char *const kinds[] = {"vfork", "clone, vfork, new stack", "clone, new stack", "clone3, vfork, new stack",
                                    "clone3, vfork, same stack"};

/* Fills in the call's arguments; the child's first stack pointer, or 0 if it is the parent's. */
static uint64_t ask(enum kind kind, char *base, struct clone_args *args)
{
    uint64_t top = 0;
    args->flags = CLONE_VM | CLONE_VFORK;
    args->exit_signal = SIGCHLD;
    switch (kind) {
    case VFORK:
        set_word(probe_in, RAX, SYS_vfork);
        break;
    case CLONE_VFORK_STACK:
    case CLONE_STACK:
        top = (uint64_t)base + STACK - 256;
        set_word(probe_in, RAX, SYS_clone);
        set_word(probe_in, RDI, CLONE_VM | SIGCHLD | (kind == CLONE_STACK ? 0 : CLONE_VFORK));
        set_word(probe_in, RSI, top);
        break;
    default:
        if (kind == CLONE3_STACK) {
            args->stack = (uint64_t)base;
            args->stack_size = STACK / 2;
            top = (uint64_t)base + STACK / 2;
        }
        set_word(probe_in, RAX, SYS_clone3);
        set_word(probe_in, RDI, (uint64_t)args);
        set_word(probe_in, RSI, sizeof *args);
    }
    return top;
}

static void clone_one(enum kind kind, int level)
{
    char *base = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED);
    fill(0, 0xad7);
    struct clone_args args = {0};
    uint64_t top = ask(kind, base, &args);
    struct clone_args copy = args;
    memset(probe_child, 0, AREA);
    memset(probe_out, 0, AREA);
    probe_child_done = 0;
    /* The child stores what is under its stack pointer: a new stack gets the red zone that it is compared with. */
    for (int i = 0; top && i < 16; i++)
        memcpy((char *)top - (i + 1) * 8, probe_in + AT_RED_ZONE + i * 8, 8);
    run(level, 0);

    pid_t child = (pid_t)word(probe_out, RAX);
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    if (status)
        fprintf(stderr, "%s: the child ended with status %#x\n", kinds[kind], status);
    CHECK(!status);
    CHECK(probe_child_done);
    char what[64];
    snprintf(what, sizeof what, "%s: parent", kinds[kind]);
    compare(what, probe_out, level, 0);
    snprintf(what, sizeof what, "%s: child", kinds[kind]);
    compare(what, probe_child, level, top ? top : word(probe_out, RSP));
    CHECK(!memcmp(&args, &copy, sizeof args));
    CHECK(word(probe_child, RAX) == 0);
    CHECK(!munmap(base, STACK));
    CHECK(!differences);
}

void test_clone_registers(void)
{
    find_levels();
    int level = level_count > 3 ? 512 : level_count > 1 ? 256 : 128;
    probe_forks = 1;
    for (int spoiled = 0; spoiled <= spoil_max(); spoiled++) {
        spoil(spoiled);
        for (enum kind kind = 0; kind < KINDS; kind++)
            for (int round = 0; round < 20; round++)
                clone_one(kind, level);
    }
    spoil(0);
}

/* ---- the red zone ---- */

/* A leaf function that keeps values in the red zone across a call. */
long keeps_red_zone(void);
asm(".text\n"
    ".globl keeps_red_zone\n"
    ".type keeps_red_zone, @function\n"
    "keeps_red_zone:\n"
    "    mov $1000, %r8\n"
    "1:  mov %r8, -8(%rsp)\n"
    "    mov %r8, -64(%rsp)\n"
    "    mov %r8, -128(%rsp)\n"
    "    mov $39, %eax\n"
    "    syscall\n"
    "    cmp %r8, -8(%rsp)\n"
    "    jne 2f\n"
    "    cmp %r8, -64(%rsp)\n"
    "    jne 2f\n"
    "    cmp %r8, -128(%rsp)\n"
    "    jne 2f\n"
    "    dec %r8\n"
    "    jnz 1b\n"
    "    mov $1, %eax\n"
    "    ret\n"
    "2:  xor %eax, %eax\n"
    "    ret\n"
    ".size keeps_red_zone, . - keeps_red_zone\n");

void test_red_zone(void)
{
    for (int i = 0; i < 20; i++)
        CHECK(keeps_red_zone() == 1);
}
