"""How hard evictors work: idle they do nothing, on one processor and among many threads they neither starve nor are starved, a slow disk has few writes at a time,
and each number can be fixed, at the start and while the program runs. Threads that read ahead come when there is something to read.

Programs check their own data. Counters and progress are looked at, never times; a run that hangs is ended and described.
"""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import time

import harness
from command import Command
from harness import expect

# Threads of a crowd.
THREADS = 64
# A program that works on a part that fits for six seconds, and goes over all of its 24 MiB now and then.
HOT = """
import time
every, end = bytearray(24 << 20), time.monotonic() + 6
for page in range(0, len(every), 4096): every[page] = 1
cold = 0
while time.monotonic() < end:
    for _ in range(200):
        for page in range(0, 2 << 20, 4096): every[page] ^= 1
    for page in range(cold, cold + (1 << 20), 4096): every[page] ^= 1
    cold = (cold + (1 << 20)) % len(every)
"""
# Numbers of processors that programs get.
PROCESSORS = (1, 2)


@contextlib.contextmanager
def processors(count):
    """What is started in here has so many processors."""
    mine = os.sched_getaffinity(0)
    if len(mine) < count:
        raise harness.Unavailable(f"{len(mine)} processors, {count} are needed")
    os.sched_setaffinity(0, set(sorted(mine)[:count]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


class Program:
    """A program that is running, and waits for a byte now and then."""

    def __init__(self, tests, process):
        self.tests, self.process, self.pid = tests, process, None

    def line(self):
        """What it says next."""
        said = self.process.popen.stdout.readline().decode(errors="replace").split()
        expect(said, f"it ended: {self.process.stderr_so_far()[-400:]}")
        if self.pid is None:
            self.pid = next(pid for pid in harness.session_pids(self.process.popen.pid)
                            if pid != self.process.popen.pid and self.tests.call("stat", str(pid)).status == 0)
        return said

    def go_on(self):
        """It need not wait any more."""
        self.process.popen.stdin.write(b"\n")
        self.process.popen.stdin.flush()

    def counters(self):
        """What farshore stat says now. Whatever else: nothing was evicted by a fault."""
        done = self.tests.call("stat", str(self.pid), "--json")
        expect(done.status == 0, f"stat: {done.err}")
        found = json.loads(done.out)
        expect(found["evictions"]["synchronous"] == 0, "evictions in faults")
        return found

    def pace(self):
        """How hard evictors work now."""
        return self.counters()["evictors"]

    def set(self, *settings):
        """Makes settings."""
        done = self.tests.call("set", str(self.pid), *settings)
        expect(done.status == 0, f"set {settings}: {done.err}")

    def threads(self, prefix):
        """Ids of threads whose names begin so."""
        tasks = f"/proc/{self.pid}/task"
        return [tid for tid in os.listdir(tasks) if harness.read_text(f"{tasks}/{tid}/comm").startswith(prefix)]

    def switches(self, *prefixes):
        """How often these threads were put on a processor."""
        count = 0
        for tid in (tid for prefix in prefixes for tid in self.threads(prefix)):
            lines = harness.read_text(f"/proc/{self.pid}/task/{tid}/status").splitlines()
            count += sum(int(line.split()[1]) for line in lines if "_ctxt_switches" in line)
        return count

    def until(self, what, condition, seconds=60):
        """Waits until this is so."""
        deadline = time.monotonic() + seconds
        while not condition():
            expect(time.monotonic() < deadline and not self.process.timed_out, f"not within {seconds} s: {what}; {self.pace()}")
            time.sleep(0.05)


class TestPace(Command):
    @contextlib.contextmanager
    def program(self, limit, argv, options=(), faulty=None, count=None, swap=None):
        """A program while it runs. It must end well."""
        swap = swap or f"dir:{self.folder('pace')}"
        with contextlib.ExitStack() as stack:
            if count:
                stack.enter_context(processors(count))
            process = stack.enter_context(
                self.running(["--memory", limit, "--swap", swap, *options], argv, faulty, timeout=240, stdin=subprocess.PIPE))
            yield Program(self, process)
            with contextlib.suppress(BrokenPipeError):
                process.popen.stdin.close()
            outcome, _ = self.ended(process)
            expect(outcome.status == 0, f"status {outcome.status}: {outcome.stderr[-500:]}")

    def crowd(self, size, passes, spinners):
        """A thread that goes through memory, beside others that compute."""
        return [self.public_program("crowd", ("-pthread",)), size, str(passes), str(spinners)]

    def ways(self):
        """Deliveries and processors."""
        return [(fault, count) for fault in self.modes() for count in PROCESSORS if len(os.sched_getaffinity(0)) >= count]

    # ------------------------------------------------------------------------------------------- starvation

    def test_idle(self):
        """While a program computes and touches no absent page, no evictor and no thread that reads ahead is ever put on a processor."""
        seen = []
        for fault, count in self.ways():
            with self.program("8M", self.crowd("24M", 2, 4), ["--fault", fault], count=count) as program:
                expect(program.line()[0] == "ready", "not ready")
                program.go_on()
                expect(program.line()[0] == "done", "not done")
                ours = ("farshore-evict", "farshore-ahead", "farshore-drain")
                at_rest = lambda: (before := program.switches(*ours)) == (time.sleep(0.3), program.switches(*ours))[1] and before > 0  # noqa: E731
                program.until("evictors rest", at_rest)
                before = program.switches(*ours)
                time.sleep(1.5)
                woken = program.switches(*ours) - before
                expect(woken == 0, f"{fault}, {count} processors: {woken} wake-ups while nothing was to do")
                seen.append(f"{fault} {count}: {before} before")
        return "0 after " + ", ".join(seen)

    def test_crowd(self):
        """One thread needs memory while 64 others compute: it gets it, and each of them has its turns."""
        seen = []
        for fault, count in self.ways():
            with self.program("8M", self.crowd("16M", 1, THREADS), ["--fault", fault], count=count) as program:
                program.line()
                program.go_on()
                word, fewest = program.line()
                found = program.counters()
                expect(word == "done" and int(fewest) > 0 and found["evictions"]["pages"] > 2000, f"{fault} {count}: {fewest} {found['evictions']}")
                seen.append(f"{fault} {count}: {found['evictors']['frame_waits']} waits")
        return ", ".join(seen)

    def test_many_faults(self):
        """64 threads that all need memory, in a quarter of it: all of them come to their ends, with the right data."""
        storm = [self.public_program("memstorm"), str(THREADS), "64", "1", "7"]
        right = self.call_program(storm, timeout=240).out
        seen = []
        for fault, count in self.ways():
            with processors(count):
                done = self.call("run", "--memory", "16M", "--swap", f"dir:{self.folder('pace')}", "--fault", fault, "--stats", "-", "--", *storm, timeout=300)
            expect(done.status == 0 and done.out == right, f"{fault} {count}: status {done.status}, {done.out!r} not {right!r}: {done.err[-300:]}")
            found = json.loads(done.err[done.err.index("{"):])
            expect(found["evictions"]["synchronous"] == 0 and found["evictors"]["count"] == count, f"{fault} {count}: {found['evictors']}")
            seen.append(f"{fault} {count}: {found['evictors']['frame_waits']} waits")
        return ", ".join(seen)

    def test_slow_writes(self):
        """A disk whose every write takes 20 ms never has more of them than it may, and reads go on meanwhile."""
        seen = []
        for fault in self.modes():
            for evictors, writes in ((1, 1), (2, 2), (1, 4), (None, None)):
                options = ["--fault", fault] + [word for name, value in (("--evictors", evictors), ("--writes", writes)) if value
                                                for word in (name, str(value))]
                faulty = "seed=1,write_delay=1,delay_time=20ms"
                with self.program("8M", [self.public_program("scan"), "24M", "3"], options, faulty) as program:
                    program.line()
                    for _ in range(3):
                        before = program.counters()
                        program.go_on()
                        program.line()
                    after = program.counters()
                    pace = after["evictors"]
                    most = (evictors or pace["count"]) * (writes or 4)
                    expect(0 < pace["writes_in_flight_peak"] <= most, f"{options}: at most {most} writes may be in flight: {pace}")
                    expect(pace["writes_each"] == (writes or pace["writes_each"]), f"{options}: {pace}")
                    read = after["swap"]["pages_in"] - before["swap"]["pages_in"]
                    expect(read > 3000, f"{options}: {read} pages were read in the last pass")
                    seen.append(f"{fault} {evictors or 'auto'}x{writes or 'auto'}: {pace['writes_in_flight_peak']}")
        return "most in flight: " + ", ".join(seen)

    # ------------------------------------------------------------------------------------------- numbers

    def test_adapts(self):
        """Batches shrink while little is asked for, and grow when much is."""
        text = ("import mmap, sys, time\n"
                "m = mmap.mmap(-1, 288 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
                "def touch(pause):\n"
                "    for at in range(0, 288 << 20, 4096):\n"
                "        m[at] = 1\n"
                "        if pause and at % (1 << 14) == 0: time.sleep(0.004)\n"
                "        yield\n"
                "for _ in touch(False): pass\n"
                "print('filled', flush=True)\n"
                "input()\n"
                "print('slow', flush=True)\n"
                "for n, _ in enumerate(touch(True)):\n"
                "    if n == 9000: break\n"
                "print('walked', flush=True)\n"
                "input()\n"
                "for _ in range(3):\n"
                "    for _ in touch(False): pass\n"
                "print('end', flush=True)\n"
                "input()\n")
        with self.program("128M", [sys.executable, "-c", text], ["--evictors", "1", "--prefetch", "none"]) as program:
            program.line()
            filled = program.pace()
            expect(filled["batch_pages_most"] == 256 and not filled["batch_fixed"], f"{filled}")
            program.go_on()
            expect(program.line() == ["slow"], "not slow")
            program.until("small batches", lambda: program.pace()["batch_pages"] == 64)
            small = program.pace()
            expect(small["high_pages"] < filled["high_pages"] or filled["batch_pages"] == 64, f"{small} after {filled}")
            expect(program.line() == ["walked"], "not walked")
            walked = program.pace()
            program.go_on()
            program.line()
            end = program.pace()
            expect(end["changes"] > walked["changes"], f"much was asked for: {end} after {walked}")
            program.go_on()
        return f"{filled['batch_pages']}, {small['batch_pages']}, {end['batch_pages']} pages; {end['changes']} changes"

    def test_lean(self):
        """A program with a limit of exactly its data: few stages and free frames, and hardly a fault. With more data it is as for others; the data are right in all of it."""
        text = ("import mmap, os, random, select, sys\n"
                "class Data:\n"
                "    def __init__(self, pages):\n"
                "        self.m = mmap.mmap(-1, pages << 12, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
                "        self.right = bytearray(pages)\n"
                "        for page in range(pages): self.touch(page)\n"
                "    def touch(self, page):\n"
                "        assert self.m[page << 12] == self.right[page], page\n"
                "        self.m[page << 12] = self.right[page] = (self.right[page] + 1) & 255\n"
                "def work(data):\n"
                "    count = 0\n"
                "    while not select.select([0], [], [], 0)[0]:\n"
                "        for _ in range(500): data.touch(random.randrange(len(data.right)))\n"
                "        count += 500\n"
                "    os.read(0, 1)\n"
                "    print('worked', count, flush=True)\n"
                "first = Data(48 << 8)\n"
                "print('filled', flush=True)\n"
                "os.read(0, 1)\n"
                "work(first)\n"
                "work(first)\n"
                "second = Data(24 << 8)\n"
                "print('more', flush=True)\n"
                "work(second)\n"
                "for data in first, second:\n"
                "    for page in range(len(data.right)): data.touch(page)\n"
                "print('end', flush=True)\n"
                "os.read(0, 1)\n")
        seen = []
        for fault in self.modes():
            with self.program("128M", [sys.executable, "-c", text], ["--fault", fault]) as program:
                program.line()
                before = program.counters()
                expect(before["evictions"]["pages"] == 0 and before["evictors"]["high_pages"] > 2, f"{fault}: {before['evictors']}")
                program.set(f"memory={before['resident_bytes']}")
                program.go_on()
                program.until("few free frames", lambda: program.pace()["high_pages"] == 2)
                program.go_on()
                program.line()
                begun = program.counters()
                time.sleep(2)
                program.go_on()
                count = int(program.line()[1])
                lean = program.counters()
                left = lean["evictions"]["pages"] - begun["evictions"]["pages"]
                expect(lean["evictors"]["high_pages"] == 2 and left * 50 < count, f"{fault}: {left} pages have left in {count} updates; {lean['evictors']}")
                expect(lean["resident_bytes"] <= lean["memory_limit_bytes"], f"{fault}: {lean['resident_bytes']} of {lean['memory_limit_bytes']}")
                expect(program.line() == ["more"], "no more data")
                program.until("free frames as for others", lambda: program.pace()["high_pages"] > 2)
                program.go_on()
                program.line()
                expect(program.line() == ["end"], "no end")
                full = program.counters()
                # Rings have grown: their stages are in use, and part of the limit.
                expect(full["resident_bytes"] <= full["memory_limit_bytes"] and full["frames"]["limit"] * 4096 < full["memory_limit_bytes"] - (2 << 20), f"{fault}: {full['frames']}")
                program.go_on()
                seen.append(f"{fault}: {left} pages in {count} updates")
        return ", ".join(seen)

    def test_fixed(self):
        """What is fixed stays so under load, is shown, and can be changed while the program runs."""
        options = ["--evictors", "2", "--batch", "40", "--writes", "1"]
        with self.program("16M", [self.public_program("scan"), "40M", "2"], options) as program:
            program.line()
            wanted = {"count": 2, "awake": 2, "awake_fixed": True, "batch_pages": 40, "batch_fixed": True, "writes_each": 1, "writes_fixed": True, "changes": 0}
            found = program.pace()
            expect(found == {**found, **wanted}, f"{found}, not {wanted}")
            shown = self.call("stat", str(program.pid)).out
            expect("2 of 2, fixed" in shown and "40, fixed" in shown and "1, fixed" in shown, shown)
            program.set("evictors=1", "batch=8", "writes=4")
            found = program.pace()
            expect((found["awake"], found["batch_pages"], found["writes_each"]) == (1, 8, 4), f"{found}")
            before = program.counters()["evictions"]
            program.go_on()
            program.line()
            after = program.counters()["evictions"]
            pages, batches = (after[name] - before[name] for name in ("pages", "batches"))
            expect(pages > 5000 and pages <= 8 * batches + 80, f"{pages} pages in {batches} batches of at most 8")
            program.set("evictors=auto", "batch=auto", "writes=auto")
            found = program.pace()
            expect(not (found["awake_fixed"] or found["batch_fixed"] or found["writes_fixed"]), f"{found}")
            for bad, word in (("evictors=3", "at most 2"), ("batch=41", "at most 40"), ("batch=257", "from 8 to 256"), ("writes=5", "from 1 to 4"),
                              ("writes=0", "from 1 to 4"), ("evictors=many", "auto"), ("batch=", "batch=")):
                self.refused(["set", str(program.pid), bad], (1, 125), word)
            program.go_on()
            program.line()
        return f"{pages} pages in {batches} batches"

    def test_most(self):
        """As many evictors as there can be, in a program and in its child: each writes through a queue of its own."""
        text = ("import os, sys\n"
                "def work(seed):\n"
                "    every = bytearray(24 << 20)\n"
                "    for at in range(0, len(every), 4096): every[at] = (at >> 12) + seed & 255\n"
                "    return all(every[at] == (at >> 12) + seed & 255 for at in range(0, len(every), 4096))\n"
                "assert work(1)\n"
                "child = os.fork()\n"
                "if child == 0: os._exit(0 if work(2) else 1)\n"
                "assert os.waitpid(child, 0)[1] == 0\n"
                "print('end', flush=True)\n"
                "input()\n")
        with self.program("16M", [sys.executable, "-c", text], ["--evictors", "16"]) as program:
            program.line()
            found = program.counters()
            expect(found["evictors"]["count"] == 16 and found["evictions"]["pages"] > 0, f"{found['evictors']} {found['evictions']}")
            program.go_on()
        return f"{found['evictions']['pages']} pages"

    def test_refused(self):
        """Numbers that cannot be, each with the reason."""
        some, true = ["run", "--memory", "64M"], ["--", "true"]
        for bad, word in ((["--evictors", "17"], "1 to 16"), (["--evictors", "few"], "few"), (["--batch", "7"], "8 to 256"), (["--batch", "1000"], "8 to 256"),
                          (["--writes", "0"], "1 to 4"), (["--writes", "5"], "1 to 4"), (["--writes", ""], "auto"),
                          (["--free", "0"], "1 to 50"), (["--free", "51"], "1 to 50"),
                          (["--memory", "4M", "--evictors", "4", "--batch", "200"], "at most 64")):
            options = bad if "--memory" in bad else [*some[1:], *bad]
            self.refused(["run", *options, *true], (2, 125), word)
        return "with their ranges"

    # ------------------------------------------------------------------------------------------- reading ahead

    def test_readers(self):
        """Threads that read ahead are made when a stream is read, a few at most; not for a program without one, nor where nothing is fetched ahead."""
        seen = []
        for fault in self.modes():
            with self.program("16M", [self.public_program("scan"), "64M", "2"], ["--fault", fault]) as program:
                program.line()
                expect(not program.threads("farshore-ahead"), f"{fault}: threads before anything was to be read")
                program.go_on()
                program.line()
                # One that is just being made is told before it has its name.
                look = lambda: (len(program.threads("farshore-ahead")), program.counters()["prefetch"]["threads"])  # noqa: E731
                program.until("all that are told have names", lambda: len(set(look())) == 1)  # noqa: B023
                count, told = look()
                expect(1 <= count <= 4 and told == count, f"{fault}: {count} threads, {told} told")
                seen.append(f"{fault} {count}")
            with self.program("16M", [self.public_program("scan"), "64M", "1"], ["--fault", fault, "--prefetch", "none"]) as program:
                program.line()
                program.go_on()
                program.line()
                expect(not program.threads("farshore-ahead"), f"{fault}: threads that nothing asks")
            with self.program("8M", self.crowd("6M", 3, 1), ["--fault", fault]) as program:
                program.line()
                program.go_on()
                program.line()
                expect(not program.threads("farshore-ahead"), f"{fault}: threads for a program that fits")
        return ", ".join(seen)

    def test_advice(self):
        """A program that goes over more than its memory again and again is told what helps, on a terminal; elsewhere it is as natively."""
        argv = [self.farshore, "run", "--memory", "8M", "--prefetch", "none", "--swap", "delay:300us", "--", self.public_program("scan"), "32M", "6"]
        ours, terminal = pty.openpty()
        try:
            with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=terminal) as shown, \
                    subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as piped:
                said = piped.communicate(timeout=120)[1]
                expect(shown.wait(120) == 0 and piped.returncode == 0, f"status {shown.returncode}, {piped.returncode}")
            os.set_blocking(ours, False)
            told = os.read(ours, 1 << 16).decode()
        finally:
            os.close(ours)
            os.close(terminal)
        expect(not said, f"in a pipe: {said}")
        found = re.fullmatch(r"farshore: 'scan' went over \d+M again and again in 8M of memory: each page came back (\d+) times, and (\d+) % of the time .* --memory \d+M, or --swap ram:lz4 before the other swap space\r\n", told)
        expect(found, f"on the terminal: {told!r}")
        return f"{found[1]} times, {found[2]} %"

    def test_thrashing(self):
        """The counters of a program that sweeps say so. Those of one that goes through its data once, that has a hot part, or that fits, do not."""
        slow = ["--memory", "8M", "--prefetch", "none", "--swap", "delay:300us"]
        runs = {
            "sweeps": (slow, [self.public_program("scan"), "32M", "6"], True),
            "once": (slow, [self.public_program("scan"), "160M", "1"], False),
            "hot": (slow, [harness.need("python3", "python3"), "-c", HOT], False),
            "fits": (["--memory", "64M"], [self.public_program("scan"), "32M", "300"], False),
        }
        for name, (options, program, expected) in runs.items():
            with tempfile.NamedTemporaryFile() as stats:
                run = subprocess.run([self.farshore, "run", *options, "--stats", stats.name, "--", *program], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120, check=False)
                counted = json.loads(stats.read())
            expect(run.returncode == 0 and not run.stderr, f"{name}: {run}")
            told = counted["thrashing"]
            expect((told is not None) == expected, f"{name}: {told}, after {counted['uptime_ns'] / 1e9:.1f} s, {counted['swap']['pages_in']} pages came in")
            if expected:
                expect(told["times"] >= 4 and told["waited_percent"] >= 50 and "--memory" in told["advice"], f"{name}: {told}")
            elif name != "fits":
                # As long as one that is told something, and it had faults.
                expect(counted["uptime_ns"] > 5e9 and counted["evictions"]["pages"] > 0, f"{name}: {counted['uptime_ns']} ns")
