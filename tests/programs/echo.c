/* What a socket of this machine gives: an answer of a page to a small question, and bytes in one direction. TCP by the loopback, two processes.
 *
 *   echo QUESTIONS SECONDS
 *
 * Prints the median and the 99th percentile of the times to an answer, in ns, and bytes a second. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* As NBD has them: a request, and a simple reply with a page. */
enum { QUESTION = 28, ANSWER = 16 + 4096, BLOCK = 256 << 10 };

static char buffer[BLOCK];

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void get(int fd, size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t some = recv(fd, buffer + got, bytes - got, 0);
        if (some <= 0)
            fail("recv");
        got += (size_t)some;
    }
}

static void put(int fd, size_t bytes)
{
    for (size_t sent = 0; sent < bytes;) {
        ssize_t some = send(fd, buffer + sent, bytes - sent, MSG_NOSIGNAL);
        if (some <= 0)
            fail("send");
        sent += (size_t)some;
    }
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void serve(int fd, long questions)
{
    for (long i = 0; i < questions; i++) {
        get(fd, QUESTION);
        put(fd, ANSWER);
    }
    /* As much as is taken, until the other side is gone. */
    while (send(fd, buffer, BLOCK, MSG_NOSIGNAL) > 0) {
    }
    exit(0);
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    const long questions = argc == 3 ? atol(argv[1]) : 0;
    const double seconds = argc == 3 ? atof(argv[2]) : 0;
    uint64_t *times, begun, taken = 0;
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd, one = 1;

    if (questions < 100 || seconds <= 0) {
        fputs("echo QUESTIONS SECONDS: at least 100 questions\n", stderr);
        return 2;
    }
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1) || getsockname(listener, (struct sockaddr *)&at, &bytes))
        fail("listen");
    switch (fork()) {
    case -1:
        fail("fork");
        break;
    case 0:
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if ((fd = accept(listener, NULL, NULL)) < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one))
            fail("accept");
        serve(fd, questions);
    }
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one))
        fail("connect");
    times = malloc((size_t)questions * sizeof *times);
    for (long i = 0; i < questions; i++) {
        const uint64_t since = now();
        put(fd, QUESTION);
        get(fd, ANSWER);
        times[i] = now() - since;
    }
    qsort(times, (size_t)questions, sizeof *times, by_size);
    for (begun = now(); now() - begun < (uint64_t)(seconds * 1e9); taken += BLOCK)
        get(fd, BLOCK);
    printf("%lu %lu %.0f\n", (unsigned long)times[questions / 2], (unsigned long)times[questions - questions / 100], (double)taken / ((double)(now() - begun) / 1e9));
    return 0;
}
