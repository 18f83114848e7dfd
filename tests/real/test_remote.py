"""Memory of other machines as swap space (nbd://): other people's servers, killed, stopped and lying, under programs that check their data."""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time

import harness
from command import Command
from harness import MIB, expect

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


class Server:
    """A server of one export on a socket of this machine, in a process of its own."""

    def __init__(self, socket, command):
        self.socket, self.command = socket, command
        self.start()

    def start(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not os.path.exists(self.socket):
            expect(self.process.poll() is None and time.monotonic() < deadline, f"{self.command[0]} does not start")
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()

    @property
    def spec(self):
        return f"nbd+unix:///?socket={self.socket}"


class TestRemote(Command):
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

    def rounds(self, process, count):
        for _ in range(count):
            expect(process.popen.stdout.readline() == b"round\n", f"it ended: {process.stderr_so_far()[-300:]}")

    def test_servers(self, mode):
        """Other people's servers, by socket and by TCP."""
        port = str(harness.free_port())
        servers = {
            "nbdkit": self.nbdkit("nbdkit", "memory", "1G"),
            "qemu-nbd": self.server("qemu", "qemu-nbd", "-t", "-e", "0", "-k", "SOCKET", "-f", "raw", self.image("qemu-image", 1 << 30)),
            "tcp": self.server("tcp", "nbdkit", "-f", "-i", "127.0.0.1", "-p", port, "--run",
                               "touch SOCKET; sleep 600", "memory", "1G"),
        }
        seen = []
        for name, server in servers.items():
            with server as running:
                spec = f"nbd://localhost:{port}" if name == "tcp" else running.spec
                with self.updates(spec, ("--fault", mode), forks=True) as (process, pid):
                    self.rounds(process, 60)
                    now = self.counters(pid)
                expect(now["resident_bytes_peak"] <= 20 * MIB and now["evictions"]["synchronous"] == 0, f"{name}: {now}")
                expect(now["spaces"][0]["encrypted"], f"{name}: pages are not encrypted")
                seen.append(f"{name} {now['swap']['pages_in']} pages in")
        return ", ".join(seen)

    def test_family(self):
        """Programs that a program starts share the export; another family is refused, until the first is gone."""
        text = os.path.join(self.folder("family"), "text")
        with open(text, "w") as file:
            file.writelines(f"{hashlib.sha256(b'%d' % n).hexdigest()}\n" for n in range(120000))
        pipe = f"sort {text} | tac | sort -r --parallel=2 | sha256sum; sort -u {text} | wc -l"
        want = subprocess.run(["sh", "-c", pipe], capture_output=True, check=True).stdout
        with self.nbdkit("family-server", "memory", "1G") as server:
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
        with self.nbdkit("errors", "--filter=error", "memory", "1G", "error=EIO", "error-pread-rate=0.5%", "error-pwrite-rate=5%") as server:
            with self.updates(server.spec) as (process, pid):
                self.rounds(process, 80)
                errors = self.counters(pid)["swap"]["errors"]
        expect(errors > 0, "the server has made no error")
        return f"{errors} errors"

    def test_a_lying_server(self):
        """Bytes that somebody else writes on the export are never the program's: it gets SIGBUS for that page, with the reason."""
        with self.nbdkit("lying", "memory", "256M") as server:
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

    def test_lost(self):
        """A server that does not come back: after twelve times --io-timeout a page that is there is lost, and the reason is told."""
        with self.nbdkit("lost", "memory", "256M") as server:
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
