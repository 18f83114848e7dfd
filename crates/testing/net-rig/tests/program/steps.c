/* A signal at every instruction of a call.
 *
 * A parent steps its child through a call, instruction by instruction, as far as the n-th, and sends a signal there; then the same with the next
 * instruction. Each time the handler must have run once, on its own stack, with a context that is the program's: an instruction pointer in the
 * program or in libc, the program's stack pointer. The call must have been made once. And all registers must be there afterwards, and every byte below
 * the stack pointer, of a stack that has hardly room for the program itself. */
#include "nettest.h"
#include <poll.h>
#include <stddef.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <ucontext.h>

#define STACK 16384
/* What the probe itself uses of its stack, with the red zone. */
#define USED 2048
#define PATTERN 0xa5
#define TRAP_FLAG 0x100

/* Every one of the first and last instructions, and some of those between: the dispatcher's. */
#define EVERY 260
#define BETWEEN 120

static struct shared {
    volatile int more, handled, foreign, stray;
    volatile uint64_t foreign_rip;
} *shared;

static uint8_t stack[STACK] __attribute__((aligned(64)));
static uint8_t handlers_stack[65536];
static uint64_t own_text[2];
static int ends[2];

extern char steps_end[];
void steps_run(void *function, void *top);
asm(".text\n"
    ".globl steps_run, steps_end\n"
    ".type steps_run, @function\n"
    "steps_run:\n"
    "    push %rbx\n"
    "    mov %rsp, %rbx\n"
    "    mov %rsi, %rsp\n"
    "    int3\n"
    "    call make_loaded_call\n"
    "    int3\n"
    "steps_end:\n"
    "    mov %rbx, %rsp\n"
    "    pop %rbx\n"
    "    ret\n"
    ".size steps_run, . - steps_run\n");

static void on_usr1(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    uint64_t rip = registers[REG_RIP], rsp = registers[REG_RSP];
    shared->handled++;
    if (rip >= own_text[0] && rip < own_text[1]) {
        shared->foreign++;
        shared->foreign_rip = rip;
    }
    if (rsp <= (uint64_t)stack || rsp > (uint64_t)stack + STACK)
        shared->stray++;
    /* Calls of its own, which must not spoil the one that is interrupted. */
    char byte;
    getppid();
    inline_read(-1, &byte, 1);
    double number = registers[REG_RIP] * 0.5;
    asm volatile("" ::"x"(number));
}

/* Where the text of the library under test is; nothing natively. */
static void find_own_text(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "r-xp") && strstr(line, "libfarshore"))
            sscanf(line, "%lx-%lx", &own_text[0], &own_text[1]);
    if (maps)
        fclose(maps);
}

struct kind {
    const char *name;
    void *function;
    enum way way;
};

