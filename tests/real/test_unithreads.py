"""Unithreads on far memory: the tests of crates/services/uthread that run there, with a fraction of the memory that they use, on each kind of swap space.

The tests are Rust (crates/services/uthread/tests/far.rs and runtime.rs) and check their own data; natively they are part of `make unit`. Each test here runs a whole
program of them under farshore and looks at the counters.
"""

import json
import os
import re
import signal
import subprocess

import harness
from command import Command
from harness import expect

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Of what far.rs uses, about a third.
LIMIT = "14M"


def programs():
    """The test programs by name, built if need be."""
    tests = [word for name in ("far", "runtime", "fork", "net", "net_end", "net_udp") for word in ("--test", name)]
    build = ["cargo", "test", "--quiet", "-p", "farshore-uthread", *tests, "--no-run", "--message-format", "json"]
    done = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    expect(done.returncode == 0, f"cargo test --no-run: {done.stderr.decode()[-400:]}")
    messages = map(json.loads, done.stdout.splitlines())
    return {message["target"]["name"]: message["executable"] for message in messages if message.get("executable")}


def c_program():
    """The path of a C program with unithreads, and the directory of the library that it is linked to, which is built if need be."""
    where = os.path.dirname(harness.find_farshore())
    if not os.path.exists(os.path.join(where, "libfarshore_uthread.so")):
        profile = "release" if os.path.basename(where) == "release" else "dev"
        build = ["cargo", "build", "--quiet", "-p", "farshore-uthread-c", "--profile", profile]
        done = subprocess.run(build, cwd=ROOT, stderr=subprocess.PIPE, check=False)
        expect(done.returncode == 0, f"cargo build: {done.stderr.decode()[-400:]}")
    header = os.path.join(ROOT, "crates", "services", "uthread-c", "include")
    return harness.build_program("unitheap", ["-I", header], libraries=["-L", where, "-lfarshore_uthread"]), where


