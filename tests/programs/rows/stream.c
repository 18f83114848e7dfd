/* Copy, scale, add and triad over three static arrays, as McCalpin's STREAM has them; no time is printed. */
#include <stdio.h>
#ifndef WORDS
#define WORDS 12000000
#endif
static double a[WORDS], b[WORDS], c[WORDS];

int main(void)
{
    for (long i = 0; i < WORDS; i++) {
        a[i] = 1.0 + (double)(i % 1000) / 1000;
        b[i] = 2.0;
    }
    for (int round = 0; round < 3; round++) {
        for (long i = 0; i < WORDS; i++) c[i] = a[i];
        for (long i = 0; i < WORDS; i++) b[i] = 3.0 * c[i];
        for (long i = 0; i < WORDS; i++) c[i] = a[i] + b[i];
        for (long i = 0; i < WORDS; i++) a[i] = b[i] + 3.0 * c[i];
    }
    double sum = 0;
    for (long i = 0; i < WORDS; i++) sum += a[i] - b[i] + c[i] / 7;
    printf("%.17g %.17g\n", sum, c[WORDS - 1]);
    return 0;
}
