/* A program that serves a file to itself: a thread answers what the kernel asks of a file system (FUSE), and maps memory before each answer. The other one maps
 * the file over memory of its own, and has the kernel bring it in at once. Needs root and a mount namespace of its own (`unshare -m`). The argument is an
 * empty directory. */
#include "common.h"
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

enum { PAGES = 64, SIZE = PAGES * 4096, ROOT = 1, FILE_NODE = 2, ASKED = 1 << 20 };

static int device;

static void reply(uint64_t unique, int error, const void *data, size_t bytes)
{
    static char out[sizeof(struct fuse_out_header) + SIZE];
    const struct fuse_out_header header = { .len = (uint32_t)(sizeof header + bytes), .error = -error, .unique = unique };
    memcpy(out, &header, sizeof header);
    if (bytes > 0) memcpy(out + sizeof header, data, bytes);
    if (write(device, out, header.len) != (ssize_t)header.len) die("an answer is not taken");
}

static struct fuse_attr attributes(uint64_t node)
{
    if (node == ROOT) return (struct fuse_attr){ .ino = ROOT, .mode = S_IFDIR | 0755, .nlink = 1, .blksize = 4096 };
    return (struct fuse_attr){ .ino = FILE_NODE, .mode = S_IFREG | 0644, .size = SIZE, .nlink = 1, .blksize = 4096 };
}

/* The bytes of the file come by way of a fresh mapping: the server needs what a program needs to map memory. */
static void reply_with_bytes(uint64_t unique, const struct fuse_read_in *wanted)
{
    size_t bytes = wanted->offset >= SIZE ? 0 : wanted->size;
    if (wanted->offset + bytes > SIZE) bytes = SIZE - wanted->offset;
    unsigned char *memory = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("mmap");
    memset(memory, 7, bytes);
    reply(unique, 0, memory, bytes);
    if (munmap(memory, 8 << 20) != 0) die("munmap");
}

static void *serve(void *nothing)
{
    static char asked[ASKED];
    while (read(device, asked, sizeof asked) > 0) {
        const struct fuse_in_header *header = (const void *)asked;
        const uint64_t unique = header->unique;
        switch (header->opcode) {
        case FUSE_INIT: {
            const struct fuse_init_out out = { .major = 7, .minor = 31, .max_write = 65536, .max_readahead = 65536 };
            reply(unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_LOOKUP: {
            const struct fuse_entry_out out = { .nodeid = FILE_NODE, .entry_valid = 100, .attr_valid = 100, .attr = attributes(FILE_NODE) };
            reply(unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_GETATTR: {
            const struct fuse_attr_out out = { .attr_valid = 100, .attr = attributes(header->nodeid) };
            reply(unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_OPEN: {
            const struct fuse_open_out out = { .fh = 1 };
            reply(unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_READ:
            reply_with_bytes(unique, (const void *)(asked + sizeof *header));
            break;
        case FUSE_RELEASE:
        case FUSE_FLUSH:
            reply(unique, 0, NULL, 0);
            break;
        case FUSE_FORGET:
        case FUSE_INTERRUPT:
            break;
        default:
            reply(unique, ENOSYS, NULL, 0);
        }
    }
    return nothing;
}

int main(int argc, char **argv)
{
    char options[99], path[4096];
    pthread_t server;
    if (argc != 2) return 2;
    device = open("/dev/fuse", O_RDWR);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    if (device < 0 || mount("served", argv[1], "fuse", 0, options) != 0) die("mount");
    if (pthread_create(&server, NULL, serve, NULL) != 0) die("pthread_create");
    snprintf(path, sizeof path, "%s/file", argv[1]);
    int file = open(path, O_RDONLY);
    if (file < 0) die("open");
    unsigned char *place = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (mmap(place, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, 0) != place) die("mmap");
    unsigned long sum = 0;
    for (size_t i = 0; i < SIZE; i++) sum += place[i];
    printf("%lu\n", sum);
    fflush(stdout);
    /* While there is a server. It does not end by itself, and the mount goes with the namespace. */
    if (munmap(place, SIZE) != 0 || close(file) != 0) die("close");
    _exit(0);
}
