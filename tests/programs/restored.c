/* Stands in for a virtual machine monitor that restores a snapshot: private memory whose guests are threads, filled by `farshore manage --protocol firecracker`.
 *
 *   restored --make FILE --size SIZE                     writes the snapshot
 *   restored SOCKET --size SIZE [--regions N] [--threads N] [--page 4K|2M] [--set N] [--removals 0|1]
 *
 * The memory is N regions of the size in all, which follow each other in the snapshot; it is handed over as Firecracker does it ("handed" is printed). Then N pages of --set are looked at, in an
 * order that looks random ("touched"). Then threads work until the input ends: each looks at pages of its own, writes them, has the kernel read them, or throws them away
 * (MADV_DONTNEED) and expects zeros; neighbours belong to other threads. At the end all pages are looked at, and one line tells how often. */
#include "common.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define WORDS (PAGE / 8)
#define REGIONS_MAX 16
#define THROWN UINT32_MAX

static uint8_t *at[REGIONS_MAX];
static size_t region_count = 1, region_size, pages, threads = 4, page_size = 4096;
/* What a page has: 0: what the snapshot has; THROWN: zeros; else what was written last. */
static uint32_t *generations;
static int removals = 1, scratch;
static volatile int stop;
static volatile size_t looks;

static uint8_t *page_at(size_t page) { return at[page * PAGE / region_size] + page * PAGE % region_size; }

static void make(uint64_t *words, size_t page, uint32_t generation)
{
    int zeros = generation == THROWN || (generation == 0 && page % 5 == 0);
    for (size_t w = 0; w < WORDS; w++) words[w] = zeros ? 0 : mix(page << 40 ^ (uint64_t)generation << 10 ^ w);
}

static void look(const void *bytes, size_t page, const char *how)
{
    uint64_t want[WORDS];
    make(want, page, generations[page]);
    if (memcmp(bytes, want, PAGE) == 0) return;
    const uint64_t *words = bytes;
    size_t w = 0;
    while (words[w] == want[w]) w++;
    die("page %zu, generation %u, %s: word %zu is %016llx, not %016llx", page, generations[page], how, w, (unsigned long long)words[w], (unsigned long long)want[w]);
}

static void *work(void *arg)
{
    size_t own = (size_t)arg, count = 0;
    uint64_t random = mix(own + 1);
    while (!stop) {
        random = mix(random + 1);
        size_t page = random % (pages / threads) * threads + own;
        uint8_t *bytes = page_at(page);
        switch (random >> 40 & 7) {
        case 0: case 1:
            make((uint64_t *)bytes, page, generations[page] == THROWN ? 1 : generations[page] + 1);
            generations[page] = generations[page] == THROWN ? 1 : generations[page] + 1;
            break;
        case 2: {
            uint8_t copy[PAGE];
            off_t offset = (off_t)(own * PAGE);
            if (pwrite(scratch, bytes, PAGE, offset) != (ssize_t)PAGE || pread(scratch, copy, PAGE, offset) != (ssize_t)PAGE) die("the scratch file");
            look(copy, page, "by the kernel");
            break;
        }
        case 3:
            if (!removals) break;
            if (madvise(bytes, PAGE, MADV_DONTNEED) != 0) die("madvise");
            generations[page] = THROWN;
            break;
        default: look(bytes, page, "by the guest");
        }
        count++;
    }
    __atomic_fetch_add(&looks, count, __ATOMIC_RELAXED);
    return NULL;
}

static int open_uffd(void)
{
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (uffd < 0) {
        int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
        uffd = device < 0 ? -1 : ioctl(device, _IO(0xAA, 0x00), O_CLOEXEC | O_NONBLOCK);
        if (uffd < 0) die("no userfaultfd that serves the kernel's accesses");
        close(device);
    }
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_MISSING_HUGETLBFS | (removals ? UFFD_FEATURE_EVENT_REMOVE : 0)};
    if (ioctl(uffd, UFFDIO_API, &api) != 0) die("UFFDIO_API");
    return uffd;
}

