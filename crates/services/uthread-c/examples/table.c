/* A service with a gibibyte of data: a number comes as a datagram of 8 bytes, its square goes back. The same as crates/services/uthread/examples/table.rs.
 *
 *   gcc -O2 -o table table.c $(pkg-config --cflags --libs farshore_uthread)
 *   farshore run --memory 256M -- ./table 7007
 */
#include <arpa/inet.h>
#include <farshore_uthread.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { NUMBERS = 1 << 27 };

static void look_up(farshore_uthread_request_t *request, void *argument)
{
    const uint64_t *table = argument;
    uint64_t number, value;
    size_t count;
    const void *bytes = farshore_uthread_request_bytes(request, &count);

    if (count == sizeof number)
        memcpy(&number, bytes, sizeof number);
    if (count != sizeof number || number >= NUMBERS) {
        farshore_uthread_request_malformed(request);
        return;
    }
    /* If the page is far the worker serves others until it is here. */
    value = table[number];
    farshore_uthread_reply(request, &value, sizeof value);
}

int main(int argc, char **argv)
{
    struct farshore_uthread_config config = {.workers = 1};
    struct farshore_uthread_counts counts;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(argc > 1 ? atoi(argv[1]) : 7007)};
    socklen_t bytes = sizeof at;
    farshore_uthread_server_t server;
    uint64_t *table = malloc(NUMBERS * sizeof *table);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);

    if (table == NULL || fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || getsockname(fd, (struct sockaddr *)&at, &bytes) != 0) {
        perror("table");
        return 1;
    }
    /* What does not fit is on the disk. */
    for (uint64_t number = 0; number < NUMBERS; number++)
        table[number] = number * number;
    if (farshore_uthread_start(&config) != 0 || farshore_uthread_serve_datagrams(&server, fd, NULL, look_up, table) != 0)
        return 1;
    printf("look up numbers at port %d; end with ^D\n", ntohs(at.sin_port));
    fflush(stdout);
    while (getchar() != EOF) {
    }
    farshore_uthread_server_stop(server, &counts);
    printf("%" PRIu64 " requests, %" PRIu64 " malformed\n", counts.received, counts.malformed);
    return farshore_uthread_shutdown(0) != 0;
}
