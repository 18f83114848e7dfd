"""Pools of compressed pages (ram:lz4, ram:zstd, ram:auto): alone, in front of a disk, full, with a disk that fails, in forked children, under a limit that changes.

The workloads check their own data. In every run pages and pool together stay within the limit.
"""

import contextlib
import itertools
import json
import resource
import signal
import subprocess
import sys
import time

import harness
import pytest
from command import Command
from harness import MIB, expect

KINDS = ("lz4", "zstd")
# A program that works on 40 MiB of pages, half of which compress to nothing, until its stdin ends; then it checks them all.
UPDATES = """
import mmap, os, random, select
pages = 10240
memory = mmap.mmap(-1, pages * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
noise, versions = [os.urandom(2048) for _ in range(64)], [0] * pages
def page(i): return (b'%d %d ' % (i, versions[i])).ljust(2048, b'.') + noise[(i + versions[i]) % 64]
def right(i): return memory[i * 4096:(i + 1) * 4096] == page(i)
def write(i): memory[i * 4096:(i + 1) * 4096] = page(i)
for i in range(pages): write(i)
print('filled', flush=True)
while not select.select([0], [], [], 0)[0]:
    for i in random.sample(range(pages), 500):
        assert right(i), i
        versions[i] += 1
        write(i)
print('right' if all(map(right, range(pages))) else 'wrong', flush=True)
"""

# A program of 40 MiB of pages in phases that stdin names: `small` data, which compress, or `noise`; `reads` or `updates`. It checks each page that it touches, and a forked child
# does so now and then. It says when a phase begins, and after each 4,000 touches of it.
SCARCE = """
import random, sys, time
pages, pick = 52 * 256, random.Random(4)
memory, versions, noise = bytearray(pages * 4096), [0] * pages, pick.randbytes(4096)
def page(i): return (noise[i % 61:][:1536] + b'%d.%d;' % (i, versions[i]) * 1024)[:4096]
def write(i): memory[i * 4096:(i + 1) * 4096] = page(i)
for i in range(pages): write(i)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    i = pick.randrange(pages)
    assert memory[i * 4096:(i + 1) * 4096] == page(i), i
    versions[i] += 1
    write(i)
print('right')
"""
PHASES = """
import mmap, os, random, select, sys
pages, noise, small = 10240, [os.urandom(4000) for _ in range(64)], [os.urandom(500) for _ in range(64)]
memory, kind, versions = mmap.mmap(-1, pages * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), [small] * pages, [0] * pages
def page(i): return (b'%d %d ' % (i, versions[i])).ljust(96, b'.') + kind[i][(i + versions[i]) % 64].ljust(4000, b'-')
def right(i): return memory[i * 4096:(i + 1) * 4096] == page(i)
def write(i): memory[i * 4096:(i + 1) * 4096] = page(i)
def work(some, updates):
    for i in some:
        assert right(i), i
        if updates:
            versions[i] += 1
            write(i)
for i in range(pages): write(i)
print('filled', flush=True)
for line in sys.stdin:
    data, how = line.split()
    for i in range(pages):
        assert right(i), i
        kind[i] = {'small': small, 'noise': noise}[data]
        write(i)
    print('begun', flush=True)
    rounds = 0
    while not select.select([0], [], [], 0)[0]:
        work(random.choices(range(pages), k=4000), how == 'updates')
        rounds += 1
        if rounds % 5 == 0:
            child = os.fork()
            if child == 0:
                work(random.choices(range(pages), k=2000), True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, 'child'
        print('round', flush=True)
print('right' if all(map(right, range(pages))) else 'wrong', flush=True)
"""


def swaps(specs):
    """Options that name these swap spaces."""
    return [word for spec in specs for word in ("--swap", spec)]


