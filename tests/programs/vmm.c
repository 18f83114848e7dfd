/* Stands in for a virtual machine monitor: shared memory whose guests are threads, handed over to `farshore manage` as Cloud Hypervisor does it.
 *
 *   vmm SOCKET --size SIZE [--regions N] [--add SIZE [--again]] [--threads N] [--form json|binary] [--files] [--running] [--limit SIZE] [--longest FILE]
 *
 * The memory is a memfd in N regions, with a hole in the address space between each two; --add: one more memfd, added afterwards. --again: it is filled, taken away, emptied, and added
 * once more. --files: the memfds go along as descriptors.
 * --longest: the longest time of one access, in ns, is kept in FILE, 8 bytes that whoever likes to may set to 0.
 * --running: the threads are at work before the memory is handed over. "managed" is printed when all is handed over, "filled" when each page was written.
 *
 * Half pages are the units of work. The halves of a page belong to two threads, so whoever takes a page out has writers on it. Each unit has bytes that follow from its number and its
 * generation. A thread looks whether a unit is right, and writes the next generation: by itself, or by the kernel's hand (pread into it, pwrite from it, on a scratch file). The pages of
 * the last sixteenth belong to one thread each, which throws them away now and then as a balloon does: then they are zeros, or as they were, and never anything else.
 *
 * It ends when its input does: all units are looked at once more, and one line tells the most memory that the memfds had at a time, from the moment on at which they had no more than --limit. */
#include "common.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define UNIT (PAGE / 2)
#define WORDS (UNIT / 8)
#define REGIONS_MAX 16
#define FEATURE_WP_SHMEM (1u << 12)

struct region {
    uint8_t *at;
    size_t size, offset;
    int fd;
};

static struct region regions[REGIONS_MAX];
static size_t region_count, pages, threads = 4, balloon_from;
static uint32_t *generations;
static int scratch, fds[REGIONS_MAX], fd_count, with_files, binary;
static volatile int stop, sampled;
static pthread_barrier_t filled;
static size_t peak, limit;
static volatile uint64_t *longest;

static uint8_t *page_at(size_t page)
{
    for (size_t n = 0; n < region_count; n++) {
        if (page < regions[n].size / PAGE) return regions[n].at + page * PAGE;
        page -= regions[n].size / PAGE;
    }
    die("no page %zu", page);
}

static uint8_t *unit_at(size_t unit) { return page_at(unit / 2) + unit % 2 * UNIT; }

static void make(uint64_t *words, size_t unit, uint32_t generation)
{
    for (size_t w = 0; w < WORDS; w++) words[w] = mix(unit << 40 ^ (uint64_t)generation << 8 ^ w);
}

static void look(const void *bytes, size_t unit, uint32_t generation, const char *how)
{
    uint64_t want[WORDS];
    make(want, unit, generation);
    if (memcmp(bytes, want, UNIT) == 0) return;
    const uint64_t *words = bytes;
    size_t w = 0;
    while (words[w] == want[w]) w++;
    die("unit %zu (%p), generation %u, %s: word %zu is %016llx, not %016llx", unit, (void *)unit_at(unit), generation, how, w,
        (unsigned long long)words[w], (unsigned long long)want[w]);
}

/* The whole of a unit by the kernel's hand, whatever a signal or a full pipe would cut short. */
static void by_kernel(size_t unit, uint32_t generation)
{
    uint64_t bytes[WORDS];
    off_t at = (off_t)(unit * UNIT);
    make(bytes, unit, generation);
    if (pwrite(scratch, bytes, UNIT, at) != (ssize_t)UNIT) die("pwrite to the scratch file");
    ssize_t got = pread(scratch, unit_at(unit), UNIT, at);
    if (got != (ssize_t)UNIT) die("pread into unit %zu gave %zd", unit, got);
}

static void look_by_kernel(size_t unit, uint32_t generation)
{
    uint64_t bytes[WORDS];
    off_t at = (off_t)(unit * UNIT);
    ssize_t got = pwrite(scratch, unit_at(unit), UNIT, at);
    if (got != (ssize_t)UNIT) die("pwrite from unit %zu gave %zd", unit, got);
    if (pread(scratch, bytes, UNIT, at) != (ssize_t)UNIT) die("pread from the scratch file");
    look(bytes, unit, generation, "by the kernel");
}

