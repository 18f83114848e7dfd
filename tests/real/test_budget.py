"""Budgets: several programs of one user share one. Together they never have more than its size; who loses time to faults gets more, and who is idle gives back; who
ends, in whatever way, leaves its share to the others; other users have no part in it, and a list of noise does no harm.

Programs check their own data. What is judged are shares and counters, never times: a busy machine may take its time.
"""

import contextlib
import fcntl
import glob
import os
import random
import re
import signal
import stat
import struct
import subprocess
import threading
import time

import harness
from command import NOBODY
from harness import MIB, Unavailable, expect
from hotset import SWAP, WATCHDOG, Hotset

# Users that nobody is.
STRANGER, OTHER = 65533, 65532
names = iter(range(1_000_000))


def new_name():
    """A budget that no other test has."""
    return f"test-{os.getpid()}-{next(names)}"


def share(found):
    """The share of a program's family, MiB."""
    return found["budget"]["share_bytes"] / MIB


class TestBudget(Hotset):
    def look(self, program):
        """What farshore stat says of a program; whatever it is, the budget's size is kept."""
        found = program.counters()
        if found["memory_limit_bytes"] > found["budget"]["share_bytes"]:
            # A share that went down between the two, which are not read at once.
            found = program.counters()
        budget = found["budget"]
        expect(budget["taken_bytes"] <= budget["size_bytes"], f"more is taken than there is: {budget}")
        expect(found["memory_limit_bytes"] <= budget["share_bytes"], f"the limit {found['memory_limit_bytes']} is above the share: {budget}")
        expect(budget["share_bytes"] >= budget["least_bytes"], f"less than its least: {budget}")
        return found

    def until(self, programs, what, condition):
        """Waits until this is so of what `look` says of these programs, and returns it."""
        deadline = time.monotonic() + WATCHDOG
        while not condition(*(found := [self.look(program) for program in programs])):
            told = [(round(share(one)), round(one["memory_limit_bytes"] / MIB), one["budget"]) for one in found]
            expect(time.monotonic() < deadline, f"not within {WATCHDOG} s: {what}: {told}")
            time.sleep(0.1)
        return found

    @contextlib.contextmanager
    def to_be_killed(self, options, size, hot):
        """A program that is not asked for its data, since it will be killed."""
        with self.running([*options, "--swap", SWAP], [self.public_program("hotset"), size, hot], timeout=WATCHDOG, stdin=subprocess.PIPE) as process:
            expect(process.popen.stdout.readline() == b"ready\n", f"it is not ready: {process.stderr_so_far()[-400:]}")
            yield process

    # ------------------------------------------------------------------------------------------ shares

    def test_greedy_idle_and_killed(self):
        """One works on most of the budget, one on next to nothing, one is killed: who works gets what the others do not need."""
        name, seen = new_name(), []
        with contextlib.ExitStack() as stack:
            greedy = stack.enter_context(self.program(["--budget", f"{name}=200M"], "150M", "150M"))
            stack.enter_context(self.kept(name, 200 * MIB))
            self.until([greedy], "alone it has what it needs", lambda found: share(found) >= 150)
            idle = stack.enter_context(self.program(["--budget", name], "100M", "1M"))
            one, other = self.until([greedy, idle], "the idle one gives back", lambda one, other: share(one) >= 148 and share(other) <= 52)
            expect(one["budget"]["programs"] == 2 and one["budget"]["name"] == name and one["budget"]["size_bytes"] == 200 * MIB, f"{one['budget']}")
            expect(one["memory_limit_bytes"] + other["memory_limit_bytes"] <= 201 * MIB, "limits together")
            seen.append(f"{share(one):.0f} and {share(other):.0f} MiB")
            with self.to_be_killed(["--budget", name], "150M", "150M") as third:
                self.until([greedy], "the third one gets a part", lambda found: found["budget"]["programs"] == 3 and share(found) <= 130)
                third.kill_session()
                third.finish()
            killed = time.monotonic()
            one, other = self.until([greedy, idle], "what was killed leaves its share", lambda one, other: one["budget"]["programs"] == 2 and share(one) >= 148)
            seen.append(f"{share(one):.0f} again {time.monotonic() - killed:.1f} s after a kill")
            idle.say("hot 100M")
            greedy.say("hot 10M")
            one, other = self.until([greedy, idle], "they change places", lambda one, other: share(other) >= 98)
            seen.append(f"{share(one):.0f} and {share(other):.0f} when the other works")
        return ", ".join(seen)

    def test_by_need(self):
        """Two that need more than there is: both lose, and both have a part that is worth something."""
        name = new_name()
        with contextlib.ExitStack() as stack:
            two = [stack.enter_context(self.program(["--budget", f"{name}=120M"], "100M", "100M")) for _ in range(2)]
            found = self.until(two, "both have 30 MiB", lambda one, other: share(one) >= 30 and share(other) >= 30)
            for _ in range(30):
                found = [self.look(program) for program in two]
                expect(all(share(one) >= 25 for one in found), f"one is left with {[share(one) for one in found]}")
                time.sleep(0.1)
        return " and ".join(f"{share(one):.0f} MiB" for one in found)

    def test_a_child_that_works(self):
        """A family whose first process waits for a child: memory that the first one cannot give back is not free, so the child's need shows."""
        name, hotset = new_name(), self.public_program("hotset")
        with self.program(["--budget", f"{name}=200M"], "150M", "1M") as idle:
            self.until([idle], "it has what it needs", lambda found: share(found) >= 150)
            with self.running(["--budget", name, "--swap", SWAP], ["sh", "-c", f"'{hotset}' 80M 80M; true"], timeout=WATCHDOG, stdin=subprocess.PIPE) as process:
                expect(process.popen.stdout.readline() == b"ready\n", f"it is not ready: {process.stderr_so_far()[-400:]}")
                others = lambda found: (found["budget"]["taken_bytes"] - found["budget"]["share_bytes"]) / MIB
                found = self.until([idle], "the child gets what it works on", lambda found: others(found) >= 80)[0]
                process.popen.stdin.write(b"end\n")
                process.popen.stdin.flush()
                expect(process.popen.stdout.readline() == b"right\n", "its data")
        return f"{others(found):.0f} of 200 MiB"

    def test_with_slowdown(self):
        """Each takes what its own target needs, the rest stays free; one that needs more gets it."""
        name = new_name()
        with contextlib.ExitStack() as stack:
            options = ["--budget", f"{name}=220M", "--slowdown", "10%", "--memory-max", "150M"]
            one, other = [stack.enter_context(self.program(options, "100M", "20M")) for _ in range(2)]
            low = self.until([one, other], "both come down", lambda *found: all(share(it) <= 60 for it in found))
            expect(low[0]["autopilot"]["most_bytes"] == 150 * MIB, f"{low[0]['autopilot']}")
            one.say("hot 100M")
            high = self.until([one, other], "one grows", lambda it, _: share(it) >= 95)
        return f"{share(low[0]):.0f} and {share(low[1]):.0f}, then {share(high[0]):.0f} and {share(high[1]):.0f} MiB"

    def test_with_memory(self):
        """--memory and memory= are the most that a program takes, whatever is free."""
        name = new_name()
        with self.program(["--budget", f"{name}=300M", "--memory", "60M"], "100M", "100M") as program:
            self.until([program], "all that it may have", lambda found: share(found) >= 59)
            for _ in range(20):
                expect(share(self.look(program)) <= 61, "it takes more than --memory")
                time.sleep(0.1)
            self.set(program, "memory=100M")
            self.until([program], "more", lambda found: share(found) >= 99)
            self.set(program, "memory=40M")
            self.until([program], "less", lambda found: share(found) <= 41)
            done = self.call("set", str(program.pid), "memory=8M")
            expect(done.status == 1 and "at least 16M" in done.err, f"{done.status} {done.err}")
        return "60, 100, 40 MiB"

    def set(self, program, *settings):
        """Makes settings."""
        done = self.call("set", str(program.pid), *settings)
        expect(done.status == 0, f"set {settings}: {done.err}")

    def test_another_size(self):
        """`farshore set budget=` changes the size for all programs, and refuses one that is too small for them."""
        name = new_name()
        with contextlib.ExitStack() as stack:
            one, other = two = [stack.enter_context(self.program(["--budget", f"{name}=200M"], "80M", "80M")) for _ in range(2)]
            self.until(two, "both have what they need", lambda *found: all(share(it) >= 80 for it in found))
            self.set(one, "budget=100M")
            deadline = time.monotonic() + WATCHDOG
            # Each tells what it saw at its last look, which may be a fifth of a second ago.
            is_over = lambda it: it["taken_bytes"] > 100 * MIB or it["size_bytes"] != 100 * MIB  # noqa: E731
            while any(map(is_over, found := [it.counters()["budget"] for it in two])):
                expect(time.monotonic() < deadline, f"it is not smaller: {found}")
                time.sleep(0.1)
            self.until(two, "it stays so", lambda *found: all(it["budget"]["size_bytes"] == 100 * MIB for it in found))
            done = self.call("set", str(other.pid), "budget=20M")
            expect(done.status == 1 and "32M" in done.err and len(done.err.splitlines()) == 1, f"{done.status} {done.err!r}")
            self.set(other, "budget=250M")
            self.until(two, "both have what they need", lambda *found: all(share(it) >= 80 for it in found))
        with self.program(["--memory", "100M"], "10M", "10M") as program:
            done = self.call("set", str(program.pid), "budget=1G")
            expect(done.status == 1 and "in no budget" in done.err, f"{done.status} {done.err!r}")
        return "200, 100, 250 MiB"

    def test_shown(self):
        """farshore stat and farshore top show it."""
        name = new_name()
        with self.program(["--budget", f"{name}=200M"], "50M", "50M") as program:
            self.until([program], "a look", lambda found: found["budget"]["need_ppm"] >= 0 and found["budget"]["programs"] == 1)
            text = self.call("stat", str(program.pid)).out
            expect(f"(budget {name}: 200 MiB, 1 program with " in text and "\n  share " in text, text)
            view = os.path.join(os.path.dirname(harness.find_farshore(self.options.farshore)), "farshore-view")
            top = self.call_program([view, "top", "--once", "--interval", "0.2"])
            expect(f"{name} " in top.out and "/200M" in top.out, f"{top.out} {top.err}")
        return "share and size"

    @contextlib.contextmanager
    def kept(self, name, size):
        """While this runs, what the lines of a budget say is held is never more than its size, at any moment. A program is in it already."""
        over, end = set(), threading.Event()

        def is_taken(file, number):
            lock = struct.Struct("hhqqi4x")
            return lock.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, lock.pack(fcntl.F_WRLCK, 0, number, 1, 0)))[0] != fcntl.F_UNLCK

        def watch(file):
            before = None
            while not end.is_set():
                now = os.pread(file.fileno(), 1 << 16, 128)
                lines = enumerate(struct.unpack_from("<32s8Q", now, at) for at in range(0, len(now) - 127, 128))
                held = {number: held for number, (line, _, _, held, *_) in lines if line.rstrip(b"\0") == name.encode() and is_taken(file, number)}
                # Twice the same: no line was written, and nobody has ended, while others were read.
                if (now, held) == before and sum(held.values()) > size >> 12:
                    over.add(tuple(held.items()))
                before = (now, held)

        with open(f"/dev/shm/farshore-budgets-{os.geteuid()}", "rb", buffering=0) as file:
            watcher = threading.Thread(target=watch, args=[file])
            watcher.start()
            try:
                yield
            finally:
                end.set()
                watcher.join()
        expect(not over, f"more than {size >> 12} pages are held: {sorted(over)[:5]}")

    @staticmethod
    def watcher(pid):
        """The thread by which a process looks at its budget."""
        [found] = [task for task in os.listdir(f"/proc/{pid}/task") if harness.read_text(f"/proc/{pid}/task/{task}/comm").strip() == "farshore-watch"]
        return found

    def test_who_stood_still(self):
        """The process that decides stands still just before it gets the hold. Another one decides meanwhile, and gives pages away. The first one must not go by
        what was so before."""
        strace, name, hotset = harness.need("strace", "strace"), new_name(), self.public_program("hotset")
        path = os.path.join(self.folder("strace"), "calls")
        script = f"exec 3<&0; '{hotset}' 70M 1M <&3 & exec '{hotset}' 70M 1M"
        with contextlib.ExitStack() as stack:
            family = stack.enter_context(self.running(["--budget", f"{name}=200M", "--swap", SWAP], ["sh", "-c", script], timeout=WATCHDOG, stdin=subprocess.PIPE))
            expect([family.popen.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2, f"it is not ready: {family.stderr_so_far()[-400:]}")
            other = stack.enter_context(self.program(["--budget", name], "150M", "1M"))

            def traced(pid, *options):
                return subprocess.Popen([strace, "-q", "-o", path, "-e", "trace=fcntl,pwrite64", *options, "-p", self.watcher(pid)], stderr=subprocess.DEVNULL)

            def looks(pid):
                tracer = traced(pid)
                time.sleep(1)
                tracer.terminate()
                tracer.wait()
                return "F_SETLK" in harness.read_text(path)

            pids = [pid for pid in harness.session_pids(family.popen.pid) if harness.read_text(f"/proc/{pid}/comm").strip() == "hotset"]
            # Another one may take over between two looks, where the one that decides has stood still for two seconds: on a busy machine.
            for _ in range(8):
                found = [pid for pid in pids if looks(pid)]
                if len(found) == 1:
                    break
            [decides] = found
            # It may have been in the midst of a look: then the first call is the end of that.
            for _ in range(8):
                tracer = traced(decides, "-e", "inject=fcntl:delay_enter=8000000:when=1")
                deadline = time.monotonic() + WATCHDOG
                while not (begun := re.search(r"F_(WRLCK|UNLCK)", harness.read_text(path))):
                    expect(time.monotonic() < deadline, "it looks no more")
                    time.sleep(0.1)
                if begun[1] == "WRLCK":
                    break
                tracer.terminate()
                tracer.wait()
            other.say("hot 150M")
            before = share(other.counters())
            self.until([other], "another process of the family gives pages away", lambda found: share(found) >= before + 30)
            deadline = time.monotonic() + WATCHDOG
            while "F_UNLCK" not in (calls := harness.read_text(path)):
                expect(time.monotonic() < deadline, f"it stands still for ever: {calls}")
                time.sleep(0.1)
            tracer.terminate()
            tracer.wait()
            look = calls[: calls.index("F_UNLCK")]
            expect(re.match(r"fcntl\(\d+, F_SETLK, {l_type=F_WRLCK.* = 0 \(DELAYED\)", look), f"it did not stand still before the hold: {look}")
            expect("pwrite64" not in look, f"it writes the family's line, though another one decides: {look}")
        return f"{before:.0f} MiB and 30 more"

    # ------------------------------------------------------------------------------------------ who is in it

    @contextlib.contextmanager
    def asleep(self, *options, user=None):
        """A program that does nothing, in a budget. `None` where it does not begin."""
        argv = [self.farshore, "run", *options, "--", "sleep", "600"]
        if user is not None:
            argv = [harness.need("setpriv", "util-linux"), "--reuid", str(user), "--regid", str(user), "--clear-groups", *argv]
        process = harness.Process(argv, self.work, WATCHDOG, env=dict(os.environ, LC_ALL="C"))
        try:
            deadline = time.monotonic() + 60
            while not self.sleeping(process):
                expect(process.alive() and time.monotonic() < deadline, f"it does not begin: {process.stderr_so_far()}")
                time.sleep(0.02)
            yield process
        finally:
            process.kill_session()
            process.finish()

    @staticmethod
    def has_ended(pid):
        """Waits until a process that was killed has given up its files, of which nobody is told."""
        deadline = time.monotonic() + 60
        while glob.glob(f"/proc/{pid}/fd/*"):
            expect(time.monotonic() < deadline, "it does not end")
            time.sleep(0.01)

    @staticmethod
    def sleeping(process):
        """The processes of a run that are `sleep` by now."""
        pids = harness.session_pids(process.popen.pid)
        return [pid for pid in pids if harness.read_text(f"/proc/{pid}/comm").strip() == "sleep"]

    def test_dormant_programs_count(self):
        """A program that fits its least stays as it is, and that much is taken; its end, by kill -9, gives it back."""
        name = new_name()
        with self.asleep("--budget", f"{name}=40M") as one, self.asleep("--budget", name):
            time.sleep(0.5)
            [pid] = self.sleeping(one)
            expect(len(os.listdir(f"/proc/{pid}/task")) == 1, "it has threads of Farshore's")
            links = [os.readlink(path) for path in glob.glob(f"/proc/{pid}/fd/*")]
            expect(sum("farshore-budgets" in link for link in links) == 1, f"{links}")
            self.refused(["run", "--budget", name, "--", "true"], (125,), "less than 32M, and this one needs 16M")
            done = self.call("run", "--budget", name, "--memory-min", "8M", "--", "echo", "x")
            expect((done.status, done.out, done.err) == (0, "x\n", ""), f"{done.status} {done.out!r} {done.err!r}")
            one.kill_session()
            one.finish()
            self.has_ended(pid)
            done = self.call("run", "--budget", name, "--", "echo", "x")
            expect((done.status, done.out, done.err) == (0, "x\n", ""), f"{done.status} {done.out!r} {done.err!r}")
        return "32 of 40 MiB, and 16"

    def test_family(self):
        """A family has one seat: children and programs that it becomes keep it, and it ends with the last of them."""
        name, forks = new_name(), self.public_program("forks")
        native = subprocess.run([forks, "6", "1"], stdout=subprocess.PIPE, check=True, timeout=WATCHDOG).stdout.decode()
        for options in ([], ["--slowdown", "20%"], ["--memory", "64M"]):
            done = self.call("run", "--budget", f"{name}=64M", *options, "--", forks, "6", "1", timeout=WATCHDOG)
            expect((done.status, done.out) == (0, native), f"{options}: status {done.status}: {done.out} {done.err[-300:]}")
        # The shell starts one in the background and becomes another one; both programs are of one family.
        script = "sleep 600 & exec sleep 600"
        with self.running(["--budget", f"{name}=20M"], ["sh", "-c", script]) as process:
            deadline = time.monotonic() + 60
            while len(self.sleeping(process)) < 2:
                expect(time.monotonic() < deadline, f"there are not two: {process.stderr_so_far()}")
                time.sleep(0.05)
            for pid in self.sleeping(process):
                self.refused(["run", "--budget", name, "--", "true"], (125,), "less than 16M")
                os.kill(pid, signal.SIGKILL)
                self.has_ended(pid)
            self.refused(["run", "--budget", name, "--", "true"], (125,), "no program is in it now")
        return "one seat"

    def test_becomes_small(self):
        """A program that had much and becomes one that needs little gives the rest back, though nobody of Farshore's is in it any more."""
        name = new_name()
        with self.running(["--budget", f"{name}=200M"], ["sh", "-c", "/bin/true; exec sleep 600"]) as process:
            deadline = time.monotonic() + 60
            while not self.sleeping(process):
                expect(time.monotonic() < deadline, f"it does not begin: {process.stderr_so_far()}")
                time.sleep(0.05)
            with self.program(["--budget", name], "150M", "150M") as program:
                found = self.until([program], "the rest", lambda found: share(found) >= 150)[0]
        return f"{share(found):.0f} of 200 MiB"

    def test_limited_file_sizes(self):
        """A limit of file sizes (`ulimit -f`) is for the files of the program: nobody dies by SIGXFSZ because of the list."""
        name = new_name()
        limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh"]
        done = self.call_program([*limited, self.farshore, "run", "--budget", f"{name}=64M", "--", "true"])
        expect(done.status == 125 and "ulimit -f" in done.err and len(done.err.splitlines()) == 1 and not done.out, f"{done.status} {done.err!r}")
        # It has much, and becomes a program that gives it back, which it cannot write.
        done = self.call("run", "--budget", f"{name}=200M", "--", "sh", "-c", "/bin/true; ulimit -f 0; exec echo x")
        expect((done.status, done.out) == (0, "x\n"), f"{done.status} {done.out!r} {done.err!r}")
        return "refused in a line, and none ended by a signal"

    def test_nested(self):
        """A farshore run below one begins a family of its own, with a seat of its own or none."""
        name = new_name()
        inner = [self.farshore, "run", "--memory", "64M", "--", "sh", "-c", "sleep 1; ls -l /proc/self/fd"]
        done = self.call("run", "--budget", f"{name}=64M", "--", *inner)
        expect(done.status == 0 and "farshore-budgets" not in done.out, f"{done.status} {done.out} {done.err}")
        inner = [self.farshore, "run", "--budget", name, "--", "echo", "x"]
        done = self.call("run", "--budget", f"{name}=64M", "--", "sh", "-c", '"$@"; true', "sh", *inner)
        expect((done.status, done.out) == (0, "x\n"), f"{done.status} {done.out} {done.err}")
        return "none is handed on"

    def test_stopped(self):
        """A program that is stopped keeps what it has: nobody can take its pages. Who needs them is told so, or waits."""
        name = new_name()
        with self.program(["--budget", f"{name}=64M"], "64M", "1M") as program:
            self.until([program], "all", lambda found: share(found) >= 60)
            os.kill(program.pid, signal.SIGSTOP)
            try:
                self.refused(["run", "--budget", name, "--", "true"], (125,), "programs that are stopped make none")
            finally:
                os.kill(program.pid, signal.SIGCONT)
            done = self.call("run", "--budget", name, "--", "echo", "x")
            expect((done.status, done.out) == (0, "x\n"), f"{done.status} {done.out} {done.err}")
        return "refused, then let in"

    def test_bad_input(self):
        """What cannot be is refused in one line."""
        name = new_name()
        with self.asleep("--budget", f"{name}=64M"):
            refused = [
                (["--budget", ""], "NAME=SIZE"), (["--budget", "=8G"], "NAME=SIZE"), (["--budget", "../x=8G"], "letters, digits"),
                (["--budget", "x=much"], "much"), (["--budget", "x=1M"], "at least 4M"), (["--budget", "x" * 33 + "=1G"], "longer than 32"),
                (["--budget", new_name()], "no program is in it now"), (["--budget", f"{name}=128M"], "it has 64M"),
                (["--budget", name, "--memory-min", "60M"], "needs 60M"), (["--budget", f"{new_name()}=8M"], "needs 16M"),
                (["--budget", name, "--memory-per-process"], "--memory-per-process"), (["--budget", name, "--memory", "64M", "--slowdown", "5%"], "--memory-max in its place"),
                (["--budget", name, "--memory", "64M", "--memory-max", "64M"], "leave one of them out"),
            ]
            for options, word in refused:
                done = self.call("run", *options, "--", "true")
                expect(done.status in (2, 125) and word in done.err and not done.out, f"{options}: {done.status} {done.err!r}")
            # The same size again, and from a file.
            path = os.path.join(self.folder("config"), "far.toml")
            with open(path, "w", encoding="ascii") as file:
                file.write(f'budget = "{name}=64M"\nmemory-min = "8M"\n')
            done = self.call("run", "--config", path, "--", "echo", "x")
            expect((done.status, done.out, done.err) == (0, "x\n", ""), f"{done.status} {done.out} {done.err}")
        return f"{len(refused)} refused"

    # ------------------------------------------------------------------------------------------ who else

    def need_users(self):
        """Skips the test unless there can be other users; lists of users that nobody is are removed."""
        if os.geteuid() != 0:
            raise Unavailable("other users need root")
        for user in (NOBODY, STRANGER, OTHER):
            for path in glob.glob(f"/dev/shm/farshore-budgets-{user}*"):
                subprocess.run(["rm", "-rf", path], check=True)

    def test_other_users(self):
        """Each user has budgets of its own; nobody else can read the list, write it, or take its name away."""
        self.need_users()
        name = new_name()
        with self.asleep("--budget", f"{name}=64M", user=NOBODY):
            path = f"/dev/shm/farshore-budgets-{NOBODY}"
            mode = os.lstat(path)
            expect(stat.S_ISREG(mode.st_mode) and stat.S_IMODE(mode.st_mode) == 0o600 and mode.st_uid == NOBODY, f"{mode}")
            done = self.call_program(["cat", path], user=STRANGER)
            expect(done.status != 0 and not done.out, f"a stranger reads it: {done.out!r}")
            self.refused(["run", "--budget", name, "--", "true"], (125,), "no program is in it now", user=STRANGER)
            self.refused(["run", "--budget", name, "--", "true"], (125,), "no program is in it now")
            self.refused(["run", "--budget", f"{name}=128M", "--", "true"], (125,), "it has 64M", user=NOBODY)
        # Somebody has taken the name: with a file that all may write, a link to one, a directory.
        aside = os.path.join(self.folder("aside", 0o777), "file")
        taken = f"/dev/shm/farshore-budgets-{OTHER}"
        for squat in (f"umask 0; touch {taken}", f"ln -s {aside} {taken}", f"mkdir {taken}"):
            expect(self.call_program(["sh", "-c", squat], user=STRANGER).status == 0, squat)
            with self.asleep("--budget", f"{name}=64M", user=OTHER):
                self.refused(["run", "--budget", f"{name}=128M", "--", "true"], (125,), "it has 64M", user=OTHER)
            found = [path for path in glob.glob(f"{taken}.*") if os.lstat(path).st_uid == OTHER]
            expect(len(found) == 1 and not os.path.exists(aside), f"{squat}: {found}")
            subprocess.run(["rm", "-rf", taken], check=True)
        self.need_users()
        return "one list for each"

    def test_noise(self):
        """The list is overwritten, cut off and emptied while programs use it: their data stay right, and their limits within their bounds."""
        self.need_users()
        name, chance = new_name(), random.Random(self.seed)
        path = f"/dev/shm/farshore-budgets-{NOBODY}"
        with contextlib.ExitStack() as stack:
            options = ["--budget", f"{name}=200M", "--memory-max", "150M"]
            two = [stack.enter_context(self.program(options, "80M", "60M", user=NOBODY)) for _ in range(2)]
            for turn in range(40):
                with open(path, "r+b") as file:
                    if turn % 4 == 3:
                        file.truncate(chance.randrange(2000))
                    else:
                        file.seek(chance.randrange(3000))
                        file.write(chance.randbytes(4000) if turn % 4 else b"\xff" * 4000)
                time.sleep(0.15)
                for program in two:
                    found = program.counters()
                    expect(16 * MIB <= found["memory_limit_bytes"] <= 150 * MIB, f"turn {turn}: {found['memory_limit_bytes']} {found['budget']}")
            # What belongs to nobody counts for nothing, so all is as before.
            self.until(two, "shares are right again", lambda *found: all(it["budget"]["programs"] == 2 for it in found))
        self.need_users()
        return "40 times"

    def test_removed(self):
        """The list loses its name while a program is in it (a system that clears up after a logout does that): who comes later is in the same one all the same."""
        self.need_users()
        name, path = new_name(), f"/dev/shm/farshore-budgets-{NOBODY}"
        with self.asleep("--budget", f"{name}=40M", user=NOBODY) as one:
            os.unlink(path)
            self.refused(["run", "--budget", f"{name}=128M", "--", "true"], (125,), "it has 40M", user=NOBODY)
            with self.asleep("--budget", name, user=NOBODY) as other:
                self.refused(["run", "--budget", name, "--", "true"], (125,), "less than 32M, and this one needs 16M", user=NOBODY)
                pids = [*self.sleeping(one), *self.sleeping(other)]
            # Others' lists are nobody's business.
            self.refused(["run", "--budget", name, "--", "true"], (125,), "no program is in it now", user=STRANGER)
            one.kill_session()
            one.finish()
            for pid in pids:
                self.has_ended(pid)
            done = self.call("run", "--budget", f"{name}=64M", "--", "echo", "x", user=NOBODY)
            expect((done.status, done.out) == (0, "x\n") and os.path.exists(path), f"{done.status} {done.out!r} {done.err!r}")
        self.need_users()
        return "one list"

    def test_another_user_leaves(self):
        """A program that becomes another user's leaves the budget, and says so."""
        self.need_users()
        name = new_name()
        become = [harness.need("setpriv", "util-linux"), "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        with self.running(["--budget", f"{name}=40M", "--memory-min", "32M"], [*become, "sleep", "600"]) as process:
            deadline = time.monotonic() + 60
            while not self.sleeping(process):
                expect(time.monotonic() < deadline, f"it does not begin: {process.stderr_so_far()}")
                time.sleep(0.05)
            while f"leaves the budget {name}" not in process.stderr_so_far():
                expect(time.monotonic() < deadline, f"it does not say that it leaves: {process.stderr_so_far()}")
                time.sleep(0.05)
            time.sleep(0.5)
            said = process.stderr_so_far()
            expect(said.count(f"leaves the budget {name}") == 1, said)
            [pid] = self.sleeping(process)
            links = [os.readlink(path) for path in glob.glob(f"/proc/{pid}/fd/*")]
            expect(not any("farshore-budgets" in link for link in links), f"{links}")
            done = self.call("run", "--budget", f"{name}=40M", "--memory-min", "32M", "--", "echo", "x")
            expect((done.status, done.out) == (0, "x\n"), f"{done.status} {done.out} {done.err}")
        return "it leaves"
