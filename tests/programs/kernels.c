/* Small programs for policies: each fills its memory, and then does a fixed piece of work.
 *
 *     kernels NAME SIZE
 *
 * NAME is bfs, cc, pr (a graph of SIZE in compressed sparse rows: a quarter is vertices), hot, loop, phases, zipf, matmul, dgemm, sort, stream, random. It prints
 * `ready` and waits for a line; then it works, prints `done NANOSECONDS` and waits for another, and at last it prints a digest of what it has
 * computed. `random` works once a line until there is none. On stderr it tells where its memory is. */
#include "common.h"

static char line[256];
static uint64_t state = 88172645463325252u;

static uint64_t next(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static int wait_for_line(void)
{
    fflush(stdout);
    return fgets(line, sizeof line, stdin) != NULL;
}

/* Memory of its own, with a line that tells where. */
static void *named(size_t bytes, const char *name)
{
    char *memory = map_anonymous(bytes);
    fprintf(stderr, "%s %llx-%llx\n", name, (unsigned long long)(uintptr_t)memory, (unsigned long long)(uintptr_t)memory + bytes);
    return memory;
}

/* ---- graphs */
struct vertex { uint64_t first, degree, value, next, more[4]; };
struct edge { uint64_t to, weight; };
static struct vertex *vertices;
static struct edge *edges;
static uint64_t vertex_count, edge_count, *queue;

static void graph(size_t size)
{
    vertex_count = size / 4 / sizeof *vertices;
    edge_count = size / 4 * 3 / sizeof *edges;
    vertices = named(vertex_count * sizeof *vertices, "vertices");
    queue = named(vertex_count * 8, "queue");
    edges = named(edge_count * sizeof *edges, "edges");
    uint64_t at = 0, mean = edge_count / vertex_count;
    for (uint64_t v = 0; v < vertex_count; v++) {
        uint64_t degree = next() % (2 * mean);
        if (degree > edge_count - at || v + 1 == vertex_count) degree = edge_count - at;
        vertices[v] = (struct vertex){ .first = at, .degree = degree };
        for (uint64_t n = 0; n < degree; n++) {
            /* Neighbours follow a power law, and their numbers say nothing of it. */
            double u = (double)(next() >> 11) / 9007199254740992.0;
            edges[at++] = (struct edge){ mix((uint64_t)((double)vertex_count * u * u * u)) % vertex_count, n };
        }
    }
}

static uint64_t pagerank(void)
{
    uint64_t sum = 0;
    for (uint64_t v = 0; v < vertex_count; v++) vertices[v].value = 1000000;
    for (int round = 0; round < 4; round++) {
        for (uint64_t v = 0; v < vertex_count; v++) {
            uint64_t share = vertices[v].value / (vertices[v].degree + 1);
            for (uint64_t e = 0; e < vertices[v].degree; e++) vertices[edges[vertices[v].first + e].to].next += share;
        }
        for (uint64_t v = 0; v < vertex_count; v++) vertices[v].value = vertices[v].next, vertices[v].next = 0, sum += vertices[v].value;
    }
    return sum;
}

static uint64_t breadth_first(void)
{
    uint64_t sum = 0;
    for (uint64_t source = 1; source <= 2; source++) {
        uint64_t head = 0, tail = 0;
        queue[tail++] = source, vertices[source].value = source;
        while (head < tail) {
            struct vertex *v = &vertices[queue[head++]];
            for (uint64_t e = 0; e < v->degree; e++) {
                uint64_t to = edges[v->first + e].to;
                if (vertices[to].value != source) vertices[to].value = source, queue[tail++] = to;
            }
        }
        sum = sum * 31 + tail;
    }
    return sum;
}

static uint64_t components(void)
{
    uint64_t sum = 0, changed = 1;
    for (uint64_t v = 0; v < vertex_count; v++) vertices[v].value = v;
    for (int round = 0; changed && round < 4; round++) {
        changed = 0;
        for (uint64_t v = 0; v < vertex_count; v++)
            for (uint64_t e = 0; e < vertices[v].degree; e++) {
                struct vertex *to = &vertices[edges[vertices[v].first + e].to];
                if (vertices[v].value < to->value) to->value = vertices[v].value, changed++;
            }
        sum = sum * 31 + changed;
    }
    return sum;
}

/* ---- words */
static uint64_t *words;
static size_t pages;

static uint64_t touch(uint64_t page) { return words[page % pages * 512 + page % 512]++; }

static uint64_t hot(void)
{
    uint64_t sum = 0;
    for (size_t n = 0; n < pages * 12; n++) sum += touch(next() % 10 ? mix(next() % (pages / 3)) : next());
    return sum;
}

static uint64_t zipf(void)
{
    uint64_t sum = 0;
    for (size_t n = 0; n < pages * 12; n++) {
        /* In proportion to 1 / n: the logarithm is even. */
        uint64_t bits = next() % 16, rank = (1u << bits) + next() % (1u << bits);
        sum += touch(mix(rank % pages));
    }
    return sum;
}

static uint64_t pass(size_t first, size_t count)
{
    uint64_t sum = 0;
    for (size_t page = first; page < first + count; page++)
        for (size_t n = 0; n < 512; n++) sum = sum * 31 + words[page * 512 + n];
    return sum;
}

static uint64_t loop(int rounds)
{
    uint64_t sum = 0;
    while (rounds--) sum += pass(0, pages);
    return sum;
}

static uint64_t phases(void)
{
    uint64_t sum = 0;
    for (int round = 0; round < 3; round++) {
        for (int n = 0; n < 12; n++) sum += pass(0, pages * 2 / 5);
        for (size_t n = 0; n < pages * 200; n++) sum += touch(pages / 2 + next() % (pages / 3));
    }
    return sum;
}

static uint64_t random_once(void)
{
    uint64_t sum = 0;
    for (size_t n = 0; n < pages * 2; n++) sum += touch(next());
    return sum;
}

static uint64_t matmul(size_t size)
{
    size_t order = 64;
    while (3 * (order + 64) * (order + 64) * 8 <= size) order += 64;
    const uint64_t *a = words, *b = a + order * order;
    uint64_t *c = words + 2 * order * order, sum = 0;
    for (size_t i = 0; i < order; i += 64)
        for (size_t j = 0; j < order; j += 64)
            for (size_t k = 0; k < order; k += 64)
                for (size_t y = i; y < i + 64; y++)
                    for (size_t z = k; z < k + 64; z++)
                        for (size_t x = j; x < j + 64; x += 8) c[y * order + x] += a[y * order + z] * b[z * order + x];
    for (size_t n = 0; n < order * order; n++) sum = sum * 31 + c[n];
    return sum;
}

/* C += A * B twice, column after column, in the order of OpenBLAS's dgemm: some columns of B and C at a time, of the sum's terms some after others,
 * rows of A and C by blocks, in the same parts as of 20,480 rows. An eighth of each sum is computed: memory shall be what it waits for. */
static uint64_t dgemm(size_t size)
{
    size_t order = 80;
    while (3 * (order + 80) * (order + 80) * 8 <= size) order += 80;
    const size_t panel = order * 27 / 40, terms = order / 53 + 1, rows = order / 40;
    const uint64_t *a = words, *b = a + order * order;
    uint64_t *c = words + 2 * order * order, sum = 0;
    for (int turn = 0; turn < 2; turn++)
        for (size_t from = 0; from < order; from += panel)
            for (size_t first = 0; first < order; first += terms)
                for (size_t row = 0; row < order; row += rows)
                    for (size_t x = from; x < from + panel && x < order; x++)
                        for (size_t z = first; z < first + terms && z < order; z++)
                            for (size_t y = row; y < row + rows; y += 8) c[x * order + y] += a[z * order + y] * b[x * order + z];
    for (size_t n = 0; n < order * order; n++) sum = sum * 31 + c[n];
    return sum;
}

static void sort(uint64_t *from, size_t count)
{
    while (count > 32) {
        uint64_t pivot = from[count / 2];
        size_t low = 0, high = count - 1;
        for (;;) {
            while (from[low] < pivot) low++;
            while (from[high] > pivot) high--;
            if (low >= high) break;
            uint64_t other = from[low];
            from[low++] = from[high], from[high--] = other;
        }
        sort(from + high + 1, count - high - 1);
        count = high + 1;
    }
    for (size_t n = 1; n < count; n++)
        for (size_t m = n; m > 0 && from[m - 1] > from[m]; m--) {
            uint64_t other = from[m];
            from[m] = from[m - 1], from[m - 1] = other;
        }
}

static uint64_t work(const char *name, size_t size)
{
    if (!strcmp(name, "pr")) return pagerank();
    if (!strcmp(name, "bfs")) return breadth_first();
    if (!strcmp(name, "cc")) return components();
    if (!strcmp(name, "hot")) return hot();
    if (!strcmp(name, "zipf")) return zipf();
    if (!strcmp(name, "loop")) return loop(6);
    if (!strcmp(name, "stream")) return loop(10);
    if (!strcmp(name, "phases")) return phases();
    if (!strcmp(name, "random")) return random_once();
    if (!strcmp(name, "matmul")) return matmul(size);
    if (!strcmp(name, "dgemm")) return dgemm(size);
    if (!strcmp(name, "sort")) return sort(words, size / 8), pass(0, pages);
    die("unknown kernel %s", name);
}

int main(int argc, char **argv)
{
    if (argc != 3) die("usage: kernels NAME SIZE");
    size_t size = parse_size(argv[2]);
    int is_graph = strchr("pbc", *argv[1]) != NULL && strcmp(argv[1], "phases");
    if (is_graph) {
        graph(size);
    } else {
        pages = size / PAGE;
        words = named(size, "words");
        for (size_t n = 0; n < size / 8; n++) words[n] = mix(n);
    }
    puts("ready");
    if (!wait_for_line()) return 0;
    uint64_t sum = 0;
    do {
        uint64_t began = now_ns();
        sum = sum * 31 + work(argv[1], size);
        printf("done %llu\n", (unsigned long long)(now_ns() - began));
    } while (wait_for_line() && !strcmp(argv[1], "random"));
    printf("sum %016llx\n", (unsigned long long)sum);
    return 0;
}
