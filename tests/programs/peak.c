/* Runs a program and reports what it cost.
 *
 *     peak REPORT PROGRAM [ARG...]
 *
 * Writes "status max_rss_kib user_seconds system_seconds wall_seconds pid" to the file REPORT and ends as the program ended (128+n after
 * signal n). The maximum resident size that wait4 reports includes that of the process which called exec, so a small
 * parent such as this one is needed to measure programs that are smaller than a Python interpreter. */
#include "common.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static volatile pid_t child;

static void forward(int signal_number)
{
    if (child > 0) kill(child, signal_number);
}

int main(int argc, char **argv)
{
    if (argc < 3) die("usage: peak REPORT PROGRAM [ARG...]");
    uint64_t start = now_ns();
    child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        execvp(argv[2], &argv[2]);
        fprintf(stderr, "peak: cannot run %s: %s\n", argv[2], strerror(errno));
        _exit(127);
    }
    signal(SIGTERM, forward);
    signal(SIGINT, forward);
    int status;
    struct rusage usage;
    while (wait4(child, &status, 0, &usage) < 0) {
        if (errno != EINTR) die("wait4");
    }
    double wall = (double)(now_ns() - start) / 1e9;
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    FILE *report = fopen(argv[1], "w");
    if (report == NULL) die("cannot write %s", argv[1]);
    fprintf(report, "%d %ld %ld.%06ld %ld.%06ld %.3f %d\n", code, usage.ru_maxrss, (long)usage.ru_utime.tv_sec, (long)usage.ru_utime.tv_usec,
            (long)usage.ru_stime.tv_sec, (long)usage.ru_stime.tv_usec, wall, (int)child);
    fclose(report);
    return code;
}
