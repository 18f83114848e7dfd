"""Faults at random moments under a program that checks its data all the time (mirror:), each kind `--faults` times: what was lost (nothing may be), and the longest time in which the program did nothing.

Two nodes, each in a network namespace of its own where the network is cut (root), and the program's pages on both. A fault comes while the program works, is mended after a random time, and the next one comes when both nodes
have all pages again. The lines that the tests return are a table: kind, faults, longest and median time without progress.
"""

import contextlib
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import threading
import time

import harness
import pytest
from harness import MIB, Unavailable, expect
from test_mirror import TestMirror as Mirror
from test_remote import UPDATES, Remote

# A line for each so many pages that were checked and changed.
STEP = UPDATES.replace("range(pages), 300)", "range(pages), 30)")
# Bytes of an export that may have pages of the program.
EXPORT = 200 * MIB


class Progress:
    """Reads the program's lines as they come, and when they came."""

    def __init__(self, process):
        self.process, self.lines, self.stamps = process, queue.SimpleQueue(), [time.monotonic()]
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.popen.stdout:
            self.stamps.append(time.monotonic())
            self.lines.put(line)

    def longest(self, since):
        """The longest time between two lines from then on, and until now."""
        stamps = [since, *(stamp for stamp in self.stamps if stamp >= since), time.monotonic()]
        return max(after - before for before, after in zip(stamps, stamps[1:]))

    def goes_on(self, lines, what):
        """Waits for so many lines more."""
        wanted, deadline = len(self.stamps) + lines, time.monotonic() + 240
        while len(self.stamps) < wanted:
            expect(self.process.alive() and time.monotonic() < deadline, f"{what}: the program does not go on: {self.process.stderr_so_far()[-500:]}")
            time.sleep(0.01)


class Namespace:
    """A network of its own, at the other end of a pair of interfaces."""

    def __init__(self, number):
        self.name, self.link, there = f"farshore-{os.getpid()}-{number}", f"fs{os.getpid() % 100000}x{number}", f"fp{os.getpid() % 100000}x{number}"
        net = 4 * (os.getpid() % 4000) + number
        self.here, self.there = (f"10.{77 + net // 65536}.{net // 256 % 256}.{net % 256}" for net in (4 * net + 1, 4 * net + 2))
        self.ip("netns", "add", self.name)
        self.ip("link", "add", self.link, "type", "veth", "peer", "name", there, "netns", self.name)
        self.ip("addr", "add", f"{self.here}/30", "dev", self.link)
        self.ip("link", "set", self.link, "up")
        self.ip("-n", self.name, "addr", "add", f"{self.there}/30", "dev", there)
        for link in (there, "lo"):
            self.ip("-n", self.name, "link", "set", link, "up")

    @staticmethod
    def ip(*words):
        subprocess.run([harness.need("ip", "iproute2"), *words], check=True)

    def cut(self, is_cut):
        """Takes the interface away, or gives it back."""
        self.ip("link", "set", self.link, "down" if is_cut else "up")

    def close(self):
        self.ip("netns", "del", self.name)