static int file_of(size_t page, off_t *offset)
{
    for (size_t n = 0; n < region_count; n++) {
        if (page < regions[n].size / PAGE) {
            *offset = (off_t)(regions[n].offset + page * PAGE);
            return regions[n].fd;
        }
        page -= regions[n].size / PAGE;
    }
    die("no page %zu", page);
}

/* Throws a page away, as a balloon does. It is zeros afterwards, or as it was: where it was out nobody has heard of it. */
static void balloon(size_t page)
{
    off_t offset;
    int fd = file_of(page, &offset);
    uint8_t *at = page_at(page);
    static const uint8_t zeros[PAGE];
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, PAGE) != 0) die("fallocate");
    int is_zero = memcmp(at, zeros, PAGE) == 0;
    if (!is_zero) {
        look(at, 2 * page, generations[2 * page], "thrown away");
        look(at + UNIT, 2 * page + 1, generations[2 * page + 1], "thrown away");
    } else if (memcmp(at, zeros, PAGE) != 0) {
        die("page %zu was zeros and is not", page);
    }
    for (size_t unit = 2 * page; unit < 2 * page + 2; unit++) make((uint64_t *)unit_at(unit), unit, ++generations[unit]);
}

static void note_time(uint64_t began)
{
    uint64_t took = now_ns() - began;
    if (took > *longest) *longest = took;
}

static int is_mine(size_t unit, size_t thread) { return (unit / 2 >= balloon_from ? unit / 2 : unit) % threads == thread; }

static void *guest(void *number)
{
    size_t thread = (size_t)number, units = 2 * pages, mine = 0;
    for (size_t unit = 0; unit < units; unit++) {
        if (is_mine(unit, thread)) make((uint64_t *)unit_at(unit), unit, generations[unit]);
    }
    pthread_barrier_wait(&filled);
    uint64_t seed = mix(thread + 1);
    while (!stop) {
        seed = mix(seed + 0x9e3779b97f4a7c15u);
        size_t unit = seed % units;
        if (!is_mine(unit, thread)) continue;
        mine++;
        /* A run of units, as guests go through memory in order, too. */
        size_t run = seed >> 58 == 0 ? 64 : 1;
        for (size_t n = 0; n < run && unit < units && !stop; n++, unit += threads) {
            if (!is_mine(unit, thread)) continue;
            uint64_t began = longest != NULL ? now_ns() : 0;
            switch (seed >> 40 & 7) {
            case 0: look_by_kernel(unit, generations[unit]); break;
            case 1: by_kernel(unit, ++generations[unit]); break;
            case 2:
                if (unit / 2 >= balloon_from) balloon(unit / 2);
                break;
            case 3:
                /* Only this process' page table changes. */
                if (madvise(page_at(unit / 2), PAGE, MADV_DONTNEED) != 0) die("madvise");
                look(unit_at(unit), unit, generations[unit], "after MADV_DONTNEED");
                break;
            case 4: case 5: look(unit_at(unit), unit, generations[unit], "read"); break;
            default:
                look(unit_at(unit), unit, generations[unit], "before a write");
                make((uint64_t *)unit_at(unit), unit, ++generations[unit]);
            }
            if (longest != NULL) note_time(began);
        }
    }
    return (void *)mine;
}

static size_t in_memory(void)
{
    size_t bytes = 0;
    for (int n = 0; n < fd_count; n++) {
        struct stat data;
        if (fstat(fds[n], &data) != 0) die("fstat");
        bytes += (size_t)data.st_blocks * 512;
    }
    return bytes;
}

static void *sample(void *unused)
{
    int settled = limit == 0;
    while (!sampled) {
        size_t now = in_memory();
        settled |= now <= limit;
        if (settled && now > peak) peak = now;
        usleep(200);
    }
    return unused;
}

static int new_memfd(size_t size)
{
    int fd = memfd_create("guest", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0) die("memfd");
    return fds[fd_count++] = fd;
}

static void map_region(int fd, size_t size, size_t offset)
{
    if (region_count == REGIONS_MAX) die("too many regions");
    /* With a hole in front, so that no two regions are one mapping. */
    uint8_t *room = mmap(NULL, size + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED || munmap(room, PAGE) != 0) die("mmap");
    if (mmap(room + PAGE, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) == MAP_FAILED) die("mmap");
    regions[region_count++] = (struct region){room + PAGE, size, offset, fd};
    pages += size / PAGE;
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
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_MISSING_SHMEM | FEATURE_WP_SHMEM};
    if (ioctl(uffd, UFFDIO_API, &api) != 0) die("UFFDIO_API");
    return uffd;
}

