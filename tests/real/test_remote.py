"""Memory of other machines as swap space (nbd://): other people's servers and our own, killed, stopped and lying, under programs that check their data."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import harness
import pytest
from command import Command
from harness import MIB, expect

# Servers that keep an export in memory.
BOTH = pytest.mark.parametrize("server", ["nbdkit", "node"])

# Works on 48 MiB until its stdin ends, then checks all; from time to time a child checks a part of what its parent had, and changes it.
UPDATES = """
import mmap, os, random, select
pages = 12288
memory = mmap.mmap(-1, pages * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
noise, versions = [os.urandom(4000) for _ in range(64)], [0] * pages
def page(i): return (b'%d %d ' % (i, versions[i])).ljust(96, b'.') + noise[(i + versions[i]) % 64]
def right(i): return memory[i * 4096:(i + 1) * 4096] == page(i)
def write(i): memory[i * 4096:(i + 1) * 4096] = page(i)
for i in range(pages): write(i)
print('filled', flush=True)
rounds = 0
while not select.select([0], [], [], 0)[0]:
    for i in random.sample(range(pages), 300):
        assert right(i), i
        versions[i] += 1
        write(i)
    rounds += 1
    if FORKS and rounds % 20 == 0:
        child = os.fork()
        if child == 0:
            some = random.sample(range(pages), 2000)
            good = all(map(right, some))
            for i in some:
                versions[i] += 1
                write(i)
            os._exit(0 if good and all(map(right, some)) else 1)
        assert os.waitpid(child, 0)[1] == 0, 'child'
    print('round', flush=True)
print('right' if all(map(right, range(pages))) else 'wrong', flush=True)
"""

# Fills 48 MiB, says so, waits for its stdin to end, checks all.
FILLS = """
import sys
m = [bytearray(b'%07d' % n * 512) for n in range(14000)]
print('filled', flush=True)
sys.stdin.readline()
assert all(bytes(p) == b'%07d' % n * 512 for n, p in enumerate(m)), 'wrong'
print('right')
"""

class Relay:
    """A network between programs and a server, which can be cut for a moment."""

    def __init__(self, path, server):
        self.path, self.server, self.ends = path, server, []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                one, _ = self.listener.accept()
                other = socket.socket(socket.AF_UNIX)
                other.connect(self.server)
                self.ends += [one, other]
                for here, there in ((one, other), (other, one)):
                    threading.Thread(target=self.carry, args=(here, there), daemon=True).start()

    def carry(self, here, there):
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                there.sendall(data)
        self.shut(here, there)

    @staticmethod
    def shut(*ends):
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        """Cuts all connections."""
        ends, self.ends = self.ends, []
        self.shut(*ends)

    def cut_until_quiet(self):
        """Cuts all, until nobody comes again at once: until whoever had something under way has done it."""
        while self.ends:
            self.cut()
            time.sleep(0.5)

    def close(self):
        self.shut(self.listener, *self.ends)
        self.listener.close()


class Server:
    """A server of one export on a socket of this machine, in a process of its own."""

    def __init__(self, socket, command):
        self.socket, self.command = socket, command
        self.start()

    def start(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not os.path.exists(self.socket):
            expect(self.process.poll() is None and time.monotonic() < deadline, f"{self.command[0]} does not start")
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()

    @property
    def spec(self):
        return f"nbd+unix:///?socket={self.socket}"


# As FILLS; then a child goes on alone, does nothing for as long as is said, and checks all.
OUTLIVES = """
import os, sys, time
m = [bytearray(b'%07d' % n * 512) for n in range(14000)]
if os.fork(): os._exit(0)
time.sleep(SLEEP)
print('right' if all(some == b'%07d' % n * 512 for n, some in enumerate(m)) else 'wrong', flush=True)
"""


class Remote(Command):
    """Servers, and programs at work."""

    @contextlib.contextmanager
    def server(self, name, *command):
        """A server: of what its command says, which names its socket as SOCKET."""
        socket = os.path.join(self.folder(name), "socket")
        server = Server(socket, [word.replace("SOCKET", socket) for word in command])
        try:
            yield server
        finally:
            server.kill()

    def nbdkit(self, name, *arguments):
        return self.server(name, "nbdkit", "-f", "-U", "SOCKET", *arguments)

    def node_command(self):
        """The words of farshore node, with its program beside the copy of the command."""
        there = os.path.join(self.bin, "farshore-node")
        if not os.path.exists(there):
            built = os.path.join(os.path.dirname(harness.find_farshore(self.options.farshore)), "farshore-node")
            expect(os.path.exists(built), f"farshore-node is not built: there is no {built}")
            shutil.copy(built, there)
        return [self.farshore, "node"]

    def node(self, name, *arguments):
        return self.server(name, *self.node_command(), "--listen", "unix:SOCKET", *arguments)

    def memory_server(self, server, name, size):
        """One of the servers that keep an export of this size in memory."""
        return self.nbdkit(name, "memory", size) if server == "nbdkit" else self.node(name, "--memory", size)

    def image(self, name, size):
        path = os.path.join(self.folder(name), "image")
        with open(path, "wb") as file:
            file.truncate(size)
        return path

    @contextlib.contextmanager
    def updates(self, spec, options=(), forks=False):
        """UPDATES at work, until the end of the block. It must have found its data right then."""
        program = [sys.executable, "-c", f"FORKS = {forks}\n" + UPDATES]
        arguments = ["--memory", "20M", "--swap", spec, *options]
        with self.running(arguments, program, stdin=subprocess.PIPE, timeout=300) as process:
            pid = self.managed(process)
            expect(process.popen.stdout.readline() == b"filled\n", f"it ended: {process.stderr_so_far()[-300:]}")
            yield process, pid
            process.popen.stdin.close()
            outcome, out = self.ended(process)
        expect((outcome.status, out.splitlines()[-1:]) == (0, ["right"]), f"status {outcome.status}: {out[-200:]} {outcome.stderr[-400:]}")

    @contextlib.contextmanager
    def filled(self, spec, *options):
        """FILLS at work."""
        with self.running(["--memory", "16M", "--swap", spec, *options], [sys.executable, "-c", FILLS], stdin=subprocess.PIPE) as process:
            pid = self.managed(process)
            expect(process.popen.stdout.readline() == b"filled\n", f"it ended: {process.stderr_so_far()[-300:]}")
            yield process, pid

    def right(self, process):
        """It ends, and finds its data right."""
        process.popen.stdin.close()
        outcome, out = self.ended(process)
        expect((outcome.status, out) == (0, "right\n"), f"status {outcome.status}: {out[-200:]} {outcome.stderr[-400:]}")

    def outlives(self, spec, mode, seconds):
        """A child whose parent has ended sleeps for so long, has evicted nothing itself, and finds all that its parent had."""
        program = OUTLIVES.replace("SLEEP", str(seconds))
        done = self.call("run", "--memory", "16M", "--fault", mode, "--swap", spec, "--", sys.executable, "-c", program, timeout=seconds + 120)
        expect((done.status, done.out) == (0, "right\n"), f"status {done.status}: {done.out[-200:]} {done.err[-500:]}")

    def rounds(self, process, count):
        for _ in range(count):
            expect(process.popen.stdout.readline() == b"round\n", f"it ended: {process.stderr_so_far()[-300:]}")


class TestRemote(Remote):
    def test_servers(self, mode):
        """Other people's servers and our own, by socket and by TCP."""
        port, node_port = str(harness.free_port()), str(harness.free_port())
        servers = {
            "nbdkit": self.nbdkit("nbdkit", "memory", "1G"),
            "qemu-nbd": self.server("qemu", "qemu-nbd", "-t", "-e", "0", "-k", "SOCKET", "-f", "raw", self.image("qemu-image", 1 << 30)),
            "tcp": self.server("tcp", "nbdkit", "-f", "-i", "127.0.0.1", "-p", port, "--run",
                               "touch SOCKET; sleep 600", "memory", "1G"),
            "node": self.node("node", "--memory", "256M"),
            "huge": self.node("huge", "--memory", "256M", "--pages", "2M", "--poll", "50us"),
            "node-tcp": self.node("node-tcp", "--listen", f"127.0.0.1:{node_port}", "--memory", "256M"),
        }
        seen = []
        for name, server in servers.items():
            with server as running:
                spec = {"tcp": f"nbd://localhost:{port}", "node-tcp": f"nbd://localhost:{node_port}/some/name"}.get(name, running.spec)
                with self.updates(spec, ("--fault", mode), forks=True) as (process, pid):
                    self.rounds(process, 60)
                    now = self.counters(pid)
                expect(now["resident_bytes_peak"] <= 20 * MIB and now["evictions"]["synchronous"] == 0, f"{name}: {now}")
                expect(now["spaces"][0]["encrypted"], f"{name}: pages are not encrypted")
                seen.append(f"{name} {now['swap']['pages_in']} pages in")
        return ", ".join(seen)

    def test_measured(self):
        """The doctor says what a page costs that a server has, how far away that is, and what is wrong with one that is not there."""
        self.beside("farshore-view")
        port, nobody = harness.free_port(), harness.free_port()
        with self.node("measured", "--listen", f"127.0.0.1:{port}", "--open", "--memory", "256M") as node:
            done = self.call("doctor", "--measure", "--json", "--swap", f"nbd://127.0.0.1:{port}", "--swap", node.spec, "--swap", "ram:lz4", "--swap", f"nbd://127.0.0.1:{nobody}")
        found = {one["name"].removeprefix("swap "): one for one in json.loads(done.out)["findings"] if one["name"].startswith("swap ")}
        expect(done.status == 1, f"status {done.status}: one of them is not there")
        wanted = {"a page": "with eight", "in order": "/s read", "expect": "% of its time"}
        for name, more in ((f"nbd://127.0.0.1:{port}", {"round trip": "to connect"}), (node.spec, {}), ("ram:lz4", {})):
            said = {what: found.get(f"{name}: {what}", {}).get("detail", "") for what in (*wanted, *more)}
            expect(all(words in said[what] for what, words in {**wanted, **more}.items()), f"{name}: {said}; {found}")
        gone = found[f"nbd://127.0.0.1:{nobody}: measured"]
        expect(not gone["ok"] and "no server can be reached" in gone["detail"], f"{gone}")
        return found[f"nbd://127.0.0.1:{port}: a page"]["detail"]

    @BOTH
    def test_family(self, server):
        """Programs that a program starts share the export; another family is refused, until the first is gone."""
        text = os.path.join(self.folder("family"), "text")
        with open(text, "w") as file:
            file.writelines(f"{hashlib.sha256(b'%d' % n).hexdigest()}\n" for n in range(120000))
        pipe = f"sort {text} | tac | sort -r --parallel=2 | sha256sum; sort -u {text} | wc -l"
        want = subprocess.run(["sh", "-c", pipe], capture_output=True, check=True).stdout
        with self.memory_server(server, "family-server", "1G") as server:
            outcome = self.call("run", "--memory", "16M", "--swap", server.spec, "--", "sh", "-c", pipe, timeout=200)
            expect((outcome.status, outcome.out.encode()) == (0, want), f"{outcome.status}: {outcome.out} {outcome.err[-300:]}")
            with self.updates(server.spec) as (process, _):
                self.rounds(process, 3)
                self.refused(["run", "--memory", "16M", "--swap", server.spec, "--", "true"], {125}, "another program under Farshore")
            outcome = self.call("run", "--memory", "16M", "--swap", server.spec, "--", "true")
            expect(outcome.status == 0, outcome.err)

    def test_killed_and_stopped(self):
        """A server that is killed and comes back with its contents, and one that is stopped: the program waits, and loses nothing."""
        with self.nbdkit("killed", "file", self.image("killed-image", 1 << 30)) as server:
            with self.updates(server.spec, forks=True) as (process, _):
                for _ in range(8):
                    self.rounds(process, 15)
                    server.kill()
                    time.sleep(0.3)
                    server.start()
                self.rounds(process, 15)
                for _ in range(3):
                    server.process.send_signal(signal.SIGSTOP)
                    time.sleep(1)
                    server.process.send_signal(signal.SIGCONT)
                    self.rounds(process, 15)

    def test_errors(self):
        """A server that fails now and then: pages stay in memory or are read again."""
        # Three reads that fail one after the other lose a page. At 0.5 % that is one page in eight million, and a run reads tens of thousands: it would fail now and then.
        with self.nbdkit("errors", "--filter=error", "memory", "1G", "error=EIO", "error-pread-rate=0.1%", "error-pwrite-rate=5%") as server:
            with self.updates(server.spec) as (process, pid):
                self.rounds(process, 80)
                errors = self.counters(pid)["swap"]["errors"]
        expect(errors > 0, "the server has made no error")
        return f"{errors} errors"

    @BOTH
    def test_a_lying_server(self, server):
        """Bytes that somebody else writes on the export are never the program's: it gets SIGBUS for that page, with the reason."""
        with self.memory_server(server, "lying", "256M") as server:
            program = [sys.executable, "-c", "import sys\nm = [bytearray(b'%07d' % n * 512) for n in range(12000)]\n"
                       "print('filled', flush=True)\nsys.stdin.readline()\n"
                       "assert all(bytes(p) == b'%07d' % n * 512 for n, p in enumerate(m)), 'wrong'\n"]
            with self.running(["--memory", "16M", "--swap", server.spec], program, stdin=subprocess.PIPE) as process:
                self.managed(process)
                expect(process.popen.stdout.readline() == b"filled\n", f"it ended: {process.stderr_so_far()[-300:]}")
                subprocess.run(["qemu-io", "-f", "raw", "-c", "write -P 0x37 0 200M", f"nbd+unix:///?socket={server.socket}"], check=True,
                               stdout=subprocess.DEVNULL)
                process.popen.stdin.close()
                outcome, _ = self.ended(process)
        expect(outcome.status == 128 + signal.SIGBUS or outcome.status == -signal.SIGBUS, f"status {outcome.status}: {outcome.stderr[-500:]}")
        expect("nbd+unix" in outcome.stderr and "wrong" not in outcome.stderr.split("assert")[0], outcome.stderr[-500:])

    def test_noise(self):
        """What a server has of a program's pages is noise."""
        path = self.image("noise-image", 256 << 20)
        with self.nbdkit("noise", "file", path) as server:
            program = [sys.executable, "-c", "m = [bytearray(b'FARSHOREsecret.. ' * 241) for n in range(12000)]\n"
                       "assert all(p.count(b'secret') == 241 for p in m)"]
            outcome = self.call("run", "--memory", "16M", "--swap", server.spec, "--", *program)
            expect(outcome.status == 0, outcome.err)
            with open(path, "rb") as file:
                held = file.read()
        expect(len(held) - held.count(0) > 16 * MIB and b"FARSHOREsecret" not in held, "plain text on the server")

    @BOTH
    def test_lost(self, server):
        """A server that does not come back: after twelve times --io-timeout a page that is there is lost, and the reason is told."""
        with self.memory_server(server, "lost", "256M") as server:
            program = [sys.executable, "-c", "import sys\nm = [bytearray(4096) for n in range(12000)]\n"
                       "print('filled', flush=True)\nsys.stdin.readline()\nprint(sum(map(sum, m)))"]
            with self.running(["--memory", "16M", "--io-timeout", "100ms", "--swap", server.spec], program, stdin=subprocess.PIPE) as process:
                self.managed(process)
                expect(process.popen.stdout.readline() == b"filled\n", f"it ended: {process.stderr_so_far()[-300:]}")
                server.kill()
                process.popen.stdin.close()
                outcome, _ = self.ended(process)
        expect(outcome.status in (128 + signal.SIGBUS, -signal.SIGBUS), f"status {outcome.status}: {outcome.stderr[-500:]}")
        expect("nbd+unix" in outcome.stderr, outcome.stderr[-500:])

    def test_refused(self):
        """What cannot be used is refused before the program starts."""
        folder = self.folder("refused")
        run = ["run", "--memory", "16M", "--swap"]
        for spec, word in ((f"nbd+unix:///?socket={folder}/none", "no server can be reached"), ("nbd://127.0.0.1:1", "no server can be reached"),
                           ("nbd://no.such.host.invalid", "is not known"), ("nbd:x", "// is missing"), ("nbds://x", "not built yet")):
            self.refused([*run, spec, "--", "true"], {125, 2}, word)
        with self.nbdkit("readonly", "-r", "memory", "64M") as server:
            self.refused([*run, server.spec, "--", "true"], {125}, "read-only")
        with self.nbdkit("single", "--filter=multi-conn", "memory", "64M", "multi-conn-mode=disable") as server:
            self.refused([*run, server.spec, "--", "true"], {125}, "CAN_MULTI_CONN")
        with self.nbdkit("small", "memory", "1M") as server:
            self.refused([*run, server.spec, "--", "true"], {125}, "too small")
        with self.nbdkit("signature", "memory", "64M") as server:
            subprocess.run(["qemu-io", "-f", "raw", "-c", "write -P 0x58465342 0 512", server.spec], check=False, stdout=subprocess.DEVNULL)
            subprocess.run(["sh", "-c", f"printf XFSB | nbdcopy - '{server.spec}'"], check=True)
            self.refused([*run, server.spec, "--", "true"], {125}, "XFS")
            outcome = self.call("run", "--memory", "16M", "--swap", f"{server.spec},force", "--", "true")
            expect(outcome.status == 0, outcome.err)


class TestNode(Remote):
    """What only farshore node promises."""

    def taken(self, server, log):
        """Bytes that the exports of a node have taken, as it says when it is asked."""
        with open(log, encoding="utf-8") as file:
            file.seek(0, os.SEEK_END)
            server.process.send_signal(signal.SIGUSR1)
            deadline, text = time.monotonic() + 60, ""
            while not (found := re.search(r"farshore: ([0-9.]+) (bytes|[KMG]iB) of .* taken; .*\n", text)):
                expect(time.monotonic() < deadline, f"the node does not tell its state: {text}")
                time.sleep(0.02)
                text += file.read()
        return float(found[1]) * {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[found[2]]

    @contextlib.contextmanager
    def told(self, name, *arguments):
        """A node whose lines go to a file: the node and the file."""
        log = os.path.join(self.folder(name), "log")
        words = [*self.node_command(), "--listen", "unix:SOCKET", *arguments]
        with self.server(name, "sh", "-c", f'exec "$@" 2>{log}', "sh", *words) as server:
            yield server, log

    @staticmethod
    def resident(pid):
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) << 10

    def test_memory_is_back(self):
        """A program that is killed: its node's memory is the system's again after --keep; another program's stays."""
        with self.told("back", "--memory", "512M", "--keep", "1") as (server, log):
            with self.filled(f"nbd+unix:///one?socket={server.socket}") as (process, _):
                with self.filled(f"nbd+unix:///two?socket={server.socket}") as (_, pid):
                    both = self.taken(server, log)
                    os.kill(pid, signal.SIGKILL)
                deadline = time.monotonic() + 60
                while self.taken(server, log) > both * 0.6:
                    expect(time.monotonic() < deadline, "the memory is not given back")
                    time.sleep(0.1)
                one = self.taken(server, log)
                expect(one > 24 * MIB and both > 1.7 * one, f"{both} bytes of two, {one} of one")
                expect(self.resident(server.process.pid) < one + 24 * MIB, "the kernel does not have it back")
                self.right(process)
        return f"{both / MIB:.0f} MiB of two, {one / MIB:.0f} MiB of one"

    def test_kept(self):
        """A connection that is lost: within --keep the pages are there."""
        with self.node("kept", "--memory", "512M", "--keep", "600") as server:
            with self.filled(f"nbd+unix:///a?socket={server.socket}") as (process, _):
                for _ in range(3):
                    server.process.send_signal(signal.SIGSTOP)
                    time.sleep(0.3)
                    server.process.send_signal(signal.SIGCONT)
                self.right(process)

    def test_a_child_outlives_its_parent(self):
        """A node forgets an export some time after its last connection: not while there is a child that has pages there."""
        with self.node("outlives", "--memory", "512M", "--keep", "1") as server:
            outcome = self.call("run", "--memory", "16M", "--swap", server.spec, "--", self.public_program("orphan"), "96M", "4")
        expect((outcome.status, outcome.out) == (0, "right\n"), f"status {outcome.status}: {outcome.out} {outcome.err[-400:]}")

    def test_idle(self):
        """Connections that are lost while a program needs none: the node does not forget what it has there."""
        with self.node("idle", "--memory", "512M", "--keep", "6") as server:
            relay = Relay(os.path.join(self.folder("relay"), "socket"), server.socket)
            with contextlib.closing(relay), self.filled(f"nbd+unix:///?socket={relay.path}", "--io-timeout", "1s") as (process, _):
                relay.cut_until_quiet()
                time.sleep(14)
                self.right(process)

    def test_full(self):
        """A node that is full is as any full swap space: what does not fit is told, and no page is lost or wrong."""
        with self.told("full", "--memory", "24M", "--export-size", "1G") as (server, log):
            end = self.overfull(server.spec, "a full node", 16 * MIB, 96 * MIB)
            with open(log, encoding="utf-8") as file:
                expect("the node is full" in file.read(), "the node does not say that it is full")
            expect(self.taken(server, log) <= 24 * MIB, "more than --memory")
        with self.nbdkit("small", "memory", "24M") as server:
            other = self.overfull(server.spec, "a full server", 16 * MIB, 96 * MIB)
        return f"a node: {end}; nbdkit: {other}"

    def test_two_programs(self):
        """Two programs work on one node, each on an export of its own."""
        with self.node("two", "--memory", "512M") as server:
            with self.updates(f"nbd+unix:///a?socket={server.socket}", forks=True) as (one, _):
                with self.updates(f"nbd+unix:///b?socket={server.socket}") as (other, _):
                    for _ in range(4):
                        self.rounds(one, 15)
                        self.rounds(other, 15)

    def test_tokens(self):
        """With tokens an export is for those who know one."""
        tokens = os.path.join(self.folder("tokens"), "tokens")
        with open(tokens, "w", opener=lambda path, flags: os.open(path, flags, 0o600), encoding="utf-8") as file:
            file.write("# ours\n0123456789abcdef0123456789abcdef\n")
        with self.node("token", "--memory", "256M", "--token-file", tokens) as server:
            for name in ("", "a", "0123456789abcdef0123456789abcdee/a"):
                self.refused(["run", "--memory", "16M", "--swap", f"nbd+unix:///{name}?socket={server.socket}", "--", "true"], {125}, "its rules forbid it")
            with self.filled(f"nbd+unix:///0123456789abcdef0123456789abcdef/a?socket={server.socket}") as (process, _):
                self.right(process)

    def test_other_clients(self):
        """Other people's clients find what the specification promises."""
        with self.node("clients", "--memory", "64M") as server:
            folder = self.folder("copies")
            image, back = os.path.join(folder, "image"), os.path.join(folder, "back")
            with open(image, "wb") as file:
                file.write(os.urandom(5 << 20) + bytes(3 << 20) + os.urandom(4 << 20))
                file.truncate(64 << 20)
            def run(*words):
                done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
                expect(done.returncode == 0, f"{' '.join(words)}: {done.stdout[-300:]} {done.stderr[-500:]}")
                return done.stdout
            uri = f"nbd+unix:///copy?socket={server.socket}"
            run("nbdcopy", image, uri)
            run("nbdcopy", uri, back)
            told = run("nbdinfo", uri)
            for line in ("export-size: 67108864", "can_multi_conn: true", "can_trim: true", "can_zero: true", "can_df: true", "can_fua: true",
                         "can_fast_zero: true", "is_read_only: false", "block_size_maximum: 33554432"):
                expect(line in told, f"nbdinfo does not say {line}: {told}")
            expect("copy" in run("nbdinfo", "--list", f"nbd+unix://?socket={server.socket}"), "the list does not have it")
            run("qemu-img", "compare", "-f", "raw", "-F", "raw", image, uri)
            with open(image, "rb") as one, open(back, "rb") as other:
                expect(one.read() == other.read(), "other bytes come back")
            commands = ["write -P 7 1M 3M", "read -P 7 1M 3M", "write -z 2M 64k", "read -P 0 2M 64k", "write -z -u 3M 4k", "read -P 0 3M 4k", "discard 1M 1M",
                        "write -f -P 9 4095 2", "read -P 9 4095 2", "flush"]
            told = run("qemu-io", "-f", "raw", *[word for command in commands for word in ("-c", command)], uri)
            expect("verification failed" not in told, told)
