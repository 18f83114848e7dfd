"""The policies of `farshore policy`, attached to real programs: right bytes, a limit that holds, wishes with the effect that they are to have, and no harm from one that
is killed or stopped. Counters are looked at, never times. (What each decides is tested in its crate.)
"""

import contextlib
import os
import shutil
import signal
import subprocess

import harness
from harness import MIB, expect

from test_policy import Beside, farshore_policy

NAMES = ("linear", "csr", "dt", "sys-r", "sys-agg", "wsr", "leap", "ghost")


class TestAttached(Beside):
    @contextlib.contextmanager
    def attached(self, pid, name, *words):
        """A policy beside the process, once it listens."""
        there = os.path.join(self.bin, "farshore-advise")
        if not os.path.exists(there):
            built = os.path.join(os.path.dirname(harness.find_farshore(self.options.farshore)), "farshore-advise")
            expect(os.path.exists(built), f"farshore-advise is not built: there is no {built}")
            shutil.copy(built, there)
        with subprocess.Popen([self.farshore, "policy", name, str(pid), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as policy:
            try:
                said = policy.stdout.readline()
                expect(said.startswith(f"{name} beside {pid}: ".encode()), f"it said {said} {policy.stderr.read() if not said else ''}")
                yield policy
            finally:
                policy.kill()

    def wished(self, policy):
        """What a policy whose program has ended says that it wished: pages to leave, to come, to stay. And of how many it said when they are used."""
        out, err = policy.communicate(timeout=60 * harness.PATIENCE)
        expect(policy.returncode == 0, f"status {policy.returncode}: {err}")
        words = out.decode().replace(",", "").replace(";", "").split()
        self.heard = int(words[words.index("events") - 1])
        self.estimated = int(words[words.index("estimated") + 1])
        return [int(words[words.index(word) + 1]) for word in ("leave", "come", "stay")]

    def passes(self, name, *words, passes=4):
        """A program that goes through 48 MiB with a limit of 16, beside a policy; its counters, and what was wished."""
        with self.program(16 * MIB, self.scan("48M", passes), "--prefetch", "none") as program:
            program.line()
            with self.attached(program.pid, name, *words) as policy:
                for _ in range(passes):
                    program.go_on()
                    program.line()
                program.go_on()
                wished = self.wished(policy)
        return program.stats, wished

    def test_prefetchers(self):
        """linear and leap: pages come before they are needed."""
        seen = {}
        for name in ("linear", "leap"):
            stats, wished = self.passes(name, "ahead=16")
            seen[name] = (stats["prefetch"]["issued"], wished)
            expect(wished[1] > 1000 and wished[0] == 0, f"{name}: {wished}")
            expect(stats["prefetch"]["issued"] > 500, f"{name}: {stats['prefetch']}")
        return f"{seen}"

    def test_csr(self):
        """csr: what streams comes ahead and leaves behind."""
        stats, wished = self.passes("csr")
        expect(wished[0] > 1000 and wished[1] > 1000 and stats["prefetch"]["issued"] > 1000, f"{wished}, {stats['prefetch']}")
        return f"{wished}, {stats['prefetch']}"

    def test_csr_hints(self):
        """csr with a file of hints: of other memory nothing is wished; a bad file is refused."""
        folder = self.folder("hints")
        path = os.path.join(folder, "hints")
        with open(path, "w", encoding="ascii") as file:
            file.write("stream 1000-2000\n")
        stats, wished = self.passes("csr", "--regions", path, passes=1)
        expect(wished == [0, 0, 0] and stats["prefetch"]["issued"] == 0, f"{wished}")
        with open(path, "w", encoding="ascii") as file:
            file.write("stay 0-7ffffffff000\n")
        _, stayed = self.passes("csr", "--regions", path, passes=1)
        expect(0 < stayed[2] < 1 << 30, f"of all addresses only what is mapped stays: {stayed}")
        with open(path, "w", encoding="ascii") as file:
            file.write("go away\n")
        self.refused(["policy", "csr", "1", "--regions", path], {1}, "line 1: 'go'")
        self.refused(["policy", "csr", "1", "--regions", "/dev/zero"], {1}, "/dev/zero: it is no regular file")
        return f"{wished}, {stayed}"

    def test_signals(self):
        """SIGINT and SIGTERM end a policy as its program's end does: it says what it heard and wished. The program goes on."""
        with self.program(16 * MIB, self.scan("24M", 2)) as program:
            program.line()
            for number in (signal.SIGINT, signal.SIGTERM):
                with self.attached(program.pid, "linear") as policy:
                    program.go_on()
                    program.line()
                    policy.send_signal(number)
                    self.wished(policy)
            program.go_on()
        return "ended by both"

    def test_wsr(self):
        """wsr: what a lower limit has driven out comes back when it is raised, without a fault."""
        with self.program(64 * MIB, self.scan("48M", 2), "--prefetch", "none") as program:
            program.line()
            with self.attached(program.pid, "wsr") as policy:
                program.go_on()
                program.line()
                state = lambda: harness.json.loads(self.call("stat", str(program.pid), "--json").out)  # noqa: E731
                before = state()
                for size in ("12M", "64M"):
                    done = self.call("set", str(program.pid), f"memory={size}")
                    expect(done.status == 0, done.err)
                    if size == "12M":
                        self.until("it is within the limit", lambda: state()["resident_bytes"] <= 12 * MIB)
                came = self.until("they come back", lambda: (now := state()["prefetch"]["issued"] - before["prefetch"]["issued"]) > 6000 and now)
                program.go_on()
                program.line()
                program.go_on()
                wished = self.wished(policy)
        return f"{came} pages came, wished {wished}"

    def test_wishes_to_leave(self):
        """ghost: pages leave by its wishes."""
        _, wished = self.passes("ghost")
        expect(wished[0] + wished[2] > 100, f"ghost: {wished}")
        return f"{wished}"

    def test_sys_r(self):
        """sys-r: of a loop that is larger than memory a part stays, since what comes back late leaves first."""
        size, passes = 48 * MIB, 6
        with self.program(16 * MIB, self.scan("48M", passes), "--prefetch", "none") as program:
            program.line()
            with self.attached(program.pid, "sys-r") as policy:
                read = []
                for _ in range(passes):
                    before = self.counters(program.pid)["swap"]["pages_in"]
                    program.go_on()
                    program.line()
                    read.append(self.counters(program.pid)["swap"]["pages_in"] - before)
                program.go_on()
                wished = self.wished(policy)
        expect(wished == [0, 0, 0] and self.estimated > 1000, f"{wished}, {self.estimated}")
        # A pass reads all of it, or nearly, until it is known what comes back when.
        expect(min(read[2:]) < 0.85 * size / harness.PAGE, f"pages read in each pass: {read}")
        return f"{read} pages read of {size // harness.PAGE}"

    def test_dt(self):
        """dt: what is not used leaves, and what is used stays, by looking at a few pages."""
        with self.program(256 * MIB, [self.public_program("hotset"), "96M", "24M"]) as program:
            program.line()
            first, pages = self.memory_of(program)
            used = 24 * MIB // harness.PAGE
            with farshore_policy.attach(program.pid) as other, self.attached(program.pid, "dt", "interval_ms=500", "looks=2") as policy:
                def here():
                    states = other.page_states(first, pages)
                    there = [state in ("dirty", "clean", "busy") for state in states]
                    # The 2 MiB at the edge are of both.
                    return sum(there[:used]), sum(there[used + 512:])

                self.until("what is not used has left", lambda: here()[1] < 0.05 * (pages - used), 120)
                stayed = here()
                expect(stayed[0] > 0.95 * used, f"{stayed} of {used} pages that are used are there")
                program.process.popen.stdin.write(b"end\n")
                program.process.popen.stdin.flush()
                wished = self.wished(policy)
        expect(wished[0] > 0.5 * (pages - used), f"{wished}")
        return f"{stayed[0]} of {used} pages that are used stay, {stayed[1]} of {pages - used} others; {wished}"

    def test_storm(self):
        """Each policy beside threads, memory calls and a small limit: every byte is checked. It is killed, and another is stopped."""
        for n, name in enumerate(NAMES):
            with self.storm() as program, self.attached(program.pid, name) as policy:
                if n % 3 == 1:
                    policy.send_signal(signal.SIGKILL)
                elif n % 3 == 2:
                    policy.send_signal(signal.SIGSTOP)
        return f"{len(NAMES)} policies"

    def test_nonsense(self):
        """A parameter that is set to nonsense counts as the end of its range: the policy hears, wishes and ends as before."""
        seen = {}
        for name, least in (("linear", 1), ("csr", 0)):
            with self.program(16 * MIB, self.scan("48M", 1), "--prefetch", "none") as program:
                program.line()
                with self.attached(program.pid, name) as policy:
                    expect(self.call("set", str(program.pid), f"ahead={9 * 10**18}").status == 0, "it cannot be set")
                    program.go_on()
                    program.line()
                    program.go_on()
                    wished = self.wished(policy)
            seen[name] = (self.heard, wished)
            expect(least <= wished[1] <= self.heard * 65536, f"{name}: {seen[name]}")
        return f"{seen}"

    def test_parameters(self):
        """Parameters are shown and changed; mistakes are one line."""
        with self.program(16 * MIB, self.scan("24M", 1)) as program:
            program.line()
            with self.attached(program.pid, "linear", "ahead=3"):
                shown = lambda: [one["parameters"] for one in harness.json.loads(self.call("stat", str(program.pid), "--json").out)["policies"]]  # noqa: E731
                self.until("it is shown", lambda: "'ahead': 3" in str(shown()) or "['ahead', 3]" in str(shown()))
                expect(self.call("set", str(program.pid), "ahead=9").status == 0, "it cannot be set")
                expect("9" in str(shown()), f"{shown()}")
            self.refused(["policy", "linear", str(program.pid), "behind=3"], {125}, "behind")
            self.refused(["policy", "linear", str(program.pid), "ahead=65537"], {125}, "ahead is from 1 to 65536")
            self.refused(["policy", "best", str(program.pid)], {125}, "best")
            self.refused(["policy", "linear", str(program.pid), "--regions", "x"], {125}, "--regions")
            program.go_on()
        return "shown, changed, refused"
