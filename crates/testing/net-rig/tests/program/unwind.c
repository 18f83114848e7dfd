/* Steps through calls one instruction at a time and unwinds from each: the function that made the call must be found.
 * Cancellation, profilers and debuggers do that from a signal handler. */
#include "nettest.h"
#include <signal.h>
#include <ucontext.h>
#include <unwind.h>

#define TRAP_FLAG 0x100
#define FRAMES_MAX 40

static volatile long steps, lost;
static volatile int stepping;
static void *wanted;

struct search {
    int frames, found;
};

static _Unwind_Reason_Code look(struct _Unwind_Context *context, void *argument)
{
    struct search *search = argument;
    search->frames++;
    if (_Unwind_FindEnclosingFunction((char *)_Unwind_GetIP(context) - 1) == wanted) {
        search->found = 1;
        return _URC_NORMAL_STOP;
    }
    return search->frames > FRAMES_MAX ? _URC_NORMAL_STOP : _URC_NO_REASON;
}

static void on_trap(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (!stepping) {
        registers[REG_EFL] &= ~TRAP_FLAG;
        return;
    }
    struct search search = {0, 0};
    steps++;
    _Unwind_Backtrace(look, &search);
    if (!search.found && lost++ < 20)
        fprintf(stderr, "lost at %llx\n", registers[REG_RIP]);
}

/* Patched and not, in a leaf and not. */
enum kind { GETPPID, CLOSE, INLINE, GETPGID, KINDS };

__attribute__((noinline)) static long walk(enum kind kind)
{
    long sum = 0;
    stepping = 1;
    asm volatile("pushfq; orl $0x100, (%%rsp); popfq" ::: "memory", "cc");
    for (int i = 0; i < 3; i++) {
        switch (kind) {
        case GETPPID:
            sum += getppid();
            break;
        case CLOSE:
            sum += close(-1);
            break;
        case INLINE:
            sum += inline_read(-1, NULL, 0);
            break;
        default:
            sum += getpgid(0);
        }
    }
    asm volatile("pushfq; andl $~0x100, (%%rsp); popfq" ::: "memory", "cc");
    stepping = 0;
    return sum;
}

void test_unwind(void)
{
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGTRAP, &action, NULL));
    wanted = (void *)walk;
    /* The loader binds symbols at the first call. */
    getppid();
    close(-1);
    getpgid(0);
    for (enum way way = 0; way < WAYS; way++) {
        set_way(SYS_getppid, way);
        set_way(SYS_close, way);
        set_way(SYS_read, way);
        set_way(SYS_getpgid, way);
        for (enum kind kind = 0; kind < KINDS; kind++) {
            steps = lost = 0;
            walk(kind);
            CHECK(steps > 10 && !lost);
        }
    }
}
