/* Code that a program writes at run time, on pages that leave and come back. */
#include "pages.h"
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>

enum { PAGES = 1536 };

typedef unsigned (*Function)(void);

static unsigned handled;

static unsigned char *code_memory(size_t pages, int protection)
{
    unsigned char *at = mmap(NULL, pages * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

/* mov eax, value; ret */
static void write_function(unsigned char *at, unsigned value)
{
    at[0] = 0xb8;
    memcpy(at + 1, &value, 4);
    at[5] = 0xc3;
}

static unsigned call(const void *at)
{
    Function function;
    memcpy(&function, &at, sizeof function);
    return function();
}

/* One on each page, every third of which ends on the next page. */
static size_t place(size_t page)
{
    return page * PAGE + (page % 3 == 0 ? PAGE - 1 - page % 5 : page * 64 % (PAGE - 64));
}

static void write_all(unsigned char *code, unsigned first)
{
    for (size_t page = 0; page < PAGES; page++) write_function(code + place(page), first + (unsigned)page);
}

static void call_all(const unsigned char *code, unsigned first)
{
    for (size_t page = 0; page < PAGES; page++) {
        size_t at = page * 7 % PAGES;
        unsigned got = call(code + place(at));
        if (got != first + (unsigned)at) die("function %zu gives %u", at, got);
    }
}

/* Functions are called, and changed, on pages that are not there. */
void section_code(void)
{
    unsigned char *code = code_memory(PAGES + 1, PROT_READ | PROT_WRITE | PROT_EXEC);
    write_all(code, 1000);
    for (unsigned round = 1; round <= 3; round++) {
        make_absent();
        call_all(code, 1000 * round);
        make_absent();
        write_all(code, 1000 * (round + 1));
    }
    call_all(code, 4000);

    CHECK(mprotect(code, (PAGES + 1) * PAGE, PROT_READ | PROT_EXEC) == 0);
    make_absent();
    call_all(code, 4000);
    CHECK(mprotect(code, (PAGES + 1) * PAGE, PROT_EXEC) == 0);
    make_absent();
    call_all(code, 4000);
    CHECK(mprotect(code, (PAGES + 1) * PAGE, PROT_READ | PROT_WRITE) == 0);
    make_absent();
    write_all(code, 5000);
    CHECK(mprotect(code, (PAGES + 1) * PAGE, PROT_READ | PROT_EXEC) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    make_absent();
    call_all(code, 5000);
    if (child == 0) _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    /* Without the right it is as natively. */
    CHECK(mprotect(code, (PAGES + 1) * PAGE, PROT_READ) == 0);
    make_absent();
    child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit((int)call(code + place(1)));
    CHECK(waitpid(child, &status, 0) == child);
    say("without the right: %d", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
}

static void *call_often(void *code)
{
    for (int round = 0; round < 20; round++) call_all(code, 7000);
    return NULL;
}

/* What the kernel starts, or is called by, lies there: handlers, threads, system calls. */
void section_codestarts(void)
{
    unsigned char *code = code_memory(4 * PAGES, PROT_READ | PROT_WRITE | PROT_EXEC);
    /* mov eax, 39 (getpid); syscall; ret */
    static const unsigned char getpid_code[] = { 0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xc3 };
    memcpy(code + 2 * PAGE - 6, getpid_code, sizeof getpid_code);
    /* mov rax, &handled; add [rax], edi; ret */
    unsigned char handler_code[] = { 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0x38, 0xc3 };
    unsigned *counter = &handled;
    memcpy(handler_code + 2, &counter, 8);
    memcpy(code + 8 * PAGE, handler_code, sizeof handler_code);
    /* mov rax, rdi; ret */
    static const unsigned char thread_code[] = { 0x48, 0x89, 0xf8, 0xc3 };
    memcpy(code + 16 * PAGE, thread_code, sizeof thread_code);
    for (int round = 0; round < 3; round++) {
        make_absent();
        CHECK(call(code + 2 * PAGE - 6) == (unsigned)getpid());
        struct sigaction action = { .sa_flags = SA_NODEFER };
        void *at = code + 8 * PAGE;
        memcpy(&action.sa_handler, &at, sizeof at);
        CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
        make_absent();
        CHECK(raise(SIGUSR1) == 0);
        make_absent();
        CHECK(raise(SIGBUS) == 0);
        make_absent();
        void *(*start)(void *), *result;
        at = code + 16 * PAGE;
        memcpy(&start, &at, sizeof at);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, start, code) == 0 && pthread_join(thread, &result) == 0 && result == code);
    }
    say("handled: %u", handled);

    /* Several threads call while pages leave. */
    write_all(code + PAGES * PAGE, 7000);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, call_often, code + PAGES * PAGE) == 0);
    for (int round = 0; round < 3; round++) make_absent();
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}