static void register_region(int uffd, const struct region *region)
{
    struct uffdio_register wanted = {
        .range = {(uintptr_t)region->at, region->size}, .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP};
    if (ioctl(uffd, UFFDIO_REGISTER, &wanted) != 0) die("UFFDIO_REGISTER");
}

static void put(uint8_t **at, uint64_t number, size_t bytes)
{
    for (size_t n = 0; n < bytes; n++) *(*at)++ = (uint8_t)(number >> 8 * n);
}

/* A request about regions `first` to `end`; its length. */
static size_t request(uint8_t *into, size_t room, size_t first, size_t end, int adds)
{
    if (binary) {
        uint8_t *at = into;
        put(&at, adds ? 0x0b : 0x0a, 2);
        put(&at, adds ? 0 : 1, 2);
        put(&at, adds ? 0 : 1 | 4 | (with_files ? 8 : 0), 1);
        put(&at, adds ? 0 : 3, 1);
        put(&at, adds ? 0 : end - first, 2);
        put(&at, 48 * (end - first), 8);
        for (size_t n = first; n < end; n++) {
            put(&at, (uintptr_t)regions[n].at, 8), put(&at, regions[n].size, 8), put(&at, 0, 8), put(&at, PAGE, 8);
            put(&at, PROT_READ | PROT_WRITE, 4), put(&at, MAP_SHARED, 4), put(&at, regions[n].offset, 8);
        }
        return (size_t)(at - into);
    }
    char *text = (char *)into + 4;
    size_t at = 0, guest = 0;
    room -= 4;
    at += (size_t)snprintf(text + at, room - at, adds ? "{\"type\":\"add_region\",\"region\":"
                           : "{\"type\":\"handoff\",\"version\":0,\"vmm_pid\":%d,\"mode\":\"MISSING|WP\",\"regions\":[", (int)getpid());
    for (size_t n = 0; n < end; guest += regions[n++].size) {
        if (n < first) continue;
        at += (size_t)snprintf(text + at, room - at, "%s{\"guest_phys_addr\":%zu,\"host_virt_addr\":%zu,\"size\":%zu,\"backing_file_offset\":%zu}",
                               n > first ? "," : "", guest, (size_t)(uintptr_t)regions[n].at, regions[n].size, regions[n].offset);
    }
    at += (size_t)snprintf(text + at, room - at, adds ? "}" : "]}");
    if (at >= room) die("the request is too long");
    put(&into, at, 4);
    return 4 + at;
}

/* Waits for the answer to a request; without one it was refused. */
static void wait_for_answer(int socket)
{
    size_t want = binary ? 16 : 1;
    uint8_t answer[16];
    for (size_t got = 0; got < want;) {
        ssize_t more = read(socket, answer + got, want - got);
        if (more < 0) die("read of the answer");
        if (more == 0) {
            printf("refused\n");
            exit(3);
        }
        got += (size_t)more;
    }
    if (binary && (answer[0] != 1 || answer[2] != 0)) die("the answer is %d %d", answer[0], answer[2]);
}

/* Fills a region, has it taken away, and empties it. (Only the binary form takes regions away.) */
static void take_away(int socket, const struct region *region)
{
    uint8_t bytes[32], *at = bytes;
    memset(region->at, 7, region->size);
    put(&at, 0x0c, 8), put(&at, 16, 8), put(&at, (uintptr_t)region->at, 8), put(&at, region->size, 8);
    if (send(socket, bytes, sizeof bytes, MSG_NOSIGNAL) != (ssize_t)sizeof bytes) die("send");
    wait_for_answer(socket);
    if (fallocate(region->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)region->offset, (off_t)region->size) != 0) die("fallocate");
    for (size_t n = 0; n < region->size; n += PAGE) {
        if (region->at[n] != 0) die("memory that was taken away is not ordinary memory");
    }
    if (fallocate(region->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)region->offset, (off_t)region->size) != 0) die("fallocate");
}

