/* RocksDB on unithreads, with a cache that is larger than memory: gets of random keys, each of which is checked.
 *
 *   rocks FOLDER held|guarded|free
 *
 * `held`: nobody is switched away from within RocksDB. `guarded`: but within libc, the C++ library and the allocator, as for any program. `free`: at any access, which RocksDB does not
 * allow: it has locks, and thread-local data in use, while it touches its cache (docs/src/decisions/0045-lmdb-for-the-ordered-store.md). Prints how many gets were right, and how many
 * unithreads were within one at a time. Status 3: nothing has moved for ten seconds. */
#include "farshore_uthread.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <unistd.h>

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/table.h>

namespace
{
constexpr int UNITHREADS = 32, KEYS = 60000, GETS = 2000;
constexpr size_t VALUE = 1000;

rocksdb::DB *db;
bool held;
std::atomic<unsigned long> gets;
// Unithreads that are in a get now, and the most at a time.
int inside, most;

std::string key(int number)
{
    char text[16];
    std::snprintf(text, sizeof text, "%08d", number);
    return text;
}

std::string value(int number)
{
    std::string text;
    for (unsigned seed = unsigned(number) * 2654435761u; text.size() < VALUE; seed = seed * 1664525u + 1013904223u)
        text.append(reinterpret_cast<const char *>(&seed), sizeof seed);
    return text;
}

void fail(const char *what)
{
    std::fprintf(stderr, "rocks: %s\n", what);
    std::_Exit(1);
}

void *reader(void *argument)
{
    unsigned long seed = reinterpret_cast<unsigned long>(argument) + 1;
    for (int i = 0; i < GETS; i++) {
        seed = seed * 6364136223846793005ul + 1442695040888963407ul;
        const int number = int((seed >> 33) % KEYS);
        std::string got;
        if (held)
            farshore_uthread_hold();
        if (++inside > most)
            most = inside;
        const bool is_right = db->Get(rocksdb::ReadOptions(), key(number), &got).ok() && got == value(number);
        inside--;
        if (held)
            farshore_uthread_release();
        if (!is_right)
            fail("a value is not there, or another one");
        gets++;
        farshore_uthread_yield();
    }
    return nullptr;
}
}

int main(int argc, char **argv)
{
    if (argc != 3)
        fail("FOLDER held|guarded|free");
    held = std::strcmp(argv[2], "held") == 0;
    rocksdb::BlockBasedTableOptions table;
    // All of the data, behind one lock.
    table.block_cache = rocksdb::NewLRUCache(256 << 20, 0);
    rocksdb::Options options;
    options.create_if_missing = true;
    options.compression = rocksdb::kNoCompression;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    if (!rocksdb::DB::Open(options, argv[1], &db).ok())
        fail("it does not open");
    for (int number = 0; number < KEYS; number++)
        if (!db->Put(rocksdb::WriteOptions(), key(number), value(number)).ok())
            fail("a value cannot be put");
    if (!db->Flush(rocksdb::FlushOptions()).ok() || !db->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr).ok())
        fail("it cannot be flushed");
    std::string got;
    for (int number = 0; number < KEYS; number++)
        if (!db->Get(rocksdb::ReadOptions(), key(number), &got).ok() || got != value(number))
            fail("a value is not there at the beginning");

    std::thread watchdog([] {
        for (unsigned long before = ~0ul, now; (now = gets) != before; before = now)
            sleep(10);
        std::printf("stuck after %lu gets, %d at a time\n", gets.load(), most);
        std::fflush(stdout);
        std::_Exit(3);
    });
    watchdog.detach();
    farshore_uthread_config config = {};
    config.workers = 1;
    config.stack_bytes = 256 << 10;
    config.do_not_guard_libc = std::strcmp(argv[2], "free") == 0;
    farshore_uthread_t threads[UNITHREADS];
    if (farshore_uthread_start(&config) != 0)
        fail("no runtime");
    for (long i = 0; i < UNITHREADS; i++)
        if (farshore_uthread_spawn(&threads[i], reader, reinterpret_cast<void *>(i)) != 0)
            fail("no unithread");
    for (auto thread : threads)
        farshore_uthread_join(thread, nullptr);
    std::printf("%lu gets, %d at a time\n", gets.load(), most);
    std::fflush(stdout);
    std::_Exit(0);
}