class TestUnithreads(Command):
    built = None

    def program(self, name):
        """The path of a test program."""
        if TestUnithreads.built is None:
            TestUnithreads.built = programs()
        return TestUnithreads.built[name]

    def tested(self, swap, name="far", limit=LIMIT, options=(), faulty=None, only=(), waits=10):
        """Runs a test program under farshore; its counters."""
        swaps = [word for spec in swap for word in ("--swap", spec)]
        stats = os.path.join(self.folder("stats"), "stats.json")
        options = ["--memory", limit, "--stats", stats, *swaps, *options]
        # In each of its tests unithreads must have left their worker so often while they waited for a page.
        program = ["env", f"FARSHORE_TEST_WAITS={waits}", self.program(name), "--test-threads=1", *only]
        with self.running(options, program, faulty, timeout=180) as process:
            outcome, out = self.ended(process)
        found = re.search(r"test result: ok\. (\d+) passed; 0 failed", out)
        expect(outcome.status == 0 and found, f"{swap} {faulty or ''}: status {outcome.status}: {out[-500:]} {outcome.stderr[-500:]}")
        with open(stats, encoding="ascii") as file:
            counters = json.load(file)
        expect(counters["resident_bytes_peak"] <= harness.parse_size(limit), f"{counters['resident_bytes_peak']} bytes in {limit}")
        expect(counters["evictions"]["synchronous"] == 0, "evictions in faults")
        fetches = counters["faults"]["fetch"]
        expect(name != "far" or fetches > 10000, f"{swap}: {fetches} fetches")
        return f"{found[1]} tests, {fetches} fetches"

    def test_ram(self):
        """Memory that answers at once, and after ten microseconds."""
        return f"{self.tested(['ram'], waits=0)}; {self.tested(['delay:10us'])}"

    def test_disk(self):
        """One file, and two."""
        place = self.folder("disk")
        return "; ".join(self.tested([f"dir:{place}"] * count) for count in (1, 2))

    def test_slow(self):
        """Memory that answers after a millisecond: all that can be under way at a time is."""
        return self.tested(["delay:1ms"])

    def test_encrypted(self):
        """What the ring has read is decrypted before it is mapped."""
        return self.tested([f"dir:{self.folder('encrypted')}"], options=["--encrypt"])

    def test_pool(self):
        """Compressed pages are made at once, those behind them are read."""
        return self.tested(["ram:lz4,size=3M", f"dir:{self.folder('pool')}"], limit="20M")

    def test_little_memory(self):
        """Faults wait for frames."""
        return self.tested([f"dir:{self.folder('little')}"], limit="8M")

    def test_errors(self):
        """Reads that fail now and then, are short, wrong or late are made again."""
        place, seen = self.folder("errors"), []
        for kind in ("read_error", "short_read", "corrupt", "delay"):
            # A read is tried three times: at this rate none of a hundred thousand fails for good, but in one run of a thousand.
            faulty = f"seed={self.seed},{kind}=0.002,delay_time=1ms"
            seen.append(self.tested([f"dir:{place}"], faulty=faulty, only=["--skip", "a_hundred_thousand_requests"]))
        return "; ".join(seen)

    def test_full(self):
        """A swap space that is full: right data and, where a page has no place, an end with a reason."""
        spec = f"file:{self.folder('small')}/f,size=16M"
        with self.running(["--memory", "8M", "--swap", spec], [self.program("far"), "--test-threads=1"], timeout=180) as process:
            outcome, out = self.ended(process)
        expect("FAILED" not in out and "panicked" not in out + outcome.stderr, f"{out[-500:]} {outcome.stderr[-500:]}")
        expect(outcome.status == 128 + signal.SIGBUS, f"status {outcome.status}: {outcome.stderr[-500:]}")
        reasons = [line for line in outcome.stderr.splitlines() if line.startswith("farshore: page 0x")]
        expect(reasons, f"no reason: {outcome.stderr[-500:]}")
        return "ended with SIGBUS and a reason"

    def test_kill(self):
        """kill -9 while fetches are under way: no file, no process."""
        place = self.folder("killed")
        for _ in range(6):
            self.kill_once("upcall", f"dir:{place}", place, self.random.uniform(0.1, 1.2), program=[self.program("far"), "--test-threads=1"])
        return f"6 kills, seed {self.seed}"

    def test_poll(self):
        """Where other threads serve faults, unithreads wait in place."""
        return self.tested([f"dir:{self.folder('poll')}"], options=["--fault", "poll"], waits=0)

    def test_runtime(self):
        """The scheduler's own tests, with all of their memory managed."""
        place = self.folder("runtime")
        return "; ".join(self.tested([f"dir:{place}"], name, "16M", ["--threshold", "4K"]) for name in ("runtime", "fork"))

    def test_libc(self):
        """A C program whose unithreads call malloc, stdio, the resolver and qsort, with more data than memory and without a hold."""
        (program, where), place, seen = c_program(), self.folder("libc"), []
        for kind in ("heap", "stdio", "resolve", "heap stdio resolve"):
            stats = os.path.join(self.folder("stats"), "stats.json")
            options = ["--memory", LIMIT, "--threshold", "4K", "--stats", stats, "--swap", f"dir:{place}"]
            with self.running(options, ["env", f"LD_LIBRARY_PATH={where}", program, *kind.split()], timeout=180) as process:
                outcome, out = self.ended(process)
            expect(outcome.status == 0 and out == "ok\n", f"{kind}: status {outcome.status}: {out[-500:]} {outcome.stderr[-500:]}")
            with open(stats, encoding="ascii") as file:
                fetches = json.load(file)["faults"]["fetch"]
            expect(fetches > 1000, f"{kind}: {fetches} fetches")
            seen.append(f"{kind} {fetches} fetches")
        return "; ".join(seen)

    def test_children(self):
        """What unithreads start: forked children that exec, that return, and others."""
        program, where = c_program()
        options = ["--memory", LIMIT, "--threshold", "4K", "--swap", f"dir:{self.folder('children')}"]
        with self.running(options, ["env", f"LD_LIBRARY_PATH={where}", program, "children"], timeout=60) as process:
            outcome, out = self.ended(process)
        expect(outcome.status == 0 and out == "ok\n", f"status {outcome.status}: {out[-500:]} {outcome.stderr[-500:]}")

    def test_network(self):
        """And those of its network."""
        place = self.folder("network")
        # One test counts the bytes that the process has mapped, of which some are the library's here.
        only = ["--skip", "buffers_of_services_are_unmapped"]
        return "; ".join(self.tested([f"dir:{place}"], name, "16M", ["--threshold", "4K"], only=only) for name in ("net", "net_end", "net_udp"))
