/* Servers of requests, by the C interface. The protocol: a byte with a length, then so many bytes; the reply is the same, each byte plus one. Prints "ok" at the end. */
#include "farshore_uthread.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                                                   \
    do {                                                                                                                                   \
        if (!(condition)) {                                                                                                                \
            fprintf(stderr, "%s:%d: %s is false (%s)\n", __FILE__, __LINE__, #condition, strerror(errno));                                 \
            abort();                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

enum { BAD = 0xff, LONG = 0xfe, BYE = 0xfd, BIG_REPLY = 0xfc, BIG = 100000 };

static unsigned char big[BIG];
static int marker;

static int64_t frame(const void *bytes, size_t count, void *argument)
{
    const unsigned char *length = bytes;
    CHECK(argument == &marker && count > 0);
    if (*length == BAD)
        return -1;
    /* Nobody can tell yet. */
    if (*length == LONG)
        return 0;
    return 1 + (*length >= BIG_REPLY ? 0 : *length);
}

static void serve(farshore_uthread_request_t *request, void *argument)
{
    unsigned char reply[256];
    size_t count;
    const unsigned char *bytes = farshore_uthread_request_bytes(request, &count);

    CHECK(argument == &marker && farshore_uthread_worker() >= 0);
    {
        struct sockaddr_in peer = {0};
        socklen_t room = sizeof peer, little = sizeof peer.sin_family;
        farshore_uthread_request_peer(request, (struct sockaddr *)&peer, &little);
        CHECK(little == sizeof peer && peer.sin_family == AF_INET && peer.sin_port == 0);
        farshore_uthread_request_peer(request, (struct sockaddr *)&peer, &room);
        CHECK(room == sizeof peer && peer.sin_addr.s_addr == htonl(INADDR_LOOPBACK) && peer.sin_port != 0);
    }
    if (count == 1 && *bytes == BIG_REPLY) {
        /* Not from the stack; and then from there. Nobody may take it. */
        int sent = farshore_uthread_reply(request, big, BIG);
        if (sent == -ETIMEDOUT) {
            CHECK(farshore_uthread_reply(request, "end", 3) == -EPIPE);
            return;
        }
        CHECK(sent == 0);
        CHECK(farshore_uthread_reply(request, "end", 3) == 0);
        CHECK(farshore_uthread_reply(request, NULL, 0) == 0);
        return;
    }
    if (count == 1 && *bytes == BYE) {
        farshore_uthread_request_last(request);
        CHECK(farshore_uthread_reply(request, "bye", 3) == 0);
        return;
    }
    if (count != 1u + *bytes) {
        farshore_uthread_request_malformed(request);
        return;
    }
    farshore_uthread_yield();
    for (size_t i = 0; i < count; i++)
        reply[i] = (unsigned char)(bytes[i] + (i > 0));
    CHECK(farshore_uthread_reply(request, reply, count) == 0);
}

static void serve_datagram(farshore_uthread_request_t *request, void *argument)
{
    static unsigned char more[4096];
    size_t count;
    const unsigned char *bytes = farshore_uthread_request_bytes(request, &count);
    if (count == 3 && memcmp(bytes, "own", 3) == 0) {
        CHECK(farshore_uthread_reply(request, more, sizeof more) == -EMSGSIZE);
        /* A part of the request itself. */
        CHECK(farshore_uthread_reply(request, bytes + 1, 2) == 0);
        CHECK(farshore_uthread_reply(request, bytes, 1) == -EALREADY);
        /* Nothing to close. */
        farshore_uthread_request_last(request);
        return;
    }
    serve(request, argument);
}

static int address(int kind, struct sockaddr_in *at)
{
    int fd = socket(AF_INET, kind, 0);
    socklen_t bytes = sizeof *at;
    memset(at, 0, sizeof *at);
    at->sin_family = AF_INET;
    at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)at, sizeof *at) == 0 && getsockname(fd, (struct sockaddr *)at, &bytes) == 0);
    return fd;
}

static int client(int kind, const struct sockaddr_in *at)
{
    int fd = socket(AF_INET, kind, 0);
    struct timeval patience = {.tv_sec = 30};
    CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    CHECK(connect(fd, (const struct sockaddr *)at, sizeof *at) == 0);
    return fd;
}

static void expect(int fd, const void *bytes, size_t count)
{
    char got[BIG];
    CHECK(count <= sizeof got && recv(fd, got, count, MSG_WAITALL) == (ssize_t)count && memcmp(got, bytes, count) == 0);
}

