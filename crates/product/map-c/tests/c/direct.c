/* An example: reads a file into the memory of a virtual machine by direct I/O, past the page cache and past page tables, as a device does it. The pages are locked from before the read until it is done.
 *
 *   direct PID FILE PAGE
 *
 * PID is the virtual machine's monitor. The file comes from page PAGE of its first region on.
 *
 *   cc -o direct direct.c -lfarshore_map */
#define _GNU_SOURCE
#include <farshore_map.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE 4096
#define PIECE (16 * PAGE)

int main(int argc, char **argv)
{
    struct farshore_map *map;
    struct farshore_map_region region;
    if (argc != 4) {
        fprintf(stderr, "direct: give PID FILE PAGE\n");
        return 2;
    }
    if (farshore_map_open((uint32_t)atol(argv[1]), &map) != 0 || farshore_map_region(map, 0, &region) != 0) {
        fprintf(stderr, "direct: %s\n", farshore_map_error());
        return 1;
    }
    int file = open(argv[2], O_RDONLY | O_DIRECT);
    if (file < 0) {
        perror("direct: open");
        return 1;
    }
    char *at = (char *)region.at + atol(argv[3]) * PAGE, *end = (char *)region.at + region.bytes;
    size_t read_bytes = 0;
    for (;;) {
        size_t room = (size_t)(end - at) < PIECE ? (size_t)(end - at) : PIECE;
        if (room == 0) break;
        if (farshore_lock(map, at, room) != 0) {
            fprintf(stderr, "direct: %s\n", farshore_map_error());
            return 1;
        }
        ssize_t got = read(file, at, room);
        /* The read is done: nothing writes to the pages any more. */
        if (farshore_unlock(map, at, room) != 0) {
            fprintf(stderr, "direct: %s\n", farshore_map_error());
            return 1;
        }
        if (got < 0) {
            perror("direct: read");
            return 1;
        }
        if (got == 0) break;
        at += got, read_bytes += (size_t)got;
    }
    printf("%zu bytes\n", read_bytes);
    farshore_map_close(map);
    return 0;
}
