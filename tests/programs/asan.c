/* For AddressSanitizer: memory that leaves, many allocations, and (with an argument) a use after free.
 *
 *     asan MIB [wrong] */
#include "common.h"

int main(int argc, char **argv)
{
    size_t size = strtoull(argv[1], NULL, 0) * MIB;
    const char *preload = getenv("LD_PRELOAD");
    printf("LD_PRELOAD %s\n", preload ? preload : "is not set");
    unsigned char *memory = malloc(size);
    if (!memory) die("malloc");
    for (size_t i = 0; i < size; i++) memory[i] = (unsigned char)(i * 31 >> 4);
    for (int i = 0; i < 20000; i++) {
        char *piece = malloc((size_t)i % 5000 + 1);
        memset(piece, i, (size_t)i % 5000 + 1);
        free(piece);
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < size; i++) sum += memory[i] * (i & 15);
    printf("%llu\n", (unsigned long long)sum);
    fflush(stdout);
    free(memory);
    if (argc > 2) {
        char *volatile gone = malloc(100);
        gone[3] = 'x';
        free(gone);
        printf("%c\n", gone[3]);
    }
    puts("end");
    return 0;
}
