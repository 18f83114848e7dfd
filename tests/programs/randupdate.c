/* The program of the speed comparison: uniformly random updates over memory that does not fit.
 *
 *     randupdate SIZE THREADS SECONDS SEED [WARMUP_SECONDS]
 *
 * Every page is written once. Then each thread adds 1 to an 8-byte word at a random offset of a random page until the
 * time is over; only the time after the warm-up counts. At the end all words are added up: the sum must be the sum
 * before plus the updates, or the program exits 1. One JSON object on stdout tells updates a second and the latency of one update.
 *
 * Half of each word is random, so the memory compresses about two to one: neither best nor worst case for compressed RAM.
 * The clock is the time stamp counter: two clock_gettime calls would cost as much as a update of a resident page. */
#include "common.h"
#include <pthread.h>
#include <x86intrin.h>

/* Log-linear histogram of cycles: 32 steps for each power of two, so a percentile is exact to 3 %. */
#define STEPS_LOG2 5
#define BUCKETS (64 << STEPS_LOG2)

enum phase { WARMUP, MEASURE, STOP };

struct worker {
    pthread_t thread;
    struct rng rng;
    uint64_t updates_all;
    uint64_t updates_measured;
    uint64_t max_cycles;
    uint64_t histogram[BUCKETS];
} __attribute__((aligned(64)));

static unsigned char *memory;
static size_t pages;
static volatile int phase;

static unsigned bucket_of(uint64_t cycles)
{
    if (cycles < (1u << STEPS_LOG2)) return (unsigned)cycles;
    unsigned power = 63u - (unsigned)__builtin_clzll(cycles);
    unsigned step = (unsigned)(cycles >> (power - STEPS_LOG2)) & ((1u << STEPS_LOG2) - 1);
    return ((power - STEPS_LOG2 + 1) << STEPS_LOG2) + step;
}

/* The middle of a bucket, in cycles: the inverse of bucket_of. */
static double bucket_value(unsigned bucket)
{
    if (bucket < (1u << STEPS_LOG2)) return bucket;
    unsigned power = (bucket >> STEPS_LOG2) - 1 + STEPS_LOG2;
    double width = (double)(1ull << (power - STEPS_LOG2));
    return (double)(1ull << power) + ((bucket & ((1u << STEPS_LOG2) - 1)) + 0.5) * width;
}

static void *work(void *argument)
{
    struct worker *w = argument;
    uint64_t before = __rdtsc();
    int now;
    while ((now = phase) != STOP) {
        uint64_t r = rng_next(&w->rng);
        size_t page = (size_t)(((unsigned __int128)r * pages) >> 64);
        uint64_t *word = (uint64_t *)(memory + page * PAGE) + (r & 511);
        __atomic_fetch_add(word, 1, __ATOMIC_RELAXED);
        uint64_t after = __rdtsc();
        w->updates_all++;
        if (now == MEASURE) {
            uint64_t cycles = after - before;
            w->updates_measured++;
            w->histogram[bucket_of(cycles)]++;
            if (cycles > w->max_cycles) w->max_cycles = cycles;
        }
        before = after;
    }
    return NULL;
}

static uint64_t first_value(uint64_t index, uint64_t seed)
{
    return mix(index ^ (seed << 40)) & 0xffffffffu;
}

static uint64_t fill(uint64_t seed)
{
    uint64_t sum = 0;
    uint64_t *words = (uint64_t *)memory;
    for (size_t i = 0; i < pages * (PAGE / 8); i++) {
        words[i] = first_value(i, seed);
        sum += words[i];
    }
    return sum;
}

static uint64_t add_up(void)
{
    uint64_t sum = 0;
    const uint64_t *words = (const uint64_t *)memory;
    for (size_t i = 0; i < pages * (PAGE / 8); i++) sum += words[i];
    return sum;
}

static double percentile(const uint64_t *histogram, uint64_t total, double share)
{
    uint64_t wanted = (uint64_t)(share * (double)total), seen = 0;
    for (unsigned b = 0; b < BUCKETS; b++) {
        seen += histogram[b];
        if (seen > wanted) return bucket_value(b);
    }
    return 0;
}

static void sleep_seconds(double seconds)
{
    struct timespec t = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}

static double ns_per_cycle(void)
{
    uint64_t t0 = now_ns(), c0 = __rdtsc();
    sleep_seconds(0.05);
    uint64_t c1 = __rdtsc(), t1 = now_ns();
    return (double)(t1 - t0) / (double)(c1 - c0);
}

int main(int argc, char **argv)
{
    if (argc < 5) die("usage: randupdate SIZE THREADS SECONDS SEED [WARMUP_SECONDS]");
    size_t size = parse_size(argv[1]);
    int threads = atoi(argv[2]);
    double seconds = atof(argv[3]);
    uint64_t seed = strtoull(argv[4], NULL, 10);
    double warmup = argc > 5 ? atof(argv[5]) : 1.0;
    if (size < PAGE || threads < 1 || threads > 1024 || seconds <= 0) die("SIZE, THREADS (1 to 1024) and SECONDS must be above 0");

    double scale = ns_per_cycle();
    memory = map_anonymous(size);
    /* Transparent huge pages would be split at the first eviction: neither side gets them, so that pages are compared. */
    madvise(memory, size, MADV_NOHUGEPAGE);
    pages = size / PAGE;
    uint64_t t0 = now_ns();
    uint64_t sum_before = fill(seed);
    double fill_seconds = (double)(now_ns() - t0) / 1e9;

    struct worker *workers = aligned_alloc(64, sizeof(struct worker) * (size_t)threads);
    memset(workers, 0, sizeof(struct worker) * (size_t)threads);
    phase = WARMUP;
    for (int i = 0; i < threads; i++) {
        workers[i].rng.state = mix(seed * 1000 + (uint64_t)i);
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) die("cannot start thread %d", i);
    }
    sleep_seconds(warmup);
    phase = MEASURE;
    uint64_t t1 = now_ns();
    sleep_seconds(seconds);
    phase = STOP;
    double measured = (double)(now_ns() - t1) / 1e9;

    static uint64_t histogram[BUCKETS];
    uint64_t all = 0, counted = 0, max_cycles = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        all += workers[i].updates_all;
        counted += workers[i].updates_measured;
        if (workers[i].max_cycles > max_cycles) max_cycles = workers[i].max_cycles;
        for (unsigned b = 0; b < BUCKETS; b++) histogram[b] += workers[i].histogram[b];
    }
    uint64_t t2 = now_ns();
    int right = add_up() == sum_before + all;
    double scan_seconds = (double)(now_ns() - t2) / 1e9;
    printf("{\"threads\": %d, \"size_bytes\": %zu, \"seconds\": %.3f, \"updates\": %llu, \"updates_per_second\": %.0f, \"correct\": %s, "
           "\"fill_seconds\": %.3f, \"scan_seconds\": %.3f, \"latency_ns\": {\"p50\": %.0f, \"p90\": %.0f, \"p99\": %.0f, \"p999\": %.0f, \"max\": %.0f}}\n",
           threads, size, measured, (unsigned long long)counted, (double)counted / measured, right ? "true" : "false", fill_seconds, scan_seconds,
           percentile(histogram, counted, 0.5) * scale, percentile(histogram, counted, 0.9) * scale, percentile(histogram, counted, 0.99) * scale,
           percentile(histogram, counted, 0.999) * scale, (double)max_cycles * scale);
    return right ? 0 : 1;
}
