// Touches memory of each kind, says so, and waits for the end of its input: 64 MiB that are mapped, 24 MiB of static data, 6 MiB shared, 4 MiB of stack,
// 2 MiB that may be executed.
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MIB (1 << 20)

static char statics[24 * MIB];

static void *map(size_t len, int protection, int flags) {
	void *at = mmap(NULL, len, protection, flags | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED) {
		perror("mmap");
		_Exit(1);
	}
	memset(at, 1, len);
	return at;
}

int main(void) {
	volatile char stack[4 * MIB];
	for (size_t at = 0; at < sizeof stack; at += 4096)
		stack[at] = 1;
	memset(statics, 1, sizeof statics);
	map(64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	map(6 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED);
	map(2 * MIB, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE);
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return stack[4096] + statics[5] - 2;
}
