#!/usr/bin/env python3
"""A database that is mapped and larger than its memory: plain in a memory cgroup, and under `farshore run --files`, in turn (root).

    tools/mapped.py [--size MIB] [--times N,N] [--rounds N] [--seconds N] [--farshore COMMAND]

An LMDB file of SIZE MiB is made in /var/tmp (or $FARSHORE_SWAP_DIR) and removed at the end. For each of TIMES the limit is SIZE divided by it; the cgroup has
4 MiB more, as in `farshore bench`. A run begins with nothing of the file in the page cache, reads all values in order once, and then looks up values for some
seconds, each compared with what was put there. It prints medians of the lookups, and of what the process read from the device for each (/proc/self/io).

`plain` is LMDB as it comes, which lets the kernel read ahead. `plain, no ahead` opens it with MDB_NORDAHEAD, as its manual recommends where a database is
larger than memory. Needs Debian's python3-lmdb.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release")
MIB = 1 << 20
# Of a value; three fit into a page of LMDB's, as of a record of a few fields.
VALUE = 1200
PER_PAGE = 3
MARGIN = 4 * MIB
NAMES = ("plain", "plain, no ahead", "farshore")
KINDS = {"all alike": lambda pick, count: pick.randrange(count),
         "nine of ten in a tenth": lambda pick, count: pick.randrange(count // 10) if pick.random() < 0.9 else pick.randrange(count)}


def value_of(number):
    """What is stored under a number."""
    return number.to_bytes(8, "big") * (VALUE // 8)


def make(path, size):
    """Fills a database of about `size` bytes; returns how many values it has."""
    import lmdb
    count = size // 4096 * PER_PAGE
    with lmdb.open(path, subdir=False, map_size=2 * size, lock=False) as database:
        for first in range(0, count, 30_000):
            with database.begin(write=True) as change:
                for number in range(first, min(count, first + 30_000)):
                    change.put(number.to_bytes(8, "big"), value_of(number), append=True)
    return count


def read_bytes():
    """What this process has read from devices."""
    with open("/proc/self/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("read_bytes:"))


def work(path, count, ahead, kind, seconds):
    """One run, in the process that is measured; prints a line of JSON."""
    import lmdb
    database = lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=ahead)
    pick = random.Random(4711)
    with database.begin(buffers=True) as look:
        for number, (_, value) in enumerate(look.cursor()):
            if value != value_of(number):
                raise SystemExit(f"wrong value of {number}")
        read, begin, done = read_bytes(), time.monotonic(), 0
        while (now := time.monotonic()) < begin + seconds:
            number = KINDS[kind](pick, count)
            if look.get(number.to_bytes(8, "big")) != value_of(number):
                raise SystemExit(f"wrong value of {number}")
            done += 1
    print(json.dumps({"rate": done / (now - begin), "bytes": (read_bytes() - read) / done}))


class Cgroup:
    """A memory cgroup with a limit, of version 1 or 2."""

    def __init__(self, limit):
        first = "/sys/fs/cgroup/memory"
        top, self.name = (first, "memory.limit_in_bytes") if os.path.isdir(first) else ("/sys/fs/cgroup", "memory.max")
        self.path = os.path.join(top, f"farshore-tool-{os.getpid()}")
        os.mkdir(self.path)
        self.set_limit(limit)

    def set_limit(self, limit):
        """Its limit is so many bytes now."""
        with open(os.path.join(self.path, self.name), "w", encoding="ascii") as file:
            file.write(str(limit))

    def join(self):
        """Puts this process into it."""
        with open(os.path.join(self.path, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write(str(os.getpid()))

    def close(self):
        """Removes it."""
        os.rmdir(self.path)


def run(options, path, count, limit, name, kind):
    """One run of one kind: what it printed."""
    # Not dirty, and nobody has it mapped.
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [sys.executable, os.path.abspath(__file__), "--work", path, str(count), name != "plain, no ahead" and "ahead" or "", kind, str(options.seconds)]
    with contextlib.ExitStack() as stack:
        join = None
        if name == "farshore":
            command = [options.farshore, "run", "--memory", str(limit), "--files", "--", *command]
        else:
            join = stack.enter_context(contextlib.closing(Cgroup(limit + MARGIN))).join
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, preexec_fn=join, check=True, timeout=60 + 20 * options.seconds)
    return json.loads(done.stdout)


def main():
    if sys.argv[1:2] == ["--work"]:
        path, count, ahead, kind, seconds = sys.argv[2:]
        return work(path, int(count), bool(ahead), kind, float(seconds))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, metavar="MIB")
    parser.add_argument("--times", default="1.5,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--farshore", default=os.path.join(RELEASE, "farshore"), metavar="COMMAND")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("needs root: the plain program runs in a memory cgroup")
    if importlib.util.find_spec("lmdb") is None:
        raise SystemExit("no lmdb for this python3: apt-get install python3-lmdb, and run by /usr/bin/python3")
    with tempfile.TemporaryDirectory(prefix="farshore-mapped-", dir=os.environ.get("FARSHORE_SWAP_DIR") or "/var/tmp") as folder:
        path = os.path.join(folder, "data.mdb")
        count = make(path, options.size * MIB)
        size = os.path.getsize(path)
        print(f"{count:,} values in {size / MIB:.0f} MiB", flush=True)
        found = {}
        for _ in range(options.rounds):
            for times in map(float, options.times.split(",")):
                for kind in KINDS:
                    for name in NAMES:
                        got = run(options, path, count, int(size / times) // 4096 * 4096, name, kind)
                        found.setdefault((times, kind, name), []).append(got)
                        print(f"  {times} x, {kind}, {name}: {got['rate']:,.0f} /s, {got['bytes'] / 1024:,.1f} KiB each", flush=True)
        print("| the file is … times the limit | lookups | run | lookups/s | KiB read for each |\n|---|---|---|---|---|")
        for (times, kind, name), runs in sorted(found.items(), key=lambda item: item[0][:2]):
            rates = [each["rate"] for each in runs]
            print(f"| {times} | {kind} | {name} | {statistics.median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f}) "
                  f"| {statistics.median(each['bytes'] for each in runs) / 1024:,.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
