/* Sockets: datagrams are never cut or lost, streams wait for what they would wait for natively, structures may lie on the heap. */
#include "check.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

static const size_t sizes[] = { 0, 1, 100, 1472, 4095, 4096, 4097, 8192, 32768, 60000, 65507 };
#define SIZES (sizeof sizes / sizeof *sizes)

static void room_for(int fd)
{
    int bytes = 1 << 20;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

/* Two UDP sockets on the loopback device; the address lies on the heap. */
static int udp_pair(int ends[2], struct sockaddr_in **address)
{
    struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    *address = placed(&loopback, sizeof loopback);
    socklen_t length = sizeof loopback, *heap_length = placed(&length, sizeof length);
    ends[0] = socket(AF_INET, SOCK_DGRAM, 0);
    ends[1] = socket(AF_INET, SOCK_DGRAM, 0);
    make_absent();
    if (ends[0] < 0 || bind(ends[1], (struct sockaddr *)*address, sizeof **address) != 0) return 0;
    make_absent();
    CHECK(getsockname(ends[1], (struct sockaddr *)*address, heap_length) == 0 && *heap_length == sizeof **address);
    room_for(ends[0]);
    room_for(ends[1]);
    return 1;
}

static void exchange(const char *name, int from, int to, const struct sockaddr_in *address)
{
    unsigned char *out = filled(65536, 6), *in = filled(65536, 7);
    for (size_t i = 0; i < SIZES; i++) {
        make_absent();
        ssize_t n = address ? sendto(from, out, sizes[i], 0, (const struct sockaddr *)address, sizeof *address) : send(from, out, sizes[i], 0);
        CHECK(n == (ssize_t)sizes[i]);
        struct sockaddr_storage *peer = fresh(sizeof *peer);
        socklen_t length = sizeof *peer, *heap_length = placed(&length, sizeof length);
        /* Both buffers left together above; the peer's address has never been touched. */
        n = recvfrom(to, in, 65536, 0, (struct sockaddr *)peer, heap_length);
        CHECK(n == (ssize_t)sizes[i] && holds(in, sizes[i] / 8 * 8, 6));
        CHECK(address == NULL || (peer->ss_family == AF_INET && *heap_length == sizeof *address));
        munmap(peer, 128 * 1024);
    }
    say("%s: %zu sizes ok", name, SIZES);
}

/* What is longer than the buffer, and reading without taking. */
static void cut_and_peek(const char *name, int from, int to, const struct sockaddr_in *address)
{
    unsigned char *out = filled(30000, 8), *in = filled(30000, 9);
    make_absent();
    if (address) CHECK(sendto(from, out, 30000, 0, (const struct sockaddr *)address, sizeof *address) == 30000);
    else CHECK(send(from, out, 30000, 0) == 30000);
    make_absent();
    ssize_t peeked = recv(to, in, 100, MSG_PEEK | MSG_TRUNC);
    ssize_t cut = recv(to, in, 5000, 0);
    CHECK(holds(in, 5000, 8));
    ssize_t none = recv(to, in, 5000, MSG_DONTWAIT);
    say("%s: peeked %zd, cut %zd, then %zd %s", name, peeked, cut, none, none < 0 ? strerror(errno) : "");
}

void section_datagrams(void)
{
    int unix_ends[2], packet_ends[2], udp[2];
    struct sockaddr_in *address;
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, unix_ends) == 0);
    room_for(unix_ends[0]);
    exchange("unix datagrams", unix_ends[0], unix_ends[1], NULL);
    cut_and_peek("unix datagrams", unix_ends[0], unix_ends[1], NULL);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packet_ends) == 0);
    room_for(packet_ends[0]);
    exchange("packets", packet_ends[1], packet_ends[0], NULL);
    cut_and_peek("packets", packet_ends[0], packet_ends[1], NULL);
    if (udp_pair(udp, &address)) {
        exchange("udp", udp[0], udp[1], address);
        cut_and_peek("udp", udp[0], udp[1], address);
    } else {
        say("no loopback device here");
    }
}

/* ------------------------------------------------------------------------------------------ streams */

#define STREAM (3 * MIB)

static void *send_slowly(void *argument)
{
    int fd = *(int *)argument;
    unsigned char *out = filled(STREAM, 31);
    make_absent();
    size_t sent = 0;
    for (int i = 0; sent < STREAM; i++) {
        size_t part = STREAM - sent < 100000 ? STREAM - sent : 100000;
        ssize_t n = send(fd, out + sent, part, MSG_NOSIGNAL);
        CHECK(n > 0);
        sent += (size_t)n;
        if (i % 8 == 0) sleep_ms(2);
    }
    munmap(out, STREAM);
    return NULL;
}

static void stream_of(const char *name, int from, int to)
{
    unsigned char *in = filled(STREAM, 1);
    pthread_t sender = start(send_slowly, &from);
    ssize_t n = recv(to, in, STREAM, MSG_WAITALL);
    join(sender);
    say("%s: waited for all of %zd bytes, %s", name, n, holds(in, STREAM, 31) ? "right" : "WRONG");
    /* Without MSG_WAITALL a large buffer must not wait for more than is there. */
    CHECK(send(from, in, 10, 0) == 10);
    n = recv(to, in, STREAM, 0);
    say("%s: a short one: %zd", name, n);
    CHECK(fcntl(to, F_SETFL, O_NONBLOCK) == 0);
    n = recv(to, in, STREAM, 0);
    say("%s: nothing there: %s", name, n < 0 ? strerror(errno) : "bytes?");
    int bytes = 0;
    socklen_t length = sizeof bytes, *heap_length = placed(&length, sizeof length);
    int *value = placed(&bytes, sizeof bytes);
    make_absent();
    CHECK(getsockopt(to, SOL_SOCKET, SO_TYPE, value, heap_length) == 0 && *value == SOCK_STREAM && *heap_length == sizeof bytes);
    close(from);
    n = recv(to, in, STREAM, 0);
    say("%s: closed: %zd", name, n);
    close(to);
}