static void connections(farshore_uthread_server_t server, const struct sockaddr_in *at)
{
    struct farshore_uthread_counts counts;
    char byte;
    int fd = client(SOCK_STREAM, at), other = client(SOCK_STREAM, at);

    /* Two at once, and one in pieces. */
    CHECK(send(fd, "\003abc\002xy\004", 8, 0) == 8);
    expect(fd, "\003bcd\002yz", 7);
    usleep(10000);
    CHECK(send(fd, "de", 2, 0) == 2);
    usleep(10000);
    CHECK(send(fd, "fg\000", 3, 0) == 3);
    expect(fd, "\004efgh\000", 6);
    CHECK(send(fd, "\xfc", 1, 0) == 1);
    expect(fd, big, BIG);
    expect(fd, "end", 3);
    /* The other one has waited all the time. */
    CHECK(send(other, "\001a\xfd", 3, 0) == 3);
    expect(other, "\001bbye", 5);
    CHECK(recv(other, &byte, 1, 0) == 0);
    close(other);
    other = client(SOCK_STREAM, at);
    CHECK(send(other, "\xff", 1, 0) == 1 && recv(other, &byte, 1, 0) == 0);
    close(other);
    /* 1024 bytes are the limit. */
    other = client(SOCK_STREAM, at);
    memset(big, 0xfe, BIG);
    CHECK(send(other, big, 1024, 0) == 1024 && recv(other, &byte, 1, 0) == 0);
    memset(big, 0, BIG);
    close(other);
    farshore_uthread_server_counts(server, &counts);
    CHECK(counts.accepted == 4 && counts.open >= 1 && counts.received == 7 && counts.malformed == 1 && counts.too_long == 1 && counts.refused == 0);
    /* Left open: the server closes it. */
    CHECK(farshore_uthread_server_stop(server, &counts) == 0);
    CHECK(counts.open == 0 && counts.accepted == 4 && counts.send_failed == 0 && counts.dropped == 0);
    CHECK(recv(fd, &byte, 1, 0) == 0);
    close(fd);
}

/* Somebody who asks for much and takes nothing. `half`: and says that he sends no more. */
static int greedy(const struct sockaddr_in *at, int half)
{
    char asked[800];
    int fd = client(SOCK_STREAM, at);
    memset(asked, BIG_REPLY, sizeof asked);
    CHECK(send(fd, asked, sizeof asked, 0) == sizeof asked);
    if (half)
        CHECK(shutdown(fd, SHUT_WR) == 0);
    return fd;
}

static void who_takes_nothing(int listener, const struct sockaddr_in *at)
{
    struct farshore_uthread_limits limits = {.idle = 300000000, .request_bytes = 1024};
    struct farshore_uthread_counts counts = {0};
    farshore_uthread_server_t server;
    int fds[3];

    CHECK(farshore_uthread_serve_connections(&server, listener, &limits, frame, serve, &marker) == 0);
    for (int i = 0; i < 2; i++)
        fds[i] = greedy(at, i);
    /* Each is given up, and no thread of the kernel's waits for it. */
    for (int i = 0; i < 600 && counts.timed_out < 2; i++) {
        usleep(50000);
        farshore_uthread_server_counts(server, &counts);
    }
    CHECK(counts.timed_out == 2 && counts.send_failed == 2);
    fds[2] = greedy(at, 0);
    while (counts.open == 0)
        farshore_uthread_server_counts(server, &counts);
    /* Nor does the end wait for one. */
    CHECK(farshore_uthread_server_stop(server, &counts) == 0 && counts.open == 0);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
}

static void datagrams(farshore_uthread_server_t server, const struct sockaddr_in *at)
{
    struct farshore_uthread_counts counts;
    char got[16];
    int fd = client(SOCK_DGRAM, at);

    CHECK(send(fd, "\002ab", 3, 0) == 3 && recv(fd, got, sizeof got, 0) == 3 && memcmp(got, "\002bc", 3) == 0);
    CHECK(send(fd, "own", 3, 0) == 3 && recv(fd, got, sizeof got, 0) == 2 && memcmp(got, "wn", 2) == 0);
    CHECK(send(fd, "\002abc", 4, 0) == 4);
    CHECK(send(fd, big, 1025, 0) == 1025);
    CHECK(send(fd, "", 0, 0) == 0);
    CHECK(send(fd, "\001c", 2, 0) == 2 && recv(fd, got, sizeof got, 0) == 2 && memcmp(got, "\001d", 2) == 0);
    CHECK(farshore_uthread_server_stop(server, &counts) == 0);
    CHECK(counts.received == 6 && counts.malformed == 2 && counts.too_long == 1 && counts.dropped == 0 && counts.send_failed == 0);
    close(fd);
}

