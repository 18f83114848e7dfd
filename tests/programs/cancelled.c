/* Threads that wait in a read are cancelled: for libcs of other versions than the machine's, which do it differently. */
#include "common.h"
#include <gnu/libc-version.h>
#include <pthread.h>

static int ends[2];

static void *wait_for_byte(void *argument)
{
    char byte;
    (void)argument;
    if (read(ends[0], &byte, 1) != 0) die("a byte that nobody has written");
    return NULL;
}

int main(void)
{
    int count = 0;
    if (pipe(ends) != 0) die("no pipe");
    for (int i = 0; i < 100; i++) {
        pthread_t thread;
        void *value;
        if (pthread_create(&thread, NULL, wait_for_byte, NULL) != 0) die("no thread");
        /* Some for certain in the call, the others at any moment. */
        if (i % 10 == 0) usleep(20000);
        if (pthread_cancel(thread) != 0 || pthread_join(thread, &value) != 0) die("cannot be cancelled");
        count += value == PTHREAD_CANCELED;
    }
    printf("glibc %s: %d of 100\n", gnu_get_libc_version(), count);
    return 0;
}
