/* Threads, and processes in all the ways in which a program makes them. */
#include "nettest.h"
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>

static _Atomic int counter;

static void *count(void *argument)
{
    for (int i = 0; i < 100; i++)
        CHECK(syscall(SYS_gettid) == gettid());
    counter++;
    return argument;
}

void many_threads(int rounds)
{
    counter = 0;
    for (int round = 0; round < rounds; round++) {
        pthread_t threads[20];
        for (long i = 0; i < 20; i++)
            CHECK(!pthread_create(&threads[i], NULL, count, (void *)i));
        for (long i = 0; i < 20; i++) {
            void *value;
            CHECK(!pthread_join(threads[i], &value));
            CHECK(value == (void *)i);
        }
    }
    CHECK(counter == rounds * 20);
}

void test_threads(void) { many_threads(100); }

static int ended_with(pid_t child, int wanted)
{
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == wanted;
}

static void *make_processes(void *argument)
{
    char *words[] = {"sh", "-c", "exit 7", NULL};
    for (int i = 0; i < 20; i++) {
        pid_t child;
        switch (((long)argument + i) % 4) {
        case 0:
            child = fork();
            if (!child)
                _exit(7);
            break;
        case 1:
            child = vfork();
            if (!child) {
                execv("/bin/sh", words);
                _exit(99);
            }
            break;
        case 2:
            CHECK(!posix_spawn(&child, "/bin/sh", NULL, NULL, words, environ));
            break;
        default:
            CHECK(WEXITSTATUS(system("exit 7")) == 7);
            continue;
        }
        CHECK(ended_with(child, 7));
    }
    return argument;
}

void many_processes(void) { make_processes(NULL); }

static void vfork_in_a_vfork_child(void)
{
    volatile int got = 0;
    pid_t child = vfork();
    if (!child) {
        pid_t second = vfork();
        if (!second) {
            got = 1;
            _exit(5);
        }
        int status;
        waitpid(second, &status, 0);
        got += WEXITSTATUS(status);
        _exit(6);
    }
    CHECK(ended_with(child, 6) && got == 6);
}

static void refused_clones(void)
{
    CHECK(syscall(SYS_clone3, 0, 0) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_clone, CLONE_THREAD, 0, 0, 0, 0) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_clone, CLONE_VM | CLONE_VFORK | CLONE_THREAD, 0, 0, 0, 0) == -1 && errno == EINVAL);
}

static void threads_in_a_forked_child(void)
{
    pid_t child = fork();
    if (!child) {
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, count, NULL));
        CHECK(!pthread_join(thread, NULL));
        CHECK(WEXITSTATUS(system("exit 4")) == 4);
        _exit(9);
    }
    CHECK(ended_with(child, 9));
}

void test_processes(void)
{
    FILE *pipe = popen("echo hello; exit 3", "r");
    char line[20];
    CHECK(pipe && fgets(line, sizeof line, pipe) && !strcmp(line, "hello\n"));
    CHECK(WEXITSTATUS(pclose(pipe)) == 3);

    many_processes();
    pthread_t threads[6];
    for (long i = 0; i < 6; i++)
        CHECK(!pthread_create(&threads[i], NULL, make_processes, (void *)i));
    for (long i = 0; i < 6; i++)
        CHECK(!pthread_join(threads[i], NULL));

    vfork_in_a_vfork_child();
    refused_clones();
    threads_in_a_forked_child();
}
