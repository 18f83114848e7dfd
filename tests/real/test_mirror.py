"""Swap spaces that are kept several times (mirror:): copies that are killed, stopped, cut off, overwritten and full, under programs that check their data."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time

import harness
from harness import MIB, expect
from test_remote import FILLS, Relay, Remote


class Jerky(Relay):
    """A network in which now and then nothing moves for a moment, in the middle of an answer."""

    def carry(self, here, there):
        with contextlib.suppress(OSError):
            for count in itertools.count(1):
                if not (data := here.recv(1 << 16)):
                    break
                half = len(data) // 2
                there.sendall(data[:half])
                if count % 100 == 0:
                    time.sleep(0.03)
                there.sendall(data[half:])
        self.shut(here, there)


class TestMirror(Remote):
    @contextlib.contextmanager
    def nodes(self, name, count=2, *arguments):
        """So many memory nodes, and the mirror of an export on each."""
        with contextlib.ExitStack() as stack:
            nodes = [stack.enter_context(self.node(f"{name}-{n}", "--memory", "512M", *arguments)) for n in range(count)]
            yield nodes, self.mirror(*(node.spec for node in nodes))

    @staticmethod
    def mirror(*copies):
        return f"mirror:({','.join(copies)})"

    def copies(self, pid):
        return self.counters(pid)["spaces"][0]["copies"]

    def wait_for(self, process, pid, what, is_so):
        """Lets the program work until its copies are so."""
        deadline = time.monotonic() + 240
        while not is_so(copies := self.copies(pid)):
            expect(time.monotonic() < deadline, f"it never comes: {what}; {copies}")
            self.rounds(process, 1)

    def told(self, process, pid, words, times):
        """Lets the program work until the user is told something so many times."""
        self.wait_for(process, pid, f"{words!r}, {times} times", lambda _: process.stderr_so_far().count(words) >= times)

    def whole(self, process, pid):
        self.wait_for(process, pid, "all copies have all pages", lambda copies: all(copy["state"] == "works" and not copy["stale_pages"] for copy in copies))

    def test_nodes_are_killed_in_turn(self, mode):
        """Each of two nodes is killed, and comes back with nothing. When it has all again, the other one is."""
        with self.nodes("killed") as (nodes, spec), self.updates(spec, ("--fault", mode), forks=True) as (process, pid):
            for times, node in enumerate(nodes * 3, 1):
                self.rounds(process, 10)
                node.kill()
                self.told(process, pid, "does not answer", times)
                self.rounds(process, 10)
                node.start()
                self.told(process, pid, "has lost its pages", times)
                self.told(process, pid, "has all pages again", times)
                self.whole(process, pid)

    def test_three_copies(self):
        """Two of three nodes are killed at a time, for good."""
        with self.nodes("three", 3) as (nodes, spec), self.updates(spec, forks=True) as (process, pid):
            self.rounds(process, 10)
            nodes[1].kill()
            self.rounds(process, 10)
            nodes[0].kill()
            self.rounds(process, 30)
            expect([copy["state"] for copy in self.copies(pid)] == ["down", "down", "works"], str(self.copies(pid)))

    def test_a_node_that_hangs(self):
        """A node that is stopped: the program goes on beside it, and it has what it missed soon after."""
        with self.nodes("hangs") as (nodes, spec), self.updates(spec, forks=True) as (process, pid):
            for node in nodes * 2:
                self.rounds(process, 5)
                node.process.send_signal(signal.SIGSTOP)
                self.wait_for(process, pid, "it is down", lambda copies: any(copy["state"] == "down" for copy in copies))
                self.rounds(process, 30)
                node.process.send_signal(signal.SIGCONT)
                self.whole(process, pid)

    def test_a_network_that_is_cut(self):
        """Connections to one of the nodes are cut again and again."""
        with self.nodes("cut") as (nodes, _):
            relay = Relay(os.path.join(self.folder("relay"), "socket"), nodes[0].socket)
            spec = self.mirror(f"nbd+unix:///?socket={relay.path}", nodes[1].spec)
            with contextlib.closing(relay), self.updates(spec, forks=True) as (process, pid):
                for _ in range(5):
                    self.rounds(process, 10)
                    relay.cut()
                self.whole(process, pid)

    def test_a_node_that_is_late(self):
        """The network to each of two nodes stands still for a moment again and again: late reads are answered by the other one."""
        with self.nodes("late") as (nodes, _), contextlib.ExitStack() as stack:
            relays = [stack.enter_context(contextlib.closing(Jerky(os.path.join(self.folder(f"jerky-{n}"), "socket"), node.socket))) for n, node in enumerate(nodes)]
            spec = self.mirror(*(f"nbd+unix:///?socket={relay.path}" for relay in relays))
            with self.updates(spec, forks=True) as (process, pid):
                self.wait_for(process, pid, "late reads are answered by the other node", lambda copies: sum(copy["hedged_reads_won"] for copy in copies) >= 20)
                self.rounds(process, 10)
                copies = self.copies(pid)
        expect(all(copy["hedged_reads"] >= copy["hedged_reads_won"] for copy in copies), str(copies))
        return f"{sum(copy['hedged_reads_won'] for copy in copies)} late reads answered by the other of two nodes"

    def test_a_node_that_lies(self):
        """Other bytes on one of the nodes: the other one has the right ones, and they are written there again."""
        with self.nodes("lies") as (nodes, spec), self.updates(spec, forks=True) as (process, pid):
            for times, node in enumerate(nodes * 2, 1):
                self.rounds(process, 5)
                # The program stands still: what is overwritten while it is written there again would be a second loss, that nobody could see before the other node's turn.
                os.kill(pid, signal.SIGSTOP)
                subprocess.run(["qemu-io", "-f", "raw", "-c", "write -P 0x37 0 200M", node.spec], check=True, stdout=subprocess.DEVNULL)
                os.kill(pid, signal.SIGCONT)
                # Within a second or so that shows, whatever the program reads. Until then the other node must not be touched.
                self.told(process, pid, "has lost its pages", times)
                self.whole(process, pid)
            errors = self.counters(pid)["swap"]["errors"]
        expect(errors > 0, "nobody has seen the wrong bytes")

    def test_a_disk_beside_a_node(self):
        """A node, and a file of this machine as the second copy: the node goes for good."""
        with self.nodes("disk", 1) as (nodes, _):
            with self.updates(self.mirror(nodes[0].spec, f"dir:{self.place()}"), forks=True) as (process, pid):
                self.rounds(process, 20)
                nodes[0].kill()
                self.rounds(process, 40)
                expect(self.counters(pid)["spaces"][0]["encrypted"], "pages are not encrypted")

    def place(self):
        return os.environ.get("FARSHORE_SWAP_DIR", "/var/tmp")

    def test_a_copy_without_room(self):
        """One of the copies is full: the other one has all."""
        with self.node("small", "--memory", "16M", "--export-size", "1G") as small, self.node("large", "--memory", "512M") as large:
            with self.updates(self.mirror(small.spec, large.spec)) as (process, pid):
                self.rounds(process, 30)
                expect([copy["stale_pages"] > 0 for copy in self.copies(pid)] == [True, False], str(self.copies(pid)))

    def test_a_pool_before_it(self):
        """Compressed RAM, and behind it the copies."""
        with self.nodes("pool") as (nodes, spec), self.updates("ram:lz4,size=4M", ("--swap", spec), forks=True) as (process, pid):
            self.rounds(process, 10)
            nodes[0].kill()
            self.rounds(process, 20)
            nodes[0].start()
            self.whole(process, pid)

    def test_programs_of_a_family(self):
        """Programs that a program starts have parts of the same exports, and outlive a node."""
        with self.nodes("family") as (nodes, spec):
            work = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {FILLS!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True); " \
                   "print(p.stdout.readline(), end='', flush=True); sys.stdin.readline(); p.stdin.close(); print(p.stdout.read(), end=''); sys.exit(p.wait())"
            with self.running(["--memory", "16M", "--swap", spec], [sys.executable, "-c", work], stdin=subprocess.PIPE) as process:
                expect(process.popen.stdout.readline() == b"filled\n", f"it ended: {process.stderr_so_far()[-300:]}")
                nodes[1].kill()
                process.popen.stdin.close()
                outcome, out = self.ended(process)
        expect((outcome.status, out) == (0, "right\n"), f"status {outcome.status}: {out[-200:]} {outcome.stderr[-400:]}")

    def test_the_last_copy(self):
        """Both nodes go for good: SIGBUS for a page that is needed and was there; the page, the nodes and the reason are told."""
        with self.nodes("last") as (nodes, spec):
            with self.running(["--memory", "16M", "--io-timeout", "100ms", "--swap", spec], [sys.executable, "-c", FILLS], stdin=subprocess.PIPE) as process:
                self.managed(process)
                expect(process.popen.stdout.readline() == b"filled\n", f"it ended: {process.stderr_so_far()[-300:]}")
                for node in nodes:
                    node.kill()
                process.popen.stdin.close()
                outcome, _ = self.ended(process)
        expect(outcome.status in (128 + signal.SIGBUS, -signal.SIGBUS) and "mirror:(" in outcome.stderr, f"status {outcome.status}: {outcome.stderr[-500:]}")
        told = next((line for line in outcome.stderr.splitlines() if "cannot be had" in line), "")
        expect("page 0x" in told and all(node.socket in outcome.stderr for node in nodes) and "does not answer" in outcome.stderr, outcome.stderr)

    def test_both_are_away_for_a_while(self):
        """This machine's network is cut: no node answers for some seconds. The program waits, and loses nothing."""
        with self.nodes("away") as (nodes, spec), self.updates(spec) as (process, pid):
            self.rounds(process, 10)
            for node in nodes:
                node.process.send_signal(signal.SIGSTOP)
            time.sleep(8)
            for node in nodes:
                node.process.send_signal(signal.SIGCONT)
            self.rounds(process, 10)
            self.whole(process, pid)

    def test_refused(self):
        """What cannot be used is refused before the program starts."""
        run = ["run", "--memory", "16M", "--swap"]
        for spec, word in (("mirror:", "write mirror:(A,B)"), ("mirror:(dir:/var/tmp)", "two or three"), ("mirror:(ram,ram:lz4)", "cannot be one of the copies"),
                           ("mirror:(dir:/var/tmp,dir:/var/tmp)", "twice"), ("mirror:(dir:/var/tmp,nbd://127.0.0.1:1)", "no server can be reached"),
                           ("mirror:(dir:/var/tmp,dir:/no/such)", "does not exist"), ("mirror:(dir:/var/tmp,tape:/x)", "tape:/x")):
            self.refused([*run, spec, "--", "true"], {125, 2}, word)
        port = harness.free_port()
        with self.node("same", "--listen", f"127.0.0.1:{port}", "--listen", f"127.0.0.2:{port}", "--memory", "64M"):
            self.refused([*run, f"mirror:(nbd://127.0.0.1:{port},nbd://localhost:{port})", "--", "true"], {125}, "twice")
            self.refused([*run, f"mirror:(nbd://127.0.0.1:{port},nbd://127.0.0.2:{port})", "--", "true"], {125}, "one of several copies")
        self.refused([*run, "mirror:(ram,delay:1us)", "--swap", "dir:/var/tmp", "--", "true"], {125}, "cannot be used together")

    def test_memory_and_limit(self):
        """The limit holds, and nothing is written in a fault."""
        with self.nodes("limit") as (nodes, spec), self.updates(spec) as (process, pid):
            self.rounds(process, 60)
            now = self.counters(pid)
        expect(now["resident_bytes_peak"] <= 20 * MIB and now["evictions"]["synchronous"] == 0, str(now))
