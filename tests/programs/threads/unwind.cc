// C++ exceptions through frames whose unwinding touches memory that is absent: objects that are thrown, destructors, handlers in
// several threads, on stacks of the program's own, out of a callback of C, and by cancellation.
//
//     unwind BALLAST_MIB
//
// Prints the same natively and under Farshore.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

namespace {

std::size_t ballast_pages;
volatile unsigned char *ballast;

void make_absent()
{
    for (std::size_t i = 0; i < ballast_pages; i++) __atomic_fetch_add(&ballast[i * 4096], 1, __ATOMIC_RELAXED);
}

std::uint64_t mix(std::uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 31);
}

[[noreturn]] void die(const char *what)
{
    std::fprintf(stderr, "failed: %s\n", what);
    _exit(99);
}

// Memory of its own, checked and counted when it is destroyed.
struct Block {
    std::vector<std::uint64_t> words;
    std::uint64_t salt;
    std::atomic<std::uint64_t> &sum;

    Block(std::uint64_t salt_, std::size_t count, std::atomic<std::uint64_t> &sum_) : words(count), salt(salt_), sum(sum_)
    {
        for (std::size_t i = 0; i < count; i++) words[i] = mix(salt ^ i);
    }
    Block(const Block &) = delete;
    ~Block()
    {
        std::uint64_t all = 0;
        for (std::size_t i = 0; i < words.size(); i++) {
            if (words[i] != mix(salt ^ i)) die("a destructor read a wrong word");
            all += words[i];
        }
        sum += all;
    }
};

struct Failure : std::runtime_error {
    std::map<int, std::string> details;
    explicit Failure(int depth) : std::runtime_error("at depth " + std::to_string(depth))
    {
        for (int i = 0; i < 200; i++) details[i] = std::string(200, static_cast<char>('a' + (i + depth) % 26));
    }
};

__attribute__((noinline)) void descend(int depth, std::atomic<std::uint64_t> &sum)
{
    Block block(static_cast<std::uint64_t>(depth), 20000, sum);
    if (depth == 0) {
        make_absent();
        throw Failure(depth);
    }
    try {
        descend(depth - 1, sum);
    } catch (const std::logic_error &) {
        die("the wrong handler");
    } catch (const Failure &failure) {
        if (depth % 4 == 0) std::throw_with_nested(Failure(depth));
        if (failure.details.size() != 200) die("details are gone");
        throw;
    }
}

std::size_t nested(const std::exception &error)
{
    try {
        std::rethrow_if_nested(error);
    } catch (const std::exception &inner) {
        return 1 + nested(inner);
    }
    return 1;
}

std::string attempt(int depth)
{
    std::atomic<std::uint64_t> sum{0};
    try {
        descend(depth, sum);
    } catch (const Failure &failure) {
        make_absent();
        std::uint64_t digest = sum;
        for (const auto &[key, text] : failure.details) digest = mix(digest ^ static_cast<std::uint64_t>(key) ^ static_cast<std::uint64_t>(text[100]));
        char line[200];
        std::snprintf(line, sizeof line, "%s, %zu nested, digest %016llx", failure.what(), nested(failure), static_cast<unsigned long long>(digest));
        return line;
    }
    return "nothing was thrown";
}

int compare(const void *one, const void *other)
{
    static int calls;
    if (++calls == 5000) throw std::string(300, 'x');
    auto a = *static_cast<const std::uint64_t *>(one), b = *static_cast<const std::uint64_t *>(other);
    return a < b ? -1 : a > b;
}

ucontext_t of_coroutine, of_caller;
std::string coroutine_says;

void coroutine()
{
    coroutine_says = attempt(6);
}

void *cancelled(void *argument)
{
    auto &sum = *static_cast<std::atomic<std::uint64_t> *>(argument);
    Block outer(77, 30000, sum);
    try {
        Block inner(78, 30000, sum);
        make_absent();
        for (;;) pause();
    } catch (...) {
        sum += 1;
        throw;
    }
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 2) die("usage: unwind BALLAST_MIB");
    ballast_pages = static_cast<std::size_t>(std::atoi(argv[1])) * 256;
    ballast = static_cast<volatile unsigned char *>(mmap(nullptr, ballast_pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::printf("main thread: %s\n", attempt(12).c_str());

    std::vector<std::future<std::string>> results;
    for (int i = 0; i < 6; i++) results.push_back(std::async(std::launch::async, attempt, 4 + i));
    for (auto &result : results) std::printf("thread: %s\n", result.get().c_str());

    std::promise<int> promise;
    auto future = promise.get_future();
    std::thread([&promise] {
        try {
            throw Failure(41);
        } catch (...) {
            make_absent();
            promise.set_exception(std::current_exception());
        }
    }).join();
    make_absent();
    try {
        future.get();
    } catch (const Failure &failure) {
        std::printf("from another thread: %s\n", failure.what());
    }

    std::vector<std::uint64_t> words(1 << 18);
    for (std::size_t i = 0; i < words.size(); i++) words[i] = mix(i);
    make_absent();
    try {
        std::qsort(words.data(), words.size(), sizeof words[0], compare);
    } catch (const std::string &text) {
        std::printf("out of qsort: %zu bytes\n", text.size());
    }

    // A stack on the heap.
    std::vector<char> stack(1 << 20);
    getcontext(&of_coroutine);
    of_coroutine.uc_stack.ss_sp = stack.data();
    of_coroutine.uc_stack.ss_size = stack.size();
    of_coroutine.uc_link = &of_caller;
    makecontext(&of_coroutine, coroutine, 0);
    swapcontext(&of_caller, &of_coroutine);
    std::printf("coroutine: %s\n", coroutine_says.c_str());

    std::atomic<std::uint64_t> sum{0};
    std::vector<pthread_t> threads(4);
    for (auto &thread : threads) {
        if (pthread_create(&thread, nullptr, cancelled, &sum) != 0) die("pthread_create");
    }
    usleep(50000);
    for (auto &thread : threads) pthread_cancel(thread);
    for (auto &thread : threads) pthread_join(thread, nullptr);
    std::printf("cancelled: %016llx\n", static_cast<unsigned long long>(sum.load()));
    return 0;
}
