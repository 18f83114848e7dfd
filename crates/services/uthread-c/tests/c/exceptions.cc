/* C++ exceptions of unithreads that take turns inside of handlers, and while destructors run. Prints "ok" at the end; any other end is a failure. */
#include "farshore_uthread.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>

static void check(bool right, long number, const char *what)
{
    if (!right) {
        std::fprintf(stderr, "unithread %ld: %s\n", number, what);
        std::abort();
    }
}

struct Yields {
    long number;
    int uncaught;
    ~Yields()
    {
        check(std::uncaught_exceptions() == uncaught, number, "another number of exceptions under way");
        farshore_uthread_yield();
        check(std::uncaught_exceptions() == uncaught, number, "another number of exceptions under way after others ran");
    }
};

static void again(long number)
{
    try {
        Yields yields{number, 1};
        throw std::runtime_error(std::to_string(number));
    } catch (const std::exception &caught) {
        farshore_uthread_yield();
        try {
            /* A second one inside of the first one's handler. */
            throw number;
        } catch (long inner) {
            farshore_uthread_yield();
            check(inner == number, number, "caught another's number");
        }
        check(caught.what() == std::to_string(number), number, "caught another's exception");
        throw;
    }
}

static void *work(void *argument)
{
    long number = reinterpret_cast<long>(argument);
    for (int i = 0; i < 200; i++) {
        check(std::uncaught_exceptions() == 0 && !std::current_exception(), number, "an exception from nowhere");
        try {
            again(number);
            check(false, number, "nothing was thrown again");
        } catch (const std::runtime_error &caught) {
            farshore_uthread_yield();
            check(caught.what() == std::to_string(number), number, "another's exception was thrown again");
        }
        farshore_uthread_yield();
    }
    return nullptr;
}

int main()
{
    farshore_uthread_config config{};
    config.workers = 1;
    farshore_uthread_t threads[8];
    check(farshore_uthread_start(&config) == 0, 0, "no start");
    for (long i = 0; i < 8; i++)
        check(farshore_uthread_spawn(&threads[i], work, reinterpret_cast<void *>(i + 1)) == 0, i, "no spawn");
    for (auto thread : threads)
        check(farshore_uthread_join(thread, nullptr) == 0, 0, "no join");
    check(farshore_uthread_shutdown(0) == 0, 0, "no shutdown");
    std::puts("ok");
}
