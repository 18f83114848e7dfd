"""`farshore set PID policy=NAME prefetch=NAME`: the built-in policy and prefetcher change while a program runs, under its faults, evictors and forks.

Programs check their own data. Counters are looked at, never times.
"""

import collections
import contextlib
import json
import random
import statistics
import sys
import threading

import harness
from harness import MIB, PAGE, expect
from test_policy import TRIES, Beside, farshore_policy

POLICIES = ("second-chance", "fifo")
PREFETCHERS = ("sequential", "stride", "majority", "none")
# Writes 24 MiB and checks it at each line that it reads. "fork" makes a child that has the memory, "spawn" starts a program that does the same as this
# one; both end when this one does, after they have checked their memory once more.
FAMILY = """
import os, subprocess, sys
memory, children = bytearray(24 << 20), []
def word(page): return (page * 0x9e3779b97f4a7c15 % 2 ** 64).to_bytes(8, "little")
def check():
    for page in range(6144): assert memory[page * 4096:page * 4096 + 8] == word(page), page
for page in range(6144): memory[page * 4096:page * 4096 + 8] = word(page)
print("ready", os.getpid(), flush=True)
for line in sys.stdin:
    check()
    if line == "fork\\n":
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            for end in [theirs] + [end for end, _ in children]: os.close(end)
            check()
            print("ready", os.getpid(), flush=True)
            os.read(ours, 1)
            check()
            os._exit(0)
        os.close(ours)
        children.append((theirs, lambda child=child: os.waitpid(child, 0)[1]))
    elif line == "spawn\\n":
        started = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[1]], stdin=subprocess.PIPE)
        children.append((os.dup(started.stdin.fileno()), started.wait))
        started.stdin.close()
    else:
        print("right", os.getpid(), flush=True)
for end, status in children:
    os.close(end)
    assert status() == 0
check()
"""


class Setter:
    """Makes settings of a process over one connection, as `farshore set` does over one for each time."""

    def __init__(self, pid):
        self.connection = farshore_policy._connect(pid)
        self.file = self.connection.makefile("rb")

    def ask(self, **request):
        """One request and its answer."""
        self.connection.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(self.file.readline())

    def set(self, policy, prefetcher):
        """Makes both settings. Each must be in force when it is answered."""
        for key, value in (("policy", policy), ("prefetch", prefetcher)):
            answer = self.ask(op="set", key=key, value=value)
            expect(answer == {"ok": True}, f"set {key}={value}: {answer}")
        stats = self.ask(op="stat")
        expect((stats["policy"], stats["prefetcher"]) == (policy, prefetcher), f"set {policy} and {prefetcher}, in force: {stats['policy']}, {stats['prefetcher']}")
        return stats

    def close(self):
        """Ends the connection."""
        self.file.close()
        self.connection.close()