static void *from_inside(void *argument)
{
    const int *fd = argument;
    farshore_uthread_server_t server;
    struct farshore_uthread_counts counts;
    CHECK(farshore_uthread_serve_datagrams(&server, *fd, NULL, serve_datagram, &marker) == 0);
    CHECK(farshore_uthread_server_stop(server, &counts) == 0 && counts.received == 0);
    return NULL;
}

int main(void)
{
    struct farshore_uthread_config config = {.workers = 2, .unithreads = 64};
    struct farshore_uthread_limits limits = {.request_bytes = 1024}, bad = {.request_bytes = 4096};
    struct sockaddr_in of_stream, of_datagrams, unused;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    farshore_uthread_server_t server, other;
    farshore_uthread_t thread;
    int stream = address(SOCK_STREAM, &of_stream), datagram = address(SOCK_DGRAM, &of_datagrams), local = socket(AF_UNIX, SOCK_STREAM, 0), status;
    pid_t child;

    CHECK(farshore_uthread_serve_datagrams(&server, datagram, NULL, serve_datagram, &marker) == -ESHUTDOWN);
    CHECK(farshore_uthread_start(&config) == 0);
    CHECK(farshore_uthread_serve_datagrams(&server, -1, NULL, serve_datagram, &marker) == -EBADF);
    CHECK(farshore_uthread_serve_datagrams(&server, 12345, NULL, serve_datagram, &marker) == -EBADF);
    CHECK(farshore_uthread_serve_datagrams(&server, stream, NULL, serve_datagram, &marker) == -EINVAL);
    CHECK(farshore_uthread_serve_connections(&server, datagram, NULL, frame, serve, &marker) == -EINVAL);
    /* It does not listen yet. */
    CHECK(farshore_uthread_serve_connections(&server, stream, NULL, frame, serve, &marker) == -EINVAL);
    CHECK(bind(local, (struct sockaddr *)&name, sizeof(sa_family_t)) == 0 && listen(local, 1) == 0);
    CHECK(farshore_uthread_serve_connections(&server, local, NULL, frame, serve, &marker) == -EAFNOSUPPORT);
    CHECK(listen(stream, 16) == 0 && fcntl(stream, F_SETFL, O_NONBLOCK) == 0);
    CHECK(farshore_uthread_serve_connections(&server, stream, &bad, frame, serve, &marker) == -EINVAL);

    /* Refused, it is as it was. */
    CHECK(fcntl(stream, F_GETFL) & O_NONBLOCK);
    CHECK(farshore_uthread_serve_connections(&server, stream, &limits, NULL, serve, &marker) == -EINVAL);
    CHECK(farshore_uthread_serve_datagrams(&server, datagram, &limits, NULL, &marker) == -EINVAL);

    CHECK(farshore_uthread_serve_connections(&server, stream, &limits, frame, serve, &marker) == 0);
    CHECK(farshore_uthread_serve_datagrams(&other, datagram, &limits, serve_datagram, &marker) == 0);
    close(stream);
    close(datagram);
    connections(server, &of_stream);
    datagrams(other, &of_datagrams);
    stream = address(SOCK_STREAM, &of_stream);
    CHECK(listen(stream, 16) == 0);
    who_takes_nothing(stream, &of_stream);
    close(stream);

    datagram = address(SOCK_DGRAM, &unused);
    CHECK(farshore_uthread_spawn(&thread, from_inside, &datagram) == 0 && farshore_uthread_join(thread, NULL) == 0);
    /* The runtime ends before its server. */
    CHECK(farshore_uthread_serve_datagrams(&server, datagram, NULL, serve_datagram, &marker) == 0);
    child = fork();
    if (child == 0)
        _exit(farshore_uthread_server_stop(server, NULL) == -ESHUTDOWN ? 0 : 1);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(farshore_uthread_shutdown(0) == 0);
    CHECK(farshore_uthread_server_stop(server, NULL) == 0);
    puts("ok");
    return 0;
}