class TestPools(Command):
    def stats(self, limit, swap, program, options=(), faulty=None):
        """Runs a program that must end well; its counters and what it has printed. Within the limit, nothing evicted in a fault."""
        with self.running(["--memory", limit, "--stats", "-", *options, *swaps(swap)], program, faulty) as process:
            outcome, out = self.ended(process)
        told, brace, counters = outcome.stderr.partition("{")
        expect(outcome.status == 0, f"{swap} {faulty or ''}: status {outcome.status}: {told[-400:]}")
        found = json.loads(brace + counters)
        expect(found["resident_bytes_peak"] <= harness.parse_size(limit), f"{swap}: {found['resident_bytes_peak']} bytes in {limit}")
        expect(found["evictions"]["synchronous"] == 0, f"{swap}: evictions in faults")
        return found, out

    def load(self, *arguments):
        """A workload whose data compress to half; it fails if they are not what they were."""
        return [harness.find_load(), *arguments]

    def scan(self, limit, swap, size, passes=2, **more):
        """A program whose data do not compress: its counters, after a look at its sums."""
        found, out = self.stats(limit, swap, [self.public_program("scan"), str(size), str(passes)], **more)
        expect({line.split()[2] for line in out.splitlines()} == {self.scan_sum(size)}, f"{swap}: wrong data: {out}")
        return found

    @contextlib.contextmanager
    def updates(self, limit, swap):
        """UPDATES at work, until the end of the block: itself and its process id. It must have found its data right then."""
        with self.running(["--memory", limit, *swaps(swap)], [sys.executable, "-c", UPDATES], stdin=subprocess.PIPE) as process:
            pid = self.managed(process)
            expect(process.popen.stdout.readline() == b"filled\n", f"it ended: {process.stderr_so_far()[-300:]}")
            yield process, pid
            process.popen.stdin.close()
            outcome, out = self.ended(process)
        expect((outcome.status, out) == (0, "right\n"), f"{swap}: status {outcome.status}: {out[-200:]} {outcome.stderr[-400:]}")

    def test_alone(self):
        """Data that compress to half, in three quarters of their size and no swap space but the pool."""
        seen = []
        for kind in KINDS:
            with self.updates("30M", [f"ram:{kind}"]) as (process, pid):
                self.until_evicted(process, pid, 20000)
                now = self.counters(pid)
            pool = now["pool"]
            expect(pool["name"] == f"ram:{kind}" and pool["pages"] > 5000 and pool["moved_pages"] == 0, f"{kind}: {pool}")
            held = (pool["pages"] - pool["repeated_pages"]) * 4096
            expect(pool["compressed_bytes"] <= pool["used_bytes"] < held * 0.72, f"{kind}: {pool}")
            expect(now["resident_bytes_peak"] <= 30 * MIB, f"{kind}: {now['resident_bytes_peak']} bytes")
            seen.append(f"{kind} {pool['compressed_bytes'] / held:.0%} in {pool['used_bytes'] / held:.0%}")
        return ", ".join(seen)

    def test_freed(self):
        """Memory of the pool goes back when the program gives up its pages, also if it then does nothing."""
        text = ("import mmap, os, time\n"
                "m = mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
                "for i in range(0, 64 << 20, 4096): m[i:i + 1500] = os.urandom(1500)\n"
                "m.close()\n"
                "print('freed', flush=True)\n"
                "input()\n")
        with self.running(["--memory", "40M", "--swap", "ram:lz4"], [sys.executable, "-c", text], stdin=subprocess.PIPE) as process:
            pid = self.managed(process)
            before = 0
            expect(process.popen.stdout.readline() == b"freed\n", f"it ended: {process.stderr_so_far()[-300:]}")
            deadline = time.monotonic() + 60
            while (now := self.counters(pid)["pool"]["used_bytes"]) > 6 * MIB:
                before = max(before, now)
                expect(time.monotonic() < deadline, f"{now} bytes are used")
                time.sleep(0.05)
            process.popen.stdin.close()
            self.ended(process)
        return f"{now >> 10} KiB are left of {before >> 20} MiB or more"

    def test_one_word(self):
        """Pages of one word repeated take no memory."""
        # It ends before Python gives its memory back: evictors may find that some of it is dead.
        program = [sys.executable, "-c", "import os; m = [bytearray(b'abcdefgh' * 512) * 256 for _ in range(64)]; "
                   "os._exit(not all(p.count(b'h') == 131072 for p in m))"]
        found, _ = self.stats("24M", ["ram:lz4"], program)
        pool = found["pool"]
        expect(pool["repeated_pages"] > 10000 and pool["used_bytes"] < 4 * MIB, f"{pool}")
        return f"{pool['repeated_pages']} pages, {pool['used_bytes'] >> 10} KiB"

    def test_in_front_of_a_disk(self):
        """What does not compress goes on at once; of what does, the oldest when the pool is full. With and without encryption."""
        place = self.folder("front")
        for kind in KINDS:
            noise = self.scan("16M", [f"ram:{kind}", f"dir:{place}"], 40 * MIB)
            expect(noise["pool"]["refused_pages"] > 2000 and noise["pool"]["moved_pages"] == 0, f"{kind}: {noise['pool']}")
            for options in ((), ("--encrypt",)):
                swap = [f"ram:{kind},size=4M", f"dir:{place}", f"dir:{place}"]
                half, _ = self.stats("16M", swap, self.load("random", "--size=48M", "--threads=4", "--seconds=1", "--warmup=0"), options)
                pool = half["pool"]
                expect(pool["moved_pages"] > 100 and 0 < pool["used_bytes"] <= 4 * MIB, f"{kind}: {pool}")
                expect([space["encrypted"] for space in half["spaces"]] == [bool(options)] * 2, f"{kind}: {half['spaces']}")
        return f"{pool['moved_pages']} of the last run moved on"

    def test_full(self):
        """No room, and nothing behind: SIGBUS and a reason, and no wrong data."""
        how = self.overfull("ram:lz4", "pool", 8 * MIB, 64 * MIB)
        expect(how != "went on", "64M of noise fit into 8M?")
        done = self.call("run", "--memory", "64M", "--swap", "ram:lz4,size=4M", "--", *self.load("random", "--size=96M", "--seconds=1"))
        expect(done.status == 128 + signal.SIGBUS, f"a pool of 4M: status {done.status}: {done.err[-300:]}")
        return how

    def test_errors_behind(self):
        """The disk behind the pool fails now and then, and while the pool moves pages to it."""
        place = self.folder("errors")
        # Three reads in a row that fail lose a page. At 0.02 that is one page in 100,000, and these runs read 20,000 each: they would fail now and then.
        rates = {"write_error": 0.02, "short_write": 0.02, "full": 0.02, "read_error": 0.002, "corrupt": 0.002}
        for kind, rate in rates.items():
            swap = ["ram:lz4,size=4M", f"dir:{place}"]
            # On a busy machine it reads little in a second: of a thousand reads one in eight such runs would have no error.
            for seconds in (1, 4, 16):
                program = self.load("random", "--size=32M", "--threads=4", f"--seconds={seconds}", "--warmup=0")
                found, _ = self.stats("12M", swap, program, faulty=f"seed={self.seed},{kind}={rate}")
                expect(found["pool"]["moved_pages"] > 0, f"{kind}: {found['pool']}")
                if found["swap"]["errors"] > 0:
                    break
            expect(found["swap"]["errors"] > 0, f"{kind}: no error was counted: {found['swap']}")
        return "write errors, short writes, no room, read errors, wrong bytes"

    def test_disk_that_is_gone(self):
        """All writes to the disk fail from the start: what fits into the pool goes on, and the disk is told of once if it is told of."""
        swap = ["ram:lz4", f"dir:{self.folder('gone')}"]
        program = self.load("random", "--size=36M", "--threads=2", "--seconds=1", "--warmup=0")
        with self.running(["--memory", "30M", *swaps(swap)], program, "write_error=1") as process:
            outcome, _ = self.ended(process)
        expect(outcome.status == 0, f"status {outcome.status}: {outcome.stderr[-400:]}")
        expect(outcome.stderr.count(" fails (") <= 1, f"{outcome.stderr}")
        return "went on"

    def test_fork(self):
        """Children and grandchildren read what their parents' pools hold, and have pools of their own."""
        for swap in (["ram:lz4"], ["ram:zstd,size=2M", f"dir:{self.folder('fork')}"]):
            text = ("import os, sys\n"
                    "def page(i, who): return (b'%d %d ' % (i, who)) * 300\n"
                    "mine = [page(i, 0) for i in range(9000)]\n"
                    "def check(who, turns):\n"
                    "    for turn in range(turns):\n"
                    "        for i in range(turn, 9000, 3): mine[i] = page(i, who)\n"
                    "    assert all(mine[i] == page(i, who if i % 3 < turns else 0) for i in range(9000))\n"
                    "children = []\n"
                    "for who in (1, 2):\n"
                    "    if (pid := os.fork()) == 0:\n"
                    "        check(who, 2)\n"
                    "        if (grandchild := os.fork()) == 0:\n"
                    "            mine[0] = b'mine'\n"
                    "            assert all(mine[i] == page(i, who if i % 3 < 2 else 0) for i in range(1, 9000))\n"
                    "            os._exit(0)\n"
                    "        os._exit(1 if os.waitpid(grandchild, 0)[1] else 0)\n"
                    "    children.append(pid)\n"
                    "check(3, 3)\n"
                    "sys.exit(any(os.waitpid(pid, 0)[1] for pid in children))\n")
            found, _ = self.stats("16M", swap, [sys.executable, "-c", text])
            expect(found["pool"]["pages"] > 0, f"{swap}: {found['pool']}")
        return "alone, and in front of a disk"

    def test_set_memory(self):
        """A limit that falls takes from the pool, too, and stays while the program works; what the pool held is where it should be."""
        swap, seen = ["ram:lz4", f"dir:{self.folder('set')}"], []
        with self.updates("30M", swap) as (process, pid):
            for limit in ("10M", "36M", "16M"):
                done = self.call("set", str(pid), f"memory={limit}")
                expect(done.status == 0, f"set memory={limit}: {done.err}")
                self.until_within(pid, limit)
                # Not for a moment alone: it works on, and is within it still.
                self.until_evicted(process, pid, 3000)
                self.until_within(pid, limit)
                seen.append(limit)
        return ", ".join(seen)

    def until_evicted(self, process, pid, pages):
        """Waits until so many pages more have left."""
        wanted = self.counters(pid)["evictions"]["pages"] + pages
        while self.counters(pid)["evictions"]["pages"] < wanted:
            expect(process.alive() and not process.timed_out, f"it ended before {pages} pages left: {process.stderr_so_far()[-300:]}")
            time.sleep(0.05)

    def phase(self, process, pid, words, is_so):
        """Lets PHASES work so until its pool is as wanted. What the pool is then."""
        process.popen.stdin.write(f"{words}\n".encode())
        process.popen.stdin.flush()
        deadline = time.monotonic() + 90
        while True:
            line = process.popen.stdout.readline()
            expect(line in (b"begun\n", b"round\n"), f"{words}: it ended: {line} {process.stderr_so_far()[-300:]}")
            pool = self.counters(pid)["pool"]
            if line == b"round\n" and is_so(pool):
                return pool
            expect(time.monotonic() < deadline, f"{words}: {pool}")

    @pytest.mark.parametrize("how", ("poll", "upcall", "encrypt", "errors", "disk"))
    def test_it_finds_its_size(self, how):
        """ram:auto gets memory while data compress, and gives it up when they do not. Pages leave unchanged and changed; children read what their parents' pools have."""
        options = {"encrypt": ("--encrypt",), "errors": (), "disk": ()}.get(how, ("--fault", how))
        faulty = f"seed={self.seed},write_error=0.01,short_write=0.01" if how == "errors" else None
        # A disk that always takes so long: whether a pool pays depends on this machine's.
        behind = f"dir:{self.folder('auto')}" if how == "disk" else "delay:100us"
        arguments = ["--memory", "20M", *options, *swaps(["ram:auto", behind])]
        with self.running(arguments, [sys.executable, "-u", "-c", PHASES], faulty, stdin=subprocess.PIPE, timeout=300) as process:
            pid = self.managed(process)
            expect(process.popen.stdout.readline() == b"filled\n", f"it ended: {process.stderr_so_far()[-300:]}")
            some = lambda pool: pool["chosen_bytes"] >= 4 * MIB and pool["pages"] > 4000
            none = lambda pool: pool["chosen_bytes"] == 0 and pool["used_bytes"] < MIB
            if how == "disk":
                turns = itertools.count(1)
                some = none = lambda pool: next(turns) % 8 == 0
            seen = [self.phase(process, pid, words, is_so) for words, is_so in
                    (("small reads", some), ("noise updates", none), ("small updates", some), ("noise reads", none))]
            peak = self.counters(pid)["resident_bytes_peak"]
            process.popen.stdin.close()
            outcome, out = self.ended(process)
        expect((outcome.status, out.splitlines()[-1:]) == (0, ["right"]), f"status {outcome.status}: {out[-200:]} {outcome.stderr[-400:]}")
        expect(peak <= 20 * MIB, f"{peak} bytes")
        return f"{seen[0]['chosen_bytes'] >> 20} and {seen[2]['chosen_bytes'] >> 20} MiB"

    @pytest.mark.parametrize("pool", ("ram:auto", "ram:lz4"))
    def test_it_gives_way_where_slots_end(self, pool):
        """What fits the limit and the space behind it together runs, though the pool would have taken a part of it."""
        behind = f"file:{self.work}/scarce,size=40M"
        found, out = self.stats("32M", [pool, behind], [sys.executable, "-c", SCARCE, "8"])
        expect(out == "right\n" and found["swap"]["errors"] == 0, f"{out} {found['swap']}")
        return f"{found['pool']['used_bytes'] >> 20} MiB in the pool at the end"

    @pytest.mark.parametrize("limited", (resource.RLIMIT_AS, resource.RLIMIT_DATA), ids=("addresses", "data"))
    @pytest.mark.parametrize("swap", (["auto"], ["ram:lz4", "dir:/var/tmp"]))
    def test_little_address_space(self, swap, limited):
        """A pool without a size takes a part of the address space alone, and of private memory, which counts what is reserved."""
        limit = lambda: resource.setrlimit(limited, (3 << 30, 3 << 30))
        arguments = [self.farshore, "run", "--memory", "16M", *swaps(swap), "--", sys.executable, "-c", "print(sum(bytearray(1 << 30)[::1 << 20]))"]
        done = subprocess.run(arguments, preexec_fn=limit, capture_output=True, text=True, timeout=100, check=False)
        expect((done.returncode, done.stdout) == (0, "0\n"), f"{done.returncode}: {done.stdout} {done.stderr[-400:]}")

    def test_the_short_name(self):
        """`auto` is such a pool before the default."""
        found, _ = self.stats("16M", ["auto"], self.load("random", "--size=32M", "--threads=2", "--seconds=1", "--warmup=0"))
        expect(found["pool"]["name"] == "ram:auto" and [space["name"][:4] for space in found["spaces"]] == ["dir:"], f"{found['pool']} {found['spaces']}")

    def test_refused(self):
        """Sizes and orders that cannot be."""
        some, true = ["run", "--memory", "64M"], ["--", "true"]
        bad = [(["ram:lz4,size=1M"], "1M"), (["ram:lz4,size=x"], "x"), (["ram:gzip"], "gzip"), (["ram:lz4", "ram:zstd"], "ram:zstd"), (["ram:auto", "ram:lz4"], "ram:lz4"),
               ([f"dir:{self.work}", "ram:lz4"], "ram:lz4")]
        for swap, word in bad:
            self.refused([*some, *swaps(swap), *true], {125}, word)
        return f"{len(bad)} bad inputs, each with one line"
