/* The memory of a virtual machine that a manager has (farshore manage, farshore vm run), mapped by another process too: with locks, so that no page leaves that a device uses.
 *
 * Functions that return int give 0, or a negative errno; farshore_map_error() has a line about the last one of this thread. All but farshore_map_close may be called by several threads at a time.
 * Link with -lfarshore_map. The Rust documentation of the crate farshore-map says more.
 *
 * A process' own accesses to the memory need no lock: a page that is out comes when it is touched. What the kernel or a device has found before needs one: direct I/O (O_DIRECT), io_uring's registered buffers, VFIO, DPDK,
 * SPDK. A page is locked from before it is given to the device until the device is done with it.
 *
 * A process that ends, or closes its map, has no locks any more. A child of fork has neither the memory nor the locks: it must not use the map.
 * The regions are those that the virtual machine has when the map is opened. The memory of one may be taken away, or the process may lock more than it may by writing to memory that is not its own: then it is cut off. Its locks
 * hold no more, farshore_lock gives -ECONNRESET, and whoever touches a page that is out waits until the map is closed. */
#ifndef FARSHORE_MAP_H
#define FARSHORE_MAP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct farshore_map;

struct farshore_map_region {
    void *at;         /* its first byte in this process */
    uint64_t bytes;
    uint64_t address; /* in the virtual machine's monitor: what vhost-user calls the user address */
    uint64_t offset;  /* of its first byte in its file: vhost-user's mmap offset */
};

/* Maps the memory that a process has handed over to a manager, by the number of that process: the virtual machine's monitor. It must be of the same user, unless this process is root's.
 * -ECONNREFUSED: there is no manager, or it refuses, or the memory cannot be mapped. */
int farshore_map_open(uint32_t process, struct farshore_map **map);

/* Unmaps it, with all locks. Nobody uses the map or the memory any more, nor does a device. NULL is nothing. */
void farshore_map_close(struct farshore_map *map);

size_t farshore_map_regions(const struct farshore_map *map);

/* -EINVAL: it has no such region. */
int farshore_map_region(const struct farshore_map *map, size_t number, struct farshore_map_region *region);

/* Locks the pages that have these bytes: they come, and none of them leaves until each lock of it was taken back. Waits for pages that are out. What was locked is written when it leaves, also if it was only read.
 * With an error none of them is locked once more than before:
 *   -EINVAL      the bytes do not lie in one region
 *   -ENOBUFS     more pages would be locked than this process may lock at a time: a 32nd of the memory's limit, or 16 if that is more
 *   -EAGAIN      a page is locked 255 times
 *   -ECONNRESET  the process was cut off: close the map
 *   -ESHUTDOWN   this is a child of the process that has opened the map
 *   others       a page cannot be had (-EHWPOISON, -EFAULT: its bytes are lost) */
int farshore_lock(const struct farshore_map *map, const void *at, size_t bytes);

/* Takes one lock of each of these pages back. -EINVAL: as above, or one of them is not locked. */
int farshore_unlock(const struct farshore_map *map, const void *at, size_t bytes);

/* Pages that this process has locked, each counted once. */
uint64_t farshore_map_locked(const struct farshore_map *map);

/* A line about the last error of this thread. It stays until the next one. */
const char *farshore_map_error(void);

#ifdef __cplusplus
}
#endif

#endif
