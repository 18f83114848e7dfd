/* Asynchronous I/O, natively and under Farshore.
 *
 *     asynchronous BALLAST_MIB SECTION     run one section
 *     asynchronous --list                  print the names of all sections
 *
 * The output and the way in which the program ends are the same natively and under Farshore. */
#include "asynchronous.h"

static const struct { const char *name; void (*run)(void); } sections[] = {
    { "files", section_files }, { "vectors", section_vectors }, { "late", section_late }, { "sockets", section_sockets },
    { "messages", section_messages }, { "registered", section_registered }, { "deep", section_deep }, { "large", section_large },
    { "changed", section_changed }, { "forked", section_forked }, { "threads", section_threads }, { "names", section_names },
    { "linked", section_linked }, { "multishot", section_multishot }, { "closed", section_closed }, { "copied", section_copied },
    { "errors", section_errors }, { "direct", section_direct }, { "churned", section_churned }, { "idle", section_idle },
    { "contexts", section_contexts }, { "contextlate", section_contextlate }, { "contextdeep", section_contextdeep },
    { "contexterrors", section_contexterrors }, { "contextforked", section_contextforked },
};

void ring_make(struct ring *ring, unsigned entries, unsigned flags)
{
    struct io_uring_params params = { .flags = flags };
    memset(ring, 0, sizeof *ring);
    ring->fd = (int)syscall(SYS_io_uring_setup, entries, &params);
    CHECK(ring->fd >= 0);
    ring->queues_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    if (bytes > ring->queues_bytes) ring->queues_bytes = bytes;
    ring->submissions_bytes = params.sq_entries * sizeof(struct io_uring_sqe);
    ring->queues = mmap(NULL, ring->queues_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
    ring->submissions = mmap(NULL, ring->submissions_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQES);
    CHECK(ring->queues != MAP_FAILED && ring->submissions != MAP_FAILED);
    char *base = ring->queues;
    ring->sq_head = (unsigned *)(base + params.sq_off.head);
    ring->sq_tail = (unsigned *)(base + params.sq_off.tail);
    /* IORING_SETUP_NO_SQARRAY */
    if ((flags & 1U << 16) == 0) ring->array = (unsigned *)(base + params.sq_off.array);
    ring->cq_head = (unsigned *)(base + params.cq_off.head);
    ring->cq_tail = (unsigned *)(base + params.cq_off.tail);
    ring->completions = (struct io_uring_cqe *)(base + params.cq_off.cqes);
    ring->sq_mask = params.sq_entries - 1;
    ring->cq_mask = params.cq_entries - 1;
    ring->entries = ring->submissions;
}

void ring_end(struct ring *ring)
{
    CHECK(munmap(ring->submissions, ring->submissions_bytes) == 0);
    CHECK(munmap(ring->queues, ring->queues_bytes) == 0);
    CHECK(close(ring->fd) == 0);
}

struct io_uring_sqe *ring_next(struct ring *ring, unsigned code, int fd, const void *addr, unsigned length, uint64_t offset, uint64_t name)
{
    unsigned tail = *ring->sq_tail, place = tail & ring->sq_mask;
    CHECK(tail - __atomic_load_n(ring->sq_head, __ATOMIC_ACQUIRE) <= ring->sq_mask);
    struct io_uring_sqe *entry = &ring->entries[place];
    memset(entry, 0, sizeof *entry);
    entry->opcode = (unsigned char)code;
    entry->fd = fd;
    entry->addr = (uint64_t)(uintptr_t)addr;
    entry->len = length;
    entry->off = offset;
    entry->user_data = name;
    if (ring->array) ring->array[place] = place;
    __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
    ring->pending++;
    return entry;
}

int ring_submit(struct ring *ring, unsigned wait)
{
    long answer = syscall(SYS_io_uring_enter, ring->fd, ring->pending, wait, wait ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
    if (answer < 0) return -errno;
    ring->pending -= (unsigned)answer;
    return (int)answer;
}

int ring_peek(struct ring *ring, uint64_t *name, int *result)
{
    unsigned head = *ring->cq_head;
    if (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) return 0;
    struct io_uring_cqe *completion = &ring->completions[head & ring->cq_mask];
    *result = completion->res;
    *name = completion->user_data;
    __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
    return 1;
}

int ring_take(struct ring *ring, uint64_t *name)
{
    uint64_t ignored;
    int result;
    while (!ring_peek(ring, name ? name : &ignored, &result)) {
        long answer = syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        CHECK(answer == 0);
    }
    return result;
}

int ring_one(struct ring *ring)
{
    CHECK(ring_submit(ring, 1) == 1);
    return ring_take(ring, NULL);
}

int file_with(size_t length, uint64_t salt)
{
    const char *folder = getenv("TMPDIR");
    int fd = open(folder ? folder : "/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK(fd >= 0);
    unsigned char *bytes = filled(length, salt);
    for (size_t done = 0; done < length;) {
        ssize_t n = pwrite(fd, bytes + done, length - done, (off_t)done);
        CHECK(n > 0);
        done += (size_t)n;
    }
    CHECK(munmap(bytes, length < 128 * 1024 ? 128 * 1024 : (length + PAGE - 1) / PAGE * PAGE) == 0);
    return fd;
}

int main(int argc, char **argv)
{
    const size_t count = sizeof sections / sizeof *sections;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++) puts(sections[i].name);
        return 0;
    }
    if (argc != 3) die("usage: asynchronous BALLAST_MIB SECTION | asynchronous --list");
    make_ballast(argv[1]);
    size_t s = 0;
    while (s < count && strcmp(sections[s].name, argv[2]) != 0) s++;
    if (s == count) die("there is no section %s", argv[2]);
    section = sections[s].name;
    sections[s].run();
    say("done");
    return 0;
}