class TestSurvived(Remote):
    """One kind of fault a test."""

    nodes, mirror, copies = Mirror.nodes, staticmethod(Mirror.mirror), Mirror.copies

    @pytest.fixture(autouse=True)
    def seeded(self, request):
        """The same faults for the same --seed."""
        self.pick, self.times = random.Random(f"{request.config.option.seed} {request.node.name}"), request.config.option.faults
        self.cuts = [float(seconds) for seconds in request.config.option.cuts.split(",")]

    @contextlib.contextmanager
    def works(self, spec, *options):
        """The program at work; its data must be right at the end."""
        with self.running(["--memory", "20M", "--swap", spec, *options], [sys.executable, "-c", "FORKS = False\n" + STEP], stdin=subprocess.PIPE, timeout=3000) as process:
            pid = self.managed(process)
            expect(process.popen.stdout.readline() == b"filled\n", f"it ended: {process.stderr_so_far()[-300:]}")
            progress = Progress(process)
            yield progress, pid
            process.popen.stdin.close()
            progress.thread.join(240)
            outcome = process.finish()
        last = b""
        while not progress.lines.empty():
            last = progress.lines.get()
        expect((outcome.status, last) == (0, b"right\n"), f"status {outcome.status}: {last} {outcome.stderr[-500:]}")
        expect("lost" not in outcome.stderr.replace("has lost its pages", ""), outcome.stderr)

    def whole(self, progress, pid):
        """Waits until both nodes have all pages."""
        deadline = time.monotonic() + 240
        while True:
            copies = self.copies(pid)
            if all(copy["state"] == "works" and not copy["stale_pages"] for copy in copies):
                return
            expect(progress.process.alive() and time.monotonic() < deadline, f"the copies do not become whole: {copies}; {progress.process.stderr_so_far()[-500:]}")
            time.sleep(0.05)

    def survive(self, progress, pid, kind, faults, begin, end):
        """So many faults: `begin` returns how long to wait before `end`, or 0 if it has made the program wait itself, which does not count. The line of the table."""
        gaps = []
        for number in range(faults):
            progress.goes_on(self.pick.randrange(5, 60), kind)
            since = time.monotonic()
            wait = begin(number)
            if not wait:
                since = time.monotonic()
            time.sleep(wait)
            end(number)
            self.whole(progress, pid)
            progress.goes_on(2, kind)
            gaps.append(progress.longest(since))
        return f"{kind}, {faults}: longest {max(gaps):.2f} s, median {statistics.median(gaps):.2f} s without progress"

    def test_killed(self):
        """kill -9 of one of the two nodes, which comes back with nothing."""
        with self.nodes("killed") as (nodes, spec), self.works(spec) as (progress, pid):
            said = lambda: progress.process.stderr_so_far().count("has all pages again")  # noqa: E731
            hit = []

            def begin(_):
                hit[:] = [self.pick.choice(nodes), said()]
                hit[0].kill()
                return self.pick.uniform(0.01, 3)

            def end(_):
                hit[0].start()
                deadline = time.monotonic() + 240
                while said() == hit[1]:
                    expect(time.monotonic() < deadline, f"it is not filled again: {progress.process.stderr_so_far()[-500:]}")
                    time.sleep(0.05)

            return self.survive(progress, pid, "node killed", self.times, begin, end)

    def test_hangs(self):
        """A node that stands still for a moment, or for so long that it counts as gone."""
        with self.nodes("hangs") as (nodes, spec), self.works(spec) as (progress, pid):
            hit = []

            def begin(_):
                hit[:] = [self.pick.choice(nodes)]
                hit[0].process.send_signal(signal.SIGSTOP)
                return self.pick.uniform(0.1, 6)

            return self.survive(progress, pid, "node hangs", self.times, begin, lambda _: hit[0].process.send_signal(signal.SIGCONT))

    def test_cut(self):
        """The network to one of the nodes is cut, for each of --cuts seconds."""
        if os.geteuid() != 0:
            raise Unavailable("network namespaces need root")
        lines = []
        with contextlib.ExitStack() as stack:
            spaces = [stack.enter_context(contextlib.closing(Namespace(number))) for number in range(2)]
            for number, space in enumerate(spaces):
                # It listens on a socket as well, which shows that it is there.
                command = [harness.need("ip", "iproute2"), "netns", "exec", space.name, *self.node_command(), "--listen", f"{space.there}:7700", "--listen", "unix:SOCKET", "--open", "--memory", "512M"]
                stack.enter_context(self.server(f"cut-{number}", *command))
            progress, pid = stack.enter_context(self.works(self.mirror(*(f"nbd://{space.there}:7700" for space in spaces))))
            for seconds in self.cuts:
                hit = []

                def begin(_):
                    hit[:] = [self.pick.choice(spaces)]
                    hit[0].cut(True)
                    return seconds  # noqa: B023

                lines.append(self.survive(progress, pid, f"network cut for {seconds:g} s", self.times, begin, lambda _: hit[0].cut(False)))  # noqa: B023
        return "; ".join(lines)

    def test_full(self):
        """Another client takes all memory that one of the nodes has left, and gives it back: what does not fit there is on the other one alone for that long."""
        # Freed room goes back by extents, and 64 MiB are kept: a node has to have more than the data.
        room = 256 * MIB
        with self.node("full-0", "--memory", str(room), "--export-size", "1G") as one, self.node("full-1", "--memory", str(room), "--export-size", "1G") as other:
            filler, nothing = (os.path.join(self.folder("filler"), name) for name in ("bytes", "nothing"))
            with open(filler, "wb") as full, open(nothing, "wb") as empty:
                for _ in range(room // MIB):
                    full.write(self.pick.randbytes(MIB))
                empty.truncate(room)
            nbdcopy, took, hit = harness.need("nbdcopy", "libnbd-bin"), [], []
            with self.works(self.mirror(one.spec, other.spec)) as (progress, pid):

                def begin(number):
                    hit[:] = [f"nbd+unix:///filler?socket={(one, other)[number % 2].socket}"]
                    done = subprocess.run([nbdcopy, filler, hit[0]], check=False, capture_output=True)
                    # It takes what there is, until it is told that there is no more.
                    expect(done.returncode != 0 and b"No space" in done.stderr, f"the node is not full: {done}")
                    took.append(sum(copy["stale_pages"] for copy in self.copies(pid)))
                    return self.pick.uniform(0.01, 3)

                def end(_):
                    took[-1] = max(took[-1], sum(copy["stale_pages"] for copy in self.copies(pid)))
                    subprocess.run([nbdcopy, "--flush", nothing, hit[0]], check=True)

                line = self.survive(progress, pid, "full node", self.times, begin, end)
        expect(any(took), "no page was ever on one node alone: the nodes were not full")
        return line

    @pytest.mark.parametrize("how", ["altered", "swapped", "old"])
    def test_lies(self, how):
        """A node has other bytes than were written: altered ones, each other's, or those of a while ago. The other node's are right."""
        with self.nodes(f"lies-{how}") as (nodes, spec), self.works(spec) as (progress, pid):
            copy = os.path.join(self.folder("copy"), "bytes")

            def take(node):
                subprocess.run([harness.need("nbdcopy", "libnbd-bin"), "--flush", node.spec, copy], check=True)

            def begin(number):
                node = nodes[number % 2]
                if how == "old":
                    take(node)
                    progress.goes_on(60, how)
                # The program stands still: what is overwritten while it is written there again would be a second loss, which nobody could see before the other node's turn.
                os.kill(pid, signal.SIGSTOP)
                try:
                    if how != "old":
                        take(node)
                        self.change(copy, how)
                    subprocess.run([harness.need("nbdcopy", "libnbd-bin"), "--flush", copy, node.spec], check=True)
                finally:
                    os.kill(pid, signal.SIGCONT)
                return 0

            def end(_):
                # Until what is wrong was seen and mended, the other node must not be touched: all pages are read, from either node.
                progress.goes_on(3 * 12288 // 30, how)

            # Pages are read from the node that answers sooner. That may have been the other one each time, and then nobody has seen anything.
            for _ in range(8):
                line = self.survive(progress, pid, f"{how} bytes on a node", self.times, begin, end)
                if errors := self.counters(pid)["swap"]["errors"]:
                    break
        expect(errors > 0, "nobody has seen the wrong bytes")
        return line

    def change(self, path, how):
        """Changes what a node has: a bit of every page, or pages of each other."""
        with open(path, "r+b") as file:
            data = bytearray(file.read(EXPORT))
            pages = [number for number in range(len(data) // 4096) if any(data[number * 4096:number * 4096 + 64])]
            others = {"altered": pages, "swapped": pages[1:] + pages[:1]}[how]
            before = bytes(data)
            for page, other in zip(pages, others):
                data[page * 4096:(page + 1) * 4096] = before[other * 4096:(other + 1) * 4096]
                if how == "altered":
                    data[page * 4096 + self.pick.randrange(4096)] ^= 1 << self.pick.randrange(8)
            file.seek(0)
            file.write(data)

    def test_slow(self):
        """One of two servers is slow with every read: the other one serves them, so that the slowest faults stay what they are with two that are well."""
        found = {}
        for name, slow in (("both well", []), ("one slow", ["--filter=delay", "rdelay=20ms"])):
            with self.nbdkit(f"well-{len(slow)}", "memory", "512M") as well, self.nbdkit(f"other-{len(slow)}", *slow[:1], "memory", "512M", *slow[1:]) as other:
                with self.works(self.mirror(well.spec, other.spec)) as (progress, pid):
                    # Until it is known how long each takes.
                    progress.goes_on(200, name)
                    before = self.counters(pid)["spaces"][0]["copies"]
                    progress.goes_on(400 * self.times, name)
                    now = self.counters(pid)
                    latency, hedged = now["fault_latency_ns"], sum(copy["hedged_reads"] for copy in now["spaces"][0]["copies"]) - sum(copy["hedged_reads"] for copy in before)
                    found[name] = (latency["p999"], f"{name} p99 {latency['p99'] / 1000:.0f} us, p99.9 {latency['p999'] / 1000:.0f} us, {hedged} asked twice")
        # Fewer than one fault in a thousand waits for the slow one: it is asked now and then, to see whether it still is.
        expect(found["one slow"][0] < 20_000_000, f"{found}")
        return "; ".join(text for _, text in found.values()) + f"; ratio {found['one slow'][0] / found['both well'][0]:.2f}"