static void hand_over(int socket, int uffd, size_t first, size_t end, int adds)
{
    static uint8_t bytes[8192];
    int passed[1 + REGIONS_MAX], count = 0;
    if (!adds) passed[count++] = uffd;
    for (size_t n = first; with_files && n < end; n++) {
        if (n == first || regions[n].fd != regions[n - 1].fd) passed[count++] = regions[n].fd;
    }
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof passed)];
    } control;
    struct iovec part = {bytes, request(bytes, sizeof bytes, first, end, adds)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > 0) {
        message.msg_control = &control, message.msg_controllen = CMSG_SPACE((size_t)count * sizeof *passed);
        control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN((size_t)count * sizeof *passed), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), passed, (size_t)count * sizeof *passed);
    }
    if (sendmsg(socket, &message, MSG_NOSIGNAL) != (ssize_t)part.iov_len) die("sendmsg");
    wait_for_answer(socket);
}

int main(int argc, char **argv)
{
    if (argc < 2) die("no socket given");
    size_t size = 64 * MIB, count = 1, added = 0;
    int running = 0, again = 0;
    for (int i = 2; i < argc; i++) {
        const char *word = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(word, "--files") == 0) with_files = 1;
        else if (strcmp(word, "--running") == 0) running = 1;
        else if (strcmp(word, "--again") == 0) again = 1;
        else if (i++, strcmp(word, "--size") == 0) size = parse_size(value);
        else if (strcmp(word, "--regions") == 0) count = strtoul(value, NULL, 10);
        else if (strcmp(word, "--add") == 0) added = parse_size(value);
        else if (strcmp(word, "--threads") == 0) threads = strtoul(value, NULL, 10);
        else if (strcmp(word, "--limit") == 0) limit = parse_size(value);
        else if (strcmp(word, "--longest") == 0) {
            int file = open(value, O_RDWR | O_CLOEXEC);
            void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *longest, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (at == MAP_FAILED) die("%s", value);
            longest = at;
        }
        else if (strcmp(word, "--form") == 0) binary = strcmp(value, "binary") == 0;
        else die("unknown option %s", word);
    }
    if (count == 0 || size / count % PAGE != 0 || threads == 0) die("sizes that cannot be");
    int socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", argv[1]);
    if (connect(socket_, (struct sockaddr *)&address, sizeof address) != 0) die("connect to %s", argv[1]);
    int fd = new_memfd(size);
    /* The last part of the file comes first, so that places in the file are not those in memory. */
    for (size_t n = count; n-- > 0;) map_region(fd, size / count, n * (size / count));
    if (added > 0) map_region(new_memfd(added), added, 0);
    balloon_from = pages - pages / 16;
    generations = calloc(2 * pages, sizeof *generations);
    scratch = memfd_create("scratch", MFD_CLOEXEC);
    if (generations == NULL || scratch < 0 || pthread_barrier_init(&filled, NULL, (unsigned)threads + 1) != 0) die("no memory");

    pthread_t guests[threads], sampler;
    int uffd = open_uffd();
    if (running) {
        for (size_t n = 0; n < threads; n++) pthread_create(&guests[n], NULL, guest, (void *)n);
        pthread_barrier_wait(&filled);
    }
    for (size_t n = 0; n < region_count; n++) register_region(uffd, &regions[n]);
    hand_over(socket_, uffd, 0, count, 0);
    if (added > 0) hand_over(socket_, uffd, count, count + 1, 1);
    if (again) {
        take_away(socket_, &regions[count]);
        register_region(uffd, &regions[count]);
        hand_over(socket_, uffd, count, count + 1, 1);
    }
    printf("managed\n");
    fflush(stdout);
    pthread_create(&sampler, NULL, sample, NULL);
    pthread_setname_np(sampler, "sampler");
    if (!running) {
        for (size_t n = 0; n < threads; n++) pthread_create(&guests[n], NULL, guest, (void *)n);
        pthread_barrier_wait(&filled);
    }
    printf("filled\n");
    fflush(stdout);

    char byte;
    while (read(0, &byte, 1) > 0) {}
    stop = 1;
    size_t worked = 0;
    for (size_t n = 0; n < threads; n++) {
        void *mine;
        pthread_join(guests[n], &mine);
        worked += (size_t)mine;
    }
    for (size_t unit = 0; unit < 2 * pages; unit++) look(unit_at(unit), unit, generations[unit], "at the end");
    sampled = 1;
    pthread_join(sampler, NULL);
    printf("right after %zu units, at most %zu bytes in memory\n", worked, peak);
    return 0;
}