static int tcp_pair(int ends[2])
{
    struct sockaddr_in loopback = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } }, *address = placed(&loopback, sizeof loopback);
    struct sockaddr_in *peer = fresh(sizeof *peer);
    socklen_t length = sizeof loopback, *heap_length = placed(&length, sizeof length);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    make_absent();
    if (listener < 0 || bind(listener, (struct sockaddr *)address, sizeof *address) != 0 || listen(listener, 4) != 0) return 0;
    CHECK(getsockname(listener, (struct sockaddr *)address, heap_length) == 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    make_absent();
    CHECK(connect(ends[0], (struct sockaddr *)address, sizeof *address) == 0);
    make_absent();
    ends[1] = accept(listener, (struct sockaddr *)peer, heap_length);
    CHECK(ends[1] >= 0 && peer->sin_family == AF_INET && peer->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    int one = 1, *heap_one = placed(&one, sizeof one);
    make_absent();
    CHECK(setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, heap_one, sizeof one) == 0);
    close(listener);
    return 1;
}

void section_streams(void)
{
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    stream_of("unix stream", ends[0], ends[1]);
    if (tcp_pair(ends)) stream_of("tcp", ends[0], ends[1]);
    else say("no loopback device here");
}

/* ----------------------------------------------------------------------------------------- messages */

static void message_with_descriptor(void)
{
    int ends[2], passed = file_of("passed", 5000, 12);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    unsigned char *data = filled(20000, 13), *back = fresh(20000), *control = fresh(CMSG_SPACE(sizeof(int)));
    struct iovec parts[2] = { { data, 9000 }, { data + 9000, 11000 } }, back_parts[3] = { { back, 1 }, { back + 1, 14999 }, { back + 15000, 5000 } };
    struct msghdr header = { .msg_iov = placed(parts, sizeof parts), .msg_iovlen = 2, .msg_control = control, .msg_controllen = CMSG_SPACE(sizeof(int)) };
    struct msghdr *message = placed(&header, sizeof header);
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &passed, sizeof passed);
    make_absent();
    CHECK(sendmsg(ends[0], message, 0) == 20000);
    header.msg_iov = placed(back_parts, sizeof back_parts);
    header.msg_iovlen = 3;
    header.msg_control = fresh(CMSG_SPACE(sizeof(int)));
    struct msghdr *receive = placed(&header, sizeof header);
    make_absent();
    CHECK(recvmsg(ends[1], receive, MSG_CMSG_CLOEXEC) == 20000 && holds(back, 20000, 13));
    c = CMSG_FIRSTHDR(receive);
    CHECK(c != NULL && c->cmsg_type == SCM_RIGHTS);
    int got;
    memcpy(&got, CMSG_DATA(c), sizeof got);
    unsigned char *contents = fresh(5000);
    make_absent();
    CHECK(pread(got, contents, 5000, 0) == 5000 && holds(contents, 5000, 12));
    say("message with a descriptor ok, flags %d", receive->msg_flags & ~MSG_CMSG_CLOEXEC);
    close(got);
    close(passed);
}

static void many_messages(void)
{
    enum { COUNT = 16, LENGTH = 3000 };
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    room_for(ends[0]);
    /* A Unix socket queues few datagrams by default: so they go in two halves. */
    unsigned char *out = filled(COUNT * LENGTH, 14), *in = fresh(COUNT * LENGTH);
    struct iovec *out_parts = fresh(COUNT * sizeof *out_parts), *in_parts = fresh(COUNT * sizeof *in_parts);
    struct mmsghdr *sends = fresh(COUNT * sizeof *sends), *receives = fresh(COUNT * sizeof *receives);
    for (int i = 0; i < COUNT; i++) {
        out_parts[i] = (struct iovec){ out + i * LENGTH, LENGTH };
        in_parts[i] = (struct iovec){ in + i * LENGTH, LENGTH };
        sends[i].msg_hdr = (struct msghdr){ .msg_iov = &out_parts[i], .msg_iovlen = 1 };
        receives[i].msg_hdr = (struct msghdr){ .msg_iov = &in_parts[i], .msg_iovlen = 1 };
    }
    struct timespec second = { 1, 0 }, *timeout = placed(&second, sizeof second);
    for (int half = 0; half < 2; half++) {
        make_absent();
        CHECK(sendmmsg(ends[0], sends + half * 8, 8, 0) == 8);
        make_absent();
        CHECK(recvmmsg(ends[1], receives + half * 8, 8, 0, timeout) == 8);
    }
    for (int i = 0; i < COUNT; i++) CHECK(receives[i].msg_len == LENGTH && sends[i].msg_len == LENGTH);
    CHECK(holds(in, COUNT * LENGTH, 14));
    say("sendmmsg and recvmmsg ok");
}

void section_messages(void)
{
    message_with_descriptor();
    many_messages();
}
