/* A device that may keep memory which it is told about. The driver names one that nobody knows (PAGES_DEVICE); it keeps nothing in truth. */
#include "pages.h"
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { PAGES = 1024 };

static int device(void)
{
    int fd = open(getenv("PAGES_DEVICE"), O_WRONLY);
    CHECK(fd >= 0);
    return fd;
}

/* Pages of a region that are in memory, without touching them. */
static size_t present(const void *at, size_t pages)
{
    static uint64_t entries[PAGES];
    int fd = open("/proc/self/pagemap", O_RDONLY);
    CHECK(fd >= 0 && pages <= PAGES);
    CHECK(pread(fd, entries, pages * 8, (off_t)((uintptr_t)at / PAGE * 8)) == (ssize_t)(pages * 8));
    close(fd);
    size_t count = 0;
    for (size_t i = 0; i < pages; i++) count += entries[i] >> 63;
    return count;
}

static void stays(void *at)
{
    make_absent();
    say("%zu of %d pages are where the device would find them", present(at, PAGES), PAGES);
    void *later = filled(PAGES * PAGE, 8);
    make_absent();
    say("later: %zu of %d", present(later, PAGES), PAGES);
    say("bytes: %d %d", holds(at, PAGES * PAGE, 7), holds(later, PAGES * PAGE, 8));
}

void section_device(void)
{
    int fd = device();
    CHECK(isatty(fd) == 0);
    void *at = filled(PAGES * PAGE, 7);
    void *request[4] = { at, (void *)(PAGES * PAGE), NULL, NULL };
    int answer = ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 0xf7, 1, sizeof request), request);
    say("a request: %d, %s", answer, strerror(errno));
    stays(at);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        say("in a child: %d", holds(at, PAGES * PAGE, 7));
        fill(at, PAGES * PAGE, 9);
        make_absent();
        say("in a child: %zu of %d", present(at, PAGES), PAGES);
        _exit(!holds(at, PAGES * PAGE, 9));
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    say("the child ends with %d", status);
    /* Everything that changes mappings goes on as it would natively. */
    CHECK(mremap(at, PAGES * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE) != MAP_FAILED);
    void *end = sbrk(4 * (intptr_t)MIB);
    CHECK(end != (void *)-1);
    memset(end, 5, 4 * MIB);
}

/* A request by a write, on a descriptor that came by a message. */
void section_devicewrite(void)
{
    int pair[2], fd = -1, sent;
    struct { struct cmsghdr header; int fd; int pad; } control = { { CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS }, -1, 0 };
    char byte = 1;
    struct iovec iov = { &byte, 1 };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        sent = control.fd = device();
        CHECK(sent >= 0 && sendmsg(pair[1], &message, 0) == 1);
        _exit(0);
    }
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(recvmsg(pair[0], &message, 0) == 1);
    fd = control.fd;
    void *at = filled(PAGES * PAGE, 7);
    int wanted = 1000000;
    say("written: %zd", write(fd, &wanted, sizeof wanted));
    stays(at);
}

/* More memory than fits: then the device is refused, and everything is as it was. */
void section_devicefull(void)
{
    int fd = device(), wanted = 1000000;
    make_absent();
    void *at = filled(PAGES * PAGE, 7);
    int answer = ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 0xf7, 1, 32), at);
    say("a request: %d, %s", answer, strerror(errno));
    ssize_t written = write(fd, &wanted, sizeof wanted);
    say("written: %zd, %s", written, written < 0 ? strerror(errno) : "as it was");
    make_absent();
    say("bytes: %d", holds(at, PAGES * PAGE, 7));
}

/* Devices that keep nothing: a file system's server, a tunnel, the loop device's. They are open before anything is managed. */
void section_knowndevices(void)
{
    static const char *const paths[] = { "/dev/fuse", "/dev/net/tun", "/dev/loop-control" };
    enum { MORE = 192 << 20 };
    int fds[3];
    for (int i = 0; i < 3; i++) fds[i] = open(paths[i], O_RDWR);
    void *at = filled(PAGES * PAGE, 7);
    void *more = filled(MORE, 8);
    say("bytes: %d %d", holds(at, PAGES * PAGE, 7), holds(more, MORE, 8));
    for (int i = 0; i < 3; i++) say("%s closes: %d", paths[i], fds[i] < 0 ? -1 : close(fds[i]));
}