static void be_stepped(const struct kind *kind)
{
    char byte;
    struct sigaction action = {.sa_sigaction = on_usr1, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    stack_t own = {.ss_sp = handlers_stack, .ss_size = sizeof handlers_stack};
    CHECK(!sigaltstack(&own, NULL) && !sigaction(SIGUSR1, &action, NULL));
    /* The loader binds symbols at the first call. */
    CHECK(write(ends[1], "x", 1) == 1 && read(ends[0], &byte, 1) == 1);
    set_way(SYS_read, kind->way);
    CHECK(!ptrace(PTRACE_TRACEME, 0, NULL, NULL));
    while (shared->more) {
        int before = shared->handled;
        CHECK(write(ends[1], "y", 1) == 1);
        load_call(SYS_read, ends[0], (long)&byte, 1);
        memset(stack, PATTERN, sizeof stack);
        byte = 0;
        steps_run(kind->function, stack + STACK);
        for (int i = 0; i < STACK - USED; i++)
            CHECK(stack[i] == PATTERN);
        CHECK(check_loaded_call(kind->name) == 1 && byte == 'y');
        struct pollfd rest = {.fd = ends[0], .events = POLLIN};
        CHECK(!poll(&rest, 1, 0));
        CHECK(shared->handled <= before + 1 && !shared->stray);
        if (shared->foreign)
            fprintf(stderr, "rip %lx, %lx in our text\n", shared->foreign_rip, shared->foreign_rip - own_text[0]);
        CHECK(!shared->foreign);
    }
    _exit(0);
}

static long rip_of(pid_t child) { return ptrace(PTRACE_PEEKUSER, child, offsetof(struct user_regs_struct, rip), NULL); }

/* Lets the child go on until it stops, handing it the signals that come; whether it is at the end of the probe. */
static int next(pid_t child, enum __ptrace_request how, long signal)
{
    for (;;) {
        int status;
        CHECK(!ptrace(how, child, NULL, signal));
        CHECK(waitpid(child, &status, 0) == child);
        if (!WIFSTOPPED(status)) {
            fprintf(stderr, "the child ended: %x\n", status);
            _exit(1);
        }
        signal = WSTOPSIG(status);
        if (signal != SIGTRAP)
            continue;
        if (rip_of(child) == (long)steps_end)
            return 1;
        if (how == PTRACE_SINGLESTEP)
            return 0;
        /* A `pushfq` that was stepped over has saved the trap flag. */
        siginfo_t info;
        CHECK(!ptrace(PTRACE_GETSIGINFO, child, NULL, &info));
        if (info.si_code != TRAP_TRACE)
            return 0;
        size_t at = offsetof(struct user_regs_struct, eflags);
        long flags = ptrace(PTRACE_PEEKUSER, child, at, NULL);
        CHECK(!ptrace(PTRACE_POKEUSER, child, at, flags & ~TRAP_FLAG));
        signal = 0;
    }
}

static void step_one(const struct kind *kind)
{
    shared->more = 1;
    shared->handled = 0;
    pid_t child = fork();
    if (!child)
        be_stepped(kind);
    CHECK(child > 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    if (WSTOPSIG(status) != SIGTRAP)
        CHECK(!next(child, PTRACE_CONT, WSTOPSIG(status)));
    long count = 0, sent = 0;
    while (!next(child, PTRACE_SINGLESTEP, 0))
        count++;
    CHECK(!next(child, PTRACE_CONT, 0));
    long stride = 1 + (count > 2 * EVERY ? (count - 2 * EVERY) / BETWEEN : 0);
    for (long at = 0; at < count; at += at < EVERY || at > count - EVERY ? 1 : stride) {
        int ended = 0;
        for (long i = 0; i < at && !ended; i++)
            ended = next(child, PTRACE_SINGLESTEP, 0);
        /* Not every call by the quick way takes as many instructions. */
        if (!ended) {
            CHECK(!kill(child, SIGUSR1));
            CHECK(next(child, PTRACE_CONT, 0));
            sent++;
        }
        if (at + 1 >= count)
            shared->more = 0;
        if (shared->more)
            CHECK(!next(child, PTRACE_CONT, 0));
    }
    shared->more = 0;
    long signal = 0;
    do {
        CHECK(!ptrace(PTRACE_CONT, child, NULL, signal));
        CHECK(waitpid(child, &status, 0) == child);
        signal = WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP ? WSTOPSIG(status) : 0;
    } while (WIFSTOPPED(status));
    CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
    printf("%s: %ld instructions, %ld signals, %d handled\n", kind->name, count, sent, shared->handled);
    CHECK(shared->handled == sent && sent > 100);
}

void test_steps(void)
{
    static const struct kind kinds[] = {
        {"libc, dispatched", read, DISPATCHED}, {"libc, plain", read, PLAIN},   {"libc, quick", read, QUICK},
        {"inline, dispatched", NULL, DISPATCHED}, {"inline, plain", NULL, PLAIN}, {"inline, quick", NULL, QUICK},
    };
    find_own_text();
    CHECK(!pipe(ends));
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        step_one(&kinds[i]);
}
