/* Functions that the driver has set probes on: of their entry (`entered`, by an instruction that the kernel replaces by a call), and of their return. */
#include "common.h"

__attribute__((noinline)) long entered(long value)
{
    __asm__ volatile(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00" ::: "memory");
    return value * 3;
}

__attribute__((noinline)) long returned(long value)
{
    __asm__ volatile("nop; nop; nop; nop; nop" ::: "memory");
    return value * 5;
}

int main(void)
{
    long sum = 0;
    for (int i = 0; i < 500; i++) {
        sum += entered(i) + returned(i);
        sum += getppid() > 0;
    }
    printf("%ld\n", sum);
    return 0;
}
