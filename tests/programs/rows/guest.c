/* The first process of a guest: fills so many MiB of the guest's memory, goes over them twice, says what it found, and ends the guest. The number is the
 * argument that the kernel passes on (`-- 300` in its command line). */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <termios.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const size_t words = (argc > 1 ? strtoull(argv[1], NULL, 10) : 0) << 20 >> 3;
    if (mount("dev", "/dev", "devtmpfs", 0, NULL) != 0) return 1;
    int line = open("/dev/ttyS0", O_WRONLY);
    uint64_t *memory = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (line < 0) return 2;
    if (memory == MAP_FAILED) dprintf(line, "no memory\n");
    else {
        /* A word in eight: what is emulated is slow. */
        for (size_t i = 0; i < words; i += 8) memory[i] = i * 0x9e3779b97f4a7c15;
        uint64_t sums[2] = { 0, 0 };
        for (int round = 0; round < 2; round++) {
            for (size_t i = 0; i < words; i += 8) sums[round] = sums[round] * 31 + memory[i];
        }
        dprintf(line, "%zu words, %s: %llx\n", words, sums[0] == sums[1] ? "twice the same" : "not the same", (unsigned long long)sums[1]);
    }
    tcdrain(line);
    reboot(RB_AUTOBOOT);
    return 3;
}