/* In two pieces, as a stream may come. */
static void hand_over(int socket, int uffd)
{
    static char text[4096];
    size_t length = 0;
    for (size_t n = 0; n < region_count; n++) {
        length += (size_t)snprintf(text + length, sizeof text - length, "%s{\"base_host_virt_addr\":%zu,\"size\":%zu,\"offset\":%zu,\"page_size\":%zu,\"page_size_kib\":%zu}",
                                   n ? "," : "[", (size_t)(uintptr_t)at[n], region_size, n * region_size, page_size, page_size);
    }
    text[length++] = ']';
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof uffd)];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof uffd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), &uffd, sizeof uffd);
    struct iovec part = {text, length / 2};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (sendmsg(socket, &message, MSG_NOSIGNAL) != (ssize_t)part.iov_len) die("sendmsg");
    if (send(socket, text + part.iov_len, length - part.iov_len, MSG_NOSIGNAL) != (ssize_t)(length - part.iov_len)) die("send");
}

static void make_snapshot(const char *path)
{
    FILE *file = fopen(path, "w");
    uint64_t words[WORDS];
    for (size_t page = 0; file && page < pages; page++) {
        make(words, page, 0);
        if (fwrite(words, PAGE, 1, file) != 1) die("fwrite");
    }
    if (!file || fclose(file) != 0) die("the snapshot %s", path);
}

int main(int argc, char **argv)
{
    if (argc < 2) die("no socket given");
    size_t size = 64 * MIB, set = 0;
    const char *snapshot = NULL, *path = argv[1];
    for (int i = strcmp(argv[1], "--make") == 0 ? 1 : 2; i + 1 < argc; i += 2) {
        const char *word = argv[i], *value = argv[i + 1];
        if (strcmp(word, "--make") == 0) snapshot = value;
        else if (strcmp(word, "--size") == 0) size = parse_size(value);
        else if (strcmp(word, "--regions") == 0) region_count = strtoul(value, NULL, 10);
        else if (strcmp(word, "--threads") == 0) threads = strtoul(value, NULL, 10);
        else if (strcmp(word, "--page") == 0) page_size = parse_size(value);
        else if (strcmp(word, "--set") == 0) set = strtoul(value, NULL, 10);
        else if (strcmp(word, "--removals") == 0) removals = atoi(value);
        else die("unknown option %s", word);
    }
    pages = size / PAGE, region_size = size / region_count;
    generations = calloc(pages, sizeof *generations);
    if (snapshot) return make_snapshot(snapshot), 0;
    if (page_size != PAGE) removals = 0;
    int uffd = open_uffd();
    for (size_t n = 0; n < region_count; n++) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (page_size != PAGE ? MAP_HUGETLB : 0);
        at[n] = mmap(NULL, region_size, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (at[n] == MAP_FAILED) die("mmap");
        struct uffdio_register wanted = {.range = {(uintptr_t)at[n], region_size}, .mode = UFFDIO_REGISTER_MODE_MISSING};
        if (ioctl(uffd, UFFDIO_REGISTER, &wanted) != 0) die("UFFDIO_REGISTER");
    }
    scratch = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (scratch < 0) die("a scratch file");
    int socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(socket_, (struct sockaddr *)&address, sizeof address) != 0) die("connect");
    hand_over(socket_, uffd);
    printf("handed\n");
    fflush(stdout);
    for (size_t n = 0; n < set; n++) look(page_at(n * 37 % pages), n * 37 % pages, "at first");
    printf("touched\n");
    fflush(stdout);
    pthread_t all[64];
    for (size_t n = 0; n < threads; n++) {
        if (pthread_create(&all[n], NULL, work, (void *)n) != 0) die("pthread_create");
    }
    char byte;
    while (read(0, &byte, 1) > 0) {}
    stop = 1;
    for (size_t n = 0; n < threads; n++) pthread_join(all[n], NULL);
    for (size_t page = 0; page < pages; page++) look(page_at(page), page, "in the end");
    printf("right after %zu looks\n", looks + pages);
    return 0;
}