class TestChosen(Beside):
    def in_force(self, pid):
        """What farshore stat says is in force."""
        found = self.counters(pid)
        return found["policy"], found["prefetcher"]

    @contextlib.contextmanager
    def switching(self, pid):
        """Changes both at random, every few milliseconds, until the program ends or the block does."""
        stop, failures, seen = threading.Event(), [], collections.Counter()
        setter, rng = Setter(pid), random.Random(self.seed)

        def work():
            try:
                while not stop.wait(rng.uniform(0, 0.004)):
                    both = rng.choice(POLICIES), rng.choice(PREFETCHERS)
                    setter.set(*both)
                    seen[both] += 1
            except (OSError, json.JSONDecodeError):
                # The program has ended, in the middle of an answer perhaps.
                pass
            except harness.Failed as why:
                failures.append(why)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield seen
        finally:
            stop.set()
            thread.join()
            setter.close()
        expect(not failures, f"{failures}")

    def test_names(self):
        """stat says what is in force; a name that is not built is refused in one line with those that are, and changes nothing."""
        with self.program(16 * MIB, self.scan("24M", 1), "--policy", "fifo", "--prefetch", "majority") as program:
            program.line()
            pid = str(program.pid)
            expect(self.in_force(pid) == ("fifo", "majority"), f"{self.in_force(pid)}")
            for key, wrong, names in (("policy", "lru", POLICIES), ("prefetch", "oracle", PREFETCHERS), ("policy", "sequential", POLICIES)):
                self.refused(["set", pid, f"{key}={wrong}"], (1,), ", ".join(names))
                self.refused(["set", pid, f"{key}={wrong}"], (1,), wrong)
            expect(self.in_force(pid) == ("fifo", "majority"), f"after names that are none: {self.in_force(pid)}")
            done = self.call("set", pid, "policy=second-chance", "prefetch=stride")
            expect(done.status == 0 and not done.err, done.err)
            expect(self.in_force(pid) == ("second-chance", "stride"), f"{self.in_force(pid)}")
            shown = self.call("stat", pid).out
            expect("\npolicy second-chance, prefetcher stride\n" in shown, shown[:300])
            program.go_on()
            program.line()

    def test_prefetcher_works(self):
        """What is chosen is what works: nothing comes unasked under none, and pages do under sequential."""
        with self.program(16 * MIB, self.scan("48M", 4)) as program:
            program.line()
            setter, came = Setter(program.pid), []
            for prefetcher in ("none", "sequential", "none", "sequential"):
                setter.set("fifo", prefetcher)
                before = self.settled(program.pid)
                program.go_on()
                program.line()
                came.append((prefetcher, self.settled(program.pid) - before))
            setter.close()
        for prefetcher, pages in came:
            expect(pages == 0 if prefetcher == "none" else pages > 48 * MIB // PAGE // 2, f"{came}")
        return f"{came}"

    def settled(self, pid):
        """Pages that came unasked so far, when threads that read ahead have nothing to do any more."""
        last = None
        while (now := self.counters(pid)["prefetch"]["issued"]) != last:
            last = now
        return now

    def test_policy_works(self):
        """Of a loop over more than memory a part stays under second-chance; under fifo all of it comes again each time, also if that was chosen later: from the disk, or,
        more of it on a busy machine, from where it waited to be written."""
        passes, rounds = 48 * MIB // PAGE, []
        with self.program(24 * MIB, self.scan("48M", 16), "--prefetch", "sequential") as program:
            program.line()
            for policy, count in (("second-chance", 8), ("fifo", 8)):
                done = self.call("set", str(program.pid), f"policy={policy}")
                expect(done.status == 0, done.err)
                for _ in range(count):
                    before = self.counters(program.pid)
                    program.go_on()
                    program.line()
                    now = self.counters(program.pid)
                    rounds.append((policy, now["swap"]["pages_in"] - before["swap"]["pages_in"], (now["copies"]["in_bytes"] - before["copies"]["in_bytes"]) // PAGE))
        # Of the rounds behind the first ones.
        read = statistics.median(read for _, read, _ in rounds[4:8])
        came = statistics.median(came for *_, came in rounds[10:])
        # The hand of fifo goes round by address, so now and then a part of a pass stays.
        expect(read < passes * 0.9 and came > max(passes * 0.85, read * 1.05), f"of {passes} pages a pass, read and come: {rounds}")
        return f"pages a pass, of {passes}: {rounds}"

    def test_under_load(self):
        """Threads that write, check and move their memory see every byte as it should be while both change every few milliseconds, in each mode."""
        told = []
        for mode in self.modes():
            changes = storms = 0
            # A storm is over in a second on an idle machine; on a busy one this process may have had few turns by then.
            while changes < 20:
                storms += 1
                expect(storms <= TRIES, f"{mode}: only {changes} changes in {TRIES} storms")
                with self.storm("--fault", mode) as program, self.switching(program.pid) as seen:
                    program.process.popen.stdin.close()
                    self.until("it ends", lambda: not program.process.alive(), 240)  # noqa: B023
                changes += seen.total()
            told.append(f"{mode}: {changes} changes in {storms} storms")
        return ", ".join(told)

    def test_forks(self):
        """Processes that fork and check what each sees, while both change: children begin with what is in force in their parents."""
        argv = [self.public_program("forks"), "8", "7", "both", "generations", "workers", "threads", "anywhere"]
        native = self.call_program(argv, timeout=120)
        changes = runs = 0
        while changes < 20:
            runs += 1
            expect(runs <= TRIES, f"only {changes} changes in {TRIES} runs")
            with self.program(6 * MIB, argv) as program:
                with self.switching(program.pid) as seen:
                    program.process.popen.stdin.close()
                    self.until("it ends", lambda: not program.process.alive(), 240)  # noqa: B023
            expect(program.out == native.out and native.status == 0, f"printed other than natively: {program.out[-300:]}")
            changes += seen.total()
        return f"{changes} changes in {runs} runs"

    def test_family(self):
        """What is set counts for this process, the children that it forks and the programs that it starts from then on, and for no relative that is there already."""
        argv = [sys.executable, "-c", FAMILY, FAMILY]
        with self.program(16 * MIB, argv) as program:
            ask = lambda what: (program.process.popen.stdin.write(what + b"\n"), program.process.popen.stdin.flush(), program.line())[2]  # noqa: E731
            expect(program.line() == ["ready", str(program.pid)], "it begins")
            older = [int(ask(how)[1]) for how in (b"fork", b"spawn")]
            done = self.call("set", str(program.pid), "policy=fifo", "prefetch=stride")
            expect(done.status == 0, done.err)
            younger = [int(ask(how)[1]) for how in (b"fork", b"spawn")]
            # A child is set by itself, and what it makes is not asked of its parent.
            done = self.call("set", str(younger[0]), "prefetch=none")
            expect(done.status == 0, done.err)
            of = lambda pids: [self.in_force(pid) for pid in pids]  # noqa: E731
            expect(of(older) == 2 * [("second-chance", "sequential")], f"relatives that were there: {of(older)}")
            expect(of(younger) == [("fifo", "none"), ("fifo", "stride")], f"those that came later: {of(younger)}")
            expect(self.in_force(program.pid) == ("fifo", "stride"), f"the process: {self.in_force(program.pid)}")
            done = self.call("set", str(program.pid), "policy=second-chance")
            expect(done.status == 0, done.err)
            last = int(ask(b"spawn")[1])
            expect(self.in_force(last) == ("second-chance", "stride"), f"the last one: {self.in_force(last)}")
            expect(ask(b"check")[0] == "right", "its memory")

    def test_dormant(self):
        """A program that fits and sleeps can be set too, which wakes it."""
        with self.program(64 * MIB, self.scan("8M", 1)) as program:
            program.line()
            done = self.call("set", str(program.pid), "policy=fifo")
            expect(done.status == 0, done.err)
            expect(self.in_force(program.pid) == ("fifo", "sequential"), f"{self.in_force(program.pid)}")
            program.go_on()
            program.line()

    def test_takes_no_memory(self):
        """Changes to and fro leave nothing behind in the program."""
        with self.program(16 * MIB, self.scan("24M", 1)) as program:
            program.line()
            setter = Setter(program.pid)
            used = []
            for count in (8, 400):
                for number in range(count):
                    setter.set(POLICIES[number % 2], PREFETCHERS[number // 2 % 4])
                used.append(setter.ask(op="stat")["overhead_bytes"])
            setter.close()
            program.go_on()
            program.line()
        # The allocator takes memory from the kernel in pieces of 64 KiB and more; the plans for programs that are started take 2 KiB each.
        expect(used[1] - used[0] <= 256 << 10, f"{used}")
        return f"{used[0]} bytes, {used[1]} after 400 changes more"
